"""Publishers' confirms that wait for another site: for the downstreams of one outgoing log. Pure.

It is the structure of confirms that wait for mirrors, on another log: a promise needs a place in the outgoing log, and
a replica acks a place. The places are offsets here, and a downstream acks the offset before which its manifest holds
everything, which is what it would recover, and not what it has received.

A rule says how many downstreams a promise waits for: `any` one of those that are known, or `all` of them. A downstream
stays known while it is away, and what it had acked still counts. Whether a promise can be kept at all is asked before
it is made (`can_be_met`): a set in which nobody acks would hold every publisher for its whole timeout.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from leveret.core.queues.queue_settings import ALL_DOWNSTREAMS, ANY_DOWNSTREAM
from leveret.core.replication.promises import Promises
from leveret.core.replication.replica_set import Acks

P = TypeVar("P")

ANY: Final = ANY_DOWNSTREAM
ALL: Final = ALL_DOWNSTREAMS
RULES: Final = (ANY, ALL)


class DownstreamConfirms(Generic[P]):
    """See the module. What returns promises has them kept by its caller, in that order; each is returned once."""

    def __init__(self) -> None:
        """No downstream is known."""
        self._promises: Promises[P] = Promises()
        self._acks: dict[str, Acks] = {}
        self._connected: set[str] = set()
        for rule in RULES:
            self._promises.lead(rule)

    def known(self, reference: str, offset: int) -> None:
        """A downstream had everything before `offset`, as its last report was stored; it is not connected."""
        if reference not in self._acks:
            self._join(reference, offset)
            self._wait()

    def acked(self, reference: str, offset: int) -> list[P]:
        """A connected downstream's manifest has everything before `offset`."""
        self._connected.add(reference)
        acks, kept = self._acks.get(reference), []
        if acks is None or offset < acks.cut:
            # A new one, or one that has lost something: what it had acked counts for nothing.
            self._join(reference, offset)
            kept = self._wait()
        else:
            acks.cut = offset
        return kept + self._promises.acked(reference)

    def left(self, reference: str) -> None:
        """A downstream is not connected any more."""
        self._connected.discard(reference)

    def forgotten(self, reference: str) -> list[P]:
        """An operator has had a downstream forgotten: nothing waits for it."""
        self._connected.discard(reference)
        if self._acks.pop(reference, None) is None:
            return []
        for rule in RULES:
            self._promises.replicas[rule].begins_anew(reference)
        return self._wait() if self._acks else []

    @property
    def references(self) -> frozenset[str]:
        """The known downstreams."""
        return frozenset(self._acks)

    @property
    def connected(self) -> frozenset[str]:
        """The downstreams that are connected."""
        return frozenset(self._connected)

    def can_be_met(self, rule: str) -> bool:
        """Whether a promise can be kept now, because those that it waits for are connected."""
        if rule == ALL:
            return bool(self._acks) and self._acks.keys() <= self._connected
        return bool(self._connected)

    def promise(self, rule: str, end: int, promise: P) -> list[P]:
        """Keep this once downstreams, by the rule, have everything before the offset `end` of the outgoing log."""
        return self._promises.promise({rule: end}, promise)

    def _join(self, reference: str, offset: int) -> None:
        acks = self._acks[reference] = Acks()
        acks.cut = offset
        for rule in RULES:
            replicas = self._promises.replicas[rule]
            replicas.begins_anew(reference)
            # Its acks say that it has all below them, whenever it began.
            replicas.joined(reference, acks, 0)

    def _wait(self) -> list[P]:
        everybody = [frozenset(self._acks)]
        kept = self._promises.wait_for(ALL, everybody, 0, majority=False)
        return kept + self._promises.wait_for(ANY, everybody, 0, majority=False, any_one=True)
