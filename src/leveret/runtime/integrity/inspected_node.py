"""The node whose data are inspected, as the inspection sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from leveret.model.errors import Corrupt
from leveret.runtime.integrity.peers import InspectedPeer
from leveret.storage.log import Log
from leveret.storage.tree import Tree


class InspectedNode(Protocol):
    """See the module."""

    @property
    def node_id(self) -> str:
        """The identity of the node."""

    @property
    def name(self) -> str:
        """The name of the node, as other nodes use it."""

    @property
    def tree(self) -> Tree:
        """All its logs and state files."""

    @property
    def state(self) -> str:
        """Its state, as in management.node.ReplicationOperations."""

    @property
    def peers(self) -> Iterable[InspectedPeer]:
        """The nodes at the other ends of all links, the leader first."""

    def queue_of(self, log: str) -> tuple[str, str] | None:
        """Return vhost and name of the queue with the log of this name."""

    def is_down(self, vhost: str, queue: str) -> bool:
        """Return whether a queue is out of service because its log is damaged."""

    def copy_damaged(self, log: Log, error: Corrupt) -> bool:
        """Take an open log that cannot continue; return whether it is a mirror's copy, which is fetched again."""
