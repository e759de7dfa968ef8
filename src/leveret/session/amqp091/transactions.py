"""`tx.*`: publishes and settlements of a channel that take effect together, at its commit.

Nothing of a transaction reaches a queue before the commit: publishes are kept,
settlements with the deliveries they concern. A commit hands all of them over in one flush, and its reply
waits for the disk as a confirm does. A rollback drops the publishes and makes the deliveries unacked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.messages import Messages
from leveret.session.amqp091.delivery import Unacked
from leveret.session.amqp091.settling import Settle

Publish = Callable[[Messages], None]
"""Hands messages over to the queues that there are at the commit."""


class Commit:
    """A commit whose publishes are handed over before its settlements, which take turns: a batch each.

    Its reply follows when both are decided.
    """

    def __init__(self, reply: Callable[[ConfirmBatch, bool], None]) -> None:
        """`reply` gets the first batch that failed, or else the last one, and whether all is well."""
        self._reply = reply
        self._failed: ConfirmBatch | None = None
        self._left = 2

    def decided(self, batch: ConfirmBatch, ok: bool) -> None:
        """One of the two is safe, or is not."""
        self._left -= 1
        if not ok and self._failed is None:
            self._failed = batch
        if not self._left:
            self._reply(self._failed or batch, self._failed is None)


class ChannelTransaction:
    """What a channel in `tx` mode did since its last commit or rollback.

    Attributes:
        committing: the batch of a commit that is being handed over; publishes count into it.
        batches: commits of this flush, whose replies wait.
        commits: those of the batches that are not the whole of their commit.
    """

    __slots__ = ("batches", "commits", "committing", "publishes", "settlements")

    def __init__(self) -> None:
        """Nothing done yet."""
        self.publishes: list[tuple[Publish, Messages]] = []
        self.settlements: list[tuple[Settle, Collection[Unacked]]] = []
        self.committing: ConfirmBatch | None = None
        self.batches: list[ConfirmBatch] = []
        self.commits: dict[ConfirmBatch, Commit] = {}

    def take_publishes(self) -> list[tuple[Publish, Messages]]:
        """The publishes, once."""
        publishes, self.publishes = self.publishes, []
        return publishes

    def take_settlements(self) -> list[tuple[Settle, Collection[Unacked]]]:
        """The settlements, once."""
        settlements, self.settlements = self.settlements, []
        return settlements

    def close_batches(self) -> list[ConfirmBatch]:
        """The commits of this flush, once."""
        batches, self.batches = self.batches, []
        return batches
