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
from leveret.core.queues.messages import MESSAGE_OVERHEAD_BYTES, Messages, Run

WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
WINDOW_IDLE_BYTES_MAX: Final = 256 * 1024
DELIVERY_BYTES_MAX: Final = 1024 * 1024
"""One turn of a consumer at most, so that its socket's back-pressure is felt in time."""
DELIVERY_RUNS_MAX: Final = 256
"""As many of them at most: each is work of its own, however small."""

Batch = Sequence[Messages]


class Backlog:
    """Ready messages, oldest first; those that came back before all others.

    Attributes:
        settled: offsets that are never handed out again; settlement records count as settled themselves.
        next_offset: where the log ends.
        window_bytes: octets of messages held in memory, about.
        window_count: how many messages these are.
        unsorted: what came back and has no place yet; always empty where its offset is its place.
        runs_read: how many were read from the log, each of which takes time.
    """

    unsorted: Sequence[tuple[int, int]] = ()

    def __init__(self, read: Callable[[int], list[Run]], has_expired: Callable[[Run], bool]) -> None:
        """`read` gives runs at and after an offset; what `has_expired` is never taken behind what has not."""
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
        """Take the state that a scan of the log found; everything unsettled is ready."""
        self.settled = settled
        self.next_offset = next_offset
        self.cursor = self.settled.floor

    # -- what comes in ------------------------------------------------------------------------

    def append(self, first: int, batch: Batch, now_ms: int, window_bytes_max: int) -> None:
        """Messages stand in the log from offset `first` on, in a chunk of `now_ms`."""
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

    def _hold(self, run: Run) -> None:
        """Keep a run in memory, behind all that is."""
        self._window.append(run)
        self.window_bytes += memory_of(run)
        self.window_count += len(run)

    def _window_reaches(self, end: int, first: int) -> bool:
        """Whether no message lies between the window's end and `first` (settlements do not count)."""
        return end >= first or next(self.settled.gaps(end, first), None) is None

    def pass_record(self, offset: int) -> None:
        """A settlement record stands at `offset`; it is no message."""
        self.settled.add(offset, offset + 1)
        self.next_offset = offset + 1
        if self.cursor == offset:
            self.cursor = offset + 1

    def put_back(self, first: int, end: int) -> None:
        """Messages that were taken are ready again, in their old places."""
        self.returned.add(first, end)

    def give_back_before(self, offset: int) -> None:
        """What is unsettled before an offset may have been taken once, nobody knows by whom: it comes back."""
        offset = min(offset, self.next_offset)
        for first, end in list(self.settled.gaps(self.cursor, offset)):
            self.returned.add(first, end)
        self.cursor = max(self.cursor, offset)
        self._leave_behind()

    @property
    def handed_out_before(self) -> int:
        """Nothing at or after this offset was ever taken."""
        return self.cursor

    # -- what there is ------------------------------------------------------------------------

    def ready_ranges(self) -> Iterator[tuple[int, int]]:
        """All that is ready, by offsets."""
        yield from self.returned
        yield from self.settled.gaps(self.cursor, self.next_offset)

    def head(self) -> tuple[Run, int] | None:
        """The run with the first ready message, cut to it, and how many messages of it are ready."""
        front = self.returned.first()
        if front is not None:
            return self._at_front(front)
        if not (self._window or self._fill()):
            return None
        return self._window[0], len(self._window[0])

    def head_in_memory(self) -> Head | None:
        """What the first message is under; None if it is not in memory."""
        return self._window[0].head if self._window and not self.returned.count else None

    def each(self, first: int, end: int) -> Iterator[Run]:
        """Messages by their offsets, whether ready or not, run by run: there may be more than memory holds."""
        while first < end:
            run = self.find(first)
            yield run.cut(first, min(end, run.end))
            first = run.end

    def _read(self, offset: int) -> list[Run]:
        runs = self._read_log(offset)
        self.runs_read += len(runs)
        return runs

    def sort_some(self) -> bool:
        """Give some of what came back its place; whether any is left."""
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
        """Take up to `limit` messages from the front: (runs, whether they came back)."""
        if self.returned.count:
            return self._take_ranges(self.returned, limit), True
        return self._take_window(limit), False

    def skip(self, count: int) -> Iterator[tuple[int, int]]:
        """Take messages from the front without looking at them, by offsets; `count` at most."""
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
        """Keep nothing before the cursor in the window."""
        while self._window and self._window[0].first < self.cursor:
            run = self._window[0]
            self._split(self._window, min(self.cursor, run.end) - run.first)

    def clear(self) -> None:
        """Nothing is ready any more."""
        self.returned.clear()
        self.cursor = self.next_offset
        self._forget_window()

    def _at_front(self, front: tuple[int, int]) -> tuple[Run, int]:
        run = self.find(front[0])
        end = min(front[1], run.end)
        return run.cut(front[0], end), end - front[0]

    def _take_ranges(self, ranges: OffsetRanges, limit: int) -> list[Run]:
        """Take messages by offset; a second read of the log may fail, so what is taken before it goes first."""
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
            size += taken[-1].body_bytes
        return taken

    def _in_memory(self, offset: int) -> Run | None:
        at = bisect_right(self._reread, offset, key=_first_of) - 1
        return self._reread[at] if at >= 0 and offset < self._reread[at].end else None

    def _take_window(self, limit: int) -> list[Run]:
        taken: list[Run] = []
        size = 0
        while limit and not _is_enough(taken, size):
            if not self._window and (taken or not self._fill()):
                # Reading may fail, and what is taken already must not go with it: at most one read, the first.
                break
            run = self._window[0]
            if taken and self._has_expired(run):
                break
            run = self._split(self._window, min(limit, run.fitting(DELIVERY_BYTES_MAX - size)))
            taken.append(run)
            limit -= len(run)
            size += run.body_bytes
            self.cursor = run.end
        return taken

    def _split(self, window: deque[Run], count: int) -> Run:
        """Take `count` messages at most off the first of these runs in memory."""
        run = window[0]
        part = run.cut(run.first, run.first + count) if count < len(run) else run
        self.window_bytes -= memory_of(part)
        self.window_count -= len(part)
        if part is run:
            return window.popleft()
        window[0] = run.behind(part)
        return part

    def _fill(self) -> bool:
        """Read the window anew from the log at the cursor; tell whether there is anything."""
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


def memory_of(run: Run) -> int:
    """Octets that a run takes, about."""
    return run.body_bytes + len(run) * MESSAGE_OVERHEAD_BYTES


def _is_enough(taken: list[Run], size: int) -> bool:
    return size >= DELIVERY_BYTES_MAX or len(taken) >= DELIVERY_RUNS_MAX


def _first_of(run: Run) -> int:
    return run.first
