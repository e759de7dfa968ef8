"""Coming back as a downstream: what is checked before anything changes, what is kept, and failures on the way."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import load
from leveret.core.broker.broker import Broker
from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.schema.operating_mode import OperatingMode
from leveret.management.views.message_view import Properties, header_of
from leveret.model import definitions as d
from leveret.model.definitions import GlobalParameter, Put, Queue, Vhost
from leveret.model.errors import NotFound, PreconditionFailed, StorageError
from leveret.runtime.clients.amqp_listener import AmqpListener
from leveret.runtime.integrity.divergent import divergent_messages
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.schema_sync.schema_sync import SchemaSync
from leveret.runtime.standby import rejoin, returning_node
from leveret.runtime.standby.pipeline_process import PipelineFailed
from leveret.runtime.standby.rejoin import Rejoin
from leveret.runtime.standby.transfer import StandbyUpstreamParameter, TransferSupervisor
from leveret.storage.state_file import StateFile
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import Site, replicating, served

pytestmark = pytest.mark.process

UPSTREAM = StandbyUpstreamParameter(endpoints=["b:5552"], username="u", password="s3kRe7")


class FakeNode:
    """A node with one replicated vhost, and whatever else a test says."""

    def __init__(self, folder: Path) -> None:
        self.config = load(None, {})
        self.data_dir = folder
        self.answer: list[Any] = []
        self.mode = OperatingMode.UPSTREAM
        self.upstream: tuple[StandbyUpstreamParameter | None, str] = (UPSTREAM, "")
        self.broker = Broker(lambda *asked: [])
        self.broker.apply(Put(Vhost(name="v", tags=("standby_replication",))))
        self.broker.apply(
            Put(d.Policy(vhost="v", name="p", pattern="", definition={"remote-dc-replicate": True}))
        )
        for name in ("a", "b"):
            self.broker.apply(Put(Queue(name=name, vhost="v")))
            self.broker.queues["v", name].restore(0, 1, OffsetSet())
        self.collector = SimpleNamespace(logs={"v": SimpleNamespace(log_id=7)})
        self.maintenance = SimpleNamespace(drain=lambda: self.answer.append("drain"), revive=self.revive)
        self.schema_sync = SimpleNamespace(set_mode=self.set_schema_mode, diff=self.diff)
        self.standby: Any = self

    async def revive(self) -> None:
        self.answer.append("revive")

    async def commit(self) -> None:
        self.answer.append("commit")

    async def set_schema_mode(self, mode: str) -> None:
        self.answer.append(("schema", mode))

    async def diff(self) -> list[dict[str, Any]]:
        raise NotFound("vhost 'rabbitmq_schema_definition_sync' does not exist")

    async def set_mode(self, mode: str) -> None:
        self.mode = OperatingMode(mode)
        self.answer.append(("standby", mode))

    async def keep_former_archive(self) -> None:
        self.answer.append("archive")

    def link_job(self, upstream: StandbyUpstreamParameter) -> dict[str, Any]:
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
    assert node.answer == [], "and nothing was touched"
    assert node.queues == ["a", "b"]
    return str(caught.value)


def test_a_downstream_has_nowhere_to_come_back_to(node: FakeNode) -> None:
    node.mode = OperatingMode.DOWNSTREAM
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
        return {"positions": positions, "marks": {}}

    monkeypatch.setattr(rejoin, "ask", ask)
    why = refused(node)
    assert "never took the place of this one in vhost 'v'" in why
    assert "--set-all-aside" in why, "the way back to who took the place of who took ours"
    assert asked == [("positions", {"v": 7}, ["b:5552"])]


def test_a_promoted_node_that_serves_no_definitions_yet_is_told(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.know_schema_upstream()

    async def ask(task: str, job: dict[str, Any]) -> dict[str, Any]:
        return {"positions": {"v": 5}, "marks": {"v": None}}

    monkeypatch.setattr(rejoin, "ask", ask)
    assert "add_schema_replication_user" in refused(node)


# -- a real node: what it keeps, what it empties, and when ---------------------------------------------------

BACK = [
    d.Put(d.GlobalParameter(name="schema_definition_sync_upstream", value={})),
    d.Put(
        d.GlobalParameter(
            name="standby_replication_upstream",
            value={"endpoints": ["b:5552"], "username": "u", "password": "s3kRe7"},
        )
    ),
]


class Promoted:
    """The node that took the place of a site, as far as it is asked: the links to it are not made."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """Has nothing, and can tell, until a test says otherwise."""
        self.position: int | None = None
        self.mark: int | None = None
        self.was_standby = True
        self._site = site
        monkeypatch.setattr(rejoin, "ask", self._ask)
        monkeypatch.setattr(rejoin, "RETRY_S", 0.05)

    def unlink(self) -> None:
        """No processes and sockets for the links; again after each start."""
        node = self._site.node
        object.__setattr__(node.standby.transfer, "start", _nothing)
        object.__setattr__(node.schema_sync, "start", _nothing)
        object.__setattr__(node.schema_sync, "diff", _no_difference)

    async def _ask(self, task: str, job: dict[str, Any]) -> dict[str, Any]:
        """All that is served of it, unless a test says otherwise."""
        if not self.was_standby:
            return {"positions": {"v": None}, "marks": {"v": None}}
        log = self._site.node.collector.logs["v"]
        position = log.committed_offset if self.position is None else self.position
        return {"positions": {"v": position}, "marks": {"v": self.mark}}


async def _nothing() -> None:
    """Follow nobody."""


async def _no_difference() -> list[dict[str, Any]]:
    return []


def gone(*key: str) -> dict[str, Any]:
    """As `diff` says that the sync is to delete something."""
    return {"action": "delete", "kind": "queues" if len(key) > 1 else "vhosts", "key": list(key)}


async def old_upstream(directory: Path, *names: str) -> Site:
    """A site with these replicated queues, that knows who took its place."""
    site = await replicating(directory, *names)
    await site.apply(*BACK)
    return site


async def with_messages(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Site, Promoted, dict[str, list[bytes]]]:
    """Such a site with five messages in each of two queues, all served, and who took its place."""
    site = await old_upstream(directory, "q1", "q2")
    promoted = Promoted(site, monkeypatch)
    bodies = {name: await site.publish(5, name) for name in ("q1", "q2")}
    await served(site)
    return site, promoted, bodies


def kept(site: Site) -> dict[str, list[bytes]]:
    """What is set aside: bodies by queue."""
    found: dict[str, list[bytes]] = {}
    for row in divergent_messages(site.directory, None):
        found.setdefault(row["queue"], []).append(row["payload"].encode())
    return found


def held(site: Site) -> dict[str, int]:
    """The number of messages in each queue."""
    return {queue.key[1]: queue.message_count for queue in site.node.broker.vhost_queues("v")}


async def test_of_what_the_promoted_node_has_nothing_is_set_aside(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q1", "q2")
    promoted = Promoted(site, monkeypatch)
    await site.publish(3, "q1")
    await site.publish(3, "q2")
    await served(site)
    promoted.position = site.node.collector.logs["v"].committed_offset
    untransferred = await site.publish(2, "q2")
    await served(site)
    promoted.unlink()
    answer = await site.node.rejoin.rejoin()
    assert kept(site) == {"q2": untransferred}
    assert (answer["messages"], answer["reports"]) == (2, [answer["report"]])
    assert (held(site), site.node.standby.mode) == ({"q1": 0, "q2": 0}, "downstream")
    assert not site.node.maintenance.is_draining


async def test_a_node_that_was_in_maintenance_before_stays_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operator keeps clients from it; it admitted them after the return (2026-11-29)."""
    site, promoted, _ = await with_messages(directory, monkeypatch)
    promoted.unlink()
    await site.node.maintenance.drain()
    await site.node.rejoin.rejoin()
    assert site.node.maintenance.is_draining


async def test_all_is_set_aside_where_nobody_knows_what_the_promoted_node_has(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, promoted, bodies = await with_messages(directory, monkeypatch)
    promoted.position = 0
    promoted.unlink()
    await site.node.rejoin.rejoin()
    assert kept(site) == bodies


async def test_who_took_the_place_of_who_took_ours_is_followed_with_all_set_aside(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, promoted, bodies = await with_messages(directory, monkeypatch)
    promoted.was_standby = False
    promoted.unlink()
    with pytest.raises(PreconditionFailed):
        await site.node.rejoin.rejoin()
    answer = await site.node.rejoin.rejoin(set_all_aside=True)
    assert kept(site) == bodies
    assert (answer["messages"], site.node.standby.mode) == (10, "downstream")


async def test_all_is_set_aside_if_retention_took_what_the_promoted_node_lacks(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q1", "q2")
    promoted = Promoted(site, monkeypatch)
    bodies = {"q1": await site.publish(10, "q1"), "q2": list[bytes]()}
    log = site.node.collector.logs["v"]
    await served(site)
    promoted.position = log.committed_offset
    for name in ("q1",) * 10 + ("q2",) * 30:
        bodies[name] += await site.publish(5, name)
    await served(site)
    log.retain(bytes_max=1500, written_before_ms=None, transferred=False)
    assert log.first_offset > promoted.position
    promoted.unlink()
    await site.node.rejoin.rejoin()
    assert kept(site) == bodies


async def test_all_is_set_aside_if_a_downstream_began_without_what_retention_had_taken(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q1", "q2")
    promoted = Promoted(site, monkeypatch)
    bodies = [body for _ in range(10) for body in await site.publish(5, "q1")]
    for _ in range(30):
        await site.publish(5, "q2")
        await site.ack(5, "q2")
    await served(site)
    log = site.node.collector.logs["v"]
    log.retain(bytes_max=1500, written_before_ms=None, transferred=False)
    log.count_missing([site.queue("q1"), site.queue("q2")])
    assert log.missing_messages
    log.note_downstream("eu", log.first_offset, 1)
    promoted.unlink()
    await site.node.rejoin.rejoin()
    assert kept(site)["q1"] == bodies


async def test_what_the_schema_sync_is_to_delete_is_set_aside(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues that were made here after the disaster, be they replicated or not."""
    site = await old_upstream(directory, "q")
    promoted = Promoted(site, monkeypatch)
    for name in ("made later", "emptied", "known there"):
        await site.apply(d.Put(d.Queue(name=name, vhost="v")))
    await site.publish(3, "emptied")
    await site.ack(3, "emptied")
    bodies = {name: await site.publish(3, name) for name in ("made later", "known there")}
    await served(site)
    promoted.unlink()

    async def diff() -> list[dict[str, Any]]:
        return [gone("v", "made later"), gone("v", "emptied"), gone("other")]

    monkeypatch.setattr(site.node.schema_sync, "diff", diff)
    answer = await site.node.rejoin.rejoin()
    assert kept(site) == {"made later": bodies["made later"]}
    assert [row["queue"] for row in answer["queues"]] == ["made later"]
    assert held(site) == {"q": 0, "made later": 0, "emptied": 0, "known there": 3}
    assert site.contents("known there") == bodies["known there"]


async def test_what_is_collected_and_not_served_yet_was_never_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q1", "q2")
    promoted = Promoted(site, monkeypatch)
    await site.publish(3, "q1")
    await served(site)
    promoted.position = site.node.collector.logs["v"].committed_offset
    site.node._tasks[0].cancel()  # the outgoing log's own fdatasync comes too late
    untransferred = await site.publish(2, "q1")
    promoted.unlink()
    await site.node.rejoin.rejoin()
    assert kept(site) == {"q1": untransferred}


async def test_what_comes_between_setting_aside_and_deleting_is_kept_too(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published as the HTTP API does, and dead letters of a queue that is not replicated."""
    site = await old_upstream(directory, "q", "q-last")
    promoted = Promoted(site, monkeypatch)
    node = site.node
    arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q-last"}
    await site.apply(d.Put(d.Queue(name="retry", vhost="v", arguments=arguments)))
    await site.publish(3, "q")
    await served(site)
    promoted.position = node.collector.logs["v"].committed_offset
    promoted.unlink()
    # However busy the machine is, there is something to quarantine first, and so a report of its own for what follows.
    before_all = await site.publish(1, "q")
    first_epoch = site.queue("q").epoch
    dying: list[bytes] = []
    sent: list[bytes] = []

    async def publish() -> None:
        while node.broker.queues["v", "q"].epoch == first_epoch:
            body = b"http %03d" % len(sent)
            api_client = node.api_client(None, "v")
            header = header_of(Properties(delivery_mode=2), len(body))
            assert api_client.publish("", "q", header, body)
            await node.commit()
            if api_client.outcome:
                sent.append(body)
            await asyncio.sleep(0)

    async def archive() -> None:
        before = len(sent)
        dying.extend(await site.publish(20, "retry"))
        await until(lambda: not site.queue("retry").message_count and len(sent) > before + 10)

    monkeypatch.setattr(node.standby, "keep_former_archive", archive)
    answer, _ = await asyncio.gather(node.rejoin.rejoin(), publish())
    found = kept(site)
    assert found["q"][: 1 + len(sent)] == [*before_all, *sent], "each that was answered"
    assert found["q-last"] == dying
    assert answer["messages"] == len(found["q"]) + len(dying)
    assert len(answer["reports"]) > 1


@pytest.mark.parametrize("is_killed", [False, True])
async def test_other_downstreams_learn_nothing_of_the_emptying(
    directory: Path, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of messages nor of definitions: also if the node is killed as the first queue was emptied."""
    site, promoted, _ = await with_messages(directory, monkeypatch)
    await site.node.schema_sync.set_mode("upstream")
    promoted.unlink()
    node = site.node
    before = node.collector.logs["v"]
    assert not node.stream_server.is_downstream
    modes: list[str] = []
    restarted = node.broker.restart_queue

    def restart(queue: Any) -> Any:
        modes.append(node.schema_sync.mode)
        assert (before.is_closed, node.collector.logs) == (True, {})
        if is_killed and len(modes) == 2:
            raise StorageError("killed")
        return restarted(queue)

    monkeypatch.setattr(node.broker, "restart_queue", restart)
    if is_killed:
        with pytest.raises(StorageError, match="killed"):
            await node.rejoin.rejoin()
        await node.rejoin.stop()
        await site.kill()
        monkeypatch.setattr(TransferSupervisor, "start", lambda self: _nothing())
        monkeypatch.setattr(SchemaSync, "start", lambda self: _nothing())
        await site.start()
    else:
        await node.rejoin.rejoin()
    assert modes == ["none", "none"]
    after = site.node.collector.logs["v"]
    assert site.node.stream_server.is_downstream
    assert after.log_id != before.log_id, "what a downstream has of the former is not continued by this one"
    assert (after.log.next_offset, after.downstreams.by_reference) == (0, {})
    assert held(site) == {"q1": 0, "q2": 0}
    await site.apply(d.Put(d.Queue(name="q", vhost="v")))
    bodies = await site.publish(2)
    await served(site)
    assert site.replicated() == {"q": bodies}, "it collects again, for when it is promoted"


async def test_a_vhost_without_messages_does_not_have_to_be_known_to_the_promoted_node(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q")
    promoted = Promoted(site, monkeypatch)
    promoted.was_standby = False
    promoted.unlink()
    await site.publish(1)
    with pytest.raises(PreconditionFailed, match="never took the place of this one in vhost 'v'"):
        await site.node.rejoin.rejoin()
    await site.ack(1)
    answer = await site.node.rejoin.rejoin()
    assert (answer["messages"], kept(site), site.node.standby.mode) == (0, {}, "downstream")


async def test_a_former_archive_that_cannot_be_put_away_leaves_an_upstream_as_before(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q")
    promoted = Promoted(site, monkeypatch)
    await site.publish(3)
    await served(site)
    promoted.unlink()

    async def fails() -> None:
        raise PipelineFailed("s3://standbys/eu: no answer")

    with monkeypatch.context() as patched:
        patched.setattr(site.node.standby, "keep_former_archive", fails)
        with pytest.raises(PipelineFailed, match="no answer"):
            await site.node.rejoin.rejoin()
    assert not site.node.maintenance.is_draining
    later = await site.publish(5)
    await site.restart()
    assert (site.node.standby.mode, site.contents()[-5:]) == ("upstream", later)


async def test_nobody_is_let_in_until_it_is_done_nor_then_to_a_node_that_its_operator_drained_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the retries admitted clients to a node that its operator had drained meanwhile."""
    site = await old_upstream(directory, "q")
    promoted = Promoted(site, monkeypatch)
    await site.publish(3)
    await served(site)
    promoted.unlink()
    node, fails = site.node, True
    real = node.schema_sync.set_mode

    async def set_mode(mode: str) -> None:
        if fails:
            raise StorageError("schema_sync.json: no space left on device")
        await real(mode)

    monkeypatch.setattr(node.schema_sync, "set_mode", set_mode)
    with pytest.raises(StorageError, match=r"is not finished: .*no space left on device; it is tried"):
        await node.rejoin.rejoin()
    await asyncio.sleep(0.2)
    assert node.maintenance.is_draining
    with pytest.raises(PreconditionFailed, match="coming back already"):
        await node.rejoin.rejoin()
    await node.maintenance.drain()
    await node.maintenance.revive()
    assert node.maintenance.is_draining, "an operator does not admit clients before it is done"
    await node.maintenance.drain()
    fails = False
    await until(lambda: StateFile(node.data_dir / rejoin.STATE_FILE).load() == {})
    async with node.rejoin._command.lock:
        """The last try has ended."""
    assert node.maintenance.is_draining, "neither does the end of the retries"
    await node.maintenance.revive()
    await until(lambda: not node.maintenance.is_draining)
    assert (node.standby.mode, node.schema_sync.mode) == ("downstream", "downstream")
    assert StateFile(node.data_dir / rejoin.STATE_FILE).load() == {}


async def test_what_a_crash_interrupted_is_finished_before_anybody_is_let_in(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a queue that is another one by now, or that an older version noted, nothing is set aside yet."""
    site = await old_upstream(directory, "q1", "q2", "q3")
    Promoted(site, monkeypatch)
    bodies = {name: await site.publish(3, name) for name in ("q1", "q2", "q3")}
    queue = site.queue("q1")
    end = site.node.log_store.log(queue).next_offset
    since = await site.publish(2, "q1")
    await site.kill()
    state = [["v", "q1", queue.epoch, end], ["v", "q2"], ["v", "q3", 12345, end], ["v", "gone meanwhile"]]
    StateFile(directory / "rejoin.json").save({"queues": state})
    listeners: list[bool] = []
    opened = AmqpListener.start

    async def start(self: AmqpListener, address: str, port: int, tls: Any = None) -> None:
        listeners.append(any(held(site).values()))
        await opened(self, address, port, tls)

    monkeypatch.setattr(AmqpListener, "start", start)
    monkeypatch.setattr(TransferSupervisor, "start", lambda self: _nothing())
    monkeypatch.setattr(SchemaSync, "start", lambda self: _nothing())
    await site.start(listeners="127.0.0.1:0")
    assert listeners == [False], "all was emptied before"
    assert kept(site) == {"q1": since, "q2": bodies["q2"], "q3": bodies["q3"]}
    assert site.node.standby.mode == "downstream"
    assert StateFile(site.node.data_dir / rejoin.STATE_FILE).load() == {}
    await site.stop()


async def test_a_start_that_cannot_finish_it_goes_on_trying_with_closed_doors(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q")
    Promoted(site, monkeypatch)
    bodies = await site.publish(3)
    await site.kill()
    (directory / "divergent").write_text("in the way")
    StateFile(directory / "rejoin.json").save({"queues": [["v", "q"]]})
    monkeypatch.setattr(TransferSupervisor, "start", lambda self: _nothing())
    monkeypatch.setattr(SchemaSync, "start", lambda self: _nothing())
    await site.start(listeners="127.0.0.1:0")
    node = site.node
    await asyncio.sleep(0.2)
    assert node.maintenance.is_draining
    assert (node.amqp.addresses[0].port, node.standby.mode) == (0, "upstream"), "it listens nowhere"
    assert site.contents() == bodies
    (directory / "divergent").unlink()
    await until(lambda: not node.maintenance.is_draining)
    assert (kept(site), held(site), node.standby.mode) == ({"q": bodies}, {"q": 0}, "downstream")
    _, writer = await asyncio.open_connection("127.0.0.1", node.amqp.addresses[0].port)
    writer.close()
    await site.stop()


async def test_a_damaged_state_file_keeps_the_doors_closed_until_it_is_mended(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = await old_upstream(directory, "q")
    Promoted(site, monkeypatch)
    bodies = await site.publish(3)
    await site.kill()
    (directory / "rejoin.json").write_text('{"queues": 5}')
    await site.start()
    assert site.node.maintenance.is_draining
    assert "rejoin.json" in caplog.text
    assert "repair the file, or remove it" in caplog.text
    (directory / "rejoin.json").unlink()
    await until(lambda: not site.node.maintenance.is_draining)
    assert (site.contents(), site.node.standby.mode) == (bodies, "upstream")


async def test_a_start_without_a_crash_changes_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await old_upstream(directory, "q")
    bodies = await site.publish(3)
    await site.restart()
    assert (site.contents(), site.node.standby.mode) == (bodies, "upstream")
    assert not site.node.maintenance.is_draining


@pytest.mark.parametrize("is_same", [True, False])
async def test_all_is_set_aside_if_the_promoted_node_has_the_end_of_another_writer(
    directory: Path, is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node was a follower that had not all, and wrote something else where the standby has the old leader's."""
    site = await old_upstream(directory, "q")
    promoted = Promoted(site, monkeypatch)
    await site.publish(3)
    site.epoch = 2
    await site.restart()
    promoted.unlink()
    await site.publish(3)
    await served(site)
    log = site.node.collector.logs["v"]
    promoted.position = log.committed_offset
    await site.publish(2)
    await served(site)
    mark = log.fingerprint_before(promoted.position)
    assert mark
    promoted.mark = mark if is_same else mark ^ 2
    await site.node.rejoin.rejoin()
    assert kept(site) == {"q": [b"%08d" % n for n in range(6 if is_same else 0, 8)]}


async def test_others_go_on_while_queues_are_emptied(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand held the event loop up for 0.2 s; a cluster's node has a lease to keep (2026-11-29)."""
    monkeypatch.setattr(returning_node, "in_slices", partial(in_slices, slice_s=0.0), raising=False)
    site = await replicating(directory, "q1", "q2")
    here = returning_node.ReturningNode(cast(Any, site.node))
    await site.publish(1, "q1")
    await site.publish(1, "q2")
    kept, _ = await here.quarantine(here.begins_of_all("v"))
    emptying = asyncio.create_task(here.empty(kept))
    await asyncio.sleep(0)
    assert held(site) == {"q1": 0, "q2": 1}
    await emptying
    assert held(site) == {"q1": 0, "q2": 0}


async def test_an_emptied_queue_keeps_its_definition_and_its_bindings(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new upstream was lost before the first schema sync, and the promotion found no queue (2026-11-29)."""
    site = await old_upstream(directory, "q", "q-last")
    promoted = Promoted(site, monkeypatch)
    await site.apply(d.Put(d.Exchange(name="x", vhost="v", type="fanout")))
    await site.apply(d.Put(d.Binding(source="x", vhost="v", destination="q", routing_key="k")))
    await site.publish(3, "q")
    await served(site)
    promoted.position = site.node.collector.logs["v"].committed_offset
    promoted.unlink()
    await site.node.rejoin.rejoin()
    await site.kill()
    monkeypatch.setattr(TransferSupervisor, "start", lambda self: _nothing())
    monkeypatch.setattr(SchemaSync, "start", lambda self: _nothing())
    await site.start()
    assert (held(site), kept(site)) == ({"q": 0, "q-last": 0}, {})
    bindings = site.node.broker.topology("v").bindings_into("queue", "q")
    assert [binding.routing_key for binding in bindings] == ["k"]


async def test_what_a_later_queue_dead_letters_into_an_emptied_one_is_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what that one dead-letters in the next look, once another one was looked at (2026-11-30)."""
    site = await old_upstream(directory, "q1", "q2", "q3")
    promoted = Promoted(site, monkeypatch)
    await site.publish(1, "q3")
    await served(site)
    promoted.position = site.node.collector.logs["v"].committed_offset
    promoted.unlink()
    restarted, body, moves = site.node.broker.restart_queue, b"dead letter", {"q3": "q2", "q2": "q1"}

    def restart(queue: Any) -> None:
        name = queue.key[1]
        if (name == "q3" or queue.message_count) and name in moves:
            header = header_of(Properties(delivery_mode=2), len(body))
            restarted(queue)
            assert site.node.api_client(None, "v").publish("", moves.pop(name), header, body)
        else:
            restarted(queue)

    monkeypatch.setattr(site.node.broker, "restart_queue", restart)
    await site.node.rejoin.rejoin()
    assert (held(site), kept(site)["q1"], moves) == ({"q1": 0, "q2": 0, "q3": 0}, [body], {})
