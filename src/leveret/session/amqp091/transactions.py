"""`tx.*`: publishes and settlements of a channel that take effect together, at its commit.

Nothing of a transaction reaches a queue before the commit: publishes are kept,
settlements with the deliveries they concern. A commit hands all of them over in one flush, and its reply
waits for the disk as a confirm does. A rollback drops the publishes and makes the deliveries unacked again.
"""

from __future__ import annotations

from collections.abc import Callable

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.messages import Messages
from leveret.session.amqp091.delivery import Unacked

Publish = Callable[[Messages], None]
"""Hands messages over to the queues that there are at the commit."""
Settle = Callable[[list[Unacked]], None]


class ChannelTransaction:
    """What a channel in `tx` mode did since its last commit or rollback.

    Attributes:
        committing: the batch of a commit that is being handed over; publishes count into it.
        batches: commits of this flush, whose replies wait.
    """

    __slots__ = ("batches", "committing", "publishes", "settlements")

    def __init__(self) -> None:
        """Nothing done yet."""
        self.publishes: list[tuple[Publish, Messages]] = []
        self.settlements: list[tuple[Settle, list[Unacked]]] = []
        self.committing: ConfirmBatch | None = None
        self.batches: list[ConfirmBatch] = []

    def take_publishes(self) -> list[tuple[Publish, Messages]]:
        """The publishes, once."""
        publishes, self.publishes = self.publishes, []
        return publishes

    def take_settlements(self) -> list[tuple[Settle, list[Unacked]]]:
        """The settlements, once."""
        settlements, self.settlements = self.settlements, []
        return settlements

    def close_batches(self) -> list[ConfirmBatch]:
        """The commits of this flush, once."""
        batches, self.batches = self.batches, []
        return batches
