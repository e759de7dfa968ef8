"""The state of a queue from the chunks of its log: at a start, after a fail-over, and for a node that only shows it."""

from __future__ import annotations

import struct
from typing import Final

from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.death_notes import REASONS as DEATHS
from leveret.core.queues.death_notes import Died
from leveret.core.queues.queue import Queue
from leveret.core.queues.return_counts import Returned
from leveret.storage.log import Log
from leveret.wire.chunk import Attribute, Chunk, ChunkError, ChunkType, decode_trailer
from leveret.wire.record import decode_settlements
from leveret.wire.relocation import decode_relocation

_RANGE: Final = struct.Struct(">QI")


class Replay:
    """Collects the state of a queue from the chunks of its log."""

    def __init__(self, queue: Queue) -> None:
        """Begin without chunks."""
        self._queue = queue
        self._settled = OffsetSet()

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk; a chunk of messages may come without its data."""
        header = chunk.header
        for kind, name, value in decode_trailer(chunk.trailer):
            if kind == Attribute.SEQUENCE:
                self._queue.sequences.note_logged({name: value})
            elif kind == Attribute.EXPIRES:
                self._queue.may_expire = True
            elif kind == Attribute.EPOCH_END:
                self._queue.chunk_epochs.logged(int.from_bytes(name), value)
            elif kind == Attribute.RETURNED:
                self._queue.return_counts.found(Returned(*_decode_range(name, header.chunk_id), value))
            elif kind == Attribute.DIED:
                died = Died(*_decode_range(name, header.chunk_id), DEATHS[min(value, len(DEATHS) - 1)])
                self._queue.dead_lettering.notes.found(died)
        self._queue.chunk_epochs.appended(header.epoch, header.next_offset)
        if header.type == ChunkType.TRACKING:
            self._settled.add(header.chunk_id, header.next_offset)
            for _, first, count in decode_settlements(chunk.data[4:]):
                self._settled.add(first, first + count)
                self._queue.return_counts.forget(first, first + count)
                self._queue.dead_lettering.notes.forget(first, first + count)
        elif header.type == ChunkType.RELOCATION:
            self._settled.add(header.chunk_id, header.next_offset)
            ranges = [(block.first, block.end) for block in decode_relocation(chunk.data)]
            self._queue.relocated.add(header.chunk_id, ranges, header.data_bytes)

    def restore(self, log: Log) -> None:
        """Give the queue the state, to be served."""
        self._queue.restore(*self._state(log))

    def show(self, log: Log) -> None:
        """Give the queue the state so far, to be counted."""
        self._queue.show(*self._state(log))

    def _state(self, log: Log) -> tuple[int, int, OffsetSet, int]:
        queue, settled = self._queue, self._settled
        queue.begin_log(log.first_offset, settled)
        left = settled.count_missing(log.next_offset)
        # Settled messages may stay for downstreams or mirrors, in large numbers, and differ in size.
        records, octets = log.user_totals(settled.floor)
        for size, count in queue.relocated.octets.values():
            records, octets = records + count, octets + size
        body_bytes = octets * left // max(1, records)
        return log.first_offset, log.next_offset, settled, body_bytes


def encode_range(first: int, end: int) -> bytes:
    """The name of an attribute of the messages from `first` up to `end`."""
    return _RANGE.pack(first, end - first)


def _decode_range(name: bytes, before: int) -> tuple[int, int]:
    """The offsets in the name of an attribute of the chunk at `before`."""
    try:
        first, count = _RANGE.unpack(name)
    except struct.error:
        raise ChunkError(f"an offset and a count of {len(name)} octets") from None
    return first, min(first + count, before)
