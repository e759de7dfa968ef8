"""Our blocking client and rstream (PyPI): the same scripts against Leveret and against RabbitMQ 3.10.8."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

import pytest
import uvloop
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext
from rstream import OffsetType as RstreamOffset
from rstream.client import Client as RstreamClient
from rstream.exceptions import AuthenticationFailure, StreamDoesNotExist
from rstream.schema import Message, Publish, PublishConfirm

from leveret.model.errors import AccessRefused, AuthenticationFailed, NotAllowed, NotFound
from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.rabbitmq import RabbitNode
from leveret.wire.chunk import Attribute, ChunkType, decode_trailer, split_entries
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream.publish import MessageRun
from tests.e2e.stream_served import QUEUE, TIMEOUT_S, RawPeer, Served, serving

# One worker for all, so that RabbitMQ starts once.
ON_RABBITMQ = (pytest.mark.rabbitmq, pytest.mark.xdist_group("rabbitmq stream"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(request.param) as one:
        yield one


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


@pytest.fixture(params=["leveret", pytest.param("rabbitmq", marks=ON_RABBITMQ)])
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
        for number, body in enumerate(bodies, 1):
            publisher.publish(MessageRun.of(number, [body]))
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
            for number in range(1, last + 1):
                publisher.publish(MessageRun.of(number, [b"%d" % number]))
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
@pytest.mark.xdist_group("rabbitmq stream")
def test_rabbitmq_s_own_tracking_chunks_and_trailers_come_with_the_raw_mode(rabbit: RabbitNode) -> None:
    with connect([(LOOPBACK, rabbit.stream_port)], vhost="/", username="guest", password="guest") as client:
        link = client.connection
        link.request(wire.Create(link.next_id(), "tracked", {}), wire.CreateResponse)
        publisher = client.declare_publisher("writer", "tracked")
        for number in (1, 2):
            publisher.publish(MessageRun.of(number, [b"message"]))
            publisher.wait_confirmed(number, TIMEOUT_S)
            client.store_offset("reader", "tracked", number)
            wait_until(lambda n=number: client.query_offset("reader", "tracked") == n, "it", TIMEOUT_S)  # type: ignore[misc]  # a default is how a loop variable is bound
        chunks = [(raw[1], bytes(raw)) for raw in client.fetch("tracked", 0, 3)]
    assert ChunkType.TRACKING in [kind for kind, _ in chunks]
    users = [raw for kind, raw in chunks if kind == ChunkType.USER]
    trailers = [raw[48 + int.from_bytes(raw[36:40], "big") :] for raw in users]
    sequences = [entry for trailer in trailers for entry in decode_trailer(trailer)]
    assert (Attribute.SEQUENCE, b"writer", 1) in sequences


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
        if client._conn is not None:
            # It lets go of a connection that the server has ended without closing it.
            await client._conn.close()


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
