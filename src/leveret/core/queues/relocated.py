"""The places of relocated messages: the chunk of the log that now holds each of their offsets.

For a message that was stored more than once the newest chunk counts; earlier chunks are about to be dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from leveret.core.queues.backlog.offsets import OffsetSet


class RelocatedRange(NamedTuple):
    """Offsets from `first` up to, not including, `end`, whose messages are in the chunk at offset `chunk_id`."""

    first: int
    end: int
    chunk_id: int


class Relocated:
    """Disjoint ranges in the order of their offsets.

    Attributes:
        octets: by chunk, the octets of its relocated messages, and their number.
    """

    __slots__ = ("_firsts", "_ranges", "octets")

    def __init__(self) -> None:
        """Begin without any."""
        self._firsts: list[int] = []
        self._ranges: list[RelocatedRange] = []
        self.octets: dict[int, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        """Whether any message was relocated."""
        return bool(self._ranges)

    def __iter__(self) -> Iterator[RelocatedRange]:
        """Iterate over all ranges, in order."""
        return iter(self._ranges)

    def add(self, chunk_id: int, ranges: Iterable[tuple[int, int]], octets: int) -> None:
        """Note a chunk, newer than all others, with the messages at these ascending ranges, of so many octets."""
        new = [RelocatedRange(first, end, chunk_id) for first, end in ranges]
        if not new:
            return
        self.octets[chunk_id] = octets, sum(end - first for first, end, _ in new)
        low = max(0, bisect_right(self._firsts, new[0].first) - 1)
        high = bisect_right(self._firsts, new[-1].end - 1, low)
        merged = sorted([*_without(self._ranges[low:high], new), *new])
        self._ranges[low:high] = merged
        self._firsts[low:high] = [each.first for each in merged]

    def find(self, offset: int) -> RelocatedRange | None:
        """The range that holds an offset, or else the first behind it."""
        at = bisect_right(self._firsts, offset)
        if at and self._ranges[at - 1].end > offset:
            return self._ranges[at - 1]
        return self._ranges[at] if at < len(self._ranges) else None

    def outside(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of [first, end) without relocated messages, in order."""
        while first < end:
            found = self.find(first)
            if found is None or found.first >= end:
                yield first, end
                return
            if found.first > first:
                yield first, found.first
            first = found.end

    def forget(self, settled: OffsetSet, first_offset: int) -> None:
        """Forget ranges that are settled as a whole, and sizes of chunks that were dropped."""
        self._ranges = [
            each for each in self._ranges if next(settled.gaps(each.first, each.end), None) is not None
        ]
        self._firsts = [each.first for each in self._ranges]
        self.octets = {chunk: size for chunk, size in self.octets.items() if chunk >= first_offset}


def _without(ranges: list[RelocatedRange], others: list[RelocatedRange]) -> Iterator[RelocatedRange]:
    """The parts of `ranges` outside of `others`; both in order."""
    at = 0
    for first, end, chunk_id in ranges:
        while at < len(others) and others[at].end <= first:
            at += 1
        index = at
        while index < len(others) and others[index].first < end:
            if others[index].first > first:
                yield RelocatedRange(first, others[index].first, chunk_id)
            first = max(first, others[index].end)
            index += 1
        if first < end:
            yield RelocatedRange(first, end, chunk_id)
