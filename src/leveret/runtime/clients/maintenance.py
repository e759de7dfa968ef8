"""Maintenance: RabbitMQ's suspended listeners and maintenance mode, for a node that serves no clients for a time.

The HTTP API stays open, because operators' tools use it; a drained node refuses messages there, too. A restart ends
both.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from leveret.runtime.clients.amqp_listener import AmqpListener
from leveret.runtime.clients.stream_listener import StreamListener

logger = logging.getLogger(__name__)

_REASON = "Node was put into maintenance mode"


class Maintenance:
    """One node's.

    Attributes:
        is_draining: whether the node has been drained and not revived.
        on_change: told when that changes.
    """

    def __init__(self, amqp: AmqpListener, streams: StreamListener) -> None:
        """In service."""
        self.is_draining = False
        self.on_change: Callable[[bool], Awaitable[None]] = _ignore
        self._amqp = amqp
        self._streams = streams
        self._listenings = (amqp.listening, streams.listening)

    def suspend_listeners(self) -> None:
        """Let no client in any more; those who are connected stay."""
        for listening in self._listenings:
            listening.suspend()
        logger.warning("listeners_suspended protocols=amqp,stream")

    async def resume_listeners(self) -> None:
        """Let clients in again.

        Raises:
            LeveretError: an address has been taken by somebody else.
        """
        for listening in self._listenings:
            await listening.resume()
        logger.info("listeners_resumed protocols=amqp,stream")

    async def drain(self) -> None:
        """Let no client in, end the connections with a reason, tell the cluster; received messages are kept."""
        self.is_draining = True
        self.suspend_listeners()
        peers, streams = list(self._amqp.peers), self._streams.connections
        for peer in peers:
            peer.say_goodbye(_REASON)
        for connection in streams:
            connection.close(_REASON)
        await self.on_change(True)
        logger.warning("node_drained connections_closed=%d", len(peers) + len(streams))

    async def revive(self) -> None:
        """Serve clients again; see `resume_listeners`."""
        await self.resume_listeners()
        self.is_draining = False
        await self.on_change(False)
        logger.info("node_revived")


async def _ignore(is_draining: bool) -> None:
    """Nobody is told."""
