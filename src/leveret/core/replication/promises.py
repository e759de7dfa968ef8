"""Promises about logs that have mirrors, each kept once the replicas of all its logs have the needed cuts. Pure.

A promise needs, for each of its logs, the last cut that changed the log. It is kept at the first moment at which *all*
of its logs have reached their cuts, by the replicas that are waited for at that very moment
(`core.replication.replica_set`): a promise that waits for a second log is examined again as a whole.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from leveret.core.replication.replica_set import ReplicaSet

P = TypeVar("P")
"""A promise, opaque here; it is kept once."""


_LAST: Final = 1 << 63
"""A cut behind every other."""


class _Waiting(NamedTuple, Generic[P]):
    """A promise that waits for one of its logs to reach `cut`."""

    cut: int
    needs: Mapping[str, int]
    promise: P


def _cut(each: _Waiting[Any]) -> int:
    return each.cut


class Promises(Generic[P]):
    """See the module. A method that returns promises returns each once; its caller keeps them in that order.

    Attributes:
        replicas: the replica set of each log that this node leads, by the log's name.
    """

    def __init__(self) -> None:
        """Start without a log."""
        self.replicas: dict[str, ReplicaSet] = {}
        self._waiting: dict[str, list[_Waiting[P]]] = {}
        """By the awaited log, in order of cuts."""
        self._mixed: set[str] = set()
        """The logs of these whose promises may need other logs, too."""
        self._then: dict[str, tuple[int, P]] = {}

    def lead(self, log: str) -> None:
        """Add a log that this node leads; its promises wait for no replica yet."""
        self.replicas.setdefault(log, ReplicaSet())

    def cease(self, log: str) -> list[P]:
        """Remove a log that another node leads now; return the promises that are never kept, for their failure.

        The next leader has what the replicas had that promises waited for, whatever other logs the same promise needs.
        It may lack everything else.
        """
        replicas = self.replicas.pop(log, None)
        self._then.pop(log, None)
        self._mixed.discard(log)
        failed = [each.promise for each in self._waiting.pop(log, ())]
        for other in self._mixed:
            left: list[_Waiting[P]] = []
            for each in self._waiting[other]:
                if log not in each.needs:
                    left.append(each)
                elif replicas is None or replicas.reaches(each.needs[log]):
                    needs = {name: cut for name, cut in each.needs.items() if name != log}
                    left.append(each._replace(needs=needs))
                else:
                    failed.append(each.promise)
            self._waiting[other] = left
        return failed

    def let_go(self, log: str) -> list[P]:
        """Remove a log that was deleted, or that has no replica any more: no promise waits for it from now on."""
        self.replicas.pop(log, None)
        self._then.pop(log, None)
        self._mixed.discard(log)
        kept: list[P] = []
        for each in self._waiting.pop(log, ()):
            self._examine(each, kept)
        return kept

    def wait_for(
        self,
        log: str,
        sets: Iterable[frozenset[str]],
        cut: int,
        *,
        majority: bool | None = None,
        any_one: bool = False,
        then: P | None = None,
    ) -> list[P]:
        """Have promises wait for all replicas of each of these sets, or a majority of each, or any one of each.

        With None, `majority` stays unchanged.

        `then` is kept once these sets have everything up to `cut`, the last cut that changed the log; a later call
        replaces it.

        Raises:
            KeyError: this node does not lead the log.
        """
        replicas = self.replicas[log]
        is_majority = replicas.is_majority if majority is None else majority
        replicas.wait_for(sets, majority=is_majority, any_one=any_one)
        self._then.pop(log, None)
        if then is not None:
            self._then[log] = cut, then
        return self._advance(log)

    def acked(self, node: str) -> list[P]:
        """Return the promises that are due after a node has acked a cut."""
        logs = (log for log in {**self._then, **self._waiting} if self.replicas[log].waits_for(node))
        return [promise for log in tuple(logs) for promise in self._advance(log)]

    def promise(self, needs: Mapping[str, int], promise: P) -> list[P]:
        """Add a promise, kept once each of its logs has reached its cut; logs of other leaders do not count."""
        kept: list[P] = []
        self._examine(_Waiting(0, needs, promise), kept)
        return kept

    def keep_only(self, is_due: Callable[[P], bool]) -> None:
        """Drop the promises that are not due any more for their caller."""
        for log, waiting in self._waiting.items():
            self._waiting[log] = [each for each in waiting if is_due(each.promise)]

    @property
    def waiting(self) -> int:
        """The number of waiting promises."""
        return sum(map(len, self._waiting.values()))

    def _advance(self, log: str) -> list[P]:
        kept: list[P] = []
        if log in self._then and self.replicas[log].reaches(self._then[log][0]):
            kept.append(self._then.pop(log)[1])
        waiting = self._waiting.pop(log, [])
        due = bisect_right(waiting, self.replicas[log].reached(_LAST), key=_cut)
        if due < len(waiting):
            self._waiting[log] = waiting[due:] if due else waiting
        else:
            self._mixed.discard(log)
        for each in waiting[:due]:
            self._examine(each, kept)
        return kept

    def _examine(self, each: _Waiting[P], kept: list[P]) -> None:
        """Keep a promise, or have it wait for the first log that has not reached its cut."""
        for name, cut in each.needs.items():
            replicas = self.replicas.get(name)
            if replicas is not None and not replicas.reaches(cut):
                insort(self._waiting.setdefault(name, []), each._replace(cut=cut), key=_cut)
                if len(each.needs) > 1:
                    self._mixed.add(name)
                return
        kept.append(each.promise)
