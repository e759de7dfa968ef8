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
  mostly settled, the next chunk begins a new segment; the rest of the old one is settled soon, and then the segment
  goes. This happens at most every ROLL_EVERY_MS: a busy queue keeps the log of that time.

Only queues that settled something since the last look are examined. Copies follow: followers and
mirrors get each chunk with the segment that it begins, and are notified of drops.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from leveret.core.queues.queue import Queue
from leveret.runtime.logs.relocating import RelocatableLogs, Relocating
from leveret.storage.log import Log

QUIET_BYTES_MIN: Final = 64 * 1024
"""What a quiet queue may keep: to begin anew costs a file, and that a directory is synced."""
BUSY_BYTES_MIN: Final = 1024 * 1024
ROLL_EVERY_MS: Final = 4_000


class ReclaimableLogs(RelocatableLogs, Protocol):
    """Where the logs are: runtime.logs.queue_store."""

    def drop_settled(self, queue: Queue, log: Log) -> None:
        """Drop what nobody needs any more; what the disk refuses goes another time."""


class _Look(NamedTuple):
    """Where a log ended when it was looked at last, and since when it is watched or goes on in its newest segment."""

    end: int
    since_ms: int


class Reclaiming:
    """Which logs may begin anew; see the module.

    Attributes:
        relocating: what is stored again.
    """

    def __init__(self, logs: ReclaimableLogs) -> None:
        """None yet."""
        self._logs = logs
        self.relocating = Relocating(logs)
        self._looks: dict[Queue, _Look | None] = {}
        self._due: set[Queue] = set()

    def note(self, queue: Queue, log: Log) -> None:
        """The queue settled something, or was recovered."""
        if queue not in self._looks and (
            log.newest_bytes >= QUIET_BYTES_MIN or log.is_rolling or log.newest_segment != log.first_offset
        ):
            self._looks[queue] = None

    def take_due(self, queue: Queue) -> bool:
        """Whether the queue's log is to begin anew with what is appended now: it is due, and still drained."""
        if queue not in self._due:
            return False
        self._due.discard(queue)
        return is_drained(queue)

    def look(self, now_ms: int) -> list[Queue]:
        """Do what is due; the queues whose log is to begin anew in their next flush."""
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
        """Do what is due; None if nothing is to come."""
        end, size = log.next_offset, log.newest_bytes
        if self.relocating.is_busy(queue):
            return _Look(end, before.since_ms)
        if is_drained(queue) and end == before.end and (size >= QUIET_BYTES_MIN or not size):
            self._due.add(queue)
        elif not is_drained(queue) and self.relocating.begin(queue, log, now_ms, is_quiet=end == before.end):
            return _Look(end, now_ms)
        elif size >= BUSY_BYTES_MIN and not log.is_rolling and _is_mostly_settled(queue, log):
            if now_ms - before.since_ms >= ROLL_EVERY_MS:
                log.roll()
                return _Look(end, now_ms)
        elif not log.is_rolling and (not is_drained(queue) or size < QUIET_BYTES_MIN):
            # One that is not quiet yet may be: what it has then is looked at once more.
            is_done = is_drained(queue) or (end == before.end and not self.relocating.waits(queue))
            return None if is_done else _Look(end, before.since_ms)
        return _Look(end, before.since_ms)


def is_drained(queue: Queue) -> bool:
    """Whether all that is in the queue's log is settled."""
    return queue.settled.floor >= queue.next_offset


def _is_mostly_settled(queue: Queue, log: Log) -> bool:
    """Whether more than half of the newest segment is, and all before it."""
    return 2 * queue.settled.floor > log.newest_segment + log.next_offset
