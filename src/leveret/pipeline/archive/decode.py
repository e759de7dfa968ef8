"""Decodes outgoing chunks to Arrow: one row a record, and the ranges of the settlement records.

A row is a record of a queue's log: a message (`kind` MESSAGE), or the settlement record itself
(`kind` SETTLEMENT, its octets in `body`, empty exchange, key and properties), so that a table holds
all that the upstream collected. The position in the outgoing log is not kept: identity is
(vhost, queue, queue_epoch, queue_offset).

Only the walk over the lengths runs once a message. The data of many chunks are joined, unless they lie in one block
of memory already; numpy finds the begin of each field of each entry; Arrow gathers the slices.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leveret.pipeline.archive.manifest import QueuePart
from leveret.pipeline.archive.settled_offsets import Int64s
from leveret.pipeline.archive.stored_positions import StoredPositionsCollector
from leveret.wire.chunk import Attribute, Chunk, ChunkError, ChunkType, Header, decode_chunk, decode_trailer

_Ranges = tuple[Int64s, Int64s, Int64s, Int64s, Int64s]
"""Part, first offset, count, reason and time (ms) of settled ranges."""

MESSAGE: Final = 0
SETTLEMENT: Final = 1
NO_MESSAGE: Final = 255
"""The reason under which a settlement record's own offset counts as settled: it is not a message."""
UNKNOWN: Final = 254
"""The reason of settlements that a compaction merged."""
POSITION_MAX: Final = (1 << 62) - 1
"""The highest epoch or offset: columns have 63 bits, and the records of a chunk are counted on from its offset."""

_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
RECORDS: Final = pa.schema(
    [
        pa.field("vhost", _NAMES, nullable=False),
        pa.field("queue", _NAMES, nullable=False),
        pa.field("queue_epoch", pa.int64(), nullable=False),
        pa.field("queue_offset", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("exchange", pa.binary(), nullable=False),
        pa.field("routing_key", pa.binary(), nullable=False),
        pa.field("properties", pa.binary(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
SETTLEMENTS: Final = pa.schema(
    [
        pa.field("queue", _NAMES, nullable=False),
        pa.field("queue_epoch", pa.int64(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("reason", pa.uint8(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
    ]
)
"""`timestamp_ms` is the time of the settlement record's chunk, 0 if it is not known any more. The sidecars of earlier
versions do not have it (`archive.settlements`)."""
_RANGE: Final = np.dtype([("reason", "u1"), ("first", ">u8"), ("count", ">u4")])
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A run of chunks as columns: `records` with the schema RECORDS, `settlements` with SETTLEMENTS."""

    records: pa.RecordBatch
    settlements: pa.RecordBatch


class Decoder:
    """Decodes the chunks of one vhost's outgoing log, run after run, and counts their records.

    Attributes:
        parts: by (queue, epoch), in order of first appearance.
        stored_positions: the stored positions of streams' readers and publishers in the chunks.
        first: the offset in the outgoing log of the first record, -1 before any.
        next: the offset in the outgoing log after the last record.
    """

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.parts: dict[tuple[str, int], QueuePart] = {}
        self.stored_positions = StoredPositionsCollector()
        self.first = -1
        self.next = -1
        self.last: Header | None = None
        self.records = 0

    def decode(self, chunks: Iterable[bytes | memoryview]) -> Decoded:
        """Decode whole chunks, in log order, that continue the earlier ones.

        Raises:
            ChunkError: a chunk is damaged, does not continue the one before, has no identity in its trailer, or holds
                sub-batches.
        """
        taken = [self._take(raw) for raw in chunks]
        run = _Run(taken)
        return Decoded(run.records(self.vhost), run.settlements())

    def _take(self, raw: bytes | memoryview) -> _Placed:
        chunk = decode_chunk(memoryview(raw))
        header = chunk.header
        if self.next not in (-1, header.chunk_id):
            raise ChunkError(
                f"outgoing log of vhost '{self.vhost}': chunk {header.chunk_id} follows {self.next}"
            )
        if header.records != header.entries:
            raise ChunkError(f"chunk {header.chunk_id}: sub-batches do not belong in an outgoing log")
        said = list(decode_trailer(chunk.trailer))
        queue, epoch, first = _identity(chunk, said)
        kind = next((name for each, name, _ in said if each == Attribute.QUEUE_OFFSET), b"")
        self.stored_positions.note((queue, epoch), first, header.timestamp_ms, said)
        part = self.parts.get((queue, epoch))
        if part is None:
            part = self.parts[queue, epoch] = QueuePart(queue, epoch)
        part.type = part.type or kind.decode(errors="replace")
        part.count(first, header.records, header.timestamp_ms, header.type == ChunkType.USER)
        if self.first < 0:
            self.first = header.chunk_id
        self.next, self.last = header.next_offset, header
        self.records += header.records
        return _Placed(chunk, part, first)


@dataclass(frozen=True, slots=True)
class _Placed:
    chunk: Chunk
    part: QueuePart
    first: int


def _identity(chunk: Chunk, said: list[tuple[int, bytes, int]]) -> tuple[str, int, int]:
    queue: str | None = None
    epoch = offset = -1
    for kind, name, value in said:
        if kind == Attribute.QUEUE_EPOCH:
            queue, epoch = _queue_name(chunk, name), value
        elif kind == Attribute.QUEUE_OFFSET:
            offset = value
    if queue is None or offset < 0:
        raise ChunkError(f"chunk {chunk.header.chunk_id}: its trailer does not name its queue")
    if max(epoch, offset, chunk.header.chunk_id) > POSITION_MAX:
        raise ChunkError(f"chunk {chunk.header.chunk_id}: its position in queue '{queue}' is impossible")
    return queue, epoch, offset


def _queue_name(chunk: Chunk, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ChunkError(f"chunk {chunk.header.chunk_id}: its queue's name is not UTF-8") from None


class _Run:
    """Chunks side by side: one buffer with their data, the begin of each, and a row of numpy arrays for each field."""

    def __init__(self, placed: list[_Placed]) -> None:
        self.placed = placed
        headers = [each.chunk.header for each in placed]
        self.entries = np.array([header.entries for header in headers], np.int64)
        self.is_message = np.array([header.type == ChunkType.USER for header in headers], np.bool_)
        self.timestamps = np.array([header.timestamp_ms for header in headers], np.int64)
        self.part_list = list({id(each.part): each.part for each in placed}.values())
        index = {id(part): i for i, part in enumerate(self.part_list)}
        self.part_index = np.array([index[id(each.part)] for each in placed], np.int32)
        names = {name: i for i, name in enumerate(dict.fromkeys(part.queue for part in self.part_list))}
        self.names = pa.array(list(names), pa.string())
        self.name_of_part = np.array([names[part.queue] for part in self.part_list], np.int32)
        self.epoch_of_part = np.array([part.epoch for part in self.part_list], np.int64)
        self.data, self.places = _side_by_side([each.chunk.data for each in placed])
        if len(self.data) > 0x7FFF_FFFF:
            raise ChunkError(f"{len(self.data)} octets of chunks in one run; 2 GiB is the most")
        self.starts, self.ends = self._bounds()

    def _bounds(self) -> tuple[Int64s, Int64s]:
        """The begin and end of each entry in the joined data."""
        starts: list[Int64s] = []
        for each, base in zip(self.placed, self.places.tolist(), strict=True):
            header = each.chunk.header
            starts.append(_entry_starts(self.data, base, header.data_bytes, header.entries, header.chunk_id))
        begin = np.concatenate(starts) if starts else np.empty(0, np.int64)
        chunk_ends = self.places + np.array([each.chunk.header.data_bytes for each in self.placed], np.int64)
        end = np.empty_like(begin)
        end[:-1] = begin[1:] - 4
        end[np.cumsum(self.entries)[self.entries > 0] - 1] = chunk_ends[self.entries > 0]
        return begin, end

    def records(self, vhost: str) -> pa.RecordBatch:
        """Rows with the schema RECORDS."""
        row_is_message = np.repeat(self.is_message, self.entries)
        exchange, key, properties, body = self._fields(row_is_message)
        rows = len(row_is_message)
        firsts = np.array([each.first for each in self.placed], np.int64)
        within = np.arange(rows, dtype=np.int64) - np.repeat(
            np.cumsum(self.entries) - self.entries, self.entries
        )
        parts = np.repeat(self.part_index, self.entries)
        columns = [
            pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([vhost])),
            pa.DictionaryArray.from_arrays(self.name_of_part[parts], self.names),
            pa.array(self.epoch_of_part[parts]),
            pa.array(np.repeat(firsts, self.entries) + within),
            pa.array(np.where(row_is_message, MESSAGE, SETTLEMENT).astype(np.int8)),
            pa.array(np.repeat(self.timestamps, self.entries)),
            _gather(self.data, *exchange),
            _gather(self.data, *key),
            _gather(self.data, *properties),
            _gather(self.data, *body),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORDS)

    def _fields(self, is_message: npt.NDArray[np.bool_]) -> list[tuple[Int64s, Int64s]]:
        """(starts, ends) of exchange, routing key, properties and body of each row."""
        octets = np.frombuffer(self.data, np.uint8)
        start, end = self.starts, self.ends
        try:
            exchange_end = start + np.where(is_message, 1 + octets[start * is_message].astype(np.int64), 0)
            key_start = exchange_end + is_message
            key_end = key_start + np.where(is_message, octets[exchange_end * is_message].astype(np.int64), 0)
            header_start = key_end + 4 * is_message
            size = np.zeros(len(start), np.int64)
            for i in range(4):
                size = size << 8 | octets[(key_end + i) * is_message]
            body = header_start + np.where(is_message, size, 0)
        except IndexError:
            raise ChunkError("stored message ends inside its exchange, routing key or header") from None
        if np.any(body > end) or np.any(is_message & (size < 14)):
            row = int(np.flatnonzero((body > end) | (is_message & (size < 14)))[0])
            raise ChunkError(f"stored message at byte {int(start[row])} of its run: its header does not fit")
        properties = header_start + 12 * is_message
        return [(start + is_message, exchange_end), (key_start, key_end), (properties, body), (body, end)]

    def settlements(self) -> pa.RecordBatch:
        """Rows with the schema SETTLEMENTS, adjacent ranges of one reason joined; also counts them into their parts."""
        rows = np.cumsum(self.entries) - self.entries
        found = [self._settled(int(at), int(rows[at])) for at in np.flatnonzero(~self.is_message)]
        if not found:
            return pa.RecordBatch.from_pylist([], schema=SETTLEMENTS)
        columns = [np.concatenate([each[i] for each in found]) for i in range(5)]
        parts, firsts, counts, reasons, timestamps = _coalesce(*columns)
        settles = reasons != NO_MESSAGE
        for part, first, count in zip(
            *(each[settles].tolist() for each in (parts, firsts, counts)), strict=True
        ):
            self.part_list[part].count_settled(first, count)
        return pa.RecordBatch.from_arrays(
            [
                pa.DictionaryArray.from_arrays(self.name_of_part[parts], self.names),
                pa.array(self.epoch_of_part[parts]),
                pa.array(firsts),
                pa.array(counts),
                pa.array(reasons.astype(np.uint8)),
                pa.array(timestamps),
            ],
            schema=SETTLEMENTS,
        )

    def _settled(self, at: int, row: int) -> _Ranges:
        """The ranges in chunk `at`, whose first row is `row`."""
        placed = self.placed[at]
        entries = range(row, row + placed.chunk.header.entries)
        bodies = [self.data[self.starts[i] : self.ends[i]] for i in entries]
        if any(len(body) % _RANGE.itemsize for body in bodies):
            raise ChunkError(
                f"chunk {placed.chunk.header.chunk_id}: a settlement record is no whole number of ranges"
            )
        ranges = np.frombuffer(b"".join(bodies), _RANGE)
        firsts = np.append(ranges["first"].astype(np.int64), placed.first)
        counts = np.append(ranges["count"].astype(np.int64), placed.chunk.header.records)
        reasons = np.append(ranges["reason"].astype(np.int64), NO_MESSAGE)
        parts = np.full(len(firsts), self.part_index[at], np.int64)
        timestamps = np.full(len(firsts), placed.chunk.header.timestamp_ms, np.int64)
        timestamps[-1] = 0  # no message was settled then, and neighbours stay one range
        return parts, firsts, counts, reasons, timestamps


def _side_by_side(pieces: list[bytes | memoryview]) -> tuple[bytes | memoryview, Int64s]:
    """One block of memory with all these pieces in order, and the begin of each."""
    blocks = [_block_of(piece) for piece in pieces]
    block = blocks[0] if blocks else None
    if block is not None and all(each is block for each in blocks):
        places = np.array([_address(np.frombuffer(piece, np.uint8)) for piece in pieces], np.int64)
        if np.all(np.diff(places) > 0):
            return block.data, places - _address(block)
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return b"".join(pieces), ends - np.array([len(piece) for piece in pieces], np.int64)


def _block_of(piece: bytes | memoryview) -> npt.NDArray[np.uint8] | None:
    """The array that a piece is a part of; None for an empty piece, or another kind of memory."""
    block: object = piece.obj if isinstance(piece, memoryview) and len(piece) else None
    return block if isinstance(block, np.ndarray) else None


def _address(array: npt.NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])


def _entry_starts(data: bytes | memoryview, base: int, size: int, entries: int, chunk_id: int) -> Int64s:
    """The begins of the bodies of a chunk's entries."""
    end = base + size
    if entries and size >= 4:
        (length,) = _LENGTH.unpack_from(data, base)
        stride = length + 4
        if stride * entries == size and _all_equal(data, base, stride, entries):
            return np.arange(base + 4, base + 4 + stride * entries, stride, dtype=np.int64)
    starts: list[int] = []
    position = base
    unpack = _LENGTH.unpack_from
    try:
        while position < end:
            starts.append(position + 4)
            position += 4 + unpack(data, position)[0]
    except struct.error:
        position = -1
    if position != end or len(starts) != entries:
        raise ChunkError(f"chunk {chunk_id}: the lengths of its {entries} entries do not add up to its data")
    return np.array(starts, np.int64)


def _all_equal(data: bytes | memoryview, base: int, stride: int, entries: int) -> bool:
    """Whether all entries have the length of the first."""
    rows = np.frombuffer(data, np.uint8, stride * entries, base).reshape(entries, stride)
    return bool(np.all(rows[:, :4] == rows[0, :4]))


def _gather(data: bytes | memoryview, starts: Int64s, ends: Int64s) -> pa.Array:
    """The slices of `data` as one binary array; slices are in order and do not overlap.

    Slices and the gaps between them are one array of 2 n - 1 values without a copy; taking every other
    one is the copy, in C++.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    sliced = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return sliced.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _coalesce(parts: Int64s, firsts: Int64s, counts: Int64s, reasons: Int64s, timestamps: Int64s) -> _Ranges:
    """Sort by part, reason and first, and join ranges of one time that continue each other."""
    order = np.lexsort((firsts, reasons, parts))
    parts, firsts, counts, reasons, timestamps = (
        each[order] for each in (parts, firsts, counts, reasons, timestamps)
    )
    begins = np.ones(len(parts), np.bool_)
    begins[1:] = firsts[1:] != firsts[:-1] + counts[:-1]
    for each in (parts, reasons, timestamps):
        begins[1:] |= each[1:] != each[:-1]
    groups = np.flatnonzero(begins)
    joined = np.add.reduceat(counts, groups)
    return parts[groups], firsts[groups], joined, reasons[groups], timestamps[groups]
