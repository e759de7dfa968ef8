"""runtime.collecting.collector, of streams: what a standby gets of them, and what comes back from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.core.queues.messages import alike
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.model import definitions as d
from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.runtime.clients.recovery_ingest import RecoveryIngest
from leveret.wire.chunk import Attribute, ChunkType, decode_trailer, split_entries
from leveret.wire.record import content_header, decode_settlements, message_head
from leveret.wire.stream.publish import MessageRun
from leveret.wire.stream_entry import entries_of, mark_entry, pack_entries, unpack_entry
from tests.unit.runtime.collecting.site import HEAD, POLICY, TAGGED, Site, collected_chunks, origin

STREAM = d.Queue(name="qs", vhost="v", arguments={"x-queue-type": "stream"})
OFF = d.Delete("policies", ("v", "p"))
RAW = b"\0\0\0\3raw"
BATCH = b"\x80\0\x05\0\0\0\x09\0\0\0\x02zz"
"""A batch of five, in a compression that nobody here knows."""


def stream_of(site: Site) -> Stream:
    found = site.queue("qs")
    assert isinstance(found, Stream)
    return found


async def publish(site: Site, *entries: bytes, reference: bytes = b"") -> None:
    stream = stream_of(site)
    records = sum(5 if entry[0] & 0x80 else 1 for entry in entries)
    batch = StreamBatch(reference, range(1, len(entries) + 1), list(entries), records, None)
    refused: list[LeveretError] = []
    batch.done = lambda error: refused.append(error) if error else None
    stream.publish(batch)
    await site.touched("qs")
    assert not refused


def collected(site: Site) -> list[bytes]:
    """Entries that a standby would bring back to the stream, in their order."""
    held: dict[tuple[tuple[bytes, int], int], bytes] = {}
    settled: set[tuple[tuple[bytes, int], int]] = set()
    for chunk in collected_chunks(site.node.collector.logs["v"]):
        incarnation, offset = origin(chunk.trailer)
        if chunk.header.type == ChunkType.TRACKING:
            for _, first, count in decode_settlements(split_entries(chunk.data)[0]):
                settled |= {(incarnation, each) for each in range(first, first + count)}
            continue
        for at, stored in enumerate(split_entries(chunk.data), offset):
            entry = unpack_entry(bytes(stored))
            assert entry is not None
            assert held.setdefault((incarnation, at), entry) == entry
    return [held[key] for key in sorted(held) if key not in settled]


def retained(site: Site) -> list[bytes]:
    log = site.node.log_store.log(stream_of(site))
    chunks = log.read(log.first_offset, 1 << 30)
    return [
        entry
        for chunk in chunks
        if chunk.header.type == ChunkType.USER
        for entry in entries_of(bytes(chunk.data))
    ]


async def test_a_stream_is_collected_as_its_publishers_sent_it(directory: Path) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(STREAM))
    await publish(site, RAW, BATCH)
    stream_of(site).gathered.add(alike(HEAD, [b"by 0-9-1"]))
    await site.touched("qs")
    await site.apply(d.Put(POLICY))
    assert stream_of(site).replicated
    assert collected(site) == retained(site), "what was in it when its policy came"
    stream_of(site).store_offset(b"reader", 2)
    await site.touched("qs")
    await publish(site, RAW, RAW)
    assert collected(site) == retained(site)
    await site.restart()
    await publish(site, BATCH, RAW)
    assert collected(site) == retained(site)
    assert len(collected(site)) == 7
    [row] = site.node.upstream.metrics()
    assert (row["queue"], row["messages"]) == ("qs", 16), "a stored offset has one, too"
    await site.apply(OFF)
    assert collected(site) == []
    await publish(site, RAW)
    await site.apply(d.Put(POLICY))
    assert collected(site) == retained(site), "all of it again, under a life of its own"
    await site.apply(d.Delete("queues", ("v", "qs")))
    assert collected(site) == []


async def test_what_a_streams_retention_took_does_not_come_back_at_the_standby(directory: Path) -> None:
    site = await Site.started(directory)
    limited = {"x-queue-type": "stream", "x-max-length-bytes": 500, "x-stream-max-segment-size-bytes": 200}
    await site.apply(d.Put(TAGGED), d.Put(POLICY), d.Put(d.Queue(name="qs", vhost="v", arguments=limited)))
    for number in range(30):
        await publish(site, b"\0\0\0\x28" + b"%040d" % number)
    site.node.log_store.streams.retain()
    await site.node.collector.retain()
    assert 0 < len(retained(site)) < 30
    assert collected(site) == retained(site)
    end = site.node.collector.logs["v"].log.next_offset
    await site.node.collector.retain()
    assert site.node.collector.logs["v"].log.next_offset == end, "it is said once"
    await site.restart()
    await site.node.collector.retain()
    assert collected(site) == retained(site)


def stored(entry: bytes) -> bytes:
    """As the pipeline hands it in: a stored message without its length."""
    return pack_entries(entry)[0][4:]


@pytest.mark.parametrize("restart", [False, True])
async def test_entries_come_back_into_a_stream_once_and_as_they_were(directory: Path, restart: bool) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(STREAM))
    entries = [stored(RAW), stored(BATCH), stored(RAW)]

    def ingest() -> RecoveryIngest:
        node = site.node
        return RecoveryIngest(node.broker, ("v", "qs"), node.engine, node.commits)

    durable: list[int] = []
    ingest().append("recovery.1", [MessageRun.of(1, entries[:2])], lambda: durable.append(1))
    if restart:
        await site.settle()
        await site.restart()
    # A publisher that does not know how far it came begins from the beginning.
    assert ingest().last_sequence("recovery.1") == 2
    ingest().append("recovery.1", [MessageRun.of(1, entries)], lambda: durable.append(2))
    plain = message_head(b"e", b"k", content_header(b"\0\0", 5)) + b"plain"
    ingest().append("recovery.1", [MessageRun.of(4, [plain])], lambda: durable.append(3))
    await site.settle()
    assert durable == [1, 2, 3]
    found = retained(site)
    assert found[:3] == [RAW, BATCH, RAW]
    assert found[3].endswith(b"plain")
    assert stream_of(site).message_count == 8
    log = site.node.log_store.log(stream_of(site))
    filters = [
        (kind, name, many)
        for chunk in log.read(0, 1 << 20)
        for kind, name, many in decode_trailer(chunk.trailer)
        if kind == Attribute.FILTER
    ]
    assert set(filters) == {(Attribute.FILTER, b"", 1)}, "every reader is sent them, whatever it filters"


@pytest.mark.parametrize(
    ("message", "type_"),
    [
        (stored(RAW), "stream"),
        (mark_entry(RAW, b""), "stream"),
        (message_head(b"e", b"k", content_header(b"\0\0", 5)) + b"plain", "classic"),
    ],
    ids=["stream", "marked", "classic"],
)
async def test_a_queue_that_the_schema_sync_did_not_bring_is_made_as_what_its_messages_say(
    directory: Path, message: bytes, type_: str
) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED))
    node, key = site.node, ("v", "unknown")
    ingest = RecoveryIngest(node.broker, key, node.engine, node.commits)
    assert ingest.last_sequence("recovery.1") == 0
    assert key not in node.broker.queues, "not before there is something to put in"
    with pytest.raises(PreconditionFailed):
        ingest.append("recovery.1", [MessageRun.of(2, [message])], lambda: None)
    assert key not in node.broker.queues
    durable: list[int] = []
    runs = [MessageRun.of(number, [message]) for number in (1, 2, 3)]
    ingest.append("recovery.1", runs, lambda: durable.append(3))
    await site.settle()
    await site.restart()
    queue = site.node.broker.queue(*key)
    assert (isinstance(queue, Stream), queue.message_count) == (type_ == "stream", 3)
    assert queue.definition.arguments == ({"x-queue-type": "stream"} if type_ == "stream" else {})
    assert durable == [3]
