"""The first offset of each queue that an outgoing log still has; retention drops the log's oldest segments.

Only downstreams that transferred them in time have earlier records of a queue. A downstream that begins now does not
get these, and gets their number instead.
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
    """For each queue, its lowest offset from each segment on, because retention drops whole segments.

    Offsets of a queue rise within one incarnation; if one key stands for several, they may begin anew.
    """

    def __init__(self) -> None:
        """Begin with an empty log."""
        self._firsts: dict[K, deque[tuple[int, int]]] = {}

    @property
    def keys(self) -> set[K]:
        """The keys of all queues with records."""
        return set(self._firsts)

    def note(self, key: K, segment: int, offset: int) -> None:
        """Note a chunk of messages in the newest segment, the first of them at `offset` of its queue."""
        firsts = self._firsts.setdefault(key, deque())
        while firsts and firsts[-1][1] > offset:
            # A higher offset in an earlier segment is never the lowest.
            firsts.pop()
        if not firsts or firsts[-1][0] != segment:
            firsts.append((segment, offset))

    def forget_before(self, segment: int) -> None:
        """Note that the log begins with this segment now."""
        for key, firsts in list(self._firsts.items()):
            while firsts and firsts[0][0] < segment:
                firsts.popleft()
            if not firsts:
                del self._firsts[key]

    def begin_of(self, key: K) -> int | None:
        """The lowest offset of the queue's messages in the log; None without any."""
        firsts = self._firsts.get(key)
        return firsts[0][1] if firsts else None


def count_unsettled_before(queue: Queue, offset: int) -> int:
    """The number of the queue's messages before one of its offsets; for a stream, the number of offsets."""
    if isinstance(queue, Stream):
        return max(0, offset - queue.log.first_offset)
    return sum(end - first for first, end in queue.settled.gaps(0, offset))
