"""Promises about mirrored logs: the nodes that must have certain offsets on their disks.

For each log this module knows the nodes that must have it (`wait_for`), the offset that each node has (`acked`), and
the offset that each promise needs. A promise is kept at the first moment at which *all* of its logs are where it needs
them, by the nodes to wait for at that very moment: a promise that waits for a second log is examined again as a whole.

**When promises wait, and when a node is recorded** (as synchronised: as a node that may lead at any moment).

- Growing: promises wait for the node from `wait_for` on, and the node is recorded only once it has everything that may
  have been promised before: everything that was in the log when `wait_for` was called. `then` is called at that
  moment. In the other order the node could lead without promises made in between.
- Shrinking: the record changes first, then promises stop waiting. In the other order the dropped node could
  lead, without promises made meanwhile.
- A change of the record in flight counts as done and as not done. So promises wait for all of the old *and*
  of the new set; with a majority, for a majority of the old and a majority of the new, because the next leader may
  ask either. `wait_for` takes both sets, and `then` is called when both have everything promised so far.

A `majority` always counts the leader, whose own disk is waited for elsewhere.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

P = TypeVar("P")
"""A promise: nothing is known of it here but that it is kept once."""


class _Waiting(Generic[P]):
    """A promise that waits in the queue of one log, for that log to reach `offset`."""

    __slots__ = ("needs", "offset", "promise")

    def __init__(self, offset: int, needs: Mapping[str, int], promise: P) -> None:
        self.offset = offset
        self.needs = needs
        self.promise = promise


class _Log(Generic[P]):
    __slots__ = ("has", "majority", "sets", "then", "waiting")

    def __init__(self) -> None:
        self.sets: tuple[frozenset[str], ...] = ()
        self.majority = False
        self.has: dict[str, int] = {}
        self.waiting: deque[_Waiting[P]] = deque()
        """By offset."""
        self.then: tuple[int, P] | None = None

    def reaches(self, offset: int) -> bool:
        """Whether all that is waited for has everything before `offset`."""
        has = self.has
        for nodes in self.sets:
            missing = sum(has.get(node, 0) < offset for node in nodes)
            # Of n mirrors and the leader, the leader and all but n // 2 mirrors are a majority.
            if missing > (len(nodes) // 2 if self.majority else 0):
                return False
        return True


class MirrorAcks(Generic[P]):
    """See the module. What returns promises has them kept by its caller, in that order; each is returned once."""

    def __init__(self) -> None:
        """There is no log."""
        self._logs: dict[str, _Log[P]] = {}

    def lead(self, log: str, *, majority: bool) -> list[P]:
        """This log is led here, or by other terms than before; promises of it wait for nobody yet."""
        found = self._logs.setdefault(log, _Log())
        found.majority = majority
        return self._advance(found)

    def cease(self, log: str) -> int:
        """Another node leads the log now: what waits for it is never kept; returns how much that is."""
        found = self._logs.pop(log, None)
        if found is None:
            return 0
        dropped = len(found.waiting)
        for other in self._logs.values():
            kept = deque(each for each in other.waiting if log not in each.needs)
            dropped += len(other.waiting) - len(kept)
            other.waiting = kept
        return dropped

    def deleted(self, log: str) -> list[P]:
        """There is no such log any more, and nothing in it that a mirror could lack."""
        found = self._logs.pop(log, None)
        kept: list[P] = []
        for each in found.waiting if found is not None else ():
            self._wait(each, kept)
        return kept

    def wait_for(self, log: str, sets: Iterable[Collection[str]], end: int, then: P | None = None) -> list[P]:
        """From now on promises wait for each of these sets: for all of it, or a majority of it.

        `then` is kept once that has everything before `end`, where the log ends now; a later call takes its place.

        Raises:
            KeyError: the log is not led here.
        """
        found = self._logs[log]
        found.sets = tuple(frozenset(nodes) for nodes in sets if nodes)
        found.then = None if then is None else (end, then)
        return self._advance(found)

    def is_waited_for(self, log: str) -> bool:
        """Whether a promise of this log waits for anybody."""
        found = self._logs.get(log)
        return found is not None and bool(found.sets)

    def acked(self, log: str, node: str, offset: int) -> list[P]:
        """The node has everything before `offset` on its disk; less than before, if it began anew."""
        found = self._logs.get(log)
        if found is None:
            return []
        found.has[node] = offset
        return self._advance(found)

    def has(self, log: str, node: str) -> int:
        """Up to where it has it."""
        found = self._logs.get(log)
        return found.has.get(node, 0) if found is not None else 0

    def promise(self, needs: Mapping[str, int], promise: P) -> list[P]:
        """Keep this once each of these logs is where it is to be; a log that is not led here is."""
        kept: list[P] = []
        self._wait(_Waiting(0, needs, promise), kept)
        return kept

    @property
    def waiting(self) -> int:
        """The number of waiting promises."""
        return sum(len(log.waiting) for log in self._logs.values())

    def _wait(self, each: _Waiting[P], kept: list[P]) -> None:
        """Keep it, or have it wait for the first log that is not there yet."""
        for name, offset in each.needs.items():
            log = self._logs.get(name)
            if log is not None and not log.reaches(offset):
                each.offset = offset
                if not log.waiting or log.waiting[-1].offset <= offset:
                    log.waiting.append(each)
                else:
                    insort(log.waiting, each, key=lambda other: other.offset)
                return
        kept.append(each.promise)

    def _advance(self, log: _Log[P]) -> list[P]:
        kept: list[P] = []
        if log.then is not None and log.reaches(log.then[0]):
            kept.append(log.then[1])
            log.then = None
        while log.waiting and log.reaches(log.waiting[0].offset):
            self._wait(log.waiting.popleft(), kept)
        return kept
