"""The fate of a queue whose leader's node is lost, by RabbitMQ's rules: pure.

    promoted    another node has a copy, and leads the queue
    waits       the queue is durable, and down until its node is back
    deleted     the queue ends with the node. A transient queue is not mirrored, whatever a policy says; an exclusive
                queue belongs to a connection, which ends with the leader's node

If a follower of the whole node is promoted, its durable queues are promoted with it.
"""

from __future__ import annotations

from typing import Final

from leveret.core.replication.placement import QueuePlacement
from leveret.core.rules.mirror_policy import ALWAYS, MAJORITY, MirrorPolicy

PROMOTED: Final = "promoted"
WAITS: Final = "waits"
DELETED: Final = "deleted"


def fate_in_cluster(
    placed: QueuePlacement, policy: MirrorPolicy, *, durable: bool, is_exclusive: bool
) -> str:
    """Return the fate of a cluster's queue if its leader's node is lost now.

    Args:
        placed: the queue's leader and mirrors.
        policy: the wanted mirrors, and the conditions of their promotion.
        durable: whether the queue outlives its node.
        is_exclusive: whether it belongs to a connection.
    """
    if policy.confirm == MAJORITY:
        members = 1 + len(placed.recoverable_mirrors)
        has_copy = len(placed.synchronised_mirrors) > members // 2
    else:
        has_copy = bool(placed.synchronised_mirrors)
        has_copy |= policy.promote_on_failure == ALWAYS and bool(placed.mirrors)
    return _fate(durable=durable, is_exclusive=is_exclusive, has_copy=has_copy)


def fate_alone(*, durable: bool, is_exclusive: bool, is_followed: bool) -> str:
    """Return the fate of a queue without a cluster; `is_followed`: a follower in sync can be promoted."""
    return _fate(durable=durable, is_exclusive=is_exclusive, has_copy=is_followed)


def _fate(*, durable: bool, is_exclusive: bool, has_copy: bool) -> str:
    if is_exclusive or not durable:
        return DELETED
    return PROMOTED if has_copy else WAITS
