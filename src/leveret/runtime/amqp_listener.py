"""The AMQP port: sockets, and which protocol a peer speaks.

The first eight octets tell AMQP 0-9-1 from AMQP 1.0; from then on the socket's octets go to that
session and its output comes back. Back-pressure goes both ways: a socket that takes no more stops
its consumers, a disk that falls behind stops reading from publishers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from typing import Final, cast

from leveret.model.errors import LeveretError
from leveret.runtime.engine import Engine
from leveret.session.amqp091.connection import ClientConnection, State
from leveret.session.amqp10 import Amqp10Host, Amqp10Session
from leveret.session.host import Host
from leveret.wire.amqp091 import AMQP10_HEADERS

logger = logging.getLogger(__name__)

WRITE_BUFFER_HIGH_BYTES: Final = 1024 * 1024
TICK_S: Final = 0.5
TURN_BYTES: Final = 64 * 1024
"""A read of this size or more ends a connection's turn."""


class AmqpPeer(asyncio.Protocol):
    """One socket on the AMQP port."""

    def __init__(self, listener: AmqpListener) -> None:
        """Wait for the connection."""
        self._listener = listener
        self._engine = listener.engine
        self._transport: asyncio.Transport | None = None
        self._session: ClientConnection | None = None
        self._amqp10: Amqp10Session | None = None
        self._begin = b""
        self._from_loopback = False
        self._held: list[bytes] | None = None
        self._ending = False

    # -- the transport's calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer connected."""
        # uvloop's transports are no subclasses of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        peer = transport.get_extra_info("peername") or ("unix", 0)
        own = transport.get_extra_info("sockname") or ("unix", 0)
        self._from_loopback = is_loopback(peer[0])
        self.name = f"{peer[0]}:{peer[1]} -> {own[0]}:{own[1]}"
        self._session = ClientConnection(
            self._listener.host,
            peer=self.name,
            from_loopback=self._from_loopback,
            now_ms=self._listener.clock_ms(),
        )
        self._engine.peers[self._session] = self
        self._listener.peers.add(self)

    def data_received(self, data: bytes) -> None:
        """Octets came."""
        session = self._session
        if session is None:
            self._receive10(data)
            return
        if session.state is State.HEADER:
            data = self._begin + data
            if len(data) < 8:
                self._begin = data
                return
            self._begin = b""
            if data[:8] in AMQP10_HEADERS:
                self._switch_to_amqp10()
                self._receive10(data)
                return
        session.receive(data, self._listener.clock_ms())
        self._engine.touch(session)
        if session.state is State.CLOSED:
            self.end_after_flush()
        elif self._transport is not None and (len(data) >= TURN_BYTES or self._engine.is_overloaded()):
            self._yield_turn(self._transport)

    def _yield_turn(self, transport: asyncio.Transport) -> None:
        """Read on only after the flush, or once the disk has caught up.

        The event loop would else go on reading from a socket that has more, tens of times, before it looks at
        any other: one fast publisher would keep acks, and so deliveries, waiting.
        """
        transport.pause_reading()
        if self._engine.is_overloaded():
            self._set_reading(False)
            self._engine.when_relieved(self._resume_reading)
        else:
            asyncio.get_running_loop().call_soon(self._resume_reading)

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        if self._session is not None:
            self._session.is_paused = True

    def resume_writing(self) -> None:
        """The socket takes more again."""
        if self._session is not None:
            self._session.resume()
            self._engine.touch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._listener.peers.discard(self)
        self._transport = None
        if self._session is not None:
            self._engine.peers.pop(self._session, None)
            self._session.lost()
            self._engine.touch()

    # -- AMQP 1.0 -----------------------------------------------------------------------------

    def _switch_to_amqp10(self) -> None:
        if self._session is not None:
            self._engine.peers.pop(self._session, None)
        self._session = None
        self._amqp10 = Amqp10Session(self._listener.amqp10_host, from_loopback=self._from_loopback)

    def _receive10(self, data: bytes) -> None:
        if self._amqp10 is not None and self._transport is not None:
            self._transport.write(self._amqp10.receive(data, self._listener.clock_ms()))
            if self._amqp10.closed:
                self._transport.close()

    # -- what the engine asks -----------------------------------------------------------------

    def write(self, octets: bytes, *, held: bool) -> None:
        """See engine.Peer."""
        if self._transport is None:
            return
        if held or self._held is not None:
            self._held = [*(self._held or ()), octets]
            return
        self._transport.write(octets)
        session = self._session
        if session is not None and session.is_throttled and not session.is_paused:
            session.resume()
            self._engine.touch()

    def release(self) -> None:
        """See engine.Peer."""
        held, self._held = self._held, None
        if held:
            self.write(b"".join(held), held=False)
        if self._ending:
            self.end()

    def end(self) -> None:
        """See engine.Peer."""
        self._ending = True
        if self._transport is not None and self._held is None:
            self._transport.close()

    def end_after_flush(self) -> None:
        """Close once what the session said last has been written."""
        asyncio.get_running_loop().call_soon(self._engine.flush)
        asyncio.get_running_loop().call_soon(self.end)

    def _resume_reading(self) -> None:
        if self._transport is not None:
            self._set_reading(True)
            self._transport.resume_reading()

    def _set_reading(self, reading: bool) -> None:
        if self._session is not None:
            self._session.set_reading(reading, self._listener.clock_ms())

    def tick(self, now_ms: int) -> None:
        """Heartbeats and timeouts."""
        session = self._session
        if session is not None:
            session.tick(now_ms)
            if session.state is State.CLOSED:
                self.end_after_flush()
        elif self._amqp10 is not None and self._transport is not None:
            self._transport.write(self._amqp10.tick(now_ms))
            if self._amqp10.closed:
                self._transport.close()

    def force_close(self, reason: str) -> None:
        """Tell the client why and close."""
        if self._session is not None:
            self._session.force_close(reason)
        self._engine.flush()
        self.end()


class AmqpListener:
    """All sockets of the AMQP port."""

    def __init__(
        self, host: Host, amqp10_host: Amqp10Host, engine: Engine, clock_ms: Callable[[], int]
    ) -> None:
        """Listen nowhere yet."""
        self.host = host
        self.amqp10_host = amqp10_host
        self.engine = engine
        self.clock_ms = clock_ms
        self.peers: set[AmqpPeer] = set()
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.Task[None] | None = None

    async def start(self, address: str, port: int) -> None:
        """Listen on one more address.

        Raises:
            LeveretError: the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: AmqpPeer(self), address, port, backlog=1024)
        except OSError as error:
            raise LeveretError(
                f"cannot listen on {address}:{port} for AMQP: {error.strerror or error}"
            ) from error
        self._servers.append(server)
        if self._ticker is None:
            self._ticker = loop.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self.clock_ms()
            for peer in list(self.peers):
                peer.tick(now_ms)
            self.engine.touch()

    async def stop(self) -> None:
        """Take no more connections and close those there are, telling why."""
        for server in self._servers:
            server.close()
        if self._ticker is not None:
            self._ticker.cancel()
        for peer in list(self.peers):
            peer.force_close("broker forced connection closure with reason 'shutdown'")


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own; a unix socket is."""
    try:
        return ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return address in ("unix", "")
