"""The stream listener on real sockets and both event loops, its host in memory, its clients real.

What a client sees of a broker is asked of RabbitMQ 3.10.8 too, where it is installed, by the same tests.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import uvloop
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext
from rstream import OffsetType as RstreamOffset
from rstream.client import Client as RstreamClient
from rstream.exceptions import AuthenticationFailure, StreamDoesNotExist
from rstream.schema import Message, Publish, PublishConfirm

from leveret.model.errors import AccessRefused, AuthenticationFailed, NotAllowed, NotFound, StorageError
from leveret.pipeline.stream_client import (
    UNCONFIRMED_MAX,
    GapError,
    StreamClient,
    Unreachable,
    connect,
)
from leveret.pipeline.stream_connection import ConnectionLost
from leveret.runtime.stream_listener import READ_BYTES_MAX, WRITE_BUFFER_BYTES_MAX, StreamListener
from leveret.session.stream import UNSTORED_BYTES_MAX
from leveret.testing.ports import LOOPBACK, free_port, wait_until
from leveret.testing.rabbitmq import RabbitNode
from leveret.testing.stream_host import (
    FakeServedLog,
    FakeStreamHost,
    recovery_queue_contract,
    served_log_contract,
)
from leveret.wire.chunk import Attribute, ChunkType, decode_chunk, decode_trailer, split_entries
from leveret.wire.record import OUTGOING_STREAM, RECOVERY_STREAM_PREFIX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, Command
from leveret.wire.stream.fields import OffsetSpec, OffsetType
from leveret.wire.stream.frames import FrameDecoder

T = TypeVar("T")
TIMEOUT_S = 20.0
QUEUE = RECOVERY_STREAM_PREFIX + "orders"


@dataclass
class Served:
    """A listener on a loop in a thread of its own; its host may be touched on that loop only."""

    loop: asyncio.AbstractEventLoop
    host: FakeStreamHost = field(default_factory=FakeStreamHost)

    async def start(self, heartbeat_s: int) -> None:
        self.listener = StreamListener(self.host, heartbeat_s=heartbeat_s)
        await self.listener.start(LOOPBACK, 0)
        (self.port,) = self.listener.ports
        self.host.advertised_port = self.port

    @property
    def log(self) -> FakeServedLog:
        return self.host.logs["/"]

    def run(self, work: Awaitable[T]) -> T:
        async def await_it() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(await_it(), self.loop).result(TIMEOUT_S)

    def on_loop(self, work: Callable[[], T]) -> T:
        async def do() -> T:
            return work()

        return self.run(do())

    def client(self, vhost: str = "/", username: str = "guest", timeout_s: float = TIMEOUT_S) -> StreamClient:
        password = self.host.passwords[username]
        return connect(
            [(LOOPBACK, self.port)], vhost=vhost, username=username, password=password, timeout_s=timeout_s
        )

    def fill(self, chunks: int, records: int = 2, body: bytes = b"x" * 100) -> None:
        self.on_loop(lambda: [self.log.append([body] * records, timestamp_ms=i) for i in range(chunks)])

    def peers(self) -> int:
        return self.on_loop(lambda: len(self.listener.connections))


@contextmanager
def serving(new_loop: Callable[[], asyncio.AbstractEventLoop], heartbeat_s: int = 60) -> Iterator[Served]:
    loop = new_loop()
    loop.set_debug(True)
    thread = threading.Thread(target=loop.run_forever, name="stream listener")
    thread.start()
    served = Served(loop)
    try:
        served.run(served.start(heartbeat_s))
        yield served
        served.run(served.listener.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(request.param) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[StreamClient]:
    with served.client() as one:
        yield one


class RawPeer:
    """A socket through the handshake that does only what it is told."""

    def __init__(self, port: int, *, heartbeat_s: int = 0, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((LOOPBACK, port))
        self._decoder = FrameDecoder(1 << 30)
        self._frames: list[bytes] = []
        # One by one: RabbitMQ does not take a handshake in one go.
        for command in (
            wire.PeerProperties(1, {}),
            wire.SaslHandshake(2),
            wire.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"),
        ):
            self.send(command)
            self.next()
        assert isinstance(self.next(), wire.Tune)
        self.send(wire.Tune(1_048_576, heartbeat_s), wire.Open(4, "/"))
        assert isinstance(self.next(), wire.OpenResponse)

    def send(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(command.encode() for command in commands))

    def next(self) -> Command | None:
        """The next command, None at the end of the connection."""
        while not self._frames:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._frames = list(self._decoder.feed(data))
        return wire.decode(self._frames.pop(0))


# --- The fake is what it says ---------------------------------------------------------------------


def test_the_fake_log_keeps_the_contract_of_a_served_log() -> None:
    log = FakeServedLog()
    for stamp in range(1, 9):
        log.append([b"a" * stamp] * stamp, timestamp_ms=stamp)
    served_log_contract(log)
    log.retain_from(6)
    served_log_contract(log)


def test_the_fake_queue_keeps_the_contract_of_a_recovery_queue() -> None:
    queue = FakeStreamHost().recovery_queue("guest", "/", "q")
    asyncio.run(recovery_queue_contract(queue))
    assert queue.stored == [(1, b"a"), (2, b"b"), (3, b"c")]


# --- The same of Leveret and of RabbitMQ ------------------------------------------------------------


@dataclass(frozen=True)
class Broker:
    """Something that speaks the protocol, with one stream that can be written and one that can be read."""

    port: int
    writable: str
    readable: str
    settle: Callable[[], None]

    def client(self, vhost: str = "/", password: str = "guest") -> StreamClient:
        return connect([f"{LOOPBACK}:{self.port}"], vhost=vhost, username="guest", password=password)


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitNode]:
    with RabbitNode(plugins=("rabbitmq_stream",)) as node:
        yield node


@pytest.fixture(params=["leveret", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "rabbitmq":
        node: RabbitNode = request.getfixturevalue("rabbit")
        stream = f"stream.{request.node.name}"
        with connect([(LOOPBACK, node.stream_port)], vhost="/", username="guest", password="guest") as client:
            link = client.connection
            link.request(wire.Create(link.next_id(), stream, {}), wire.CreateResponse)
        yield Broker(node.stream_port, stream, stream, lambda: None)
        return
    with serving(asyncio.new_event_loop) as served:

        def copy() -> None:
            """What a node does between a queue and the outgoing log."""
            stored = served.host.queues["/", "orders"].stored
            for first in range(0, len(stored), 100):
                served.log.append([body for _, body in stored[first : first + 100]])

        yield Broker(served.port, QUEUE, OUTGOING_STREAM, lambda: served.on_loop(copy))


def test_what_was_published_is_fetched_whole_and_in_order(broker: Broker) -> None:
    bodies = [b"message %d" % number for number in range(1000)]
    with broker.client() as client:
        publisher = client.declare_publisher("recovery.1", broker.writable)
        assert publisher.last_sequence == 0
        for first in range(0, 1000, 100):
            publisher.publish([(number + 1, bodies[number]) for number in range(first, first + 100)])
        publisher.wait_confirmed(1000, TIMEOUT_S)
        publisher.close()
        assert client.declare_publisher("recovery.1", broker.writable).last_sequence == 1000
        broker.settle()
        chunks = [decode_chunk_loosely(raw) for raw in client.fetch(broker.readable, 0, 1000)]
    assert [body for _, entries in chunks for body in entries] == bodies
    assert chunks[0][0] == 0


def decode_chunk_loosely(raw: memoryview) -> tuple[int, list[bytes]]:
    """Id and entries; RabbitMQ's chunks have no header check."""
    chunk_id = int.from_bytes(raw[24:32], "big")
    data_bytes = int.from_bytes(raw[36:40], "big")
    return chunk_id, split_entries(raw[48 : 48 + data_bytes])


def test_messages_published_twice_are_stored_once(broker: Broker) -> None:
    for last in (10, 20):
        with broker.client() as client:
            publisher = client.declare_publisher("recovery.1", broker.writable)
            publisher.publish([(number, b"%d" % number) for number in range(1, last + 1)])
            publisher.wait_confirmed(last, TIMEOUT_S)
    broker.settle()
    with broker.client() as client:
        got = [body for raw in client.fetch(broker.readable, 0, 20) for body in decode_chunk_loosely(raw)[1]]
    assert got == [b"%d" % number for number in range(1, 21)]


def test_a_wrong_password_is_an_authentication_failure(broker: Broker) -> None:
    with pytest.raises(AuthenticationFailed, match="code 8"):
        broker.client(password="wrong")


def test_a_vhost_that_does_not_exist_is_refused(broker: Broker) -> None:
    with pytest.raises(AccessRefused, match="code 12"):
        broker.client(vhost="missing")


def test_a_stream_that_does_not_exist_is_not_found(broker: Broker) -> None:
    with broker.client() as client:
        (there, missing) = client.metadata([broker.readable, "missing"])
        assert (there.code, there.leader) == (Code.OK, 0)
        assert (missing.code, missing.leader) == (Code.STREAM_DOES_NOT_EXIST, 0xFFFF)
        with pytest.raises(NotFound, match="declines Subscribe: stream does not exist"):
            list(fetch_without_statistics(client, "missing"))
        assert client.metadata([broker.readable])[0].code == Code.OK, "the connection goes on"


def fetch_without_statistics(client: StreamClient, stream: str) -> Iterator[memoryview]:
    client.connection.server_properties["version"] = "3.10.0"
    return client.fetch(stream, 0, 1)


def test_a_stored_offset_is_told_again_and_none_is_none(broker: Broker) -> None:
    with broker.client() as client:
        assert client.query_offset("dc2", broker.readable) is None
        client.store_offset("dc2", broker.readable, 4711)
        wait_until(lambda: client.query_offset("dc2", broker.readable) == 4711, "the offset", TIMEOUT_S)


def test_an_unknown_command_is_answered_with_close_13(broker: Broker) -> None:
    with closing(RawPeer(broker.port).socket) as raw:
        raw.sendall(bytes.fromhex("00000008 0063 0001 00000001"))
        answer = raw.recv(1000)
    assert answer[4:8] == bytes.fromhex("0016 0001")
    assert int.from_bytes(answer[12:14], "big") == Code.UNKNOWN_FRAME


def test_the_statistics_command_is_used_only_where_it_is_served(broker: Broker) -> None:
    with broker.client() as client:
        if client.connection.is_leveret:
            assert client.stats(broker.readable)["committed_offset"] == 0
        else:
            with pytest.raises(NotAllowed, match="no stream statistics"):
                client.stats(broker.readable)


@pytest.mark.rabbitmq
def test_rabbitmq_s_own_tracking_chunks_and_trailers_come_with_the_raw_mode(rabbit: RabbitNode) -> None:
    with connect([(LOOPBACK, rabbit.stream_port)], vhost="/", username="guest", password="guest") as client:
        link = client.connection
        link.request(wire.Create(link.next_id(), "tracked", {}), wire.CreateResponse)
        publisher = client.declare_publisher("writer", "tracked")
        for number in (1, 2):
            publisher.publish([(number, b"message")])
            publisher.wait_confirmed(number, TIMEOUT_S)
            client.store_offset("reader", "tracked", number)
            wait_until(lambda n=number: client.query_offset("reader", "tracked") == n, "it", TIMEOUT_S)  # type: ignore[misc]  # a default is how a loop variable is bound
        chunks = [(raw[1], bytes(raw)) for raw in client.fetch("tracked", 0, 3)]
    assert ChunkType.TRACKING in [kind for kind, _ in chunks]
    users = [raw for kind, raw in chunks if kind == ChunkType.USER]
    trailers = [raw[48 + int.from_bytes(raw[36:40], "big") :] for raw in users]
    sequences = [entry for trailer in trailers for entry in decode_trailer(trailer)]
    assert (Attribute.SEQUENCE, b"writer", 1) in sequences


# --- Fetching -------------------------------------------------------------------------------------


def test_chunks_are_served_octet_for_octet_from_start_to_before_end(
    served: Served, client: StreamClient
) -> None:
    served.fill(500, records=3)
    written = served.on_loop(lambda: served.log.read(0, 1 << 30))
    assert [bytes(raw) for raw in client.fetch(OUTGOING_STREAM, 0, 1500)] == written
    assert [bytes(raw) for raw in client.fetch(OUTGOING_STREAM, 300, 900)] == written[100:300]
    assert list(client.fetch(OUTGOING_STREAM, 900, 900)) == []


def test_a_range_that_begins_in_a_chunk_begins_with_the_next(served: Served, client: StreamClient) -> None:
    served.fill(4, records=10)
    ids = [decode_chunk(raw).header.chunk_id for raw in client.fetch(OUTGOING_STREAM, 5, 35)]
    assert ids == [10, 20, 30]


def test_a_chunk_larger_than_the_agreed_frame_is_served(served: Served, client: StreamClient) -> None:
    served.fill(3, records=1, body=b"y" * 3_000_000)
    assert [len(raw) > 3_000_000 for raw in client.fetch(OUTGOING_STREAM, 0, 3)] == [True] * 3


def test_what_is_not_written_yet_is_waited_for(served: Served, client: StreamClient) -> None:
    served.fill(1)
    chunks = client.fetch(OUTGOING_STREAM, 0, 6)
    assert decode_chunk(next(chunks)).header.chunk_id == 0
    served.fill(2)
    assert [decode_chunk(raw).header.chunk_id for raw in chunks] == [2, 4]


def test_nothing_new_before_the_timeout_loses_the_connection(served: Served) -> None:
    client = served.client(timeout_s=0.2)
    with pytest.raises(ConnectionLost, match="nothing came before the timeout"):
        list(client.fetch(OUTGOING_STREAM, 0, 1))
    wait_until(lambda: served.peers() == 0, "the server to notice", TIMEOUT_S)


def test_a_fetch_that_is_given_up_leaves_the_connection_usable(served: Served, client: StreamClient) -> None:
    served.fill(300)
    for _ in range(3):
        chunks = client.fetch(OUTGOING_STREAM, 0, 600)
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]  # it is a generator
    assert sum(1 for _ in client.fetch(OUTGOING_STREAM, 0, 600)) == 300
    assert served.on_loop(lambda: served.log.readers) == 0


def test_what_retention_took_is_a_gap_with_its_bounds(served: Served, client: StreamClient) -> None:
    served.fill(5)
    served.on_loop(lambda: served.log.retain_from(6))
    with pytest.raises(GapError, match="offsets 2 to 5 are gone") as gap:
        list(client.fetch(OUTGOING_STREAM, 2, 10))
    assert (gap.value.first_missing, gap.value.first_retained) == (2, 6)
    served.on_loop(lambda: served.log.retain_from(99))
    with pytest.raises(GapError, match="offsets 6 to 9 are gone"):
        list(client.fetch(OUTGOING_STREAM, 6, 10))
    assert client.stats(OUTGOING_STREAM)["bytes"] == 0


def test_a_vhost_without_an_outgoing_log_has_no_such_stream(served: Served) -> None:
    with served.client(vhost="plain") as client:
        with pytest.raises(NotFound):
            client.stats(OUTGOING_STREAM)
        assert client.metadata([OUTGOING_STREAM])[0].code == Code.STREAM_DOES_NOT_EXIST


def test_a_user_who_may_not_read_the_log_is_refused(served: Served) -> None:
    served.on_loop(lambda: served.host.unreadable.add(("standby", "/")))
    with served.client(username="standby") as client:
        with pytest.raises(AccessRefused, match="code 16"):
            client.stats(OUTGOING_STREAM)
        with pytest.raises(AccessRefused):
            client.declare_publisher("recovery.1", QUEUE)


def test_a_damaged_log_ends_its_readers_and_not_the_node(served: Served, client: StreamClient) -> None:
    served.fill(1)
    chunks = client.fetch(OUTGOING_STREAM, 0, 4)
    next(chunks)
    served.on_loop(lambda: setattr(served.log, "fails_with", StorageError("damaged chunk at byte 7")))
    served.fill(1)
    with pytest.raises(NotFound, match="went away"):
        next(chunks)
    assert client.query_offset("r", OUTGOING_STREAM) is None


def test_a_bug_while_serving_a_peer_costs_that_peer_alone(served: Served, client: StreamClient) -> None:
    other = served.client()
    served.on_loop(lambda: setattr(served.log, "fails_with", ValueError("a bug")))
    served.fill(1)
    with pytest.raises(ConnectionLost):
        list(client.fetch(OUTGOING_STREAM, 0, 2))
    assert other.stats(OUTGOING_STREAM)["committed_offset"] == 2
    other.close()


def test_a_reader_that_does_not_read_costs_bounded_memory_and_nobody_else_anything(served: Served) -> None:
    served.fill(400, records=10, body=b"z" * 10_000)
    slow = RawPeer(served.port, receive_bytes=65536)
    properties = {"chunk_selector": "all"}
    slow.send(wire.Subscribe(5, 0, OUTGOING_STREAM, OffsetSpec(OffsetType.FIRST), 400, properties))
    (connection,) = served.on_loop(lambda: served.listener.connections)
    stuck = lambda: served.on_loop(lambda: connection.unsent_bytes) >= WRITE_BUFFER_BYTES_MAX  # noqa: E731
    wait_until(stuck, "the buffer to be full", TIMEOUT_S)
    with served.client() as client:
        assert sum(1 for _ in client.fetch(OUTGOING_STREAM, 0, 4000)) == 400
    unsent, sent = served.on_loop(lambda: (connection.unsent_bytes, connection.octets_sent))
    assert unsent <= WRITE_BUFFER_BYTES_MAX + READ_BYTES_MAX + 1000
    assert sent < 20_000_000, "only what the kernel holds has been sent as well, of 40 MB"
    assert isinstance(slow.next(), wire.SubscribeResponse)
    chunks = [command.chunk for _ in range(400) if isinstance(command := slow.next(), wire.Deliver)]
    assert chunks == served.on_loop(lambda: served.log.read(0, 1 << 30))
    slow.socket.close()


def test_a_peer_that_asks_and_does_not_listen_is_not_read_from(served: Served) -> None:
    mute = RawPeer(served.port, receive_bytes=65536)
    mute.socket.settimeout(1.0)
    flood = wire.Metadata(1, ["nothing" * 1000] * 10).encode() * 2000
    with pytest.raises(TimeoutError):
        mute.socket.sendall(flood)
    (connection,) = served.on_loop(lambda: served.listener.connections)
    assert served.on_loop(lambda: connection.unsent_bytes) <= WRITE_BUFFER_BYTES_MAX + 2_000_000
    mute.socket.close()


# --- Publishing -----------------------------------------------------------------------------------


def test_a_large_plan_is_published_with_few_messages_under_way(served: Served, client: StreamClient) -> None:
    count = 3 * UNCONFIRMED_MAX
    publisher = client.declare_publisher("recovery.1", QUEUE)
    publisher.publish([(number, b"m" * 50) for number in range(1, count + 1)])
    publisher.wait_confirmed(count, TIMEOUT_S)
    stored = served.on_loop(lambda: served.host.queues["/", "orders"].stored)
    assert [number for number, _ in stored] == list(range(1, count + 1))


def test_a_message_larger_than_the_agreed_frame_is_published(served: Served, client: StreamClient) -> None:
    publisher = client.declare_publisher("recovery.1", QUEUE)
    publisher.publish([(1, b"small"), (2, b"L" * 5_000_000), (3, b"small")])
    publisher.wait_confirmed(3, TIMEOUT_S)
    stored = served.on_loop(lambda: served.host.queues["/", "orders"].stored)
    assert [len(body) for _, body in stored] == [5, 5_000_000, 5]


def test_while_the_disk_is_slow_a_publisher_waits_and_memory_is_bounded(served: Served) -> None:
    queue = served.on_loop(lambda: served.host.recovery_queue("guest", "/", "orders"))
    served.on_loop(queue.hold)
    messages = [(number, b"b" * 100_000) for number in range(1, 401)]
    with served.client() as client, ThreadPoolExecutor(1) as pool:
        publisher = client.declare_publisher("recovery.1", QUEUE)
        sent = pool.submit(publisher.publish, messages)
        (connection,) = served.on_loop(lambda: served.listener.connections)
        full = lambda: served.on_loop(lambda: connection.unstored_bytes) >= UNSTORED_BYTES_MAX  # noqa: E731
        wait_until(full, "8 MiB to wait for the disk", TIMEOUT_S)
        assert served.on_loop(lambda: connection.unstored_bytes) <= UNSTORED_BYTES_MAX + 2_000_000
        served.on_loop(queue.release)
        sent.result(TIMEOUT_S)
        publisher.wait_confirmed(400, TIMEOUT_S)
    assert served.on_loop(lambda: len(queue.stored)) == 400


def test_confirms_that_do_not_come_in_time_lose_the_connection(served: Served) -> None:
    queue = served.on_loop(lambda: served.host.recovery_queue("guest", "/", "orders"))
    served.on_loop(queue.hold)
    client = served.client()
    publisher = client.declare_publisher("recovery.1", QUEUE)
    publisher.publish([(1, b"a")])
    with pytest.raises(ConnectionLost, match=r"timeout|unconfirmed"):
        publisher.wait_confirmed(1, 0.2)
    wait_until(lambda: served.peers() == 0, "the server to notice", TIMEOUT_S)
    served.on_loop(queue.release)
    with served.client() as again:
        assert again.declare_publisher("recovery.1", QUEUE).last_sequence == 1


def test_a_queue_that_declines_makes_the_publisher_fail(served: Served, client: StreamClient) -> None:
    publisher = client.declare_publisher("recovery.1", QUEUE)
    queue = served.on_loop(lambda: served.host.queues["/", "orders"])
    served.on_loop(lambda: setattr(queue, "refuses_with", NotFound("the queue was deleted")))
    publisher.publish([(1, b"a"), (2, b"b")])
    with pytest.raises(NotFound, match="declines 2 messages"):
        publisher.wait_confirmed(2, TIMEOUT_S)


def test_more_publishers_than_there_are_numbers_are_refused_until_one_is_closed(client: StreamClient) -> None:
    publishers = [client.declare_publisher("r", f"{QUEUE}.{number}") for number in range(256)]
    with pytest.raises(NotAllowed, match="256 publishers"):
        client.declare_publisher("r", QUEUE)
    publishers[17].close()
    client.declare_publisher("r", QUEUE)


# --- Connections ----------------------------------------------------------------------------------


def test_the_first_endpoint_that_answers_is_taken(served: Served) -> None:
    nobody = free_port()
    client = connect(
        [f"{LOOPBACK}:{nobody}", f"{LOOPBACK}:{served.port}"],
        vhost="/",
        username="guest",
        password="guest",
        timeout_s=TIMEOUT_S,
    )
    assert client.connection.peer == f"{LOOPBACK}:{served.port}"
    client.close()
    client.close()


def test_when_no_endpoint_answers_the_reasons_are_named() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        endpoints = [f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{silent.getsockname()[1]}"]
        with pytest.raises(Unreachable, match=r"refused.*nothing came before the timeout"):
            connect(endpoints, vhost="/", username="guest", password="guest", timeout_s=0.2)


def test_a_node_that_stops_says_goodbye(served: Served) -> None:
    client = served.client()
    served.run(served.listener.stop())
    with pytest.raises(ConnectionLost, match="the node is stopping"):
        client.stats(OUTGOING_STREAM)


def test_connections_are_known_while_they_last(served: Served) -> None:
    client = served.client()
    (one,) = served.on_loop(lambda: served.listener.connections)
    assert (one.user, one.vhost, one.state, one.protocol) == ("guest", "/", "running", "stream")
    assert one.name.endswith(f"-> {LOOPBACK}:{served.port}")
    assert one.peer_properties["product"] == "Leveret"
    served.on_loop(lambda: one.close("an operator asked for it"))
    with pytest.raises(ConnectionLost, match="an operator asked for it"):
        client.stats(OUTGOING_STREAM)
    wait_until(lambda: served.peers() == 0, "it to be forgotten", TIMEOUT_S)


def test_heartbeats_are_sent_and_a_silent_peer_is_dropped() -> None:
    with serving(asyncio.new_event_loop, heartbeat_s=1) as served:
        peer = RawPeer(served.port, heartbeat_s=1)
        assert isinstance(peer.next(), wire.Heartbeat)
        peer.send(wire.Heartbeat())
        while (command := peer.next()) is not None:
            assert isinstance(command, wire.Heartbeat)
        peer.socket.close()


@pytest.mark.parametrize(
    ("octets", "code"),
    [(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Code.FRAME_TOO_LARGE), (b"\0\0\0\1\0", Code.UNKNOWN_FRAME)],
)
def test_who_speaks_another_protocol_is_told_and_dropped(served: Served, octets: bytes, code: Code) -> None:
    with socket.create_connection((LOOPBACK, served.port), TIMEOUT_S) as stranger:
        stranger.sendall(octets)
        answer = stranger.recv(1000)
        assert answer[4:6] == bytes.fromhex("0016")
        assert int.from_bytes(answer[12:14], "big") == code
        assert stranger.recv(1000) == b"", "and dropped even if it never answers"
    wait_until(lambda: served.peers() == 0, "it to be forgotten", TIMEOUT_S)


def test_a_frame_that_lies_about_its_size_ends_the_connection_and_the_node_stays(served: Served) -> None:
    liar = RawPeer(served.port)
    liar.socket.sendall(b"\x7f\xff\xff\xff" + bytes(100_000))
    close = liar.next()
    assert isinstance(close, wire.Close)
    assert close.code == Code.FRAME_TOO_LARGE
    liar.socket.close()
    with served.client() as client:
        assert client.stats(OUTGOING_STREAM)["committed_offset"] == 0


# --- A stock client: rstream ----------------------------------------------------------------------


@asynccontextmanager
async def rstream(port: int, password: str = "guest", vhost: str = "/") -> AsyncIterator[RstreamClient]:
    client = RstreamClient(LOOPBACK, port, frame_max=1_048_576, heartbeat=60)
    await client.start()
    try:
        await client.authenticate(vhost, "guest", password)
        yield client
    finally:
        await client.close()


def test_rstream_connects_and_sees_which_streams_there_are(broker: Broker) -> None:
    async def script() -> None:
        async with rstream(broker.port) as client:
            assert client.server_properties is not None
            assert client.server_properties["advertised_port"] == str(broker.port)
            assert await client.stream_exists(broker.readable)
            assert not await client.stream_exists("missing")
            leader, replicas = await client.query_leader_and_replicas(broker.readable)
            assert (leader.port, replicas) == (broker.port, [])

    asyncio.run(script())


def test_rstream_is_told_its_password_is_wrong(broker: Broker) -> None:
    async def script() -> None:
        async with rstream(broker.port, password="wrong"):
            pass

    with pytest.raises(AuthenticationFailure):
        asyncio.run(script())


def test_rstream_is_told_a_stream_is_missing(broker: Broker) -> None:
    async def script() -> None:
        async with rstream(broker.port) as client:
            with pytest.raises(StreamDoesNotExist):
                await client.subscribe("missing", 0)
            with pytest.raises(StreamDoesNotExist):
                await client.declare_publisher("missing", "r", 0)

    asyncio.run(script())


def test_rstream_publishes_and_is_confirmed(broker: Broker) -> None:
    async def script() -> None:
        async with rstream(broker.port) as client:
            await client.declare_publisher(broker.writable, "r", 0)
            confirmed: list[int] = []
            done = asyncio.Event()

            def on_confirm(frame: PublishConfirm) -> None:
                confirmed.extend(frame.publishing_ids)
                if len(confirmed) == 3:
                    done.set()

            client.add_handler(PublishConfirm, on_confirm)
            messages = [Message(number, None, b"%d" % number) for number in (1, 2, 3)]
            await client.send_publish_frame(Publish(0, messages))
            await asyncio.wait_for(done.wait(), TIMEOUT_S)
            assert sorted(confirmed) == [1, 2, 3]
            assert await client.query_publisher_sequence(broker.writable, "r") == 3

    asyncio.run(script())


def test_rstream_s_consumer_gets_the_messages_and_only_them(served: Served) -> None:
    served.fill(2, records=3, body=b"first")
    served.on_loop(lambda: served.log.append([b"a settlement"], kind=ChunkType.TRACKING))
    served.fill(20, records=3, body=b"later")
    got: list[tuple[int, bytes]] = []

    async def script() -> None:
        consumer = Consumer(LOOPBACK, served.port, vhost="/", username="guest", password="guest")
        everything = asyncio.Event()

        def on_message(message: bytes, context: MessageContext) -> None:
            got.append((context.offset, message))
            if len(got) == 65:
                everything.set()

        await consumer.start()
        await consumer.subscribe(
            OUTGOING_STREAM,
            on_message,
            decoder=bytes,
            offset_specification=ConsumerOffsetSpecification(RstreamOffset.OFFSET, 1),
            initial_credit=2,
        )
        await asyncio.wait_for(everything.wait(), TIMEOUT_S)
        await consumer.close()

    asyncio.run(script())
    assert [offset for offset, _ in got] == [*range(1, 6), *range(7, 67)]
    assert {body for _, body in got} == {b"first", b"later"}
