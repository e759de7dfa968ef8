"""The AMQP listener: plain or with TLS, directly or behind a proxy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from leveret.config.kinds import Address
from leveret.config.sections.listeners import Listeners
from leveret.core.rules.descriptors import ListenerKind, ListenerLimits
from leveret.runtime.clients.amqp10_connection import Amqp10Connection
from leveret.runtime.clients.amqp_peer import AmqpPeer, AmqpPort
from leveret.runtime.logs.engine import Engine
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.process.work_slices import in_slices, time_slice
from leveret.runtime.sockets.acceptor import ProtocolEndpoint
from leveret.runtime.sockets.listening import Listening
from leveret.runtime.sockets.tls import ListenerTls
from leveret.session.amqp091.remote_queues import ConnectionHost
from leveret.session.amqp10.server import Amqp10Host

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
STOPPING: Final = "broker forced connection closure with reason 'shutdown'"


class AmqpListener:
    """All sockets of the AMQP port.

    Attributes:
        listening: its sockets.
        peers: the connected peers.
    """

    def __init__(
        self,
        host: ConnectionHost,
        amqp10_host: Amqp10Host,
        engine: Engine,
        options: Listeners,
    ) -> None:
        """Begin without sockets."""
        port = AmqpPort(host, amqp10_host, engine, options, self._forget)
        self.peers = port.peers
        self._engine = engine
        self.is_stopping = False
        self._empty = asyncio.Event()
        self.listening = Listening(
            ProtocolEndpoint(
                ListenerKind.AMQP,
                lambda accepted: AmqpPeer(port, accepted.proxied),
                host.limits.handshake_timeout_ms / 1000,
                limits=ListenerLimits(per_address=options.connection_max_per_address),
            ),
            purpose="AMQP",
            backlog=options.backlog,
            proxied=options.proxy_protocol,
        )
        self._ticker: asyncio.Task[None] | None = None

    @property
    def amqp10_connections(self) -> list[Amqp10Connection]:
        """The AMQP 1.0 connections that are admitted to a vhost."""
        found = (peer.amqp10 for peer in self.peers)
        return [each for each in found if each is not None and each.is_open]

    @property
    def addresses(self) -> list[Address]:
        """The addresses, in the order of `start` calls."""
        return self.listening.addresses

    @property
    def tls_addresses(self) -> list[Address]:
        """The addresses with TLS."""
        return self.listening.tls_addresses

    async def start(self, address: str, port: int, tls: ListenerTls | None = None) -> None:
        """Listen on one more address, port 0 takes a free one; with TLS if it is given.

        Raises:
            LeveretError: the address cannot be used.
        """
        await self.listening.start(address, port, tls)
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def go_on(self) -> None:
        """Let waiting peers go on, because an alarm or another reason may be over; many of them in slices.

        Each may have hundreds of kilobytes of publishes, which were read before it had to wait.
        """
        self._let_go_on(iter(list(self.peers)))

    def _let_go_on(self, waiting: Iterator[AmqpPeer]) -> None:
        is_over = time_slice()
        for peer in waiting:
            peer.go_on()
            if is_over():
                asyncio.get_running_loop().call_soon(self._let_go_on, waiting)
                return

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            async for peer in in_slices(list(self.peers)):
                try:
                    if peer in self.peers:
                        peer.tick(elapsed_ms())
                except Exception:
                    # A bug in one connection must not end the heartbeats and timeouts of all.
                    logger.exception("connection_failed name=%s action=dropped", peer.name)
                    peer.abort()
            self._engine.touch()

    def stop_reading(self) -> None:
        """Accept no more connections, and read no more from present ones."""
        self.is_stopping = True
        self.listening.close()
        for peer in self.peers:
            peer.pause_reading()

    async def stop(self, timeout_s: float) -> None:
        """Tell all clients that the node stops; wait this long for their answers, then close."""
        self.stop_reading()
        if self._ticker is not None:
            self._ticker.cancel()
        for peer in list(self.peers):
            peer.say_goodbye(STOPPING)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s if self.peers else 0):
                await self._empty.wait()
        for peer in list(self.peers):
            peer.abort()

    def _forget(self, peer: AmqpPeer) -> None:
        """Forget a peer whose socket is gone."""
        self.peers.pop(peer, None)
        if self.is_stopping and not self.peers:
            self._empty.set()
