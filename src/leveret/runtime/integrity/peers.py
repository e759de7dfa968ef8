"""The node at the other end of a replication link, and the questions about its data that it answers."""

from __future__ import annotations

from typing import Any, Final, Protocol

from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.replication.listener import ReplicationListener
from leveret.runtime.replication.outbound import Outbound

IN_STEP: Final = frozenset({"leader", "streaming", "delayed"})
"""States of a node that answers after it has applied earlier changes: changes and questions travel in one order.

A delayed follower has its leader's ends, and more before their beginnings: it delays drops only."""
JOINED: Final = IN_STEP | {"fenced"}
"""States of a node whose logs were compared with its leader's and truncated to them: from then on they only grow."""


class InspectedPeer(Protocol):
    """See the module."""

    @property
    def node_id(self) -> str:
        """The identity of the node."""

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def is_leader(self) -> bool:
        """Whether this node follows the other one; otherwise the other one follows this node."""

    @property
    def is_connected(self) -> bool:
        """Whether the node can still be asked. After a reconnection it is another peer."""

    @property
    def state(self) -> str:
        """The state of the follower of the two, as this side knows it."""

    async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
        """Ask a question; see answering.

        Raises:
            LeveretError: there is no answer.
        """


class LeaderPeer:
    """The leader that this node follows."""

    is_leader = True

    def __init__(self, inbound: Inbound) -> None:
        """The leader at the other end of this link."""
        self._inbound = inbound
        leader = inbound.progress.leader
        self.node_id = leader.node_id if leader is not None else ""
        self.name = leader.name if leader is not None else str(inbound.uri)

    @property
    def is_connected(self) -> bool:
        """See InspectedPeer."""
        return self._inbound.is_connected

    @property
    def state(self) -> str:
        """See InspectedPeer."""
        return self._inbound.state

    async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
        """See InspectedPeer."""
        return await self._inbound.ask(what, about)


class FollowerPeer:
    """A node that follows this one."""

    is_leader = False

    def __init__(self, outbound: Outbound) -> None:
        """The follower at the other end of this link, which has been authenticated."""
        self._outbound = outbound
        self.node_id = outbound.node_id
        self.name = outbound.follower.name

    @property
    def is_connected(self) -> bool:
        """See InspectedPeer."""
        return not self._outbound.peer.is_closed

    @property
    def state(self) -> str:
        """See InspectedPeer."""
        return self._outbound.state

    async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
        """See InspectedPeer."""
        return await self._outbound.questions.ask(self._outbound.peer, what, about)


def peers_of(inbound: Inbound | None, listener: ReplicationListener | None) -> list[InspectedPeer]:
    """Return the nodes that can be asked: the leader first, then the followers."""
    leaders: list[InspectedPeer] = (
        [LeaderPeer(inbound)] if inbound is not None and inbound.is_connected else []
    )
    return [*leaders, *(map(FollowerPeer, listener.followers) if listener is not None else ())]
