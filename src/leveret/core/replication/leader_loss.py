"""The fate of a queue whose leader's node is lost, by RabbitMQ's rules: pure.

    promoted    another node has a copy, and leads the queue
    waits       the queue is durable, and down until its node is back
    deleted     the queue ends with the node. A transient queue is not mirrored, whatever a policy says; an exclusive
                queue belongs to a connection, which ends with the leader's node

If a follower of the whole node is promoted, its durable queues are promoted with it.
"""

from __future__ import annotations

from typing import Final

PROMOTED: Final = "promoted"
WAITS: Final = "waits"
DELETED: Final = "deleted"


def outcome(*, durable: bool, is_exclusive: bool, has_successor: bool) -> str:
    """Return the fate of a queue if its leader's node is lost now.

    Args:
        durable: whether the queue outlives its node.
        is_exclusive: whether it belongs to a connection.
        has_successor: whether a node would lead it then: in a cluster by `placement.promotion`, which also decides at
            the loss; otherwise a follower in sync, which can be promoted.
    """
    if is_exclusive or not durable:
        return DELETED
    return PROMOTED if has_successor else WAITS
