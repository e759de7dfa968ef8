"""The downstream as its node has it: follow, lose the upstream, promote, be an upstream."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import Config, load
from leveret.config.kinds import Address
from leveret.core.broker.broker import Broker
from leveret.core.replication.standby_site import EVERYTHING, RecoveryRequest
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.definitions import Definitions, GlobalParameter, Put, Queue, Vhost
from leveret.model.errors import InvalidCommand, NotAllowed, PreconditionFailed
from leveret.pipeline.archive.contents import contents
from leveret.pipeline.archive.identities import AnotherLog, UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.files.files import Place, matching
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.runtime.standby.lag import HEARD_MS
from leveret.runtime.standby.pipeline_process import PipelineFailed
from leveret.storage.state_file import StateFile
from leveret.storage.tree import Tree
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.pipeline.conftest import OF_THEIR_OWN

TIMEOUT_S = 200.0
pytestmark = pytest.mark.timeout(900)


class FakeSchemaSync:
    """Schema replication, as far as a promotion ends it."""

    mode = OperatingMode.DOWNSTREAM

    async def set_mode(self, mode: str) -> None:
        self.mode = OperatingMode(mode)


@dataclass
class FakeNode:
    """A node as far as its standby knows it; recovered messages go to `target`."""

    data_dir: Path
    target: StandbyUpstream
    config: Config = field(
        default_factory=lambda: load(None, {"standby.replication.operating_mode": "downstream"})
    )
    definitions: Definitions = field(default_factory=Definitions)
    streams: Any = field(default_factory=lambda: SimpleNamespace(addresses=[], tls_addresses=[]))
    amqp: Any = field(default_factory=lambda: SimpleNamespace(addresses=[], tls_addresses=[]))

    schema_sync: Any = field(default_factory=lambda: FakeSchemaSync())

    def __post_init__(self) -> None:
        self.tree = Tree(self.data_dir)

    @property
    def broker(self) -> Broker:
        return cast(Broker, SimpleNamespace(definitions=self.definitions, queues={}))

    async def commit(self) -> None:
        """Nothing is kept."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    @contextmanager
    def internal_user(self, purpose: str) -> Iterator[tuple[str, str]]:
        self.target.host.passwords["internal"] = "one-time"
        self.target.host.administrators.add("internal")
        yield "internal", "one-time"
        del self.target.host.passwords["internal"]

    def follow(self, *ports: int, **changes: Any) -> None:
        value = {
            "endpoints": [f"127.0.0.1:{port}" for port in ports],
            "username": "standby",
            "password": "secret",
        } | changes
        self.definitions.apply(Put(GlobalParameter(name="standby_replication_upstream", value=value)))

    def tag(self, vhost: str) -> None:
        self.definitions.apply(Put(Vhost(name=vhost, tags=("standby_replication",))))


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, StandbyUpstream())


async def until(holds: Callable[[], Any], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.05)


def upstream_with(messages: int) -> StandbyUpstream:
    upstream = StandbyUpstream()
    for first in range(0, messages, 100):
        bodies = [stored_message(b"%d" % (first + i), b"ex", b"k") for i in range(100)]
        upstream.publish("/", f"q{first // 100 % 3}", bodies)
    upstream.settle("/", "q0", [(10, 30), (50, 7)])
    return upstream


def row(standby: StandbyDownstream) -> dict[str, Any]:
    found: dict[str, Any] = standby.status()["vhosts"][0]
    return found


@pytest.mark.story
@pytest.mark.spark
@OF_THEIR_OWN
async def test_follow_lose_the_upstream_promote_and_carry_on(node: FakeNode) -> None:
    upstream = upstream_with(3000)
    node.tag("/")

    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    await standby.start()
    assert "set_standby_replication_upstream_endpoints" in row(standby)["error"]
    with upstream.serving() as port:
        node.follow(1, port)
        await until(lambda: row(standby)["transferred"] == 3001, "the backlog")
        status = row(standby)
        assert (status["state"], status["lag_records"], status["lag_ms"]) == ("connected", 0, 0)
        assert status["endpoint"] == f"127.0.0.1:{port}"
        assert standby.status()["state"] == "connected"
        assert await standby.archive.list_vhosts_available() == ["/"]
        metrics = {each["queue"]: each for each in await standby.archive.metrics()}
        assert metrics["q0"]["messages"] == 1000
        assert metrics["q0"]["settled"] == 37
        assert (await standby.archive.disk_usage())[0]["bytes"] > 0
    await until(lambda: row(standby)["state"] == "connecting", "the loss to be seen")
    await until(lambda: row(standby)["lag_ms"], "lag in time while nothing is heard of the upstream")
    status = row(standby)
    assert status["lag_records"] == 0, "as it was heard last"
    assert status["lag_ms"] >= HEARD_MS
    with node.target.serving() as own_port:
        node.streams.addresses = [Address("127.0.0.1", own_port)]
        node.target.host.vhosts = set()
        with pytest.raises(PipelineFailed, match="vhost access failure"):
            await standby.promote()
        assert node.schema_sync.mode == "upstream", "or it would delete what was recovered"
        logs = {path.name for path in (node.data_dir / "standby" / "spark").glob("*.log")}
        assert logs == {"transfer.log"}, "it took over the Spark that was running"
        assert standby.status()["state"] == "promotion interrupted"
        with pytest.raises(PreconditionFailed, match="has begun"):
            await standby.connect()
        node.target.host.vhosts = {"/"}
        standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
        await standby.start()
        assert standby.status()["state"] == "promotion interrupted", "a restart does not follow again"
        events: list[dict[str, Any]] = []
        (summary,) = await standby.promote(on_progress=events.append)
        assert {event["event"] for event in events} == {"started", "planned", "published"}
        assert summary["message_count"] == 2963
        assert (summary["virtual_host"], summary["first_timestamp"]) == ("/", "2023-11-14 22:13:20")
        for queue in ("q0", "q1", "q2"):
            assert node.target.recovered("/", queue) == upstream.unsettled("/", queue)
        (again,) = await standby.promote()
        assert again["message_count"] == 0
    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    assert standby.mode == "upstream", "kept over a restart"
    assert [each["message_count"] for each in standby.promotion_summary()] == [2963]
    with pytest.raises(PreconditionFailed, match="not a downstream"):
        await standby.connect()
    assert b"one-time" not in b"".join(p.read_bytes() for p in node.data_dir.rglob("*") if p.is_file())


@pytest.mark.story
@pytest.mark.spark
@OF_THEIR_OWN
async def test_disconnect_connect_and_the_death_of_the_transfer_process(node: FakeNode) -> None:
    upstream = upstream_with(100)
    node.tag("/")

    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    await standby.start()
    with upstream.serving() as port:
        node.follow(port)
        await until(lambda: row(standby)["state"] == "connected", "the link")
        process = standby.transfer._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: standby.transfer._process not in (None, process), "the next process")
        assert row(standby)["state"] == "connecting"
        assert "ended with status -9" in row(standby)["error"], "told until the next one works"
        await until(lambda: row(standby)["transferred"] == 101, "the next one")
        assert row(standby)["error"] == ""
        with pytest.raises(NotAllowed, match="under way"):
            await asyncio.gather(standby.disconnect(), standby.disconnect())
        assert row(standby)["state"] == "disconnected"
        standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
        await standby.start()
        assert standby.status()["state"] == "disconnected", "kept over a restart"
        await standby.connect()
        upstream.publish("/", "q0", [stored_message(b"more")])
        await until(lambda: row(standby)["transferred"] == 102, "what came meanwhile")
        await standby.delete_all_data()
        await until(lambda: row(standby)["transferred"] == 102, "all of it again")
    await standby.stop()


async def test_orphaned_data_is_what_is_not_this_nodes_to_recover(tmp_path: Path, data_dir: Place) -> None:
    settings = {
        "standby.replication.operating_mode": "downstream",
        "standby.replication.downstream.data_dir": str(data_dir),
    }
    node = FakeNode(tmp_path, StandbyUpstream(), load(None, settings))
    upstream = StandbyUpstream(["kept", "untagged"])
    manifest = Manifest(data_dir)
    for vhost, log in upstream.logs.items():
        upstream.publish(vhost, "q", [stored_message(b"x")] * 5)
        file = store_range(data_dir, vhost, log.read(0, 1 << 20))
        assert file is not None
        manifest.append([file])
    node.tag("kept")

    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    assert await standby.archive.list_vhosts_available() == ["kept", "untagged"]
    for vhost in upstream.logs:
        stored = {"vhost": vhost, "log": vhost, "next": 5, "newest_ms": 1, "oldest_ms": 1, "at_ms": 1}
        standby.transfer._take({"event": "stored", **stored})
    sizes = {row["vhost"]: row["bytes"] for row in await standby.archive.disk_usage()}
    assert [row["messages"] for row in await standby.archive.metrics()] == [5, 5]
    [deleted] = await standby.delete_orphaned_data()
    assert (deleted["vhost"], deleted["bytes"]) == ("untagged", sizes["untagged"])
    assert await standby.archive.list_vhosts_available() == ["kept"]
    assert await standby.delete_orphaned_data() == []
    transferred = standby.transfer.rows(["kept", "untagged"])
    assert [each["transferred"] for each in transferred] == [5, 0]
    await standby.keep_former_archive()
    assert row(standby)["transferred"] == 0
    assert await standby.archive.list_vhosts_available() == []
    [former] = matching(data_dir, "former/*")
    assert [row["vhost"] for row in contents(former)["vhosts"]] == ["kept"]
    again = store_range(data_dir, "kept", upstream.logs["kept"].read(0, 1 << 20))
    assert again is not None
    Manifest(data_dir).append([again])
    UpstreamIdentities(data_dir).check("kept", 5, has_data=True)
    assert not (await standby.own_archive.missing())["kept"]["is_replaced"]
    with suppress(AnotherLog):
        UpstreamIdentities(data_dir).check("kept", 6, has_data=True)
    assert (await standby.own_archive.missing())["kept"]["is_replaced"]
    assert [row["vhost"] for row in await standby.delete_orphaned_data()] == ["kept"]
    await standby.delete_all_data()
    assert matching(data_dir, "data/*/*") == []
    assert await standby.archive.disk_usage() == []


def test_only_a_downstream_can_be_promoted_or_connected(node: FakeNode) -> None:
    node.config = load(None, {"standby.replication.operating_mode": "upstream"})

    async def scenario() -> None:
        standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
        await standby.start()
        for refused in (standby.promote, standby.connect, standby.disconnect):
            with pytest.raises(PreconditionFailed, match=r"not a downstream \(operating mode: upstream\)"):
                await refused()
        assert standby.promotion_summary() == []
        status = standby.status()
        assert (status["vhosts"], status["state"]) == ([], "running")
        with pytest.raises(PreconditionFailed, match="nothing was transferred to this node"):
            await standby.recoveries.rehearse(EVERYTHING, lambda event: None)

    node.streams.addresses, node.amqp.addresses = [Address("127.0.0.1", 1)], [Address("127.0.0.1", 2)]
    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (RecoveryRequest(exclude=["shop", "shoop"]), "no vhost 'shoop' to leave out"),
        (RecoveryRequest(queues=["ordres"]), "no queue 'ordres' to recover"),
    ],
)
async def test_a_name_that_is_nowhere_is_a_slip_and_not_a_wish(
    node: FakeNode, wanted: RecoveryRequest, text: str
) -> None:
    node.tag("shop")
    node.streams.addresses = [Address("127.0.0.1", 1)]

    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    with pytest.raises(InvalidCommand, match=text):
        await standby.promote(wanted)
    with pytest.raises(InvalidCommand, match=text):
        await standby.recoveries.dry_run(wanted, None, lambda event: None)
    assert (standby.mode, standby.status()["state"]) == ("downstream", "disconnected"), "nothing has begun"


@pytest.mark.parametrize("wanted", [{}, {"queues": ["young"]}, {"exclude": ["/"]}])
async def test_a_moment_before_all_that_is_known_is_refused_with_the_earliest_one(
    node: FakeNode, wanted: dict[str, Any]
) -> None:
    """Nothing has begun then: promoted with nothing, the standby would follow no more."""
    upstream, data_dir = StandbyUpstream(["/", "other"]), node.data_dir / "standby"
    upstream.publish("/", "old", [stored_message(b"x")])
    for vhost in upstream.logs:
        upstream.publish(vhost, "young", [stored_message(b"x")])
        transfer(upstream, data_dir)
    oldest = min(
        row["oldest_ms"]
        for row in contents(data_dir)["queues"]
        if row["queue"] in wanted.get("queues", [row["queue"]])
        and row["vhost"] not in wanted.get("exclude", [])
    )
    node.streams.addresses = [Address("127.0.0.1", 1)]

    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    asked = RecoveryRequest(**wanted, as_of_ms=oldest - 1)
    earliest = re.escape(datetime.fromtimestamp(oldest / 1000, UTC).isoformat(timespec="milliseconds"))
    for refused in (standby.promote(asked), standby.recoveries.dry_run(asked, None, lambda event: None)):
        with pytest.raises(PreconditionFailed, match=f"history of these queues begins at {earliest}"):
            await refused
    assert (standby.mode, standby.decided.promoting, node.schema_sync.mode) == (
        "downstream",
        None,
        "downstream",
    )
    await standby.recoveries.check_wanted(RecoveryRequest(**wanted, as_of_ms=oldest))


@pytest.mark.parametrize("wanted", [{}, {"queues": ["empty"]}, {"exclude": ["/"]}])
async def test_a_moment_of_queues_of_which_nothing_is_here_is_refused(
    node: FakeNode, wanted: dict[str, Any]
) -> None:
    node.definitions.apply(Put(Vhost(name="/")))
    node.definitions.apply(Put(Queue(name="empty", vhost="/")))
    if wanted:
        upstream = StandbyUpstream()
        upstream.publish("/", "full", [stored_message(b"x")])
        transfer(upstream, node.data_dir / "standby")
    node.streams.addresses = [Address("127.0.0.1", 1)]

    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    with pytest.raises(PreconditionFailed, match="no record of these queues was transferred"):
        await standby.promote(RecoveryRequest(**wanted, as_of_ms=5))
    assert (standby.mode, standby.decided.promoting) == ("downstream", None)


async def test_a_promotion_that_has_begun_is_given_up_with_its_plans_or_not_at_all(node: FakeNode) -> None:
    state, data_dir = StateFile(node.data_dir / "standby.json"), node.data_dir / "standby"
    upstream = StandbyUpstream()

    for give_up in (StandbyDownstream.delete_all_data, StandbyDownstream.keep_former_archive):
        state.save({"promoting": {"begun_ms": 1}})
        standby = StandbyDownstream(node, state)
        upstream.publish("/", "q", [stored_message(b"x")])
        plan = freeze_plan(transfer(upstream, data_dir), "/")
        assert plan is not None
        for refused in (standby.connect(), standby.set_mode("downstream")):
            with pytest.raises(PreconditionFailed, match="delete_all_data_on_standby_replication_cluster"):
                await refused
        assert standby.status()["state"] == "promotion interrupted"
        await give_up(standby)
        assert not plan.is_frozen, "the next promotion would carry it out first"
        await standby.set_mode("downstream")
        assert standby.status()["promotion"] is None
        await standby.disconnect()


async def test_a_place_that_cannot_be_written_is_named_with_its_setting(node: FakeNode) -> None:
    (node.data_dir / "file").touch()
    place = node.data_dir / "file" / "standby"
    node.config = load(None, {"standby.replication.downstream.data_dir": str(place)})

    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    with pytest.raises(PipelineFailed, match=r"Not a directory; see standby.replication.downstream.data_dir"):
        await standby.delete_all_data()


async def test_a_promotion_needs_a_stream_listener_on_loopback(node: FakeNode) -> None:
    standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
    with pytest.raises(PreconditionFailed, match="no stream listener on loopback"):
        await standby.promote()
    assert standby.status()["state"] == "disconnected", "nothing has begun"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"username": 7}, r"\$\.username"),
        ({"endpoints": []}, "`endpoints` is empty"),
        ({"endpoints": ["http://host:1"]}, "'http://host:1' is not host:port"),
        ({"username": ""}, "`username` is empty"),
        ({"endpoints": ["host"]}, "'host' is not host:port"),
        ({"endpoints": ["host:0"]}, "'host:0' is not host:port"),
        ({"extra": 1}, "extra"),
    ],
)
async def test_malformed_endpoints_are_told_in_the_status(
    node: FakeNode, changes: dict[str, Any], text: str
) -> None:
    node.tag("/")
    node.follow(5552, **changes)

    error = StandbyDownstream(node, StateFile(node.data_dir / "standby.json")).status()["error"]
    assert re.search(text, error)
    assert "secret" not in error


def test_modes_set_at_run_time_win_over_the_configuration(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        standby = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
        with pytest.raises(InvalidCommand, match="none of upstream, downstream, none"):
            await standby.set_mode("leader")
        assert standby.status()["operating_mode_source"] == "configuration"
        await standby.set_mode("none")
        assert StandbyDownstream(node, StateFile(node.data_dir / "standby.json")).mode == "none"
        await standby.set_mode("upstream")
        again = StandbyDownstream(node, StateFile(node.data_dir / "standby.json"))
        await again.start()
        status = again.status()
        assert (status["operating_mode"], status["operating_mode_source"]) == ("upstream", "run time")

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())
    assert "standby_mode_decided mode=upstream" in caplog.text
    assert "standby_mode_set_at_run_time mode=upstream configured=downstream" in caplog.text
