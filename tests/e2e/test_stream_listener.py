"""The stream listener on real sockets and both event loops, its host in memory."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import uvloop
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext
from rstream import OffsetType as RstreamOffset

from leveret.core.queues.stream import StreamBatch
from leveret.model.errors import (
    LedElsewhere,
    LeveretError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    StorageError,
)
from leveret.pipeline.upstream.stream_client import (
    UNCONFIRMED_MAX,
    GapError,
    StreamClient,
    UpstreamUnreachable,
    connect,
)
from leveret.pipeline.upstream.stream_connection import ConnectionLost
from leveret.runtime.clients.stream_peer import READ_BYTES_MAX, WRITE_BUFFER_BYTES_MAX
from leveret.session.stream.connection import UNSTORED_BYTES_MAX
from leveret.testing.network.ports import LOOPBACK, free_port, wait_until
from leveret.testing.sites.stream_host import (
    FakeServedLog,
    FakeStream,
    FakeStreamHost,
    recovery_queue_contract,
    served_log_contract,
)
from leveret.wire.chunk import ChunkError, ChunkType, decode_chunk
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream.fields import FailedPublish, OffsetSpec, OffsetType
from leveret.wire.stream.publish import MessageRun
from tests.e2e.stream_served import QUEUE, TIMEOUT_S, RawPeer, Served, serving


@pytest.fixture(
    params=[pytest.param(asyncio.new_event_loop, marks=pytest.mark.story), uvloop.new_event_loop],
    ids=["asyncio", "uvloop"],
)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(request.param) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[StreamClient]:
    with served.client() as one:
        yield one


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


# --- Fetching -------------------------------------------------------------------------------------


def test_chunks_are_served_octet_for_octet_from_start_to_before_end(
    served: Served, client: StreamClient
) -> None:
    served.fill(500, records=3)
    written = served.on_loop(lambda: served.log.read(0, 1 << 30))
    assert [bytes(raw) for raw in client.fetch(OUTGOING_STREAM, 0, 1500)] == written
    assert [bytes(raw) for raw in client.fetch(OUTGOING_STREAM, 300, 900)] == written[100:300]
    assert list(client.fetch(OUTGOING_STREAM, 900, 900)) == []


def test_nothing_is_fetched_of_another_log_than_is_meant(served: Served, client: StreamClient) -> None:
    served.fill(5, records=1)
    stats = client.stats(OUTGOING_STREAM)
    meant = {name: stats[name] for name in ("log_id", "writer")}
    assert len(list(client.fetch(OUTGOING_STREAM, 0, 5, **meant))) == 5
    for name, value in meant.items():
        with pytest.raises(PreconditionFailed, match="another log than the one that was begun with"):
            list(client.fetch(OUTGOING_STREAM, 0, 5, **{**meant, name: value + 1}))
    assert len(list(client.fetch(OUTGOING_STREAM, 0, 5))) == 5


async def test_a_stock_client_gets_the_messages_of_a_log_and_only_them(served: Served) -> None:
    served.fill(2, records=3, body=b"first")
    served.on_loop(lambda: served.log.append([b"a settlement"], kind=ChunkType.TRACKING))
    served.fill(20, records=3, body=b"later")
    got: list[tuple[int, bytes]] = []

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
    assert [offset for offset, _ in got] == [*range(1, 6), *range(7, 67)]
    assert {body for _, body in got} == {b"first", b"later"}


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
    with pytest.raises(ConnectionLost, match="no frame came before the timeout"):
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


def test_a_chunk_damaged_on_the_way_is_found(served: Served, client: StreamClient) -> None:
    served.fill(3)

    def flip() -> None:
        chunk = bytearray(served.log.read(2, 1)[0])
        chunk[60] ^= 1
        served.log.replace(2, bytes(chunk))

    served.on_loop(flip)
    chunks = client.fetch(OUTGOING_STREAM, 0, 6)
    next(chunks)
    with pytest.raises(ChunkError, match=r"chunk 2: CRC of its data does not match"):
        next(chunks)
    assert client.stats(OUTGOING_STREAM)["committed_offset"] == 6


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


def test_a_large_plan_is_published_with_few_runs_under_way(served: Served, client: StreamClient) -> None:
    count = 3 * 10 * UNCONFIRMED_MAX
    publisher = client.declare_publisher("recovery.1", QUEUE)
    for first in range(1, count, 10):
        publisher.publish(MessageRun.of(first, [b"m" * 50] * 10))
    publisher.wait_confirmed(count, TIMEOUT_S)
    stored = served.on_loop(lambda: served.host.queues["/", "orders"].stored)
    assert [number for number, _ in stored] == list(range(1, count + 1))


def test_while_the_disk_is_slow_a_publisher_waits_and_memory_is_bounded(served: Served) -> None:
    queue = served.on_loop(lambda: served.host.recovery_queue("guest", "/", "orders"))
    served.on_loop(queue.hold)
    runs = [MessageRun.of(number, [b"b" * 100_000]) for number in range(1, 401)]
    with served.client() as client, ThreadPoolExecutor(1) as pool:
        publisher = client.declare_publisher("recovery.1", QUEUE)
        sent = pool.submit(lambda: deque(map(publisher.publish, runs), 0))
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
    publisher.publish(MessageRun.of(1, [b"a"]))
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
    publisher.publish(MessageRun.of(1, [b"a", b"b"]))
    with pytest.raises(NotFound, match="declines messages up to number 2 "):
        publisher.wait_confirmed(2, TIMEOUT_S)


def test_more_publishers_than_there_are_numbers_are_refused_until_one_is_closed(client: StreamClient) -> None:
    publishers = [client.declare_publisher("r", f"{QUEUE}.{number}") for number in range(256)]
    with pytest.raises(NotAllowed, match="256 publishers"):
        client.declare_publisher("r", QUEUE)
    publishers[17].close()
    client.declare_publisher("r", QUEUE)


# --- Connections ----------------------------------------------------------------------------------


def test_when_no_endpoint_answers_the_reasons_are_named() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        endpoints = [f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{silent.getsockname()[1]}"]
        with pytest.raises(UpstreamUnreachable, match=r"refused.*no frame came before the timeout"):
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


def test_while_an_alarm_is_in_effect_who_publishes_to_streams_is_not_read_from(served: Served) -> None:
    stream = served.on_loop(lambda: served.host.streams.setdefault(("/", "s"), FakeStream()))
    publisher, reader = RawPeer(served.port), RawPeer(served.port)
    with closing(publisher.socket), closing(reader.socket):
        publisher.send(wire.DeclarePublisher(1, 0, "", "s"))
        publisher.next()

        def alarm(on: bool) -> None:
            served.host.is_blocked = on
            served.listener.alarms_changed()

        served.on_loop(lambda: alarm(True))
        publisher.send(wire.Publish(0, [(1, b"a")], []))
        reader.send(wire.Metadata(1, ["s"]))
        assert isinstance(reader.next(), wire.MetadataResponse), "others are served"
        assert served.on_loop(lambda: stream.committed_offset) == 0
        served.on_loop(lambda: alarm(False))
        assert publisher.next() == wire.PublishConfirm(0, [1])


def test_what_a_publisher_sent_before_it_was_deleted_is_stored(served: Served) -> None:
    """Clients that close a producer delete its publisher behind the last message, and do not wait for confirms."""
    stream = served.on_loop(lambda: served.host.streams.setdefault(("/", "s"), FakeStream()))
    publisher = RawPeer(served.port)
    with closing(publisher.socket):
        publisher.send(
            wire.DeclarePublisher(1, 0, "", "s"),
            wire.Publish(0, [(1, b"a"), (2, b"b")], []),
            wire.DeletePublisher(2, 0),
        )
        assert isinstance(publisher.next(), wire.DeclarePublisherResponse)
        assert isinstance(publisher.next(), wire.DeletePublisherResponse)
        wait_until(lambda: served.on_loop(lambda: stream.committed_offset) == 2, "both messages", TIMEOUT_S)


@pytest.mark.parametrize(
    "error",
    [LedElsewhere("it has another leader"), StorageError("no space left")],
    ids=["moved", "disk full"],
)
def test_behind_a_batch_that_is_not_stored_nothing_of_its_publisher_is_stored(
    served: Served, error: LeveretError
) -> None:
    """The publisher publishes it again, and by the higher ids it would count as stored."""
    stream = served.on_loop(lambda: served.host.streams.setdefault(("/", "s"), FakeStream()))
    batches: list[StreamBatch] = []

    def publish(batch: StreamBatch) -> None:
        batches.append(batch)
        batch.done(error)

    served.on_loop(lambda: setattr(stream, "publish", publish))
    publisher = RawPeer(served.port)
    with closing(publisher.socket):
        publisher.send(
            wire.DeclarePublisher(1, 0, "p", "s"),
            wire.DeclarePublisher(2, 1, "q", "s"),
            wire.Publish(0, [(1, b"a")], []),
            wire.Publish(1, [(1, b"b")], []),
            wire.Publish(0, [(2, b"c")], []),
        )
        answers = [publisher.next() for _ in range(3)]
        assert [type(each) for each in answers[:2]] == [wire.DeclarePublisherResponse] * 2
        assert answers[2] == wire.MetadataUpdate(Code.STREAM_NOT_AVAILABLE, "s")
        publisher.send(wire.Publish(0, [(2, b"c")], []))
        assert publisher.next() == wire.PublishError(0, [FailedPublish(2, Code.PUBLISHER_UNKNOWN)])
    assert [batch.reference for batch in batches] == [b"p"]
