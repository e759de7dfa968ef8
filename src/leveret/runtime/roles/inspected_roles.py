"""The node of a process as the inspection of its data sees it, in each role of the process."""

from __future__ import annotations

from typing import Protocol

from leveret.config import Config
from leveret.model.errors import Corrupt
from leveret.runtime.integrity.peers import InspectedPeer, peers_of
from leveret.runtime.node.node import Node
from leveret.runtime.replication.identity import NodeIdentity
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.replication.listener import ReplicationListener
from leveret.runtime.roles.following import FollowerRole
from leveret.storage.log import Log
from leveret.storage.tree import Tree


class ProcessRoles(Protocol):
    """The part of `Roles` that is needed here."""

    config: Config
    node: Node
    following: FollowerRole | None

    @property
    def identity(self) -> NodeIdentity:
        """See Roles."""

    @property
    def state(self) -> str:
        """See Roles."""

    @property
    def inbound(self) -> Inbound | None:
        """See Roles."""

    @property
    def listener(self) -> ReplicationListener | None:
        """See Roles."""


class InspectedRoles:
    """See the module; inspected_node.InspectedNode.

    Attributes:
        node_id: the identity of the node.
        name: the name of the node.
    """

    def __init__(self, roles: ProcessRoles) -> None:
        """Of a process whose node may be replaced by another one."""
        self._roles = roles
        self.node_id = roles.identity.node_id
        self.name = roles.config.node_name

    @property
    def tree(self) -> Tree:
        """All logs and state files of the present node."""
        return self._roles.node.tree

    @property
    def state(self) -> str:
        """See Roles."""
        return self._roles.state

    @property
    def peers(self) -> list[InspectedPeer]:
        """The nodes that can be asked: the leader first, then the followers."""
        return peers_of(self._roles.inbound, self._roles.listener)

    def queue_of(self, log: str) -> tuple[str, str] | None:
        """See InspectedNode."""
        return self._roles.node.queue_of(log)

    def is_down(self, vhost: str, queue: str) -> bool:
        """See InspectedNode."""
        found = self._roles.node.broker.queues.get((vhost, queue))
        return found is not None and found.damage is not None

    def copy_damaged(self, log: Log, error: Corrupt) -> bool:
        """See InspectedNode; a follower's whole data are a copy."""
        if self._roles.following is not None:
            self._roles.following.damaged(error)
            return True
        return self._roles.node.copy_gone(log, error)
