"""Views of the cluster at a node without a lease, which serves no client: the last known state (ClusterOperations)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Never

from leveret.config.sections.etcd import EtcdOptions
from leveret.core.replication.cluster import ClusterState
from leveret.core.replication.placement import QueuePlacement
from leveret.model.definitions import QueueKey
from leveret.model.errors import PreconditionFailed

DOWN: Final = "down"


class SuspendedCommands:
    """See the module. The running nodes and the present leaders are unknown."""

    is_member: Final = True

    def __init__(self, name: str, options: EtcdOptions, state: ClusterState) -> None:
        """`state` is the last state that the node `name` knew before it lost its lease."""
        self.name = name
        self._options = options
        self._state = state

    def members(self) -> Sequence[str]:
        """See ClusterOperations."""
        return self._state.names or (self.name,)

    def alive(self) -> Collection[str]:
        """No node, as far as this one knows."""
        return ()

    def status(self) -> dict[str, Any]:
        """See ClusterOperations."""
        return {
            "cluster_id": self._state.cluster_id,
            "state": "suspended",
            "members": [self._row(name) for name in self.members()],
            "pen": None,
            "has_pen": False,
            "lease_s": 0.0,
            "revision": self._state.revision,
            "etcd": {"endpoints": self._endpoints, "endpoint": None, "error": self._why, "is_full": False},
            "partitions": {},
        }

    def _row(self, name: str) -> dict[str, Any]:
        member = self._state.members.get(name)
        unknown = dict.fromkeys(("uri", "http_uri", "started_at_ms", "version", "connected"))
        joined_at_ms = member.joined_at_ms if member is not None else None
        return {"name": name, "alive": False, "joined_at_ms": joined_at_ms, **unknown}

    def placement(self, key: QueueKey) -> QueuePlacement:
        """The last known placement of the queue."""
        placed = self._state.placements.get(key)
        if placed is None:
            return QueuePlacement(self.name, state=DOWN)
        placement = placed.placement
        return QueuePlacement(
            placement.leader,
            recoverable_mirrors=(*placement.mirrors, *placement.stopped),
            is_mirrored=bool(placement.mirrors),
            state=DOWN,
            term=placement.term,
            is_exclusive=placement.exclusive,
            lost_by=placement.lost.by if placement.lost is not None else "",
        )

    def mirror_states(self, key: QueueKey) -> list[dict[str, Any]]:
        """An empty list."""
        return []

    # -- no commands, and no requests to other nodes ------------------------------------------

    @property
    def _why(self) -> str:
        where = ", ".join(self._endpoints)
        return f"node {self.name} has no lease in etcd ({where}), and serves no client until it has one again"

    @property
    def _endpoints(self) -> list[str]:
        return [str(endpoint) for endpoint in self._options.endpoints]

    def answer_with(self, answer: Callable[[str, Any], Awaitable[dict[str, Any]]]) -> None:
        """Do nothing: no node sends requests."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        """See ClusterOperations."""
        raise PreconditionFailed(self._why)

    async def _refuse(self, *about: object, **named: object) -> Never:
        raise PreconditionFailed(self._why)

    ask = sync_queue = cancel_sync_queue = rebalance = _refuse
    add_replica = delete_replica = restart_stream = copies = quarantine_copies = _refuse
    forget_node = join = _refuse
