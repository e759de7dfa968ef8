"""One cluster at a time, of a module or kept for as long as the next case can use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from leveret.testing.mirror_scenarios.stage import Case, Stage, render, transcripts
from leveret.testing.servers import rabbitmq
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import ClusterSite
from leveret.testing.sites.mirror_cluster import MirrorCluster
from leveret.testing.sites.rabbitmq_cluster import RabbitCluster

RABBITMQ = "rabbitmq"
LEVERET = "leveret"
RECORD = "LEVERET_RECORD_TRANSCRIPTS"
HERE = Path(__file__).parent
TRANSCRIPTS = HERE / "transcripts.txt"
TIMEOUT = pytest.mark.timeout(180)


class House:
    """Where cases are played: the cluster that was used last stays until one of another kind is wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built = 0
        self._stack = ExitStack()
        self._wanted: tuple[object, ...] = ()
        self._cluster: MirrorCluster | None = None

    def stage(self, kind: str, case: Case, folder: Path) -> Stage:
        """A cluster that is as new, in which a case may be played."""
        wanted = (kind, case.nodes, case.config)
        if self._cluster is None or wanted != self._wanted:
            self.close()
            self._cluster = self._build(kind, case)
            self._wanted = wanted
        return Stage(self._cluster, folder)

    def leave(self, case: Case, stage: Stage, *, failed: bool) -> None:
        """Make the cluster as new; one that cannot be is left for good."""
        if case.alone or failed:
            self.close()
        else:
            stage.clear()

    def close(self) -> None:
        """End the cluster there is."""
        self._cluster = None
        self._stack.close()

    def _build(self, kind: str, case: Case) -> MirrorCluster:
        config = dict(case.config)
        if kind == RABBITMQ:
            return self._stack.enter_context(RabbitCluster(case.nodes, config=config))
        self._built += 1
        folder = self._folder / str(self._built)
        folder.mkdir()
        return self._stack.enter_context(ClusterSite(folder, case.nodes, config))


# First, because pytest-xdist reads the groups in this same hook, and so does tests/conftest.py.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have clusters run one at a time, unless a test says otherwise, and only where there is an etcd."""
    reason = cluster_site.available()
    for item in items:
        if item.path.parent != HERE:
            continue
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("cluster"))
        if not any(item.get_closest_marker(name) for name in ("timeout", "torture")):
            item.add_marker(TIMEOUT)
        if reason and item.get_closest_marker("rabbitmq") is None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSite]:
    """Three nodes of the tests of a module: with its `CONFIG`, and its `POLICY` for queues `ha...`, if it has these."""
    config = getattr(request.module, "CONFIG", None)
    with ClusterSite(tmp_path_factory.mktemp("site"), config=config) as site:
        if policy := getattr(request.module, "POLICY", None):
            site.set_policy("ha", "^ha", policy)
        yield site


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    one = House(tmp_path_factory.mktemp("clusters"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def recorded() -> Iterator[dict[str, list[str]]]:
    """What RabbitMQ's cluster showed, by case; written anew at the end if RECORD is set."""
    found = transcripts(TRANSCRIPTS.read_text()) if TRANSCRIPTS.exists() else {}
    yield found
    if os.environ.get(RECORD):
        TRANSCRIPTS.write_text(render(found))


def unavailable(kind: str) -> str | None:
    """Why a cluster of this kind cannot be run here; None if it can."""
    return rabbitmq.available() if kind == RABBITMQ else cluster_site.available()
