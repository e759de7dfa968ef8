"""Publishers' confirms that wait for another site: for the downstreams of one outgoing log. Pure.

Confirms wait for downstreams as they wait for mirrors (`core.replication.promises`), with offsets of the outgoing log
in place of cuts. A downstream acks the offset before which its manifest holds everything: the records that it would
recover, not those that it has received.

A rule sets the number of downstreams that a promise waits for: `any` one of the known downstreams, or `all` of them. A
downstream stays known while it is away, and its acks still count. Callers check beforehand whether a promise can be
kept at all (`can_be_met`): without a connected downstream every publisher would wait for its whole timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from leveret.core.queues.queue_settings import ALL_DOWNSTREAMS, ANY_DOWNSTREAM
from leveret.core.replication.promises import Promises
from leveret.core.replication.replica_set import Acks

P = TypeVar("P")

ANY: Final = ANY_DOWNSTREAM
ALL: Final = ALL_DOWNSTREAMS
RULES: Final = (ANY, ALL)


class DownstreamConfirms(Generic[P]):
    """See the module. A method that returns promises returns each once; its caller keeps them in that order."""

    def __init__(self) -> None:
        """Start without a known downstream."""
        self._promises: Promises[P] = Promises()
        self._acks: dict[str, Acks] = {}
        self._connected: set[str] = set()
        for rule in RULES:
            self._promises.lead(rule)

    def known(self, reference: str, offset: int) -> None:
        """Take a downstream's stored report: it had everything before `offset`. It is not connected."""
        if reference not in self._acks:
            self._join(reference, offset)
            self._wait()

    def acked(self, reference: str, offset: int) -> list[P]:
        """Take the ack of a connected downstream: its manifest has everything before `offset`."""
        self._connected.add(reference)
        acks, kept = self._acks.get(reference), []
        if acks is None or offset < acks.cut:
            # A new downstream, or one that has lost records: its earlier acks no longer count.
            self._join(reference, offset)
            kept = self._wait()
        else:
            acks.cut = offset
        return kept + self._promises.acked(reference)

    def left(self, reference: str) -> None:
        """Note that a downstream has disconnected."""
        self._connected.discard(reference)

    def forgotten(self, reference: str) -> list[P]:
        """Forget a downstream at an operator's request: promises no longer wait for it."""
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
        """Return whether a promise can be kept now, because the downstreams that it waits for are connected."""
        if rule == ALL:
            return bool(self._acks) and self._acks.keys() <= self._connected
        return bool(self._connected)

    def promise(self, rule: str, end: int, promise: P) -> list[P]:
        """Add a promise, kept once downstreams, by the rule, have the outgoing log up to the offset `end`."""
        return self._promises.promise({rule: end}, promise)

    def keep_only(self, is_due: Callable[[P], bool]) -> None:
        """Drop the promises that are not due any more, such as those that were answered late."""
        self._promises.keep_only(is_due)

    @property
    def waiting(self) -> int:
        """The number of waiting promises."""
        return self._promises.waiting

    def _join(self, reference: str, offset: int) -> None:
        acks = self._acks[reference] = Acks()
        acks.cut = offset
        for rule in RULES:
            replicas = self._promises.replicas[rule]
            replicas.begins_anew(reference)
            # An ack covers all records before its offset, whenever the downstream began.
            replicas.joined(reference, acks, 0)

    def _wait(self) -> list[P]:
        everybody = [frozenset(self._acks)]
        kept = self._promises.wait_for(ALL, everybody, 0, majority=False)
        return kept + self._promises.wait_for(ANY, everybody, 0, majority=False, any_one=True)
