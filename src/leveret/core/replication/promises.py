"""Promises about logs that have mirrors, each kept once the replicas of all of its logs have what it needs. Pure.

A promise needs, of each of its logs, the last cut that changed the log. It is kept at the first moment at which *all*
of its logs are there, by the replicas that are waited for at that very moment (`core.replication.replica_set`): a
promise that waits for a second log is examined again as a whole.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from leveret.core.replication.replica_set import ReplicaSet

P = TypeVar("P")
"""A promise: nothing is known of it here but that it is kept once."""


_LAST: Final = 1 << 63
"""A cut behind all that there are."""


class _Waiting(NamedTuple, Generic[P]):
    """A promise that waits for one of its logs to reach `cut`."""

    cut: int
    needs: Mapping[str, int]
    promise: P


def _cut(each: _Waiting[Any]) -> int:
    return each.cut


class Promises(Generic[P]):
    """See the module. What returns promises has them kept by its caller, in that order; each is returned once.

    Attributes:
        replicas: of each log that is led here, by the log's name.
    """

    def __init__(self) -> None:
        """There is no log."""
        self.replicas: dict[str, ReplicaSet] = {}
        self._waiting: dict[str, list[_Waiting[P]]] = {}
        """By the log that they wait for, by cut."""
        self._then: dict[str, tuple[int, P]] = {}

    def lead(self, log: str) -> None:
        """This log is led here; promises of it wait for nobody yet."""
        self.replicas.setdefault(log, ReplicaSet())

    def cease(self, log: str) -> int:
        """Another node leads the log now: what waits for it is never kept; returns how much that is."""
        self.replicas.pop(log, None)
        self._then.pop(log, None)
        before = self.waiting
        self._waiting.pop(log, None)
        for other, waiting in self._waiting.items():
            self._waiting[other] = [each for each in waiting if log not in each.needs]
        return before - self.waiting

    def deleted(self, log: str) -> list[P]:
        """There is no such log any more, and nothing in it that a replica could lack."""
        self.replicas.pop(log, None)
        self._then.pop(log, None)
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
        """From now on promises wait for each of these sets: for all of it, or a majority of it, or any one of it.

        With None for `majority` it stays as it is.

        `then` is kept once that has everything up to `cut`, the last one that changed the log; a later call takes its
        place.

        Raises:
            KeyError: the log is not led here.
        """
        replicas = self.replicas[log]
        is_majority = replicas.is_majority if majority is None else majority
        replicas.wait_for(sets, majority=is_majority, any_one=any_one)
        self._then.pop(log, None)
        if then is not None:
            self._then[log] = cut, then
        return self._advance(log)

    def acked(self, node: str) -> list[P]:
        """A node has acked a cut: promises of its logs may be due."""
        logs = (log for log in {**self._then, **self._waiting} if self.replicas[log].waits_for(node))
        return [promise for log in tuple(logs) for promise in self._advance(log)]

    def promise(self, needs: Mapping[str, int], promise: P) -> list[P]:
        """Keep this once each of these logs is where it is to be; a log that is not led here is."""
        kept: list[P] = []
        self._examine(_Waiting(0, needs, promise), kept)
        return kept

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
        for each in waiting[:due]:
            self._examine(each, kept)
        return kept

    def _examine(self, each: _Waiting[P], kept: list[P]) -> None:
        """Keep it, or have it wait for the first log that is not there yet."""
        for name, cut in each.needs.items():
            replicas = self.replicas.get(name)
            if replicas is not None and not replicas.reaches(cut):
                insort(self._waiting.setdefault(name, []), each._replace(cut=cut), key=_cut)
                return
        kept.append(each.promise)
