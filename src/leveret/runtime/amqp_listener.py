"""The AMQP port: where it listens, plain or with TLS, by itself or behind a proxy."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from leveret.config.kinds import Address
from leveret.config.listeners import Listeners
from leveret.model.errors import LeveretError
from leveret.runtime.amqp_peer import AmqpPeer
from leveret.runtime.engine import Engine
from leveret.runtime.greeter import Greeter
from leveret.session.amqp10 import Amqp10Host
from leveret.session.host import Host

TICK_S: Final = 0.5


class _Server(Protocol):
    """What listens on one address."""

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """Where it listens."""

    def close(self) -> None:
        """Accept no more."""


class AmqpListener:
    """All sockets of the AMQP port.

    Attributes:
        addresses: where it listens, in the order of `start` calls.
        tls_addresses: those of them that speak TLS.
    """

    def __init__(
        self,
        host: Host,
        amqp10_host: Amqp10Host,
        engine: Engine,
        clock_ms: Callable[[], int],
        options: Listeners,
    ) -> None:
        """Listen nowhere yet."""
        self.addresses: list[Address] = []
        self.tls_addresses: list[Address] = []
        self.options = options
        self.host = host
        self.amqp10_host = amqp10_host
        self.engine = engine
        self.clock_ms = clock_ms
        self.peers: set[AmqpPeer] = set()
        self.is_stopping = False
        self._empty = asyncio.Event()
        self._servers: list[_Server] = []
        self._ticker: asyncio.Task[None] | None = None

    async def start(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen on one more address, port 0 takes a free one; with TLS if there is a context for it.

        Raises:
            LeveretError: the address cannot be had.
        """
        try:
            server = await self._listen(address, port, tls)
        except OSError as error:
            raise LeveretError(
                f"cannot listen on {address}:{port} for AMQP: {error.strerror or error}"
            ) from error
        self._servers.append(server)
        found = Address(address, server.sockets[0].getsockname()[1])
        self.addresses.append(found)
        if tls is not None:
            self.tls_addresses.append(found)
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def _listen(self, address: str, port: int, tls: ssl.SSLContext | None) -> _Server:
        backlog, proxied = self.options.backlog, self.options.proxy_protocol
        if tls is None and not proxied:
            return await asyncio.get_running_loop().create_server(
                lambda: AmqpPeer(self), address, port, backlog=backlog
            )
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family, backlog=backlog)
        listening.setblocking(False)
        return Greeter(
            listening,
            lambda told: AmqpPeer(self, told),
            tls=tls,
            proxied=proxied,
            timeout_s=self.host.limits.handshake_timeout_ms / 1000,
        )

    def alarms_changed(self) -> None:
        """Other alarms are in effect: blocked publishers may go on."""
        for peer in list(self.peers):
            peer.go_on()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self.clock_ms()
            for peer in list(self.peers):
                peer.tick(now_ms)
            self.engine.touch()

    def stop_reading(self) -> None:
        """Take no more connections, and nothing more from those there are."""
        self.is_stopping = True
        for server in self._servers:
            server.close()
        for peer in self.peers:
            peer.pause_reading()

    async def stop(self, timeout_s: float) -> None:
        """Tell all clients that the node stops; wait this long for them to say goodbye, then close."""
        self.stop_reading()
        if self._ticker is not None:
            self._ticker.cancel()
        for peer in list(self.peers):
            peer.say_goodbye()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s if self.peers else 0):
                await self._empty.wait()
        for peer in list(self.peers):
            peer.abort()

    def forget(self, peer: AmqpPeer) -> None:
        """The peer's socket is gone."""
        self.peers.discard(peer)
        if self.is_stopping and not self.peers:
            self._empty.set()
