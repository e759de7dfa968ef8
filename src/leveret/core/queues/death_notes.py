"""The dead messages of a queue that keeps them until their letters are taken, as its log has to name them.

A dead letter may wait for hours: its target is missing, unbound, full or away. Its message must not go to a consumer
meanwhile, not after a restart or a fail-over either. So deaths are stored in the queue's own log, as attributes of
chunks behind the messages (`wire.chunk.Attribute.DIED`), as counts of returns are (`return_counts`); mirrors and
followers have them too. A settlement of the message ends its note.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from leveret.core.queues.backlog.ranges import OffsetRanges
from leveret.core.queues.return_counts import LOGGED_AT_ONCE

REASONS: Final = ("expired", "rejected", "delivery_limit")
"""Logs hold a reason's place in this list, so it must not change; further ones may follow."""


class Died(NamedTuple):
    """The messages from `first` up to `end` died, for `reason`."""

    first: int
    end: int
    reason: str


class DeathNotes:
    """The notes of one queue: unsettled dead messages, as ranges by their reason."""

    __slots__ = ("_noted", "_unlogged")

    def __init__(self) -> None:
        """Begin without dead."""
        self._noted: dict[str, OffsetRanges] = {}
        self._unlogged: dict[str, OffsetRanges] = {}

    def __iter__(self) -> Iterator[Died]:
        """All of them, in order for each reason."""
        return _all_of(self._noted)

    @property
    def count(self) -> int:
        """The number of noted messages."""
        return sum(ranges.count for ranges in self._noted.values())

    def add(self, first: int, end: int, reason: str) -> None:
        """Note messages that died; the next chunk of settlements names them."""
        self._noted.setdefault(reason, OffsetRanges()).add(first, end)
        self._unlogged.setdefault(reason, OffsetRanges()).add(first, end)

    def found(self, died: Died) -> None:
        """Take a note from the log, in which it may be twice."""
        self.forget(died.first, died.end)
        self._noted.setdefault(died.reason, OffsetRanges()).add(died.first, died.end)

    def forget(self, first: int, end: int) -> None:
        """Forget settled messages."""
        for ranges in (*self._noted.values(), *self._unlogged.values()):
            if ranges.count:
                ranges.remove(first, end)

    def log_again(self) -> None:
        """Mark all notes as unlogged: a segment begins, and earlier ones may be dropped."""
        self._unlogged = {}
        for first, end, reason in self:
            self._unlogged.setdefault(reason, OffsetRanges()).add(first, end)

    @property
    def unlogged(self) -> list[Died]:
        """Notes that are not in the log yet, no more than fit a chunk."""
        return list(islice(_all_of(self._unlogged), LOGGED_AT_ONCE)) if self._unlogged else []

    @property
    def is_much_unlogged(self) -> bool:
        """Whether the notes do not fit into the next flush."""
        return next(islice(_all_of(self._unlogged), LOGGED_AT_ONCE, None), None) is not None

    def logged(self, notes: Iterable[Died]) -> None:
        """Note that these are in the log."""
        for first, end, reason in notes:
            ranges = self._unlogged[reason]
            ranges.remove(first, end)
            if not ranges.count:
                del self._unlogged[reason]


def _all_of(by_reason: dict[str, OffsetRanges]) -> Iterator[Died]:
    for reason, ranges in by_reason.items():
        for first, end in ranges:
            yield Died(first, end, reason)
