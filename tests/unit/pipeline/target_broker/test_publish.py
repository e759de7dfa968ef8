"""Publishing to a broker that says what no broker can be made to say at will: frames on a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pamqp.body
import pamqp.frame
import pytest
from pamqp import base, commands
from pamqp.exceptions import UnmarshalingException

from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials
from leveret.pipeline.target_broker import publish as publish_module
from leveret.pipeline.target_broker.connection import AmqpConnectionLost
from leveret.pipeline.target_broker.publish import (
    AmqpClient,
    AmqpPublisher,
    ProgressFile,
    connect,
    progress_path,
    read_progress,
)
from leveret.pipeline.target_broker.streams import MessageDeclined
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.sites.standby_upstream import stored_message
from leveret.wire.amqp091 import marshal
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.stream.publish import MessageRun

MESSAGES: Final = 10
TIMEOUT_S: Final = 20.0
ANSWERS: Final[dict[str, base.Frame]] = {
    "Connection.StartOk": commands.Connection.Tune(0, 131_072, 0),
    "Connection.Open": commands.Connection.OpenOk(),
    "Connection.Close": commands.Connection.CloseOk(),
    "Channel.Open": commands.Channel.OpenOk(),
    "Channel.Close": commands.Channel.CloseOk(),
    "Confirm.Select": commands.Confirm.SelectOk(),
    "Queue.Declare": commands.Queue.DeclareOk("q", 0, 0),
    "Queue.Bind": commands.Queue.BindOk(),
    "Exchange.Declare": commands.Exchange.DeclareOk(),
    "Exchange.Delete": commands.Exchange.DeleteOk(),
}


class ScriptedBroker:
    """Agrees to everything, and confirms nothing before it is told what to say."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.bound: dict[str, int] = {}
        """Channels by the queues that they publish to."""
        self.bodies = 0
        """The octets of messages' bodies so far."""
        self._reads = threading.Event()
        self._reads.set()

    def serve(self) -> None:
        with suppress(OSError):
            self._socket.recv(8)
            self.say(0, commands.Connection.Start(mechanisms="PLAIN", locales="en_US"))
            buffer = b""
            while self._reads.wait(TIMEOUT_S) and (octets := self._socket.recv(65_536)):
                buffer += octets
                with suppress(UnmarshalingException):
                    while buffer:
                        read, channel, found = pamqp.frame.unmarshal(buffer)
                        buffer = buffer[read:]
                        self._answer(channel, found)

    def _answer(self, channel: int, found: object) -> None:
        if isinstance(found, pamqp.body.ContentBody):
            self.bodies += len(found.value)
        if isinstance(found, commands.Queue.Bind):
            self.bound[found.queue] = channel
        answer = ANSWERS.get(getattr(found, "name", ""))
        if answer is not None:
            self.say(channel, answer)

    def say(self, channel: int, *methods: base.Frame) -> None:
        self._socket.sendall(b"".join(marshal(method, channel) for method in methods))

    def hold(self) -> threading.Event:
        """Read nothing from now on, until the returned event is set."""
        self._reads.clear()
        return self._reads

    def hang_up(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def two_queues(
    folder: Path, timeout_s: float = TIMEOUT_S, on_blocked: Callable[[str], None] = lambda reason: None
) -> Iterator[tuple[AmqpClient, ScriptedBroker]]:
    """A client that publishes to queues `a` and `b`, all sent and nothing confirmed."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        target = AmqpTarget(
            host=LOOPBACK,
            port=listener.getsockname()[1],
            credentials=LoginCredentials(username="guest", password="guest"),
        )
        made: list[ScriptedBroker] = []

        def serve() -> None:
            connected, _ = listener.accept()
            with connected:
                made.append(ScriptedBroker(connected))
                made[0].serve()

        thread = threading.Thread(target=serve)
        thread.start()
        client = AmqpClient(
            target, "/", folder, {"a": MESSAGES, "b": MESSAGES}, timeout_s, on_blocked=on_blocked
        )
        try:
            yield client, made[0]
        finally:
            client.close()
            thread.join()


@pytest.mark.parametrize("after", [[], [commands.Basic.Ack(MESSAGES, True)]])
def test_a_message_that_was_not_taken_is_told_whatever_else_is_waited_for_and_confirmed_behind_it(
    tmp_path: Path, after: list[base.Frame]
) -> None:
    """RabbitMQ says this of a queue that was full for one message, until somebody took one."""
    with two_queues(tmp_path) as (client, broker):
        a, b = (client.declare_publisher("recovery.p", RECOVERY_STREAM_PREFIX + name) for name in "ab")
        for publisher in (a, b):
            publisher.publish(
                MessageRun.of(1, [stored_message(b"%d" % number) for number in range(MESSAGES)])
            )
        refused = [commands.Basic.Ack(4, True), commands.Basic.Nack(5, False, False), *after]
        broker.say(broker.bound["b"], *refused)
        broker.say(broker.bound["a"], commands.Basic.Ack(MESSAGES, True))
        a.wait_confirmed(MESSAGES, TIMEOUT_S)
        begun_s = time.monotonic()
        with pytest.raises(MessageDeclined, match="queue 'b'"):
            b.wait_confirmed(MESSAGES, TIMEOUT_S)
        assert time.monotonic() - begun_s < TIMEOUT_S, "nothing more was waited for"
        confirmed = {name: read_progress(progress_path(tmp_path, name)).confirmed for name in "ab"}
    assert confirmed["a"] == MESSAGES
    assert confirmed["b"] < 5


@pytest.mark.parametrize("early", [[MESSAGES], [5, 7], [2, 1, 9], list(range(MESSAGES, 0, -1))])
def test_messages_that_are_confirmed_before_earlier_ones_are_waited_for_no_more(
    tmp_path: Path, early: list[int]
) -> None:
    """RabbitMQ acks what one queue has, and then all up to the one before, whose queue was slower."""
    last = max(set(range(1, MESSAGES + 1)) - set(early), default=MESSAGES)
    with two_queues(tmp_path) as (client, broker):
        publisher = client.declare_publisher("recovery.p", RECOVERY_STREAM_PREFIX + "a")
        publisher.publish(MessageRun.of(1, [stored_message(b"%d" % number) for number in range(MESSAGES)]))
        acks = [*(commands.Basic.Ack(tag, False) for tag in early), commands.Basic.Ack(last, True)]
        broker.say(broker.bound["a"], *acks)
        publisher.wait_confirmed(MESSAGES, TIMEOUT_S)
        assert read_progress(progress_path(tmp_path, "a")).confirmed == MESSAGES


@pytest.mark.parametrize("is_over", [False, True])
def test_a_broker_that_takes_nothing_for_want_of_memory_is_told_so(tmp_path: Path, is_over: bool) -> None:
    with two_queues(tmp_path) as (client, broker):
        publisher = client.declare_publisher("recovery.p", RECOVERY_STREAM_PREFIX + "a")
        publisher.publish(MessageRun.of(1, [stored_message(b"x")]))
        broker.say(0, commands.Connection.Blocked("low on memory"))
        if is_over:
            broker.say(0, commands.Connection.Unblocked())
        broker.hang_up()
        with pytest.raises(AmqpConnectionLost) as lost:
            publisher.wait_confirmed(1, TIMEOUT_S)
    assert ("it blocks its publishers until an alarm ends: low on memory" in str(lost.value)) is not is_over


ALARM_S: Final = 0.6
"""An alarm that lasts this long outlasts the client's time of half of that."""


def test_a_broker_that_blocks_its_publishers_is_waited_for_however_long_and_says_why(tmp_path: Path) -> None:
    said: list[str] = []
    with two_queues(tmp_path, ALARM_S / 2, said.append) as (client, broker):
        publisher = client.declare_publisher("recovery.p", RECOVERY_STREAM_PREFIX + "a")
        publisher.publish(MessageRun.of(1, [stored_message(b"x")]))
        broker.say(0, commands.Connection.Blocked("low on disk"))

        def end() -> None:
            broker.say(0, commands.Connection.Unblocked())
            broker.say(broker.bound["a"], commands.Basic.Ack(1, False))

        threading.Timer(ALARM_S, end).start()
        publisher.wait_confirmed(1, TIMEOUT_S)
        assert read_progress(progress_path(tmp_path, "a")).confirmed == 1
    assert said == ["low on disk", ""]


def test_a_broker_that_blocks_its_publishers_and_reads_nothing_is_waited_for_in_the_middle_of_a_message(
    tmp_path: Path,
) -> None:
    """RabbitMQ reads nothing more from such a connection, and says why first."""
    said: list[str] = []
    large = [stored_message(b"x" * 4_000_000) for _ in range(4)]
    with two_queues(tmp_path, ALARM_S / 2, said.append) as (client, broker):
        publisher = client.declare_publisher("recovery.p", RECOVERY_STREAM_PREFIX + "a")
        reads = broker.hold()
        broker.say(0, commands.Connection.Blocked("low on memory"))

        def end() -> None:
            broker.say(0, commands.Connection.Unblocked())
            reads.set()

        threading.Timer(ALARM_S, end).start()
        publisher.publish(MessageRun.of(1, large))
        wait_until(lambda: broker.bodies == 16_000_000, "each octet, once", TIMEOUT_S)
        broker.say(broker.bound["a"], commands.Basic.Ack(4, True))
        publisher.wait_confirmed(4, TIMEOUT_S)
        assert read_progress(progress_path(tmp_path, "a")).confirmed == 4
    assert said == ["low on memory", ""]


class FewChannels(ScriptedBroker):
    """Allows four channels on a connection, and notes the highest number of one."""

    highest = 0

    def _answer(self, channel: int, found: object) -> None:
        FewChannels.highest = max(FewChannels.highest, channel)
        if isinstance(found, commands.Connection.StartOk):
            self.say(channel, commands.Connection.Tune(4, 131_072, 0))
        else:
            super()._answer(channel, found)


def test_a_broker_that_allows_few_channels_on_a_connection_gets_more_connections(tmp_path: Path) -> None:
    queues = [f"q{number}" for number in range(10)]
    with socket.create_server((LOOPBACK, 0)) as listener, ExitStack() as connections:
        target = AmqpTarget(
            host=LOOPBACK,
            port=listener.getsockname()[1],
            credentials=LoginCredentials(username="guest", password="guest"),
        )
        served: list[threading.Thread] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connected = connections.enter_context(listener.accept()[0])
                    served.append(threading.Thread(target=FewChannels(connected).serve))
                    served[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        client = AmqpClient(target, "/", tmp_path, dict.fromkeys(queues, MESSAGES), TIMEOUT_S)
        for name in queues:
            client.declare_publisher("recovery.p", RECOVERY_STREAM_PREFIX + name)
        client.close()
        listener.shutdown(socket.SHUT_RDWR)
        for thread in (accepting, *served):
            thread.join()
    assert len(served) > 1
    assert FewChannels.highest <= 4


def test_a_listener_that_announces_a_frame_beyond_any_is_given_up_at_once() -> None:
    """As a proxy does that speaks HTTP: its first octets are a frame of more than a gigabyte."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        target = AmqpTarget(
            host=LOOPBACK,
            port=listener.getsockname()[1],
            credentials=LoginCredentials(username="guest", password="guest"),
        )
        held: list[socket.socket] = []

        def serve() -> None:
            held.append(listener.accept()[0])
            held[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        begun_s = time.monotonic()
        with pytest.raises(AmqpConnectionLost, match="does not speak AMQP 0-9-1"):
            connect(target, "/", TIMEOUT_S, waits=False)
        assert time.monotonic() - begun_s < TIMEOUT_S, "nothing more was waited for"
        thread.join()
        held[0].close()


def test_a_broker_that_reads_nothing_without_a_reason_is_given_up(tmp_path: Path) -> None:
    large = [stored_message(b"x" * 4_000_000) for _ in range(4)]
    with two_queues(tmp_path, ALARM_S / 2) as (client, broker):
        publisher = client.declare_publisher("recovery.p", RECOVERY_STREAM_PREFIX + "a")
        reads = broker.hold()
        with pytest.raises(AmqpConnectionLost, match="took no octets before the timeout"):
            publisher.publish(MessageRun.of(1, large))
        reads.set()


def test_a_queue_that_has_the_digest_of_another_ones_name_as_its_name_has_a_progress_of_its_own(
    tmp_path: Path,
) -> None:
    long = progress_path(tmp_path, "q" * 200)
    assert progress_path(tmp_path, long.name.removesuffix(".json")) != long


class Acking:
    """A connection on which the broker's acks (tag, multiple) come one at a time."""

    def __init__(self, path: Path, *acks: tuple[int, bool]) -> None:
        self.deleted: list[tuple[str, int]] = []
        """Exchanges, and the confirmed number that was stored when each was deleted."""
        self._path = path
        self._acks = deque(acks)

    def open_channel(self, settled: Callable[[int, bool, bool], None]) -> None:
        self._settled = settled

    def receive(self) -> None:
        self._settled(*self._acks.popleft(), True)

    def delete_exchange(self, channel: object, name: str) -> None:
        self.deleted.append((name, read_progress(self._path).confirmed))

    def _agree(self, *given: object) -> None:
        """Do it."""

    declare_fanout = bind = publish = _agree


def publisher_of(connection: Acking, path: Path, *, to_stream: bool) -> AmqpPublisher:
    given: Any = connection
    return AmqpPublisher(given, "q", "exchange", ProgressFile(path, lambda: 0), to_stream=to_stream)


@pytest.mark.parametrize(
    ("acks", "up_to", "confirmed"),
    [
        ([(4, True)], 4, 4),
        ([(6, False), (4, True)], 4, 4),
        ([(1, False), (3, False), (2, False)], 2, 3),
        ([(7, True)], 5, 7),
        ([(3, True), (10, False), (9, True)], 10, 10),
    ],
)
def test_the_progress_has_what_is_confirmed_from_the_first_on_and_no_more(
    tmp_path: Path, acks: list[tuple[int, bool]], up_to: int, confirmed: int
) -> None:
    path = tmp_path / "q.json"
    publisher = publisher_of(Acking(path, *acks), path, to_stream=False)
    publisher.publish(MessageRun.of(1, [stored_message(b"x")] * MESSAGES))
    publisher.wait_confirmed(up_to, TIMEOUT_S)
    found = read_progress(path)
    assert (found.confirmed, found.messages) == (confirmed, confirmed)


def test_a_stream_gets_another_exchange_when_all_of_the_one_before_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart reads a stream from the last exchange's begin on: what is before has to be there."""
    monkeypatch.setattr(publish_module, "SPAN", 4)
    path = tmp_path / "q.json"
    connection = Acking(path, (2, True), (4, True), (8, True), (10, True))
    publisher = publisher_of(connection, path, to_stream=True)
    publisher.publish(MessageRun.of(1, [stored_message(b"x")] * MESSAGES))
    publisher.wait_confirmed(MESSAGES, TIMEOUT_S)
    assert connection.deleted == [("exchange", 4), ("exchange.1", 8)]
    assert (read_progress(path).confirmed, read_progress(path).since) == (MESSAGES, 8)
