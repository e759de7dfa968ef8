"""The ready messages of a queue with a limit of octets whose sizes are not known; they are read from its log. Pure.

They came back to the queue, or the limit is new. A backlog may have any length, so a dispatch measures some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from leveret.core.queues.messages import Run, cost_of


class UnmeasuredMessages:
    """See the module.

    Attributes:
        are_all: whether all ready messages have to be measured anew.
        ranges: the offsets of those that are left, as ranges with their ends.
    """

    __slots__ = ("are_all", "ranges")

    def __init__(self) -> None:
        """Begin without messages."""
        self.are_all = False
        self.ranges: list[tuple[int, int]] = []

    def begin(self, ready: Iterable[tuple[int, int]]) -> None:
        """Begin to measure all ready messages."""
        self.are_all, self.ranges = False, list(ready)

    def measure(self, find: Callable[[int], Run], costs_max: int) -> int:
        """Read some, of about so many costs (`cost_of`); return the octets of their bodies.

        Args:
            find: reads the run with an offset.
            costs_max: the costs after which no further run is read.
        """
        octets = costs = 0
        while self.ranges and costs < costs_max:
            first, end = self.ranges[-1]
            run = find(first)
            run = run.cut(first, min(end, run.end))
            octets += run.body_bytes
            costs += cost_of(run)
            if run.end == end:
                self.ranges.pop()
            else:
                self.ranges[-1] = (run.end, end)
        return octets
