"""What streams have since RabbitMQ 3.11, and what only Leveret's own files show: on a real node, with rstream."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rstream import (
    AMQPMessage,
    Consumer,
    ConsumerOffsetSpecification,
    FilterConfiguration,
    MessageContext,
    OffsetSpecification,
    OffsetType,
    Producer,
    RouteType,
    SuperStreamProducer,
)
from rstream.client import Client

from leveret.testing.network.ports import LOOPBACK, free_port, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.certificates import CertificateAuthority, available
from leveret.wire.chunk import split_entries
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream.fields import OffsetSpec
from leveret.wire.stream.fields import OffsetType as WireOffset
from tests.e2e.stream_served import RawPeer

GUEST: dict[str, Any] = {"vhost": "/", "username": "guest", "password": "guest"}
FIRST = ConsumerOffsetSpecification(OffsetType.FIRST, None)
FROM_FIRST = OffsetSpec(WireOffset.FIRST)


@pytest.fixture
def connect(node: LeveretProcess) -> Iterator[Callable[[], RawPeer]]:
    """Makes raw connections that end with the test."""
    peers: list[RawPeer] = []

    def make() -> RawPeer:
        peers.append(RawPeer(node.stream_port))
        return peers[-1]

    yield make
    for peer in peers:
        peer.socket.close()


@pytest.fixture(scope="module")
def node() -> Iterator[LeveretProcess]:
    with LeveretProcess() as one:
        yield one


class Reader:
    """An rstream consumer and what it got."""

    def __init__(self, port: int) -> None:
        self.got: list[bytes] = []
        self.consumer = Consumer(LOOPBACK, port, **GUEST)
        self._came = asyncio.Event()

    async def subscribe(self, stream: str, **options: Any) -> None:
        await self.consumer.start()
        await self.consumer.subscribe(
            stream, self._take, decoder=bytes, offset_specification=FIRST, **options
        )

    def _take(self, message: bytes, context: MessageContext) -> None:
        self.got.append(message)
        self._came.set()

    async def until(self, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
        while not enough(self.got):
            self._came.clear()
            await self._came.wait()
        return self.got


# --- Filters --------------------------------------------------------------------------------------


async def test_a_filter_leaves_out_chunks_without_its_value(
    node: LeveretProcess, connect: Callable[[], RawPeer]
) -> None:
    async def region(message: AMQPMessage) -> str:
        return str(message.application_properties["region"])

    async with Producer(LOOPBACK, node.stream_port, **GUEST, filter_value_extractor=region) as producer:
        await producer.create_stream("filtered")
        for name in ("emea", "apac", "emea"):
            # A wait after each, so that each is in a chunk of its own.
            message = AMQPMessage(body=b"x", application_properties={"region": name})
            await producer.send_wait("filtered", message)
    peer = connect()
    peer.send(wire.Subscribe(1, 1, "filtered", FROM_FIRST, 10, {"filter.0": "emea"}))
    assert peer.next() == wire.SubscribeResponse(1, Code.OK)
    ids = [chunk_id(peer), chunk_id(peer)]
    peer.send(wire.Subscribe(2, 2, "filtered", FROM_FIRST, 10, {"filter.0": "x", "match-unfiltered": "true"}))
    assert peer.next() == wire.SubscribeResponse(2, Code.OK)
    peer.send(wire.QueryOffset(3, "nobody", "filtered"))
    assert peer.next() == wire.QueryOffsetResponse(3, Code.NO_OFFSET, 0), "no chunk came before"
    assert ids == [0, 2]


def chunk_id(peer: RawPeer) -> int:
    deliver = peer.next()
    assert isinstance(deliver, wire.Deliver)
    return int.from_bytes(deliver.chunk[24:32], "big")


async def test_rstream_filters_messages_within_the_chunks_it_gets(node: LeveretProcess) -> None:
    def by_region(message: AMQPMessage) -> bool:
        return bool(message.application_properties[b"region"] == b"emea")

    async with Producer(LOOPBACK, node.stream_port, **GUEST) as producer:
        await producer.create_stream("mixed")
        await producer.send_wait("mixed", AMQPMessage(body=b"all of it"))
    reader = Reader(node.stream_port)
    unfiltered = FilterConfiguration(["emea"], lambda message: True, True)
    await reader.subscribe("mixed", filter_input=unfiltered)
    assert len(await reader.until(bool)) == 1
    await reader.consumer.close()


# --- Single active consumer -----------------------------------------------------------------------


async def test_of_consumers_with_one_name_the_first_reads_and_the_next_takes_over(
    node: LeveretProcess,
) -> None:
    async with Producer(LOOPBACK, node.stream_port, **GUEST) as producer:
        await producer.create_stream("single")
        for number in range(3):
            await producer.send_wait("single", AMQPMessage(body=b"%d" % number))
    options = {"properties": {"single-active-consumer": "true", "name": "app"}, "subscriber_name": "app"}

    async def from_first(active: bool, context: Any) -> OffsetSpecification:
        return OffsetSpecification(OffsetType.FIRST, 0)

    first, second = Reader(node.stream_port), Reader(node.stream_port)
    await first.subscribe("single", consumer_update_listener=from_first, **options)
    await first.until(lambda got: len(got) == 3)
    await second.subscribe("single", consumer_update_listener=from_first, **options)
    assert second.got == []
    await first.consumer.close()
    await second.until(lambda got: len(got) == 3)
    await second.consumer.close()


# --- Super streams --------------------------------------------------------------------------------


async def test_a_super_stream_is_made_routed_to_and_deleted(
    node: LeveretProcess, connect: Callable[[], RawPeer]
) -> None:
    async def key(message: AMQPMessage) -> str:
        return str(message.application_properties["key"])

    def producer() -> SuperStreamProducer:
        return SuperStreamProducer(
            LOOPBACK,
            node.stream_port,
            **GUEST,
            super_stream="super",
            routing_extractor=key,
            routing=RouteType.Hash,
        )

    async with producer() as maker:
        # Its connection ends with this.
        await maker.create_super_stream("super", binding_keys=["a", "b"])
    async with producer() as sender:
        for number in range(20):
            await sender.send(AMQPMessage(body=b"to", application_properties={"key": f"k{number}"}))
        reader = Reader(node.stream_port)
        for partition in ("super-a", "super-b"):
            await reader.subscribe(partition)
        await reader.until(lambda got: len(got) == 20)
        await reader.consumer.close()
    peer = connect()
    peer.send(wire.Partitions(1, "super"), wire.Route(2, "b", "super"), wire.Route(3, "none", "super"))
    assert peer.next() == wire.PartitionsResponse(1, Code.OK, ["super-a", "super-b"])
    assert peer.next() == wire.RouteResponse(2, Code.OK, ["super-b"])
    assert peer.next() == wire.RouteResponse(3, Code.OK, [])
    peer.send(wire.CreateSuperStream(4, "super", ["x"], ["x"], {}))
    assert peer.next() == wire.CreateSuperStreamResponse(4, Code.STREAM_EXISTS)
    peer.send(wire.DeleteSuperStream(5, "super"))
    assert peer.next() == wire.DeleteSuperStreamResponse(5, Code.OK)
    peer.send(wire.Partitions(6, "super"), wire.DeleteStream(7, "super-a"))
    assert peer.next() == wire.PartitionsResponse(6, Code.STREAM_DOES_NOT_EXIST, [])
    assert peer.next() == wire.DeleteResponse(7, Code.STREAM_DOES_NOT_EXIST)


# --- What outlives a crash ------------------------------------------------------------------------


def test_nothing_confirmed_is_lost_and_nothing_is_doubled_when_the_node_is_killed_in_full_flow() -> None:
    with LeveretProcess() as node:
        confirmed = 0
        for _ in range(3):
            peer = RawPeer(node.stream_port)
            peer.send(wire.Create(1, "flow", {}), wire.DeclarePublisher(2, 0, "writer", "flow"))
            peer.next(), peer.next()
            peer.send(wire.QueryPublisherSequence(3, "writer", "flow"))
            answer = peer.next()
            assert isinstance(answer, wire.QueryPublisherSequenceResponse)
            assert answer.sequence >= confirmed
            # What was not confirmed is published again, also what is there.
            first = confirmed + 1
            for start in range(first, first + 50_000, 500):
                peer.send(wire.Publish(0, [(each, b"%d" % each) for each in range(start, start + 500)], []))
            while confirmed < first + 10_000:
                confirm = peer.next()
                assert isinstance(confirm, wire.PublishConfirm)
                confirmed = confirm.publishing_ids[-1]
            node.kill9()
            peer.socket.close()
            node.start()
        assert all_numbers(node, "flow", confirmed)[:confirmed] == list(range(1, confirmed + 1))


def all_numbers(node: LeveretProcess, stream: str, count: int) -> list[int]:
    """Read a stream of numbers from its begin until there are so many."""
    peer = RawPeer(node.stream_port)
    peer.send(wire.Subscribe(1, 1, stream, FROM_FIRST, 60_000, {}))
    assert peer.next() == wire.SubscribeResponse(1, Code.OK)
    numbers: list[int] = []
    while len(numbers) < count:
        deliver = peer.next()
        assert isinstance(deliver, wire.Deliver)
        data_bytes = int.from_bytes(deliver.chunk[36:40], "big")
        numbers += map(int, split_entries(deliver.chunk[48 : 48 + data_bytes]))
    peer.socket.close()
    return numbers


def test_a_stream_keeps_no_more_than_its_length_in_whole_segments(connect: Callable[[], RawPeer]) -> None:
    peer = connect()
    arguments = {"max-length-bytes": "300000", "stream-max-segment-size-bytes": "100000"}
    peer.send(wire.Create(1, "limited", arguments))
    assert peer.next() == wire.CreateResponse(1, Code.OK)
    peer.send(wire.DeclarePublisher(2, 0, "writer", "limited"))
    assert peer.next() == wire.DeclarePublisherResponse(2, Code.OK)
    for number in range(100):
        peer.send(wire.Publish(0, [(number, bytes(10_000))], []))
        assert peer.next() == wire.PublishConfirm(0, [number])
    peer.send(wire.Subscribe(3, 1, "limited", FROM_FIRST, 1, {}))
    assert peer.next() == wire.SubscribeResponse(3, Code.OK)
    assert 60 <= chunk_id(peer) <= 80, "about the last 30 of 100 messages are there"
    peer.send(wire.QueryPublisherSequence(4, "writer", "limited"))
    assert peer.next() == wire.QueryPublisherSequenceResponse(4, Code.OK, 99)


# --- TLS ------------------------------------------------------------------------------------------


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_rstream_connects_with_tls_and_is_told_the_tls_port() -> None:
    with tempfile.TemporaryDirectory(prefix="certificates-") as directory:
        authority = CertificateAuthority(Path(directory))
        server = authority.issue("server", names=f"DNS:localhost,IP:{LOOPBACK}")
        tls_port = free_port()
        config = {
            "stream.listeners.ssl.1": f"{LOOPBACK}:{tls_port}",
            **server.settings(),
            "stream.advertised_tls_host": "localhost",
        }

        async def script() -> None:
            client = Client(
                LOOPBACK, tls_port, frame_max=1 << 20, heartbeat=60, ssl_context=authority.client_context()
            )
            await client.start()
            await client.authenticate("/", "guest", "guest")
            await client.create_stream("secret")
            assert client.server_properties is not None
            assert client.server_properties["advertised_port"] == str(tls_port)
            leader, _ = await client.query_leader_and_replicas("secret")
            assert (leader.host, leader.port) == ("localhost", tls_port)
            await client.close()

        with LeveretProcess(config=config) as node:
            asyncio.run(script())
            with socket.create_connection((LOOPBACK, tls_port), timeout=10) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                wait_until(lambda: "tls_refused" in node.log_text(), "a word in the log", 60)
