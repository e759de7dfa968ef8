"""The interface through which placement changes this node's queues; `queue_roles.ModelQueueRoles` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from leveret.core.replication.cluster import Placement
from leveret.core.replication.placement import RequiredMirrors
from leveret.core.rules.mirror_policy import MirrorPolicy

QueueKey = tuple[str, str]
"""Vhost and name."""


class Lack(NamedTuple):
    """Records that a mirror lacks: `messages` unsettled ones, in front of `begins_at` and behind its copy."""

    begins_at: int
    messages: int


class LocalQueues(Protocol):
    """This node's queues, as placement changes them by the records."""

    def ready(self, key: QueueKey) -> frozenset[str]:
        """Mirrors of a queue that is led here which have all of it, and are told of each change."""

    def joined(self, key: QueueKey) -> frozenset[str]:
        """Mirrors of a queue that is led here whose copies were compared with it since they connected."""

    def is_damaged(self, key: QueueKey) -> bool:
        """Whether this node leads or mirrors the queue by its record, and cannot read what it has of it."""

    async def follow(self, key: QueueKey, placement: Placement | None) -> None:
        """Lead, mirror or stand in for the queue, as the record says; None: it is gone."""

    def lead_by(
        self,
        key: QueueKey,
        policy: MirrorPolicy,
        waits: RequiredMirrors,
        then: Callable[[], None] | None = None,
    ) -> None:
        """A queue that is led here has this policy, and its confirms wait for these mirrors from now on.

        `then` is called when they have all that may have been confirmed before, unless this is called again first.
        """

    async def end_of(self, node: str, key: QueueKey, placement: Placement) -> tuple[int, int]:
        """Epoch of the last chunk that a node has of a queue's log, and the offset behind it; (0, 0) for nothing.

        Raises:
            LeveretError: it does not say.
        """

    def leader_is(self, key: QueueKey, *, alive: bool) -> None:
        """The node that leads the queue by its record runs, or it does not and there is no other."""

    async def hand_over_to(
        self, key: QueueKey, node: str, recorded: frozenset[str], *, loses: bool = False
    ) -> frozenset[str]:
        """Serve the queue no more, and return when the node has all of it, and those recorded all that was confirmed.

        If it `loses` what the node lacks, it is sent that for a moment, and as much as it has by then is what it has.

        Returns:
            Which of the recorded have all of it.

        Raises:
            LeveretError: it does not come to have it.
        """

    def begins_at(self, key: QueueKey, placement: Placement) -> int:
        """Where what this node has of a queue that it does not lead begins; 0 for nothing."""

    def lacks(self, key: QueueKey, node: str) -> Lack:
        """What a mirror lacks of a queue that was led here and is being given to it."""

    def take_back(self, key: QueueKey) -> None:
        """Serve it again: the record could not be changed."""
