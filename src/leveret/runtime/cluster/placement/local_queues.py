"""The interface through which placement changes this node's queues; `queue_roles.QueueRoles` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from leveret.core.replication.cluster import Placement
from leveret.core.replication.placement import RequiredMirrors
from leveret.core.rules.mirror_policy import MirrorPolicy
from leveret.model.definitions import QueueKey


class Lack(NamedTuple):
    """The records that an incomplete mirror lacks: `messages` unsettled ones, before `begins_at` and behind its end."""

    begins_at: int
    messages: int


class LocalQueues(Protocol):
    """This node's queues, which placement changes by the records."""

    def ready(self, key: QueueKey) -> frozenset[str]:
        """Return the mirrors of a queue led here that are complete, and receive each change."""

    def joined(self, key: QueueKey) -> frozenset[str]:
        """Return the mirrors of a queue led here whose copies were compared with it since they connected."""

    def is_damaged(self, key: QueueKey) -> bool:
        """Whether this node leads or mirrors the queue by its record, and cannot read its own copy."""

    async def follow(self, key: QueueKey, placement: Placement | None) -> None:
        """Lead, mirror or represent the queue, by its record; None: the queue is deleted."""

    async def all_followed(self) -> None:
        """Note that the records of all queues were followed once, after a start."""

    def lead_by(
        self,
        key: QueueKey,
        policy: MirrorPolicy,
        waits: RequiredMirrors,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Apply this policy to a queue that is led here; its confirms wait for these mirrors from now on.

        `then` is called when the mirrors have all messages that may have been confirmed before, unless this method is
        called again first.
        """

    async def end_of(self, node: str, key: QueueKey, placement: Placement) -> tuple[int, int]:
        """Return the epoch of the last chunk in a node's copy of a queue's log, and the offset behind it; else (0, 0).

        Raises:
            LeveretError: the node does not answer.
        """

    def leader_is(self, key: QueueKey, *, alive: bool) -> None:
        """Note whether the queue's leader runs; `alive` is False if it does not, and no other node can lead."""

    async def prepare(self, key: QueueKey, node: str) -> None:
        """Have a mirror ready to lead a queue that is led here and served meanwhile; return after a moment anyway.

        A new leader reads the newest segment of its copy before it serves: it is to be short.
        """

    async def hand_over_to(
        self, key: QueueKey, node: str, recorded: frozenset[str], *, loses: bool = False
    ) -> frozenset[str]:
        """Stop serving the queue; wait until the node is complete, and recorded mirrors have all confirmed messages.

        If the hand-over `loses` messages, the node gets missing records only for a moment, and leads without the rest.

        Returns:
            Those of the recorded mirrors that are complete.

        Raises:
            LeveretError: the node did not become complete.
        """

    def begins_at(self, key: QueueKey, placement: Placement) -> int:
        """Return the first offset of this node's copy of a queue that it does not lead; 0 if it has none."""

    def lacks(self, key: QueueKey, node: str) -> Lack | None:
        """Return the records that a mirror lacks of a queue that was led here and is being handed over to it.

        None if it is complete. A mirror may lack no unsettled message and yet have no copy.
        """

    def delivered_before(self, key: QueueKey) -> int | None:
        """Return the offset before which clients may have had messages of a queue that is being handed over.

        None if that is unknown, or of no use: the queue is a stream, or its log cannot be read.
        """

    def take_back(self, key: QueueKey) -> None:
        """Serve the queue again: the record was not changed."""
