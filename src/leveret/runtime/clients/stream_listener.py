"""The listener for the stream protocol, and its present connections (`runtime.clients.stream_peer`)."""

from __future__ import annotations

import asyncio
from typing import Final

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import NO_LISTENER_LIMITS, ListenerKind, ListenerLimits
from leveret.runtime.clients.stream_host import StreamHost
from leveret.runtime.clients.stream_peer import StreamPeer
from leveret.runtime.sockets.acceptor import ProtocolEndpoint
from leveret.runtime.sockets.listening import Listening
from leveret.runtime.sockets.tls import ListenerTls

BACKLOG: Final = 1024
"""The most clients that the system lets wait to be accepted."""
GREETING_TIMEOUT_S: Final = 10.0
"""The time for the TLS handshake."""
STOP_TIMEOUT_S: Final = 1.0
"""The time for answers to our close; a blocking client between two requests gives none."""


class StreamListener:
    """Serves the stream protocol on one or more addresses.

    Attributes:
        listening: its sockets.
    """

    def __init__(
        self,
        host: StreamHost,
        *,
        frame_max_bytes: int = 1_048_576,
        heartbeat_s: int = 60,
        listener_limits: ListenerLimits = NO_LISTENER_LIMITS,
    ) -> None:
        self._connections: dict[StreamPeer, None] = {}
        self.listening = Listening(
            ProtocolEndpoint(
                ListenerKind.STREAM,
                lambda _: StreamPeer(host, frame_max_bytes, heartbeat_s, self._connections),
                GREETING_TIMEOUT_S,
                limits=listener_limits,
            ),
            purpose="streams",
            backlog=BACKLOG,
        )

    @property
    def addresses(self) -> list[Address]:
        """The addresses, in the order of `start` calls."""
        return self.listening.addresses

    @property
    def tls_addresses(self) -> list[Address]:
        """The addresses with TLS."""
        return self.listening.tls_addresses

    @property
    def ports(self) -> list[int]:
        """The ports of all addresses."""
        return [address.port for address in self.addresses]

    async def start(self, address: str, port: int, tls: ListenerTls | None = None) -> None:
        """Listen on one more address, with TLS if it is given.

        Port 0 takes a free one.

        Raises:
            LeveretError: the address cannot be used.
        """
        await self.listening.start(address, port, tls)

    async def stop(self) -> None:
        """Stop listening, and close every connection, first with the protocol's close."""
        self.listening.close()
        for connection in list(self._connections):
            connection.close("the node is stopping")
        waiting = [connection.closed for connection in self._connections]
        if waiting:
            await asyncio.wait(waiting, timeout=STOP_TIMEOUT_S)
        for connection in list(self._connections):
            connection.abort()

    def alarms_changed(self) -> None:
        """Read or pause connections again, because memory or disk has become low, or is no longer."""
        for connection in list(self._connections):
            connection.look_again()

    @property
    def connections(self) -> list[StreamPeer]:
        """The present connections."""
        return list(self._connections)
