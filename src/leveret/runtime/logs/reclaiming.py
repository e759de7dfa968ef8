"""Logs of consumed queues begin anew, so that disk usage follows the unsettled messages.

A log gives disk back by whole segments, the oldest first, and the newest segment never goes. So a drained queue would
keep up to a whole segment of settled messages until the next publish. Instead, its log continues in a new segment, and
the old segments are dropped once the new one counts (storage.log):

- A queue that is **drained and quiet** has nothing unsettled, and nothing was appended since the last look. A
  settlement of nothing is appended as the first chunk of a new segment. The chunk carries the state that a start needs:
  the log's name, the chunk before it and the publishers' sequences; the offsets go on.
- A queue in which **a few messages stay** for long has them stored again behind all others, at their offsets, and the
  segments before them are dropped: runtime.logs.relocating.
- A queue that is **kept empty** by its consumers is never quiet. Once its newest segment has a certain size and is
  mostly settled, the next chunk begins a new segment; the rest of the old one is settled soon, or stored again, and
  then the segment goes. This happens at most every ROLL_EVERY_MS: a busy queue keeps the log of that time.

Only queues that settled something since the last look are examined. Copies follow: followers and
mirrors get each chunk with the segment that it begins, and are notified of drops.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from leveret.core.queues.queue import Queue
from leveret.runtime.logs.relocating import RelocatableLogs, Relocating
from leveret.storage.log import Log

QUIET_BYTES_MIN: Final = 64 * 1024
"""The most octets that a quiet queue keeps: a new begin costs a file, and a sync of the directory."""
BUSY_BYTES_MIN: Final = 1024 * 1024
ROLL_EVERY_MS: Final = 4_000


class ReclaimableLogs(RelocatableLogs, Protocol):
    """The logs' owner: runtime.logs.queue_store."""

    def drop_settled(self, queue: Queue, log: Log) -> None:
        """Drop records that are no longer needed. If the disk refuses that, they go another time."""


class _Look(NamedTuple):
    """The log's end at the last look, and the times since when it is watched or has its newest segment."""

    end: int
    since_ms: int


class Reclaiming:
    """Decides which logs begin anew; see the module.

    Attributes:
        relocating: the relocations.
    """

    def __init__(self, logs: ReclaimableLogs) -> None:
        """Begin without queues."""
        self._logs = logs
        self.relocating = Relocating(logs)
        self._looks: dict[Queue, _Look | None] = {}
        self._due: set[Queue] = set()

    def note(self, queue: Queue, log: Log) -> None:
        """Note that the queue settled something, or was recovered."""
        if queue not in self._looks and (
            log.newest_bytes >= QUIET_BYTES_MIN or log.is_rolling or log.newest_segment != log.first_offset
        ):
            self._looks[queue] = None

    def take_due(self, queue: Queue) -> bool:
        """Whether the queue's log begins anew with the next append: it is due, and still drained."""
        if queue not in self._due:
            return False
        self._due.discard(queue)
        return is_drained(queue)

    def look(self, now_ms: int) -> list[Queue]:
        """Take the steps that are due; return the queues whose logs begin anew in their next flush."""
        for queue, look in list(self._looks.items()):
            log = self._logs.held(queue)
            if log is not None:
                self.relocating.complete(queue, log)
                self._logs.drop_settled(queue, log)
                look = self._look(queue, log, look or _Look(-1, now_ms), now_ms)
            if log is None or look is None:
                del self._looks[queue]
                self._due.discard(queue)
                self.relocating.forget(queue)
            else:
                self._looks[queue] = look
        return list(self._due)

    def _look(self, queue: Queue, log: Log, before: _Look, now_ms: int) -> _Look | None:
        """Take the steps that are due for a queue; return None if no step is left."""
        end, size = log.next_offset, log.newest_bytes
        if self.relocating.is_busy(queue):
            return _Look(end, before.since_ms)
        if is_drained(queue) and end == before.end and (size >= QUIET_BYTES_MIN or not size):
            self._due.add(queue)
        elif not is_drained(queue) and self.relocating.begin(queue, log, now_ms, before.end):
            return _Look(end, now_ms)
        elif size >= BUSY_BYTES_MIN and not log.is_rolling and _is_mostly_settled(queue, log):
            if now_ms - before.since_ms >= ROLL_EVERY_MS:
                log.roll()
                return _Look(end, now_ms)
        elif not log.is_rolling and (not is_drained(queue) or size < QUIET_BYTES_MIN):
            # A queue that is not quiet yet may be at the next look.
            is_done = is_drained(queue) or (end == before.end and not self.relocating.waits(queue))
            return None if is_done else _Look(end, before.since_ms)
        return _Look(end, before.since_ms)


def is_drained(queue: Queue) -> bool:
    """Whether everything in the queue's log is settled."""
    return queue.settled.floor >= queue.next_offset


def _is_mostly_settled(queue: Queue, log: Log) -> bool:
    """Whether more than half of the newest segment is settled, so that storing the rest again has a gain."""
    first, end = log.newest_segment, log.next_offset
    return 2 * queue.settled.count_gaps(first, end) < end - first
