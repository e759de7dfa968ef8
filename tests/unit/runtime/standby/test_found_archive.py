"""A node's look at a shared archive: it writes only once it has found the archive of its cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.standby_site import SiteDecisions
from leveret.core.schema.operating_mode import OperatingMode
from leveret.runtime.standby import found_archive
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.decisions import Change, StandbyDecided
from leveret.runtime.standby.found_archive import FoundArchive
from leveret.runtime.standby.pipeline_process import PipelineFailed
from leveret.runtime.standby.site import StandbySite
from leveret.storage.state_file import StateFile

PLACE = "s3://b/x"


class Cluster:
    """The decisions of a cluster, and the id at its place."""

    def __init__(self) -> None:
        self.decided = SiteDecisions(archive=PLACE)
        self.there = "a1"
        self.looks = 0

    async def decide(self, change: Change) -> None:
        self.decided = change(self.decided)

    async def identify(self, cluster_id: str, expected: str) -> str:
        self.looks += 1
        if expected and expected != self.there:
            raise PipelineFailed("another archive")
        return self.there


def node(cluster: Cluster, name: str, folder: Path, *, is_shared: bool = True) -> FoundArchive:
    site = SimpleNamespace(name=name, cluster_id="c", is_shared=bool(cluster.decided.archive))
    decided = StandbyDecided(StateFile(folder / f"{name}.json"), OperatingMode.DOWNSTREAM)
    decided.share(cluster)
    archive = SimpleNamespace(is_shared=is_shared, identify=cluster.identify)
    return FoundArchive(cast(StandbySite, site), decided, cast(StandbyArchive, cast(Any, archive)))


async def test_the_first_node_gives_the_archive_and_the_others_find_it(tmp_path: Path) -> None:
    cluster = Cluster()
    first, second = node(cluster, "n1", tmp_path), node(cluster, "n2", tmp_path)
    assert [each.is_found for each in (first, second)] == [False, False]
    await first.find()
    await second.find()
    assert [each.is_found for each in (first, second)] == [True, True]
    assert cluster.decided.archive_id == "a1"
    await first.find()
    assert cluster.looks == 2, "a node looks once"


async def test_a_node_at_another_place_writes_nothing_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    await node(cluster, "n1", tmp_path).find()
    lost = node(cluster, "n2", tmp_path)
    cluster.there = "a2"
    for _ in range(2):
        with pytest.raises(PipelineFailed, match="another archive"):
            await lost.find()
    assert (lost.is_found, lost.error, cluster.decided.misplaced) == (False, "another archive", ["n2"])
    assert cluster.looks == 2, "a look costs a process: the next one waits"
    cluster.there = "a1"
    monkeypatch.setattr(found_archive, "AGAIN_S", 0.0)
    await lost.find()
    assert (lost.is_found, lost.error, cluster.decided.misplaced) == (True, "", [])


async def test_an_archive_of_the_nodes_own_needs_no_look(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.decided = SiteDecisions()
    found = node(cluster, "n1", tmp_path, is_shared=False)
    assert found.is_found
    await found.find()
    assert cluster.looks == 0


@pytest.mark.parametrize("place", ["", PLACE])
def test_a_node_whose_settings_differ_from_the_clusters_writes_nothing(tmp_path: Path, place: str) -> None:
    cluster = Cluster()
    cluster.decided = SiteDecisions(archive=place)
    assert not node(cluster, "n1", tmp_path, is_shared=not place).is_found
