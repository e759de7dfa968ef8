"""The flush: what may be told to whom before the disk has what it rests on."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pamqp import base, body, commands, frame, header

from leveret.core.queues.queue import Queue
from leveret.model.definitions import Binding, Change, Put, Vhost
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import StorageError
from leveret.runtime.sockets.buffered_output import BufferedOutput
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.publishing import QUEUES_A_TURN
from leveret.testing.network.waiting import until
from leveret.testing.simulation.machine.full_disk import LimitedDisks
from leveret.wire.amqp091 import PROTOCOL_HEADER
from tests.unit.runtime.collecting.site import Site

PERSISTENT = header.ContentHeader(body_size=3, properties=commands.Basic.Properties(delivery_mode=2))


class Client:
    """A logged-in connection with one channel, and the socket it writes to."""

    def __init__(self, site: Site) -> None:
        self.engine = site.node.engine
        self.replies: list[base.Frame] = []
        self.waits_for_definitions = BufferedOutput()
        self.on_reply: Callable[[], None] = lambda: None
        self.session = ClientConnection(site.node.amqp_host, peer="test", from_loopback=True, now_ms=0)
        self.session.wake = self._wake
        self.engine.peers[self.session] = self
        self.session.receive(PROTOCOL_HEADER, 0)
        login = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
        for method in (login, commands.Connection.TuneOk(10, 131072, 0), commands.Connection.Open("/")):
            self.session.receive(frame.marshal(method, 0), 0)
        self.send(commands.Channel.Open(), commands.Confirm.Select())
        self.engine.flush()
        self.replies.clear()

    def send(self, *frames: base.Frame | header.ContentHeader | body.ContentBody) -> None:
        for one in frames:
            self.session.receive(frame.marshal(one, 1), 0)
        self.engine.touch(self.session)

    def _wake(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self.session.go_on(0)
        self.engine.touch(self.session)

    def publish(self, queue: str) -> None:
        self.send(commands.Basic.Publish(routing_key=queue), PERSISTENT, body.ContentBody(b"abc"))

    def names(self) -> list[str]:
        return [reply.name for reply in self.replies]

    # -- the engine's peer ----------------------------------------------------------------------

    def write(self, pieces: list[bytes | memoryview], *, hold: int) -> None:
        if hold or self.waits_for_definitions:
            self.waits_for_definitions.add(hold, pieces)
        else:
            self._show(b"".join(pieces))

    def release(self, hold: int) -> None:
        self._show(b"".join(self.waits_for_definitions.release(hold)))

    def _show(self, octets: bytes) -> None:
        while octets:
            consumed, _, reply = frame.unmarshal(octets)
            if isinstance(reply, base.Frame):
                self.replies.append(reply)
                self.on_reply()
            octets = octets[consumed:]

    def end(self) -> None:
        raise AssertionError("nobody ends here")


async def test_what_another_declared_is_told_only_once_it_is_durable(directory: Path) -> None:
    site = await Site.started(directory)
    first, second = Client(site), Client(site)
    for client in (first, second):
        client.send(commands.Queue.Declare(queue="q", durable=True))
        site.node.engine.flush()
    assert first.names() == second.names() == []
    await site.node.commits.all_durable()
    assert first.names() == second.names() == ["Queue.DeclareOk"]


async def test_no_message_is_confirmed_in_a_queue_whose_definition_cannot_be_logged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(changes: Sequence[Change]) -> None:
        raise StorageError("no space left on device")

    site = await Site.started(directory)
    client = Client(site)
    with monkeypatch.context() as broken:
        broken.setattr(site.node._definitions, "append", refuse)
        client.send(commands.Queue.Declare(queue="q", durable=True))
        client.publish("q")
        site.node.engine.flush()
        await site.node.commits.all_durable()
        assert client.names() == []
        client.engine.touch(client.session)
    site.node.engine.flush()
    await site.node.commits.all_durable()
    await until(lambda: client.names() == ["Queue.DeclareOk", "Basic.Ack"], "the confirm")


async def test_a_publish_that_the_disk_refuses_is_nacked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(queue: Queue) -> None:
        queue.gathered.take()
        raise StorageError("no space left on device")

    site = await Site.started(directory)
    client = Client(site)
    client.send(commands.Queue.Declare(queue="q", durable=True))
    site.node.engine.flush()
    await site.node.commits.all_durable()
    client.replies.clear()
    with monkeypatch.context() as broken:
        broken.setattr(site.node.engine._queues, "append_messages", refuse)
        client.publish("q")
        site.node.engine.flush()
        await site.node.commits.all_durable()
    assert client.names() == ["Basic.Nack"]


@pytest.mark.parametrize("what", ["message", "settlement", "definition"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
async def test_a_disk_that_takes_nothing_any_more_ends_the_node_and_a_full_one_does_not(
    what: str, number: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that goes on with such a disk nacks all that it gets, and keeps its mirrors and followers from leading."""
    failures = list[BaseException]()
    site = await Site.started(directory)
    client = Client(site)
    client.send(commands.Queue.Declare(queue="q", durable=True))
    client.publish("q")
    await site.settle()
    monkeypatch.setattr(site.node.commits, "_on_failure", failures.append)

    def refuse(*octets: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwritev", refuse)
    if what == "message":
        client.publish("q")
    elif what == "settlement":
        client.send(commands.Basic.Get(queue="q", no_ack=True))
    else:
        client.send(commands.Queue.Declare(queue="other", durable=True))
    site.node.engine.flush()
    assert bool(failures) is (number != errno.ENOSPC)


async def test_a_full_disk_that_refuses_each_flush_is_logged_once_a_second_for_each_queue(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Publishers that repeat what was nacked, and acks, had the node write thousands of lines a minute."""
    site = await Site.started(directory)
    client = Client(site)
    for name in "ab":
        client.send(commands.Queue.Declare(queue=name, durable=True))
        client.publish(name)
    await site.settle()

    def refuse(*octets: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", refuse)
    client.send(commands.Basic.Get(queue="a", no_ack=True))
    for _ in range(5):
        client.publish("a")
        client.publish("b")
        site.node.engine.flush()
    lines = [f"append_failed vhost=/ queue={name}" for name in "ab"] + [
        "settlements_not_logged vhost=/ queue=a"
    ]
    assert [caplog.text.count(line) for line in lines] == [1, 1, 1]
    monkeypatch.setattr(
        site.node.engine, "_refusals_again_s", dict.fromkeys(site.node.engine._refusals_again_s, 0.0)
    )
    client.publish("a")
    site.node.engine.flush()
    assert caplog.text.count(lines[0]) == 2, "and so on"


async def test_definitions_that_the_disk_refuses_are_tried_again_once_in_a_while(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each flush tries them again, too; if each began tries of its own, there would be more and more."""
    site = await Site.started(directory)
    client = Client(site)
    loop, begun = asyncio.get_running_loop(), list[float]()
    with monkeypatch.context() as full:

        def refuse(changes: Sequence[Change]) -> None:
            raise StorageError("no space left on device")

        full.setattr(site.node._definitions, "append", refuse)
        full.setattr(site.node.engine.definitions, "_touch", lambda: begun.append(loop.time()))
        client.send(commands.Queue.Declare(queue="q", durable=True))
        for _ in range(5):
            site.node.engine.flush()
        assert caplog.text.count("definitions_not_logged") == 1
        begun.clear()
        await until(lambda: bool(begun), "another try")
        assert len(begun) == 1
        site.node.engine.flush()
        assert caplog.text.count("definitions_not_logged") == 2, "and so on"
    site.node.engine.flush()
    await site.node.commits.all_durable()
    assert "Queue.DeclareOk" in client.names()


@pytest.mark.parametrize("way", ["fanout", "commit"])
@pytest.mark.parametrize("refused", [None, 0, 150, 299], ids=lambda at: f"refused-{at}")
@pytest.mark.long
async def test_what_reaches_very_many_queues_is_appended_in_turns_and_confirmed_when_all_have_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, way: str, refused: int | None
) -> None:
    """And is nacked, or fails, if one of them could not be written to, in whichever of the flushes."""
    names = [f"q{number}" for number in range(300)]

    site = await Site.started(directory)
    client, node = Client(site), site.node
    for name in names:
        node.broker.apply(Put(QueueDefinition(vhost="/", name=name)))
        node.broker.apply(
            Put(Binding(vhost="/", source="amq.fanout", destination_type="queue", destination=name))
        )
    await site.settle()
    if way == "commit":
        client.send(commands.Channel.Close(200, "", 0, 0), commands.Channel.Open(), commands.Tx.Select())
    client.engine.flush()
    client.replies.clear()
    store, appended = node.engine._queues, list[int]()
    append = store.append_messages

    def counted(queue: Queue) -> None:
        if queue.gathered and refused is not None and queue.key[1] == names[refused]:
            queue.gathered.take()
            raise StorageError("no space left on device")
        appended[-1] += bool(queue.gathered)
        append(queue)

    monkeypatch.setattr(store, "append_messages", counted)
    if way == "fanout":
        client.send(commands.Basic.Publish(exchange="amq.fanout"), PERSISTENT, body.ContentBody(b"abc"))
    else:
        for name in names:
            client.publish(name)
        client.send(commands.Tx.Commit())
    while node.broker.deferred_work:
        appended.append(0)
        client.engine.flush()
        assert sum(appended) == len(names) or client.names() == []
    appended.append(0)
    client.engine.flush()
    await node.commits.all_durable()
    assert max(appended) <= 2 * QUEUES_A_TURN
    assert sum(appended) == len(names) - (refused is not None)
    good, bad = ("Basic.Ack", "Basic.Nack") if way == "fanout" else ("Tx.CommitOk", "Connection.Close")
    assert client.names() == [good if refused is None else bad]


async def test_what_a_transaction_publishes_is_logged_before_what_it_acks(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two may leave a message in both queues, never in none."""

    site = await Site.started(directory)
    client, broker, store = Client(site), site.node.broker, site.node.engine._queues
    for queue in ("from", "to"):
        client.send(commands.Queue.Declare(queue=queue, durable=True))
    client.publish("from")
    mover = Client(site)
    mover.send(commands.Channel.Close(200, "", 0, 0))
    mover.send(commands.Channel.Open(), commands.Tx.Select(), commands.Basic.Get(queue="from"))
    site.node.engine.flush()
    # So that the flush comes to that queue first.
    client.publish("from")
    mover.send(commands.Basic.Ack(delivery_tag=1))
    mover.publish("to")
    mover.send(commands.Tx.Commit())
    append, logged = store.append_settlements, list[str]()

    def settle(queue: Queue) -> None:
        if queue.settling:
            assert not any(each.gathered for each in broker.queues.values())
            logged.append(queue.key[1])
        append(queue)

    monkeypatch.setattr(store, "append_settlements", settle)
    site.node.engine.flush()
    assert logged == ["from"]
    assert broker.queues["/", "to"].message_count == 1


async def test_a_commit_whose_settlements_the_disk_refuses_fails(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(queue: Queue) -> None:
        if queue.settling:
            raise StorageError("no space left on device")

    site = await Site.started(directory)
    client, node = Client(site), site.node
    client.send(commands.Queue.Declare(queue="q", durable=True))
    for _ in range(2):
        client.publish("q")
    client.send(commands.Channel.Close(200, "", 0, 0), commands.Channel.Open(), commands.Tx.Select())
    client.send(commands.Basic.Get(queue="q"), commands.Basic.Get(queue="q"))
    node.engine.flush()
    await node.commits.all_durable()
    client.replies.clear()
    client.send(commands.Basic.Ack(delivery_tag=1), commands.Tx.Commit())
    node.engine.flush()
    await node.commits.all_durable()
    assert client.names() == ["Tx.CommitOk"]
    client.replies.clear()
    with monkeypatch.context() as broken:
        broken.setattr(node.engine._queues, "append_settlements", refuse)
        client.send(commands.Basic.Ack(delivery_tag=2), commands.Tx.Commit())
        node.engine.flush()
        await node.commits.all_durable()
    assert client.names() == ["Connection.Close"]


async def test_a_reply_never_overtakes_what_was_asked_before_it(directory: Path) -> None:
    """Confirms are written between flushes: a session that was read from meanwhile waits for its own flush."""

    site = await Site.started(directory)
    client = Client(site)
    client.send(commands.Queue.Declare(queue="q", durable=True))
    client.publish("q")
    client.engine.write_out()
    assert client.names() == []
    site.node.engine.flush()
    await site.node.commits.all_durable()
    assert client.names() == ["Queue.DeclareOk", "Basic.Ack"]
    client.send(commands.Basic.Get(queue="q"))
    site.node.engine.flush()
    client.replies.clear()
    queue = site.node.broker.queues["/", "q"]
    client.send(commands.Basic.Ack(delivery_tag=1), commands.Basic.Qos(prefetch_count=1))
    client.engine.write_out()
    assert queue.settling
    assert client.names() == []
    site.node.engine.flush()
    assert not queue.settling
    assert client.names() == ["Basic.QosOk"]


async def test_a_reply_waits_for_the_definitions_it_rests_on_and_not_for_those_before_it(
    directory: Path,
) -> None:
    """Two declarations in two rounds of the disk: the end of the first round lets only the first reply go."""

    site = await Site.started(directory)
    client, commits = Client(site), site.node.commits
    seen: list[int] = []
    client.on_reply = lambda: seen.append(commits.rounds)
    before = commits.rounds
    for queue in ("first", "second"):
        client.send(commands.Queue.Declare(queue=queue, durable=True))
        client.engine.flush()
    await commits.all_durable()
    assert client.names() == ["Queue.DeclareOk"] * 2
    assert seen == [before + 1, before + 2]


async def test_a_declaration_that_wants_no_reply_holds_nothing_back_for_ever(directory: Path) -> None:
    site = await Site.started(directory)
    client = Client(site)
    client.send(commands.Queue.Declare(queue="q", durable=True, nowait=True))
    client.engine.flush()
    client.send(commands.Basic.Qos())
    client.engine.flush()
    await site.node.commits.all_durable()
    assert client.names() == ["Basic.QosOk"]


async def test_one_flush_serves_reads_of_several_turns_while_publishers_send_much(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.runtime.logs.engine.monotonic", lambda: 0.0)

    site = await Site.started(directory)
    client = Client(site)
    for name in ("q", "r"):
        client.send(commands.Queue.Declare(queue=name, durable=True))
    site.node.engine.flush()
    queue = site.node.broker.queues["/", "q"]
    for turn in range(3):
        for name in ("q", "r"):
            client.publish(name)
        client.engine.published(client.session, 2)
        await asyncio.sleep(0)
        assert (len(queue.gathered), queue.next_offset) == (turn + 1, 0)
    await asyncio.sleep(0)
    assert (len(queue.gathered), queue.next_offset) == (0, 3)
    client.publish("q")
    client.engine.published(client.session, 1)
    await asyncio.sleep(0)
    assert (len(queue.gathered), queue.next_offset) == (0, 4)


async def test_a_purge_is_answered_when_the_disk_has_it_and_not_when_it_refuses_it(tmp_path: Path) -> None:
    """It said purge-ok on a full disk, and the messages came back with the next start."""
    site = await Site.started(tmp_path)
    await site.apply(Put(Vhost(name="/")), Put(QueueDefinition(vhost="/", name="q")))
    client = Client(site)
    client.publish("q")
    await site.settle()
    with LimitedDisks() as disks:
        disks.fill(tmp_path)
        client.send(commands.Queue.Purge(0, "q"))
        await site.settle()
        assert client.names()[-1] == "Channel.Close"
        disks.limit(tmp_path, None)
    client.send(commands.Channel.CloseOk(), commands.Channel.Open(), commands.Queue.Purge(0, "q"))
    await site.settle()
    assert client.names()[-1] == "Queue.PurgeOk"
    await site.kill()


@pytest.mark.parametrize(
    "arguments", [{}, {"x-max-priority": 3}, {"x-queue-type": "quorum"}, {"x-queue-type": "stream"}]
)
async def test_a_queue_whose_log_a_full_disk_refused_takes_messages_once_there_is_room(
    tmp_path: Path, arguments: dict[str, object]
) -> None:
    """The next message after the first one, which the disk had refused, ended the node."""
    site = await Site.started(tmp_path)
    queue = QueueDefinition(vhost="/", name="q", arguments=arguments)
    await site.apply(Put(Vhost(name="/")), Put(queue))
    client = Client(site)
    with LimitedDisks() as disks:
        disks.fill(tmp_path)
        for _ in range(2):
            client.publish("q")
            await site.settle()
        assert client.names() == ["Basic.Nack", "Basic.Nack"]
        disks.limit(tmp_path, None)
    client.publish("q")
    await site.settle()
    assert client.names()[2:] == ["Basic.Ack"]
    assert not site.node.failed.is_set()
    await site.stop()


async def test_what_comes_late_to_a_deleted_queue_gives_it_no_deadline(tmp_path: Path) -> None:
    """The queue, with all of its messages, stayed in memory until the last of them would have expired."""
    site = await Site.started(tmp_path)
    await site.apply(Put(Vhost(name="/")), Put(QueueDefinition(vhost="/", name="q")))
    client, broker = Client(site), site.node.broker
    expiring = header.ContentHeader(
        body_size=3, properties=commands.Basic.Properties(delivery_mode=2, expiration="86400000")
    )
    client.send(commands.Basic.Publish(routing_key="q"), expiring, body.ContentBody(b"abc"))
    await site.settle()
    queue = broker.queues["/", "q"]
    assert site.node.engine._deadlines._deadline_ms.keys() == {queue}
    site.node.engine.stepped_down(queue)
    assert not site.node.engine._deadlines._deadline_ms, (
        "nor does one that another node leads have a deadline"
    )
    client.send(commands.Queue.Delete(0, "q"))
    await site.settle()
    broker.dirty[queue] = None
    site.node.engine.flush()
    assert not site.node.engine._deadlines._deadline_ms
    await site.stop()


async def test_a_leader_that_may_have_been_replaced_hands_out_nothing(tmp_path: Path) -> None:
    """It stood still for longer than its lease: the next leader has had messages settled since."""
    site = await Site.started(tmp_path)
    await site.apply(Put(Vhost(name="/")), Put(QueueDefinition(vhost="/", name="q")))
    client = Client(site)
    client.publish("q")
    await site.settle()
    site.node.broker.may_deliver = lambda: False
    client.send(commands.Basic.Consume(0, "q"))
    await site.settle()
    assert "Basic.Deliver" not in client.names()
    client.send(commands.Basic.Get(0, "q"))
    await site.settle()
    assert client.names()[-1] == "Channel.Close"
    await site.kill()
