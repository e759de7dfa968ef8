"""The number of returns of each message of a queue, by offset; the counts survive a restart and a fail-over.

Counts are stored in the queue's own log, as attributes of chunks behind the messages (`wire.chunk.Attribute.RETURNED`),
so mirrors and followers have them too. A returned message costs a small record, a delivered message costs nothing. Up
to 32 returns each one is logged; beyond 32 the count is logged whenever it grew by about a sixteenth. So a message that
is returned forever without a limit writes little. After a crash one fact is unknown: the messages whose deliveries were
in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

EXACT_BITS: Final = 5
"""Counts of up to so many bits are all logged; larger ones only if all lower bits are zero."""
_ALWAYS_LOGGED: Final = 1 << EXACT_BITS
LOGGED_AT_ONCE: Final = 4096
"""The most ranges in one chunk's trailer; a flush writes one."""


class Returned(NamedTuple):
    """Each message from `first` up to `end` came back `returns` times."""

    first: int
    end: int
    returns: int


class ReturnCounts:
    """The counts of one queue's unsettled messages."""

    __slots__ = ("_counts", "_unlogged")

    def __init__(self) -> None:
        """Begin without returns."""
        self._counts: dict[int, int] = {}
        self._unlogged: dict[int, None] = {}

    def of(self, offset: int) -> int:
        """The number of returns of a message."""
        return self._counts.get(offset, 0)

    def add(self, first: int, end: int, limit: int | None = None) -> list[int]:
        """Count one more return of these messages; return those that exceed `limit`."""
        counts, unlogged = self._counts, self._unlogged
        excessive: list[int] = []
        for offset in range(first, end):
            count = counts[offset] = counts.get(offset, 0) + 1
            if count < _ALWAYS_LOGGED or is_logged(count):
                unlogged[offset] = None
            if limit is not None and count > limit:
                excessive.append(offset)
        return excessive

    def forget(self, first: int, end: int) -> None:
        """Forget settled messages."""
        if not self._counts:
            return
        if end - first < len(self._counts):
            for offset in range(first, end):
                self._counts.pop(offset, None)
                self._unlogged.pop(offset, None)
        else:
            # A purge settles millions at once.
            self._counts = {at: count for at, count in self._counts.items() if not first <= at < end}
            self._unlogged = {at: None for at in self._unlogged if at in self._counts}

    def found(self, returned: Returned) -> None:
        """Take a count from the log; later ones replace it."""
        for offset in range(returned.first, returned.end):
            self._counts[offset] = returned.returns

    def log_again(self) -> None:
        """Mark all counts as unlogged: a segment begins, and earlier ones may be dropped."""
        self._unlogged = dict.fromkeys(self._counts)

    @property
    def unlogged(self) -> list[Returned]:
        """Counts that are not in the log yet, in order, no more than fit a chunk."""
        if not self._unlogged:
            return []
        ranges: list[list[int]] = []
        # A million messages may have come back at once, and each flush asks.
        for offset in sorted(islice(self._unlogged, LOGGED_AT_ONCE)):
            count = self._counts[offset]
            if ranges and ranges[-1][1] == offset and ranges[-1][2] == count:
                ranges[-1][1] = offset + 1
            else:
                ranges.append([offset, offset + 1, count])
        return [Returned(*each) for each in ranges]

    @property
    def is_much_unlogged(self) -> bool:
        """Whether the counts do not fit into the next flush."""
        return len(self._unlogged) > LOGGED_AT_ONCE

    def logged(self, ranges: Iterable[Returned]) -> None:
        """Note that these counts are in the log."""
        for first, end, _ in ranges:
            for offset in range(first, end):
                self._unlogged.pop(offset, None)


def is_logged(count: int) -> bool:
    """Whether a count is logged; so a logged count is at most a sixteenth too low."""
    spare = max(0, count.bit_length() - EXACT_BITS)
    return count >> spare << spare == count
