"""What of a queue's log is collected when its collection begins."""

from __future__ import annotations

from collections.abc import Iterator

from isal.isal_zlib import crc32

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.storage.log import Log
from leveret.wire.chunk import ChunkType, Header


def first_wanted(queue: Queue, log: Log) -> int:
    """The first offset of the log that the queue itself needs; earlier segments are kept for others."""
    if isinstance(queue, Stream) or queue.settling:
        return log.first_offset
    first = log.segment_before(min(queue.log_floor + 1, log.next_offset))
    return log.next_offset if first is None else first


def wanted_bytes(queue: Queue, log: Log) -> int:
    """The octets of a queue's log from there on."""
    return log.bytes_from(first_wanted(queue, log))


def relocated_chunks(queue: Queue, epoch: int, begin: int, end: int) -> Iterator[tuple[Header, bytes]]:
    """The unsettled messages between two offsets, as chunks at the offsets that they have."""
    for run in queue.backlog.each(begin, end):
        # The messages of a run may differ from each other: each has a head of its own.
        count, data = len(run), run.taken().entries()
        yield (
            Header(ChunkType.USER, count, count, run.arrived_ms, epoch, run.first, crc32(data), len(data), 0),
            data,
        )
