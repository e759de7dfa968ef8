"""The first offset of each queue that an outgoing log still has; retention drops the log's oldest segments.

Earlier records of a queue are only at downstreams that transferred them in time. A downstream that begins now does
not get them, and is told their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream

Key = tuple[bytes, int]
"""A queue's name and its incarnation; see runtime.collecting.collector."""


K = TypeVar("K", bound=Hashable)


class LowestOffsets(Generic[K]):
    """For each queue the lowest of its offsets from each segment of the log on, for retention takes whole segments.

    Offsets of a queue rise within one of its incarnations; where several are one key, they may begin anew.
    """

    def __init__(self) -> None:
        """Of an empty log."""
        self._firsts: dict[K, deque[tuple[int, int]]] = {}

    @property
    def keys(self) -> set[K]:
        """Of all queues of which there is anything."""
        return set(self._firsts)

    def note(self, key: K, segment: int, offset: int) -> None:
        """A chunk of messages, the first of them at `offset` of its queue, is in the newest segment."""
        firsts = self._firsts.setdefault(key, deque())
        while firsts and firsts[-1][1] > offset:
            # What is higher and goes earlier is the lowest of nothing that is left.
            firsts.pop()
        if not firsts or firsts[-1][0] != segment:
            firsts.append((segment, offset))

    def forget_before(self, segment: int) -> None:
        """The log begins with this segment now."""
        for key, firsts in list(self._firsts.items()):
            while firsts and firsts[0][0] < segment:
                firsts.popleft()
            if not firsts:
                del self._firsts[key]

    def begin_of(self, key: K) -> int | None:
        """The lowest offset of the queue's messages that is in the log; None if there is none of it."""
        firsts = self._firsts.get(key)
        return firsts[0][1] if firsts else None


def count_unsettled_before(queue: Queue, offset: int) -> int:
    """How many messages the queue holds in front of one of its offsets; of a stream, how many offsets."""
    if isinstance(queue, Stream):
        return max(0, offset - queue.log.first_offset)
    return sum(end - first for first, end in queue.settled.gaps(0, offset))
