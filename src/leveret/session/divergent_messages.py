"""The messages of a log's divergent tail as rows, for an operator who decides about them.

A row has the fields of a message in the management API, and whether the tail itself settles it: then it was consumed
or dropped. An unreadable part has a row, too, with the error under `damage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.messages import count_of
from leveret.model.errors import Corrupt
from leveret.session.message_json import payload_json, properties_json
from leveret.session.stream.messages import runs_of
from leveret.wire.chunk import Chunk, ChunkError, ChunkType, split_entries
from leveret.wire.record import StoredMessage, decode_message, decode_settlements
from leveret.wire.relocation import decode_relocation

Read: TypeAlias = Callable[[ChunkType], Iterable[Chunk | Corrupt]]
"""Gives the tail's chunks of a type, in order, and an error for each unreadable place."""
Row: TypeAlias = dict[str, Any]
_SIZE_BYTES: Final = 4
_NO_HEADER: Final = bytes(14)


class Tail(NamedTuple):
    """The records of a log from `from_offset` on, quarantined by a report; `kind` is `queues`, `streams` or another.

    With `has_relocated`, earlier messages that are relocated behind it count, too (wire.relocation).
    """

    report: str
    kind: str
    vhost: str | None
    queue: str | None
    from_offset: int
    has_relocated: bool = False


def message_rows(tail: Tail, read: Read) -> Iterator[Row]:
    """The messages in the order of their offsets; none if the log is no queue's and no stream's.

    Memory holds one chunk at a time, and the settled offsets.
    """
    if tail.kind == "streams":
        yield from _stream_rows(tail, read)
    elif tail.kind == "queues":
        yield from _queue_rows(tail, read)


def _queue_rows(tail: Tail, read: Read) -> Iterator[Row]:
    settled, unread = _settled(tail, read)
    if tail.has_relocated:
        yield from _relocated_rows(tail, read, settled)
    for chunk in read(ChunkType.USER):
        if isinstance(chunk, Corrupt):
            unread.pop(chunk.offset, None)
            yield _damage(tail, chunk.offset, 0, str(chunk))
            continue
        offset, timestamp_ms = chunk.header.chunk_id, chunk.header.timestamp_ms
        try:
            for entry in split_entries(chunk.data):
                message = decode_message(entry)
                yield _row(tail, offset, timestamp_ms, message, is_settled=offset in settled)
                offset += 1
        except ChunkError as error:
            yield _damage(tail, offset, timestamp_ms, str(error))
    for offset, what in unread.items():
        yield _damage(tail, offset, 0, f"settlements, so a settled message may be shown as unsettled: {what}")


def _settled(tail: Tail, read: Read) -> tuple[OffsetSet, dict[int, str]]:
    """The offsets that the tail settles, and its unreadable settlements."""
    settled = OffsetSet(0 if tail.has_relocated else tail.from_offset)
    unread: dict[int, str] = {}
    for chunk in read(ChunkType.TRACKING):
        if isinstance(chunk, Corrupt):
            unread[chunk.offset] = str(chunk)
            continue
        try:
            for _, first, count in decode_settlements(chunk.data[_SIZE_BYTES:]):
                settled.add(first, first + count)
        except ChunkError as error:
            unread[chunk.header.chunk_id] = str(error)
        settled.add(chunk.header.chunk_id, chunk.header.next_offset)
    return settled, unread


def _relocated_rows(tail: Tail, read: Read, settled: OffsetSet) -> Iterator[Row]:
    """The messages before the tail, each once, in the order of their chunks."""
    seen = OffsetSet()
    for chunk in read(ChunkType.RELOCATION):
        if isinstance(chunk, Corrupt):
            yield _damage(tail, chunk.offset, 0, str(chunk))
            continue
        try:
            for first, count, timestamp_ms, data in decode_relocation(chunk.data):
                for offset, entry in enumerate(split_entries(data), first):
                    if offset < tail.from_offset and offset not in seen:
                        is_settled = offset in settled
                        yield _row(tail, offset, timestamp_ms, decode_message(entry), is_settled=is_settled)
                seen.add(first, first + count)
        except ChunkError as error:
            yield _damage(tail, chunk.header.chunk_id, chunk.header.timestamp_ms, str(error))


def _stream_rows(tail: Tail, read: Read) -> Iterator[Row]:
    for chunk in read(ChunkType.USER):
        if isinstance(chunk, Corrupt):
            yield _damage(tail, chunk.offset, 0, str(chunk))
            continue
        header = chunk.header
        try:
            runs = runs_of(bytes(chunk.data), header.chunk_id, header.chunk_id, (tail.queue or "").encode())
        except ChunkError as error:
            yield _damage(tail, header.chunk_id, header.timestamp_ms, str(error))
            continue
        for run in runs:
            messages = run.taken()
            for index, body in enumerate(messages.bodies):
                head = messages.head_at(index)
                message = StoredMessage(head.exchange, head.routing_key, head.header, body)
                yield _row(tail, run.first + index, header.timestamp_ms, message, is_settled=False)
        count = count_of(runs)
        if count < header.records:
            what = f"{header.records - count} messages of this chunk are in batches that cannot be unpacked"
            yield _damage(tail, header.chunk_id, header.timestamp_ms, what)


def _row(tail: Tail, offset: int, timestamp_ms: int, message: StoredMessage, *, is_settled: bool) -> Row:
    payload, encoding = payload_json(message.body)
    return {
        "report": tail.report,
        "vhost": tail.vhost,
        "queue": tail.queue,
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "exchange": message.exchange.decode(errors="replace"),
        "routing_key": message.routing_key.decode(errors="replace"),
        "properties": properties_json(message.header),
        "payload": payload,
        "payload_encoding": encoding,
        "settled": is_settled,
    }


def _damage(tail: Tail, offset: int, timestamp_ms: int, what: str) -> Row:
    """A row without a message, from `offset` on."""
    nothing = StoredMessage(b"", b"", _NO_HEADER, b"")
    return {**_row(tail, offset, timestamp_ms, nothing, is_settled=False), "damage": what}
