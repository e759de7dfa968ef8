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
    """The suspended listeners and the maintenance mode of a node.

    Attributes:
        is_draining: whether the node is drained and not revived.
        on_change: called when `is_draining` changes.
    """

    def __init__(self, amqp: AmqpListener, streams: StreamListener) -> None:
        """Begin in service."""
        self.is_draining = False
        self.on_change: Callable[[bool], Awaitable[None]] = _ignore
        self._amqp = amqp
        self._streams = streams
        self._listenings = (amqp.listening, streams.listening)

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

    async def drain(self, *, hands_over: bool = True) -> None:
        """Accept no clients, end the connections with a reason, notify the cluster; received messages stay.

        Without `hands_over` the cluster is not notified, so this node leads on what it leads.
        """
        self.is_draining = True
        self.suspend_listeners()
        peers, streams = list(self._amqp.peers), self._streams.connections
        for peer in peers:
            peer.say_goodbye(_REASON)
        for connection in streams:
            connection.close(_REASON)
        if hands_over:
            await self.on_change(True)
        logger.warning("node_drained connections_closed=%d", len(peers) + len(streams))

    async def revive(self) -> None:
        """Serve clients again; see `resume_listeners`."""
        await self.resume_listeners()
        self.is_draining = False
        await self.on_change(False)
        logger.info("node_revived")


async def _ignore(is_draining: bool) -> None:
    """Do nothing."""
