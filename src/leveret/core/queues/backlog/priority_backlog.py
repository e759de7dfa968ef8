"""The backlog of a queue with `x-max-priority`: one log, and the ready offsets of each priority.

Messages of a higher priority are delivered first; of one priority returned messages come first, then the oldest. A
chunk has those of one priority together. The log has no priorities otherwise, so the offsets are held in memory (16
octets for each stretch of equal priority), and a restart reads the backlog once. A read of the log for one priority
finds messages of all: those that are ready are kept until their turn, as far as memory allows, or the log would be
read once for each priority. Expiry and limits look at the head only, as in RabbitMQ: a message behind a message of
higher priority does not expire before its turn.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final

from leveret.core.queues.backlog.backlog import (
    WINDOW_BYTES_MAX,
    WINDOW_IDLE_BYTES_MAX,
    Backlog,
    Batch,
)
from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.backlog.ranges import OffsetRanges
from leveret.core.queues.head import Head
from leveret.core.queues.messages import Messages, Run, joined

SORTED_AT_ONCE: Final = 256
"""The most runs that are read or sorted in one step, so that other clients are served in between."""
NEAR: Final = 64
"""A read that would begin at most so far behind the last one begins where that one ended. Otherwise the few messages in
between would need a read for each priority."""


class _Level:
    """The ready messages of one priority: `recent` in memory are older than `waiting`, which are in the log."""

    __slots__ = ("recent", "returned", "waiting")

    def __init__(self) -> None:
        self.returned = OffsetRanges()
        self.recent: deque[Run] = deque()
        self.waiting = OffsetRanges()


class PriorityBacklog(Backlog):
    """See the module."""

    def __init__(
        self, read: Callable[[int], list[Run]], has_expired: Callable[[Run], bool], *, priority_max: int
    ) -> None:
        """Make a level for each priority up to `priority_max`; higher priorities count as that."""
        super().__init__(read, has_expired)
        self._top = priority_max
        self._levels = [_Level() for _ in range(priority_max + 1)]
        self.unsorted: list[tuple[int, int]] = []
        self._kept: dict[int, Run] = {}
        self._window_bytes_max = WINDOW_IDLE_BYTES_MAX

    def _level_of(self, messages: Messages) -> _Level:
        return self._levels[self._top - min(messages.priority, self._top)]

    def restore(self, next_offset: int, settled: OffsetSet) -> None:
        """See Backlog; reads all messages for their priorities."""
        super().restore(next_offset, settled)
        at = next(self.settled.gaps(self.cursor, next_offset), None)
        while at is not None:
            runs = self._read(at[0])
            for run in runs:
                for first, end in self.settled.gaps(run.first, run.end):
                    self._level_of(run.messages).waiting.add(first, end)
            at = next(self.settled.gaps(runs[-1].end, next_offset), None)
        self.cursor = next_offset

    def arranged(self, batch: Batch) -> Batch:
        """See Backlog; messages of one priority stand together, so that they are taken and settled in few ranges."""
        by_priority: defaultdict[int, list[Messages]] = defaultdict(list)
        for messages in batch:
            by_priority[min(messages.priority, self._top)].append(messages)
        return [messages for parts in by_priority.values() for messages in joined(parts)]

    def append(self, first: int, batch: Batch, now_ms: int, window_bytes_max: int) -> None:
        """See Backlog."""
        offset = first
        for messages in batch:
            level = self._level_of(messages)
            end = offset + len(messages)
            if level.waiting.count or self.window_bytes >= window_bytes_max:
                level.waiting.add(offset, end)
            else:
                run = Run(offset, messages, now_ms)
                level.recent.append(run)
                self.window_bytes += run.memory_bytes
                self.window_count += len(run)
            offset = end
        self.next_offset = self.cursor = offset

    def taken_in(self, end: int) -> None:
        """See Backlog; reads the messages for their priorities. They should be those of one chunk."""
        at = self.next_offset
        while at < end:
            runs = self._read_log(at)
            for run in runs:
                self._level_of(run.messages).waiting.add(run.first, min(run.end, end))
            at = runs[-1].end
        self.next_offset = self.cursor = end

    def ready_ranges(self) -> Iterator[tuple[int, int]]:
        """See Backlog; in the order of the log, where messages of all priorities follow each other."""
        ranges = list(self.unsorted)
        for level in self._levels:
            ranges += level.returned
            ranges += [(run.first, run.end) for run in level.recent]
            ranges += level.waiting
        return _joined(sorted(ranges))

    def clear(self) -> None:
        """See Backlog."""
        self._levels = [_Level() for _ in self._levels]
        self.unsorted.clear()
        self._kept.clear()
        self.cursor = self.next_offset
        self.window_bytes = self.window_count = 0

    def put_back(self, first: int, end: int) -> None:
        """See Backlog; sorting waits, because it may need a read of the log, which may fail."""
        heappush(self.unsorted, (first, end))

    def give_back_before(self, offset: int) -> None:
        """See Backlog."""
        for level in self._levels:
            while level.recent and level.recent[0].first < offset:
                run = self._split(level.recent, offset - level.recent[0].first)
                level.returned.add(run.first, run.end)
            while (front := level.waiting.first()) is not None and front[0] < offset:
                level.returned.add(*level.waiting.take(offset - front[0]))

    @property
    def delivered_before(self) -> int:
        """See Backlog; the end of the log if any message was taken, because the first taken may not be the oldest."""
        fresh = sum(level.waiting.count + sum(map(len, level.recent)) for level in self._levels)
        return self.next_offset if fresh < self.settled.count_missing(self.next_offset) else 0

    def _sort(self) -> None:
        """Put all returned messages on their levels."""
        while self.sort_some():
            pass

    def sort_some(self) -> bool:
        """See Backlog."""
        # A heap gives the order of the log, so that each read of it serves the following ranges, too.
        unsorted, read_before = self.unsorted, self.runs_read
        self._window_bytes_max = WINDOW_IDLE_BYTES_MAX
        for _ in range(SORTED_AT_ONCE):
            if not unsorted or self.runs_read - read_before >= SORTED_AT_ONCE:
                break
            first, end = unsorted[0]
            run = self.find(first)
            stop = min(end, run.end)
            self._level_of(run.messages).returned.add(first, stop)
            self._keep(run.cut(first, stop))
            if stop == end:
                heappop(unsorted)
            else:
                heapreplace(unsorted, (stop, end))
        return bool(unsorted)

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """See Backlog; takes messages of one priority at a time."""
        self._sort()
        self._window_bytes_max = WINDOW_BYTES_MAX
        for level in self._levels:
            if level.returned.count:
                return self._take_ranges(level.returned, limit), True
            if level.recent:
                return self._take_runs(level.recent, limit), False
            if level.waiting.count:
                return self._take_ranges(level.waiting, limit), False
        return [], False

    def _take_ranges(self, ranges: OffsetRanges, limit: int) -> list[Run]:
        taken = super()._take_ranges(ranges, limit)
        for run in taken:
            self._let_go(run.first, run.end)
        return taken

    # -- what was read for another priority -----------------------------------------------------

    def find(self, offset: int) -> Run:
        """See Backlog; what is ready between the last read and this one is read as well."""
        behind = self._reread[-1].end if self._reread else offset
        if behind < offset <= behind + NEAR and self._in_memory(offset) is None:
            begin = min(
                (first for each in self._ranges() for first, _ in each.within(behind, offset)), default=offset
            )
            self._reread = self._read(begin)
        return super().find(offset)

    def _ranges(self) -> Iterator[OffsetRanges]:
        """What is ready, and not in memory for sure."""
        for level in self._levels:
            yield level.returned
            yield level.waiting

    def _read(self, offset: int) -> list[Run]:
        runs = super()._read(offset)
        for run in runs:
            level = self._level_of(run.messages)
            for ranges in (level.returned, level.waiting):
                for first, end in ranges.within(run.first, run.end):
                    self._keep(run.cut(first, end))
        return runs

    def _in_memory(self, offset: int) -> Run | None:
        return self._kept.get(offset) or super()._in_memory(offset)

    def _keep(self, run: Run) -> None:
        """Keep a run of ready messages, unless the memory is full."""
        if self.window_bytes < self._window_bytes_max and run.first not in self._kept:
            self._kept[run.first] = run
            self.window_bytes += run.memory_bytes
            self.window_count += len(run)

    def _let_go(self, first: int, end: int) -> None:
        """Keep nothing of what was taken."""
        kept = self._kept
        taken = range(first, end)
        for offset in taken if len(taken) < len(kept) else [each for each in kept if each in taken]:
            run = kept.pop(offset, None)
            if run is not None:
                self.window_bytes -= run.memory_bytes
                self.window_count -= len(run)
                if run.end > end:
                    self._keep(run.cut(end, run.end))

    def head(self) -> tuple[Run, int] | None:
        """See Backlog."""
        self._sort()
        for level in self._levels:
            front = level.returned.first()
            if front is None and level.recent:
                return level.recent[0], len(level.recent[0])
            front = front or level.waiting.first()
            if front is not None:
                return self._at_front(front)
        return None

    def head_in_memory(self) -> Head | None:
        """See Backlog."""
        for level in self._levels:
            if level.returned.count or level.recent or level.waiting.count:
                return level.recent[0].head if level.recent and not level.returned.count else None
        return None

    def skip(self, count: int) -> Iterator[tuple[int, int]]:
        """See Backlog."""
        self._sort()
        for level in self._levels:
            for first, end in self._skip_ranges(level.returned, count):
                count -= end - first
                yield first, end
            while count > 0 and level.recent:
                run = self._split(level.recent, count)
                count -= len(run)
                yield run.first, run.end
            for first, end in self._skip_ranges(level.waiting, count):
                count -= end - first
                yield first, end

    def _skip_ranges(self, ranges: OffsetRanges, count: int) -> Iterator[tuple[int, int]]:
        while count > 0 and ranges.count:
            first, end = ranges.take(count)
            self._let_go(first, end)
            count -= end - first
            yield first, end


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ascending ranges, with adjacent ones joined."""
    before: tuple[int, int] | None = None
    for each in ranges:
        if before is not None and before[1] == each[0]:
            before = before[0], each[1]
        else:
            if before is not None:
                yield before
            before = each
    if before is not None:
        yield before
