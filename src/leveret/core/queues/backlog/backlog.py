"""The backlog of a queue: the ready messages of a log in order, and the part of them that is in memory.

The size of a backlog in memory does not depend on its length. A backlog is `cursor` (every offset from there on is
ready unless settled) and `returned` (offsets before the cursor that are ready again). While consumers keep up, a window
of runs from the cursor on stays in memory; messages behind the window are read from the log on demand. The backlog
forgets messages that are taken: the queue knows whether they are unacked or settled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.backlog.ranges import OffsetRanges
from leveret.core.queues.head import Head
from leveret.core.queues.messages import Messages, Run

WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
WINDOW_IDLE_BYTES_MAX: Final = 256 * 1024
DELIVERY_BYTES_MAX: Final = 1024 * 1024
"""The most octets in one turn of a consumer, so that back-pressure of its socket acts in time."""
DELIVERY_RUNS_MAX: Final = 256
"""The most runs in one turn of a consumer, because each run has a cost beside its messages."""

Batch = Sequence[Messages]


class Backlog:
    """Ready messages, oldest first; returned messages come before all others.

    Attributes:
        settled: offsets that are never delivered again; settlement records count as settled themselves.
        next_offset: the end offset of the log.
        window_bytes: the octets of messages in memory, about.
        window_count: the number of these messages.
        unsorted: returned ranges that are not sorted yet; always empty if the order is that of offsets.
        runs_read: the number of runs read from the log, each of which takes time.
    """

    unsorted: Sequence[tuple[int, int]] = ()

    def __init__(self, read: Callable[[int], list[Run]], has_expired: Callable[[Run], bool]) -> None:
        """`read` gives the runs from an offset on; an expired run is never taken together with one that is not."""
        self.settled = OffsetSet()
        self.next_offset = 0
        self.cursor = 0
        self.returned = OffsetRanges()
        self.window_bytes = 0
        self.window_count = 0
        self.runs_read = 0
        self._read_log = read
        self._has_expired = has_expired
        self._window: deque[Run] = deque()
        self._reread: list[Run] = []

    def restore(self, next_offset: int, settled: OffsetSet) -> None:
        """Take the state found by a scan of the log; every unsettled message is ready."""
        self.settled = settled
        self.next_offset = next_offset
        self.cursor = self.settled.floor

    # -- what comes in ------------------------------------------------------------------------

    def arranged(self, batch: Batch) -> Batch:
        """The messages of a chunk in the order in which the log is to have them; by default that of their arrival."""
        return batch

    def append(self, first: int, batch: Batch, now_ms: int, window_bytes_max: int) -> None:
        """Note appended messages: they are in the log from offset `first` on, in a chunk of `now_ms`."""
        window = self._window
        offset = first
        keep = self._window_reaches(window[-1].end if window else self.cursor, first)
        for messages in batch:
            if keep and self.window_bytes < window_bytes_max:
                self._hold(Run(offset, messages, now_ms))
            else:
                keep = False
            offset += len(messages)
        self.next_offset = offset

    def taken_in(self, end: int) -> None:
        """Note messages in the log, up to the offset `end`, that are not in memory."""
        self.next_offset = end

    def _hold(self, run: Run) -> None:
        """Add a run at the end of the window."""
        self._window.append(run)
        self.window_bytes += run.memory_bytes
        self.window_count += len(run)

    def _window_reaches(self, end: int, first: int) -> bool:
        """Whether no message lies between the window's end and `first` (settlements do not count)."""
        return end >= first or next(self.settled.gaps(end, first), None) is None

    def pass_record(self, offset: int) -> None:
        """Note a settlement record at `offset`, which is no message."""
        self.settled.add(offset, offset + 1)
        self.next_offset = offset + 1
        if self.cursor == offset:
            self.cursor = offset + 1

    def put_back(self, first: int, end: int) -> None:
        """Return taken messages to their old places."""
        self.returned.add(first, end)

    def give_back_before(self, offset: int) -> None:
        """Return the unsettled messages before an offset, which may have been taken at an earlier leader."""
        offset = min(offset, self.next_offset)
        for first, end in list(self.settled.gaps(self.cursor, offset)):
            self.returned.add(first, end)
        self.cursor = max(self.cursor, offset)
        self._leave_behind()

    def take_range(self, first: int, end: int) -> None:
        """Take messages by their offsets that an earlier run, or leader, had taken; those before them may come back."""
        self.give_back_before(end)
        self.returned.remove(first, end)

    @property
    def delivered_before(self) -> int:
        """The offset from which on no message was ever taken."""
        return self.cursor

    # -- what there is ------------------------------------------------------------------------

    def ready_ranges(self) -> Iterator[tuple[int, int]]:
        """The ranges of ready messages."""
        yield from self.returned
        yield from self.settled.gaps(self.cursor, self.next_offset)

    def head(self) -> tuple[Run, int] | None:
        """The run with the first ready message, cut to begin there, and the number of its ready messages."""
        front = self.returned.first()
        if front is not None:
            return self._at_front(front)
        if not (self._window or self._fill()):
            return None
        return self._window[0], len(self._window[0])

    def head_in_memory(self) -> Head | None:
        """The head of the first ready message; None if it is not in memory."""
        return self._window[0].head if self._window and not self.returned.count else None

    def each(self, first: int, end: int) -> Iterator[Run]:
        """Yield messages by their offsets, ready or not, run by run, because memory may not hold all of them."""
        while first < end:
            run = self.find(first)
            yield run.cut(first, min(end, run.end))
            first = run.end

    def _read(self, offset: int) -> list[Run]:
        runs = self._read_log(offset)
        self.runs_read += len(runs)
        return runs

    def sort_some(self) -> bool:
        """Sort some of the returned messages; return whether any are left."""
        return False

    def find(self, offset: int) -> Run:
        """The run in the log that holds a message."""
        found = self._in_memory(offset)
        if found is None:
            self._reread = self._read(offset)
            found = self._reread[0]
        return found

    # -- what goes out ------------------------------------------------------------------------

    def take(self, limit: int) -> tuple[list[Run], bool]:
        """Take up to `limit` messages from the front; return (runs, whether they were returned)."""
        if self.returned.count:
            return self._take_ranges(self.returned, limit), True
        return self._take_window(limit), False

    def skip(self, count: int) -> Iterator[tuple[int, int]]:
        """Take up to `count` messages from the front, by offsets, without reading them."""
        while count > 0 and self.returned.count:
            first, end = self.returned.take(count)
            count -= end - first
            yield first, end
        while count > 0 and (gap := next(self.settled.gaps(self.cursor, self.next_offset), None)) is not None:
            first, end = gap[0], min(gap[1], gap[0] + count)
            self.cursor = end
            count -= end - first
            yield first, end
        self._leave_behind()

    def _leave_behind(self) -> None:
        """Drop messages before the cursor from the window."""
        while self._window and self._window[0].first < self.cursor:
            run = self._window[0]
            self._split(self._window, min(self.cursor, run.end) - run.first)

    def clear(self) -> None:
        """Note that no message is ready."""
        self.returned.clear()
        self.cursor = self.next_offset
        self._forget_window()

    def _at_front(self, front: tuple[int, int]) -> tuple[Run, int]:
        run = self.find(front[0])
        end = min(front[1], run.end)
        return run.cut(front[0], end), end - front[0]

    def _take_ranges(self, ranges: OffsetRanges, limit: int) -> list[Run]:
        """Take messages by offset; at most one read, because a later one may fail."""
        taken: list[Run] = []
        size = 0
        while limit and not _is_enough(taken, size) and (front := ranges.first()) is not None:
            if taken and self._in_memory(front[0]) is None:
                break
            run = self.find(front[0])
            if taken and self._has_expired(run):
                break
            run = run.cut(front[0], min(run.end, front[1]))
            first, end = ranges.take(min(limit, run.fitting(DELIVERY_BYTES_MAX - size)))
            taken.append(run.cut(first, end))
            limit -= end - first
            size += taken[-1].octets
        return taken

    def _in_memory(self, offset: int) -> Run | None:
        at = bisect_right(self._reread, offset, key=_first_of) - 1
        return self._reread[at] if at >= 0 and offset < self._reread[at].end else None

    def _take_window(self, limit: int) -> list[Run]:
        # A read may fail, and must not lose messages that are taken already: at most one read, the first.
        if not (self._window or self._fill()):
            return []
        taken = self._take_runs(self._window, limit)
        if taken:
            self.cursor = taken[-1].end
        return taken

    def _take_runs(self, window: deque[Run], limit: int) -> list[Run]:
        """Take messages in memory."""
        taken: list[Run] = []
        size = 0
        while limit and window and not _is_enough(taken, size):
            run = window[0]
            if taken and self._has_expired(run):
                break
            # One always fits, and its run, cut for each of many gets, may be long.
            count = 1 if limit == 1 else min(limit, run.fitting(DELIVERY_BYTES_MAX - size))
            run = self._split(window, count)
            taken.append(run)
            limit -= len(run)
            size += run.octets if limit else 0
        return taken

    def _split(self, window: deque[Run], count: int) -> Run:
        """Take at most `count` messages off the first run in memory."""
        run = window[0]
        part = run.cut(run.first, run.first + count) if count < len(run) else run
        self.window_bytes -= part.memory_bytes
        self.window_count -= len(part)
        if part is run:
            return window.popleft()
        window[0] = run.behind(part)
        return part

    def _fill(self) -> bool:
        """Fill the window from the log at the cursor; return whether there are messages."""
        self._forget_window()
        gap = next(self.settled.gaps(self.cursor, self.next_offset), None)
        if gap is None:
            self.cursor = self.next_offset
            return False
        self.cursor = gap[0]
        for run in self._read(gap[0]):
            for first, end in self.settled.gaps(run.first, run.end):
                self._hold(run.cut(first, end))
        return bool(self._window)

    def _forget_window(self) -> None:
        self._window.clear()
        self.window_bytes = self.window_count = 0


def _is_enough(taken: list[Run], size: int) -> bool:
    return size >= DELIVERY_BYTES_MAX or len(taken) >= DELIVERY_RUNS_MAX


def _first_of(run: Run) -> int:
    return run.first
