"""`tx.*`: publishes and settlements of a channel that take effect together, at its commit.

Publishes and settlements of a transaction reach no queue before its commit. The commit applies all of them, publishes
first: in one flush, or some with each flush if they are many. Its reply waits for the disk as a confirm does. A
rollback drops the publishes and makes the deliveries unacked again.

If other nodes have to keep the publishes, or know their queues first, the settlements wait until they do: a node that
is lost in between must not have settled what it did not publish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Protocol, TypeAlias

from leveret.core.queues.confirms import ConfirmBatch, ConfirmParts
from leveret.core.queues.messages import Messages
from leveret.session.amqp091.delivery import Unacked
from leveret.session.amqp091.settling import Settle

Settlements: TypeAlias = list[tuple[Settle, Collection[Unacked]]]


class CommittedPublish(Protocol):
    """Publishes messages of a transaction to the queues that exist at its commit."""

    def __call__(self, messages: Messages, parts: ConfirmParts | None) -> Iterator[object]:
        """Each step is one part; a wide destination needs `parts`, because it takes more than one flush."""


class ChannelTransaction:
    """The uncommitted publishes and settlements of a channel in `tx` mode.

    Attributes:
        committing: the batch of a commit in progress; its publishes count into it.
        reached: the sum of the publishes' target queues.
        batches: commits of this flush, whose replies wait.
        behind: by commit whose publishes are not safe yet, its settlements.
    """

    __slots__ = ("batches", "behind", "committing", "publishes", "reached", "settlements")

    def __init__(self) -> None:
        """Begin without operations."""
        self.publishes: list[tuple[CommittedPublish, Messages]] = []
        self.settlements: Settlements = []
        self.reached = 0
        self.committing: ConfirmBatch | None = None
        self.batches: list[ConfirmBatch] = []
        self.behind: dict[ConfirmParts, Settlements] = {}

    def take_publishes(self) -> list[tuple[CommittedPublish, Messages]]:
        """The publishes, once."""
        publishes, self.publishes, self.reached = self.publishes, [], 0
        return publishes

    def take_settlements(self) -> Settlements:
        """The settlements, once."""
        settlements, self.settlements = self.settlements, []
        return settlements

    def take_all_settlements(self) -> Settlements:
        """The settlements, once, also those of commits whose publishes are not safe yet."""
        behind, self.behind = self.behind, {}
        return [*chain.from_iterable(behind.values()), *self.take_settlements()]

    def deliveries(self) -> Iterator[Unacked]:
        """The deliveries that are to be settled."""
        for _, runs in chain(*self.behind.values(), self.settlements):
            yield from runs

    def close_batches(self) -> list[ConfirmBatch]:
        """The commits of this flush, once."""
        batches, self.batches = self.batches, []
        return batches
