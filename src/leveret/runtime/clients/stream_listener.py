"""The listener for the stream protocol, and its present connections (`runtime.clients.stream_peer`)."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import NO_CAPS, Caps, ListenerKind
from leveret.runtime.clients.stream_host import StreamHost
from leveret.runtime.clients.stream_peer import StreamPeer
from leveret.runtime.sockets.listening import Listening

BACKLOG: Final = 1024
"""How many clients the system lets wait until they are accepted."""
GREETING_TIMEOUT_S: Final = 10.0
"""For TLS."""
STOP_TIMEOUT_S: Final = 1.0
"""For the answers to our goodbye; a blocking client between two requests will not give one."""


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
        caps: Caps = NO_CAPS,
    ) -> None:
        self._connections: dict[StreamPeer, None] = {}
        self.listening = Listening(
            lambda _: StreamPeer(host, frame_max_bytes, heartbeat_s, self._connections),
            ListenerKind.STREAM,
            purpose="streams",
            backlog=BACKLOG,
            greeting_timeout_s=GREETING_TIMEOUT_S,
            caps=caps,
        )

    @property
    def addresses(self) -> list[Address]:
        """Where it listens, in the order of `start` calls."""
        return self.listening.addresses

    @property
    def tls_addresses(self) -> list[Address]:
        """Those of them that speak TLS."""
        return self.listening.tls_addresses

    @property
    def ports(self) -> list[int]:
        """The ports of all addresses."""
        return [address.port for address in self.addresses]

    async def start(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen on an address (more than once for more of them), with TLS if there is a context for it.

        Port 0 takes a free one.

        Raises:
            LeveretError: the address is not to be had.
        """
        await self.listening.start(address, port, tls)

    async def stop(self) -> None:
        """Close every connection with a word, then without, and stop listening."""
        self.listening.close()
        for connection in list(self._connections):
            connection.close("the node is stopping")
        waiting = [connection.closed for connection in self._connections]
        if waiting:
            await asyncio.wait(waiting, timeout=STOP_TIMEOUT_S)
        for connection in list(self._connections):
            connection.abort()

    def alarms_changed(self) -> None:
        """Memory or disk has become low, or is no longer: see who is read from."""
        for connection in list(self._connections):
            connection.look_again()

    @property
    def connections(self) -> list[StreamPeer]:
        """The connections there are now."""
        return list(self._connections)
