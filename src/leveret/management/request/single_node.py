"""The cluster interface of a single node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Never

from leveret.core.replication.placement import QueuePlacement
from leveret.core.rules.mirror_policy import NOT_MIRRORED_REASON
from leveret.management.node import Answer, ClusterOperations, ManagedNode
from leveret.model.definitions import QueueKey
from leveret.model.errors import InvalidCommand, NotFound, PreconditionFailed
from leveret.runtime.integrity.log_copies import LogCopy

ALONE: Final = (
    "this node belongs to no cluster: set cluster_formation.peer_discovery_backend = etcd and "
    "cluster.etcd.endpoints, as docs/cluster.md says, and start it again"
)


class SingleNode:
    """See `ClusterOperations`."""

    is_member: Final = False

    def __init__(self, node: ManagedNode) -> None:
        """Use this node."""
        self.name = node.config.node_name

    def members(self) -> tuple[str, ...]:
        """This node."""
        return (self.name,)

    def alive(self) -> tuple[str, ...]:
        """This node."""
        return (self.name,)

    def status(self) -> dict[str, Any]:
        """The status of a single node, which may change its definitions at any time."""
        return {
            "cluster_id": "",
            "state": "alone",
            "members": [],
            "pen": self.name,
            "has_pen": True,
            "lease_s": None,
            "revision": 0,
            "etcd": None,
            "partitions": {},
        }

    def placement(self, key: QueueKey) -> QueuePlacement:
        """This node."""
        return QueuePlacement(self.name)

    def mirror_states(self, key: QueueKey) -> list[dict[str, Any]]:
        """None."""
        return []

    async def ask(self, node: str, what: str, about: Any) -> Any:
        """Refuse: there is no other node."""
        raise NotFound(f"node '{node}' is not part of this cluster")

    def answer_with(self, answer: Answer) -> None:
        """Do nothing: no other node asks."""

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Return at once."""
        yield

    async def _has_no_mirrors(self, *about: object, **named: object) -> Never:
        raise PreconditionFailed(NOT_MIRRORED_REASON)

    sync_queue = cancel_sync_queue = _has_no_mirrors

    async def _has_no_other_node(self, *about: object, **named: object) -> Never:
        raise InvalidCommand(ALONE)

    add_replica = delete_replica = restart_stream = rebalance = forget_node = join = _has_no_other_node

    async def copies(self, vhost: str, name: str) -> list[LogCopy]:
        """None."""
        return []

    async def quarantine_copies(self, vhost: str, name: str) -> None:
        """Do nothing: there are no copies."""


def cluster_of(node: ManagedNode) -> ClusterOperations:
    """The cluster of a node, or the single node."""
    return node.cluster or SingleNode(node)
