"""Coming back as a downstream: what is checked before anything changes, and a crash on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import load
from leveret.core.broker import Broker
from leveret.model.definitions import GlobalParameter, Put, Queue, Vhost
from leveret.model.errors import NotFound, PreconditionFailed
from leveret.runtime import rejoin
from leveret.runtime.rejoin import Rejoin
from leveret.runtime.standby_transfer import Upstream
from leveret.storage.state_file import StateFile

UPSTREAM = Upstream(endpoints=["b:5552"], username="u", password="s3kRe7")


class FakeNode:
    """A node with one replicated vhost, and whatever else a test says."""

    def __init__(self, folder: Path) -> None:
        self.config = load(None, {})
        self.data_dir = folder
        self.told: list[Any] = []
        self.mode = "upstream"
        self.upstream: tuple[Upstream | None, str] = (UPSTREAM, "")
        self.broker = Broker(lambda *asked: [])
        self.broker.apply(Put(Vhost(name="v", tags=("standby_replication",))))
        for name in ("a", "b"):
            self.broker.apply(Put(Queue(name=name, vhost="v")))
        self.collector = SimpleNamespace(logs={"v": SimpleNamespace(log_id=7)})
        self.maintenance = SimpleNamespace(drain=lambda: self.told.append("drain"), revive=self.revive)
        self.schema_sync = SimpleNamespace(set_mode=self.set_schema_mode, diff=self.diff)
        self.standby: Any = self

    async def revive(self) -> None:
        self.told.append("revive")

    async def commit(self) -> None:
        self.told.append("commit")

    async def set_schema_mode(self, mode: str) -> None:
        self.told.append(("schema", mode))

    async def diff(self) -> list[dict[str, Any]]:
        raise NotFound("vhost 'rabbitmq_schema_definition_sync' does not exist")

    async def set_mode(self, mode: str) -> None:
        self.mode = mode
        self.told.append(("standby", mode))

    async def keep_former_archive(self) -> None:
        self.told.append("archive")

    def link_job(self, upstream: Upstream) -> dict[str, Any]:
        return {"endpoints": upstream.endpoints, "credentials": {}, "tls": None}

    def know_schema_upstream(self) -> None:
        self.broker.apply(Put(GlobalParameter(name="schema_definition_sync_upstream", value={})))

    @property
    def queues(self) -> list[str]:
        return sorted(name for _, name in self.broker.queues)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def way_back(node: FakeNode) -> Rejoin:
    return Rejoin(cast(Any, node), StateFile(node.data_dir / "rejoin.json"))


def refused(node: FakeNode) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        asyncio.run(way_back(node).rejoin())
    assert node.told == [], "and nothing was touched"
    assert node.queues == ["a", "b"]
    return str(caught.value)


def test_a_downstream_has_nowhere_to_come_back_to(node: FakeNode) -> None:
    node.mode = "downstream"
    assert "a downstream already" in refused(node)


def test_both_upstreams_must_be_named_before(node: FakeNode) -> None:
    assert "set_schema_replication_upstream_endpoints" in refused(node)
    node.know_schema_upstream()
    node.upstream = (None, "set_standby_replication_upstream_endpoints")
    assert "set_standby_replication_upstream_endpoints" in refused(node)


@pytest.mark.parametrize("positions", [{"v": None}, {}])
def test_a_node_that_did_not_take_this_ones_place_is_not_followed(
    node: FakeNode, positions: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.know_schema_upstream()
    asked: list[Any] = []

    async def ask(task: str, job: dict[str, Any]) -> dict[str, Any]:
        asked.append((task, job["logs"], job["endpoints"]))
        return {"positions": positions}

    monkeypatch.setattr(rejoin, "ask", ask)
    assert "never took the place of this one in vhost 'v'" in refused(node)
    assert asked == [("positions", {"v": 7}, ["b:5552"])]


def test_a_promoted_node_that_serves_no_definitions_yet_is_told(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.know_schema_upstream()

    async def ask(task: str, job: dict[str, Any]) -> dict[str, Any]:
        return {"positions": {"v": 5}}

    monkeypatch.setattr(rejoin, "ask", ask)
    assert "add_schema_replication_user" in refused(node)


def test_what_a_crash_interrupted_is_finished_at_the_next_start(node: FakeNode) -> None:
    StateFile(node.data_dir / "rejoin.json").save({"queues": [["v", "a"], ["v", "gone meanwhile"]]})
    asyncio.run(way_back(node).resume())
    assert node.queues == ["b"]
    assert node.told == ["archive", "commit", ("standby", "downstream"), ("schema", "downstream")]
    asyncio.run(way_back(node).resume())
    assert len(node.told) == 4, "once"


def test_a_start_without_a_crash_changes_nothing(node: FakeNode) -> None:
    asyncio.run(way_back(node).resume())
    assert (node.told, node.queues) == ([], ["a", "b"])
