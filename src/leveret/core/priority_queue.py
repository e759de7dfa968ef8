"""A queue with `x-max-priority`: one log, and for each priority the offsets that wait.

Messages of a higher priority are taken first, those of one priority oldest first, returned ones before
others. The log knows no priorities, so the offsets are kept in memory (16 octets for each stretch of
equal priority), and a restart reads the backlog once. Expiry and limits look at the head only, as in
RabbitMQ: a message behind one of higher priority does not expire before its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from leveret.core.head import Head, Run
from leveret.core.offsets import OffsetSet
from leveret.core.queue import (
    DELIVERY_BYTES_MAX,
    RUN_OVERHEAD_BYTES,
    WINDOW_BYTES_MAX,
    WINDOW_IDLE_BYTES_MAX,
    Queue,
    Reader,
)
from leveret.core.ranges import Ranges
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.reasons import Reason


class _Level:
    """What waits with one priority: `recent` in memory, older than all of `waiting`, which is in the log."""

    __slots__ = ("recent", "returned", "waiting")

    def __init__(self) -> None:
        self.returned = Ranges()
        self.recent: deque[Run] = deque()
        self.waiting = Ranges()


class PriorityQueue(Queue):
    """See the module."""

    def __init__(self, definition: QueueDefinition, read: Reader) -> None:
        """An empty queue with `x-max-priority` + 1 levels, the highest first."""
        super().__init__(definition, read)
        self._top = int(definition.arguments["x-max-priority"])
        self._levels = [_Level() for _ in range(self._top + 1)]
        self._unsorted: list[tuple[int, int]] = []

    def _level_of(self, head: Head) -> _Level:
        return self._levels[self._top - min(head.priority, self._top)]

    def restore(self, first_offset: int, next_offset: int, settled: OffsetSet, body_bytes: int = 0) -> None:
        """See Queue; reads the backlog to learn its priorities."""
        super().restore(first_offset, next_offset, settled, body_bytes)
        at = next(self.settled.gaps(self.cursor, next_offset), None)
        while at is not None:
            runs = self._read(self, at[0])
            for run in runs:
                for first, end in self.settled.gaps(run.first, run.end):
                    self._level_of(run.head).waiting.add(first, end)
            at = next(self.settled.gaps(runs[-1].end, next_offset), None)
        self.cursor = next_offset

    def appended(self, first: int, batch: Sequence[tuple[Head, list[bytes]]], now_ms: int = 0) -> None:
        """See Queue."""
        limit = WINDOW_BYTES_MAX if self.consumers else WINDOW_IDLE_BYTES_MAX
        offset = first
        for head, bodies in batch:
            level = self._level_of(head)
            end = offset + len(bodies)
            if level.waiting.count or self._window_bytes >= limit:
                level.waiting.add(offset, end)
            else:
                level.recent.append(Run(offset, head, bodies, now_ms))
                self._window_bytes += len(bodies) * (head.body_bytes + RUN_OVERHEAD_BYTES)
            offset = end
        self._note_appended(first, offset, batch)
        self.cursor = offset

    def _ready_ranges(self) -> Iterator[tuple[int, int]]:
        self._sort()
        for level in self._levels:
            yield from level.returned
            for run in level.recent:
                yield run.first, run.end
            yield from level.waiting

    def _forget_ready(self) -> None:
        self._levels = [_Level() for _ in self._levels]
        self._unsorted.clear()
        self.cursor = self.next_offset
        self._window_bytes = 0

    def _return(self, first: int, end: int) -> None:
        self._unsorted.append((first, end))

    def _sort(self) -> None:
        """Put what came back on its level; not when it came, for that may need the log, and reading may fail."""
        while self._unsorted:
            first, end = self._unsorted[-1]
            run = self._find(first)
            stop = min(end, run.end)
            self._level_of(run.head).returned.add(first, stop)
            if stop == end:
                self._unsorted.pop()
            else:
                self._unsorted[-1] = (stop, end)

    def _take_front(self, limit: int) -> tuple[list[Run], bool]:
        self._sort()
        for level in self._levels:
            if level.returned.count:
                return self._take_ranges(level.returned, limit), True
            if level.recent:
                return self._take_recent(level, limit), False
            if level.waiting.count:
                return self._take_ranges(level.waiting, limit), False
        return [], False

    def _take_recent(self, level: _Level, limit: int) -> list[Run]:
        run = level.recent[0]
        room = max(1, DELIVERY_BYTES_MAX // (run.head.body_bytes + 1))
        count = min(limit, room, len(run.bodies))
        self._window_bytes -= count * (run.head.body_bytes + RUN_OVERHEAD_BYTES)
        if count == len(run.bodies):
            return [level.recent.popleft()]
        level.recent[0] = run.cut(run.first + count, run.end)
        return [run.cut(run.first, run.first + count)]

    def _head(self) -> tuple[Run, int] | None:
        self._sort()
        for level in self._levels:
            front = level.returned.first()
            if front is None and level.recent:
                return level.recent[0], len(level.recent[0].bodies)
            front = front or level.waiting.first()
            if front is not None:
                return self._at_front(front)
        return None

    def _skip(self, count: int) -> None:
        while count > 0:
            runs, _ = self.take(count)
            for run in runs:
                self.settle(run.first, len(run.bodies), Reason.DROPPED)
                count -= len(run.bodies)
