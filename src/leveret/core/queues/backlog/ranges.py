"""Disjoint ranges of offsets in ascending order, taken from the front."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_COMPACT_AT = 1024


class OffsetRanges:
    """Ranges at sixteen octets each; the cost of adding at the end and taking from the front is constant."""

    __slots__ = ("_begin", "_ends", "_starts", "count")

    def __init__(self) -> None:
        """No offsets."""
        self._starts = array("Q")
        self._ends = array("Q")
        self._begin = 0
        self.count = 0

    def add(self, first: int, end: int) -> None:
        """Add offsets, none of which is in it yet."""
        starts, ends, begin = self._starts, self._ends, self._begin
        self.count += end - first
        at = len(starts) if not ends or ends[-1] <= first else bisect_right(starts, first, begin)
        joins_left = at > begin and ends[at - 1] == first
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at]
            del ends[at]
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = first
        else:
            starts.insert(at, first)
            ends.insert(at, end)

    def first(self) -> tuple[int, int] | None:
        """The front range, None if it is empty."""
        if not self.count:
            return None
        return self._starts[self._begin], self._ends[self._begin]

    def within(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [first, end) that are there, in order."""
        starts, ends = self._starts, self._ends
        for at in range(max(self._begin, bisect_right(starts, first, self._begin) - 1), len(starts)):
            if starts[at] >= end:
                return
            if ends[at] > first:
                yield max(first, starts[at]), min(end, ends[at])

    def take(self, limit: int) -> tuple[int, int]:
        """Remove up to `limit` offsets of the front range; it must not be empty."""
        begin = self._begin
        first = self._starts[begin]
        end = min(self._ends[begin], first + limit)
        self.count -= end - first
        if end < self._ends[begin]:
            self._starts[begin] = end
        else:
            self._begin = begin + 1
            if self._begin >= _COMPACT_AT or not self.count:
                del self._starts[: self._begin]
                del self._ends[: self._begin]
                self._begin = 0
        return first, end

    def remove(self, first: int, end: int) -> None:
        """Remove those of the offsets from `first` up to `end` that are there."""
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, first, self._begin)
        high = bisect_left(starts, end, low)
        if low == high:
            return
        self.count -= sum(ends[low:high]) - sum(starts[low:high])
        left = [(starts[low], first), (end, ends[high - 1])]
        kept = [(since, until) for since, until in left if since < until]
        self.count += sum(until - since for since, until in kept)
        starts[low:high] = array("Q", [since for since, _ in kept])
        ends[low:high] = array("Q", [until for _, until in kept])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, in order."""
        return zip(self._starts[self._begin :], self._ends[self._begin :], strict=True)

    def clear(self) -> None:
        """Remove all."""
        del self._starts[:]
        del self._ends[:]
        self._begin = 0
        self.count = 0
