"""Announces the segments that shares of files wrote (`file_shares`), those of a queue in the order of their numbers.

A segment was written without knowledge of the one before it. Before it is announced, the headers of its chunks get the
offsets, the epoch and the time of the log's present end, and its first chunk the seal of the chunk before. It is then
as if written there at once. A crash in between costs the file, which counts for nothing until the node takes it in.

A queue whose segment the node refuses gets no more of them: the task that owns the queue brings the rest, and reports
the node's reason if there is one. So nothing here raises.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from leveret.model.errors import LeveretError
from leveret.pipeline.recovery.file_shares import QueueBegin
from leveret.pipeline.recovery.segments import WrittenSegment
from leveret.pipeline.upstream.stream_client import RecoveryPublisher, StreamClient
from leveret.wire.chunk import HEADER_BYTES, Attribute, decode_header, decode_trailer, encode_header
from leveret.wire.staged_segment import STAGED_STREAM_PREFIX, LogEnd, StagedSegment
from leveret.wire.stream.publish import MessageRun

logger = logging.getLogger(__name__)


class SegmentIntake:
    """Has the node take in the segments of one plan, in a thread of its own.

    Args:
        client: a connection to the node, which is closed at the end.
        taken: called with the number of messages that are durable in the queues.
    """

    def __init__(
        self,
        client: StreamClient,
        staging: Path,
        reference: str,
        begins: dict[str, QueueBegin],
        taken: Callable[[int], None],
        timeout_s: float,
    ) -> None:
        self._client = client
        self._staging = staging
        self._reference = reference
        self._taken = taken
        self._timeout_s = timeout_s
        self._last = {queue: begin.last for queue, begin in begins.items()}
        self._refused: set[str] = set()
        self._waiting: dict[str, dict[int, WrittenSegment]] = defaultdict(dict)
        self._publishers: dict[str, RecoveryPublisher] = {}
        self._offered: SimpleQueue[WrittenSegment | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="segment intake", daemon=True)
        self._thread.start()

    @property
    def last_by_queue(self) -> dict[str, int]:
        """The number of the last message of each queue that is there; once `finish` has returned."""
        return self._last

    def offer(self, segment: WrittenSegment) -> None:
        """Take a segment in after those before it; one that is offered again counts once."""
        self._offered.put(segment)

    def finish(self) -> None:
        """Wait until all that was offered is in the queues, or is left out."""
        self._offered.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (segment := self._offered.get()) is not None:
                self._waiting[segment.queue].setdefault(segment.first, segment)
                # Segments of many queues are announced together: each waits for a sync of the disk.
                while self._offered.empty() and (ready := self._ready()):
                    self._take_in(ready)
            while ready := self._ready():
                self._take_in(ready)
        finally:
            self._client.close()

    def _ready(self) -> list[WrittenSegment]:
        """The next segment of each queue, if it is there."""
        found = [
            self._waiting[queue].pop(last + 1, None)
            for queue, last in self._last.items()
            if queue not in self._refused
        ]
        return [segment for segment in found if segment is not None]

    def _take_in(self, segments: list[WrittenSegment]) -> None:
        """Announce one segment of each of some queues, and wait for all."""
        announced = [segment for segment in segments if self._try(self._announce, segment)]
        for segment in announced:
            if self._try(self._await, segment):
                self._last[segment.queue] = segment.last
                self._taken(segment.last + 1 - segment.first)

    def _try(self, step: Callable[[WrittenSegment], None], segment: WrittenSegment) -> bool:
        try:
            step(segment)
        except (LeveretError, OSError) as error:
            logger.warning("segment_left_out queue=%s first=%d error=%s", segment.queue, segment.first, error)
            self._refused.add(segment.queue)
            return False
        return True

    def _announce(self, segment: WrittenSegment) -> None:
        stream = STAGED_STREAM_PREFIX + segment.queue
        if segment.queue not in self._publishers:
            self._publishers[segment.queue] = self._client.declare_publisher(self._reference, stream)
        end = LogEnd.of(self._client.stats(stream))
        base = move_behind(self._staging / segment.directory, segment, end, self._reference.encode())
        announced = StagedSegment(segment.directory, base, segment.first, segment.last, segment.body_bytes)
        self._publishers[segment.queue].publish(MessageRun.of(segment.last, [announced.encode()]))

    def _await(self, segment: WrittenSegment) -> None:
        self._publishers[segment.queue].wait_confirmed(segment.last, self._timeout_s)


def move_behind(directory: Path, segment: WrittenSegment, end: LogEnd, reference: bytes) -> int:
    """Give a segment the offsets behind `end`; return its new first offset, which names it.

    A segment whose first trailer has another length stays as it is; the node then appends its chunks.

    Raises:
        OSError: the file cannot be changed.
        ChunkError: it is not what was written.
    """
    path = directory / f"{segment.base:020d}.segment"
    now_ms, position, offset = time.time_ns() // 1_000_000, 0, end.next_offset
    with open(path, "r+b", buffering=0) as file:
        if not _put_first_trailer(file.fileno(), segment, end, reference):
            return segment.base
        while position < segment.size:
            header = decode_header(os.pread(file.fileno(), HEADER_BYTES, position))
            seated = header._replace(timestamp_ms=now_ms, epoch=end.epoch, chunk_id=offset)
            os.pwrite(file.fileno(), encode_header(*seated), position)
            position, offset = position + header.chunk_bytes, seated.next_offset
    os.rename(path, directory / f"{end.next_offset:020d}.segment")
    return end.next_offset


def _put_first_trailer(fd: int, segment: WrittenSegment, end: LogEnd, reference: bytes) -> bool:
    header = decode_header(os.pread(fd, HEADER_BYTES, 0))
    begin = HEADER_BYTES + header.data_bytes
    written = os.pread(fd, header.trailer_bytes, begin)
    expires = any(kind == Attribute.EXPIRES for kind, _, _ in decode_trailer(written))
    trailer = end.first_trailer({reference: segment.first + header.records - 1}, expires=expires)
    if len(trailer) != len(written):
        return False
    os.pwrite(fd, trailer, begin)
    return True
