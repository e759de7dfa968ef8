"""Maintenance: RabbitMQ's suspended listeners and maintenance mode, for a node that serves no clients for a time.

The HTTP API stays open, because operators' tools use it; a drained node refuses messages there, too. A restart ends
both. A node that rejoins is drained as well. Neither of the two causes ends with the other: clients are admitted when
both have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from leveret.runtime.clients.amqp_listener import AmqpListener
from leveret.runtime.clients.stream_listener import StreamListener

logger = logging.getLogger(__name__)

_REASON: Final = "Node was put into maintenance mode"


class DrainCause(StrEnum):
    """Why a node is drained."""

    OPERATOR = "operator"
    REJOIN = "rejoin"


class Maintenance:
    """The suspended listeners and the maintenance mode of a node.

    Attributes:
        on_change: called when `is_draining` changes.
    """

    def __init__(self, amqp: AmqpListener, streams: StreamListener) -> None:
        """Begin in service."""
        self._causes: set[DrainCause] = set()
        self.on_change: Callable[[bool], Awaitable[None]] = _ignore
        self._amqp = amqp
        self._streams = streams
        self._listenings = (amqp.listening, streams.listening)

    @property
    def is_draining(self) -> bool:
        """Whether the node is drained and not revived."""
        return bool(self._causes)

    def suspend_listeners(self) -> None:
        """Accept no more clients; connected ones stay."""
        for listening in self._listenings:
            listening.suspend()
        logger.warning("listeners_suspended protocols=amqp,stream")

    async def resume_listeners(self) -> None:
        """Accept clients again.

        Raises:
            LeveretError: another process has taken an address.
        """
        for listening in self._listenings:
            await listening.resume()
        logger.info("listeners_resumed protocols=amqp,stream")

    async def drain(self, *, cause: DrainCause = DrainCause.OPERATOR, hands_over: bool = True) -> None:
        """Accept no clients, end the connections with a reason, notify the cluster; received messages stay.

        Without `hands_over` the cluster is not notified, so this node leads on what it leads.
        """
        self._causes.add(cause)
        self.suspend_listeners()
        peers, streams = list(self._amqp.peers), self._streams.connections
        for peer in peers:
            peer.say_goodbye(_REASON)
        for connection in streams:
            connection.close(_REASON)
        if hands_over:
            await self.on_change(True)
        logger.warning("node_drained connections_closed=%d", len(peers) + len(streams))

    async def revive(self, *, cause: DrainCause = DrainCause.OPERATOR) -> None:
        """Serve clients again, unless another cause remains; see `resume_listeners`."""
        if not self._causes <= {cause}:
            self._causes.discard(cause)
            logger.warning("node_not_revived cause=%s", ",".join(self._causes))
            return
        await self.resume_listeners()
        self._causes.clear()
        await self.on_change(False)
        logger.info("node_revived")


async def _ignore(is_draining: bool) -> None:
    """Do nothing."""
