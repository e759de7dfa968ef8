"""A set of offsets that grows mostly from its low end: the settled records of a log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class OffsetSet:
    """All offsets below `floor`, and disjoint ranges above it.

    Adding the range at the floor, the common case, changes only the floor.
    """

    __slots__ = ("_above", "_begin", "_ends", "_starts", "floor")

    def __init__(self, floor: int = 0) -> None:
        """Hold everything below `floor`."""
        self.floor = floor
        self._above = 0
        self._begin = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> None:
        """Add the offsets from `first` up to, not including, `end`; some of them may be in the set already."""
        if first <= self.floor:
            if end > self.floor:
                self.floor = end
                self._raise_floor()
            return
        if end <= first:
            return
        starts, ends = self._starts, self._ends
        if ends and ends[-1] == first:
            # The next record of settlements, behind the one before.
            self._above += end - first
            ends[-1] = end
            return
        low = bisect_right(starts, first, self._begin)
        if low > self._begin and ends[low - 1] >= first:
            low -= 1
        high = bisect_right(starts, end, low)
        if low < high:
            self._above -= sum(ends[low:high]) - sum(starts[low:high])
            first = min(first, starts[low])
            end = max(end, ends[high - 1])
        self._above += end - first
        starts[low:high] = [first]
        ends[low:high] = [end]

    def _raise_floor(self) -> None:
        starts, ends = self._starts, self._ends
        at = self._begin
        while at < len(starts) and starts[at] <= self.floor:
            self.floor = max(self.floor, ends[at])
            self._above -= ends[at] - starts[at]
            at += 1
        self._begin = at
        # Moving the rest at each removal would cost its length each time.
        if at * 2 > len(starts):
            del starts[:at]
            del ends[:at]
            self._begin = 0

    def __contains__(self, offset: int) -> bool:
        """Tell whether `offset` is in the set."""
        if offset < self.floor:
            return True
        index = bisect_right(self._starts, offset, self._begin) - 1
        return index >= self._begin and offset < self._ends[index]

    def gaps(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of [first, end) that are not in the set, in order."""
        position = max(first, self.floor)
        index = bisect_right(self._ends, position, self._begin)
        while position < end:
            if index >= len(self._starts) or self._starts[index] >= end:
                yield position, end
                return
            if self._starts[index] > position:
                yield position, self._starts[index]
            position = self._ends[index]
            index += 1

    def count_gaps(self, first: int, end: int) -> int:
        """The number of offsets of [first, end) that are not in the set: the sum of `gaps`, without a step for each."""
        first = max(first, self.floor)
        if first >= end:
            return 0
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, first, self._begin)
        high = bisect_left(starts, end, low)
        if low == high:
            return end - first
        members = sum(ends[low:high]) - sum(starts[low:high])
        members -= max(0, first - starts[low]) + max(0, ends[high - 1] - end)
        return end - first - members

    def count_missing(self, end: int) -> int:
        """The number of offsets below `end` that are not in the set; no offset in the set is above `end`."""
        missing = end - self.floor - self._above
        return missing if missing > 0 else 0
