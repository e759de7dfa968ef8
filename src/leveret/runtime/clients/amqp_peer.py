"""One socket of the AMQP listener, and the conditions for reading it.

The first eight octets distinguish AMQP 0-9-1 from AMQP 1.0; from then on the socket's octets go to that session,
and the session's output to the socket. So that a peer's input has bounded memory, the socket is not read while one
of these conditions holds:

- the input of this turn is used up: other connections are served first;
- the peer publishes, and the disk, or another node, has fallen behind;
- the session is blocked: an alarm blocks publishers, or its output goes first;
- the peer does not read its output.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from leveret.config.sections.listeners import Listeners
from leveret.model.addresses import is_loopback
from leveret.runtime.clients import connection_log
from leveret.runtime.clients.amqp10_connection import Amqp10Connection
from leveret.runtime.clients.lost_connections import LostConnections
from leveret.runtime.clients.publisher_throttle import LOOK_S, PublisherThrottle
from leveret.runtime.logs.engine import Engine
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.sockets.buffered_output import BufferedOutput
from leveret.runtime.sockets.lingering_close import LingeringClose
from leveret.runtime.sockets.tls import tls_peer
from leveret.runtime.sockets.write_stall import WriteStall
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.session.amqp091.remote_queues import ConnectionHost
from leveret.session.amqp10.server import Amqp10Host
from leveret.wire.amqp10 import PROTOCOL_HEADERS as AMQP10_HEADERS
from leveret.wire.proxy_protocol import Proxied

logger = logging.getLogger(__name__)

WRITE_BUFFER_HIGH_BYTES: Final = 1024 * 1024
"""A peer with more than this unsent gets no deliveries."""
READ_BYTES: Final = 512 * 1024
"""The most octets of one read. A read for a hundred queues costs by queue, so larger ones cost less for each message;
but a read of small messages takes 10 ms already."""
UNSENT_BYTES_MAX: Final = 4 * WRITE_BUFFER_HIGH_BYTES
"""A peer with more than this unsent, replies and confirms too, is not read from."""
TURN_BYTES: Final = 64 * 1024
"""A read of this size or more ends a connection's turn."""
TURN_FRAMES: Final = 600
"""A turn also ends after so many frames taken one by one, where a method counts for four: one read holds 20,000
methods that open a channel, which take 0.3 s."""
ENDING_TIMEOUT_MS: Final = 10_000
"""The time for a peer to take its last output."""


@dataclass(frozen=True, slots=True)
class AmqpPort:
    """The state that all peers of the AMQP listener share.

    Attributes:
        host: the node, for AMQP 0-9-1 sessions.
        amqp10_host: the node, for AMQP 1.0 sessions.
        engine: flushes the output of the peers' sessions.
        options: the options of the sockets.
        peers: the connected peers, in the order of their arrival.
        lost_connections: the ends of those whose sockets are gone.
        forget: called with a peer whose socket is gone.
        buffer: receives the octets of all peers, each read for one peer alone.
    """

    host: ConnectionHost
    amqp10_host: Amqp10Host
    engine: Engine
    options: Listeners
    forget: Callable[[AmqpPeer], None]
    peers: dict[AmqpPeer, None] = field(default_factory=dict)
    lost_connections: LostConnections = field(default_factory=LostConnections)
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_BYTES)))


class AmqpPeer(asyncio.BufferedProtocol):
    """See the module.

    Attributes:
        amqp10: the connection, if it speaks AMQP 1.0.
    """

    def __init__(self, port: AmqpPort, proxied: Proxied | None = None) -> None:
        """Wait for the connection; `proxied` is the client behind a proxy."""
        self._port = port
        self._engine = port.engine
        self._proxied = proxied
        self._transport: asyncio.Transport | None = None
        self._session: ClientConnection | None = None
        self.amqp10: Amqp10Connection | None = None
        self._begin = b""
        self._from_loopback = False
        self._proxied_by = ""
        self._output = BufferedOutput()
        self._ending_at_ms: int | None = None
        self._lingering: LingeringClose | None = None
        self._is_known = False
        self._reads = True
        self._has_read_last = False
        self._turn_is_over = False
        self._taken_before_turn = 0
        self._is_woken = False
        self._waits_for_disk = False
        self._published = 0
        self._standstill = WriteStall()

    # -- the transport's calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a connected socket, whose TLS handshake is done."""
        # uvloop's transports are no subclasses of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        self._set_options(transport.get_extra_info("socket"))
        # A peer that has gone already has no name.
        peer = transport.get_extra_info("peername") or ("", 0)
        own = transport.get_extra_info("sockname") or ("", 0)
        if self._proxied is not None:
            peer, own = self._proxied
        self._from_loopback = is_loopback(peer[0])
        self.name = f"{peer[0]}:{peer[1]} -> {own[0]}:{own[1]}"
        self._tls = tls = tls_peer(transport)
        self._session = ClientConnection(
            self._port.host,
            peer=self.name,
            from_loopback=self._from_loopback,
            now_ms=elapsed_ms(),
            tls=tls,
        )
        self._session.proxied_by = self._proxied_by = transport.get_extra_info("proxied_by") or ""
        self._session.wake = self._wake
        self._session.turn_frames = TURN_FRAMES
        self._engine.peers[self._session] = self
        self._port.peers[self] = None
        connection_log.accepted(self.name, "amqp" if tls is None else "amqp/ssl")

    def _set_options(self, accepted: socket.socket) -> None:
        """Set socket options that the event loop does not set: it sets TCP_NODELAY itself."""
        options = self._port.options
        if not options.nodelay:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        if options.keepalive:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next read, which the event loop hands to `buffer_updated` before any other read."""
        return self._port.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take octets from the socket."""
        data = bytes(self._port.buffer[:nbytes])
        if self._lingering is not None:
            self._lingering.drop(len(data))
            return
        session = self._session
        if self.amqp10 is not None:
            self.amqp10.receive(data)
        if session is None:
            return
        if session.state is AmqpState.HEADER:
            data = self._begin + data
            if len(data) < 8:
                self._begin = data
                return
            self._begin = b""
            if data[:8] in AMQP10_HEADERS:
                self._switch_to_amqp10().receive(data)
                return
        has_changed = session.receive(data, elapsed_ms())
        if not self._is_known and session.state is AmqpState.OPEN:
            self._is_known = True
            connection_log.authenticated(self.name, session.user or "", session.vhost or "")
        if len(data) >= TURN_BYTES and not self._turn_is_over:
            self._turn_is_over = True
            self._wait_for_turn(session)
        if has_changed:
            self._settle(session)
        elif self._turn_is_over:
            self._pace()

    def _wait_for_turn(self, session: ClientConnection) -> None:
        """Continue after the other peers, and later if this publisher's consumers are far behind."""
        loop, publisher = asyncio.get_running_loop(), session.publisher
        before, self._taken_before_turn = self._taken_before_turn, publisher.taken
        if publisher.outpaces_consumers:
            session.note_flow()
            throttle = PublisherThrottle(publisher.taken - before, session.counters.deliver_get, loop.time())
            loop.call_later(LOOK_S, self._look, session, throttle)
        else:
            loop.call_soon(self._begin_turn)

    def _look(self, session: ClientConnection, throttle: PublisherThrottle) -> None:
        """Continue with a throttled publisher, or let it wait on."""
        loop = asyncio.get_running_loop()
        if throttle.is_over(session.counters.deliver_get, loop.time()):
            self._begin_turn()
        else:
            loop.call_later(LOOK_S, self._look, session, throttle)

    def pause_writing(self) -> None:
        """Pause deliveries, because the socket's buffer is full."""
        if self._session is not None:
            self._session.is_paused = True

    def resume_writing(self) -> None:
        """Resume deliveries, because the socket takes octets again."""
        if self._session is not None:
            self._session.resume()
            self.go_on()
        self._pace()

    def eof_received(self) -> bool:
        """Close the socket of a client that is gone; of thousands that are lost together in a later pass of the loop.

        Returns:
            Whether the socket is closed here; over TLS the event loop closes it at once.
        """
        if self._tls is not None or self._transport is None:
            return False
        self._has_read_last = True
        self._port.lost_connections.add(self._close)
        return True

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session, because the socket is gone; with thousands of others in a later pass of the loop."""
        self._transport = None
        if self._lingering is not None:
            self._lingering.over()
        self._port.lost_connections.add(partial(self._end_session, exc))

    def _end_session(self, exc: Exception | None) -> None:
        """End the session; let go of it, so that its memory is free without a visit of the garbage collector."""
        self._port.forget(self)
        session, self._session = self._session, None
        if self.amqp10 is not None:
            self.amqp10.lost(str(exc or ""))
        if session is not None:
            user = session.user or "" if self._is_known else ""
            reason = session.end_reason or (str(exc) if exc else "peer_hung_up" if self._is_known else "")
            is_trouble = reason not in ("", "client_closed")
            connection_log.closed(self.name, user, session.vhost or "", reason, is_trouble=is_trouble)
            self._engine.peers.pop(session, None)
            session.lost()
            session.wake = _do_nothing
            self._engine.touch()
        self.amqp10 = None

    # -- AMQP 1.0 -----------------------------------------------------------------------------

    def _switch_to_amqp10(self) -> Amqp10Connection:
        if self._session is not None:
            self._engine.peers.pop(self._session, None)
        self._session = None
        self.amqp10 = Amqp10Connection(
            self._port.amqp10_host,
            self._write10,
            self._port.host.broker.connections,
            name=self.name,
            from_loopback=self._from_loopback,
            tls=self._tls,
            proxied_by=self._proxied_by,
        )
        return self.amqp10

    def _write10(self, octets: bytes) -> None:
        if self.amqp10 is not None and self._transport is not None:
            self._transport.write(octets)
            if self.amqp10.is_closed:
                self.end()
            else:
                self._pace()

    # -- what the engine asks -----------------------------------------------------------------

    def write(self, pieces: list[bytes | memoryview], *, hold: int) -> None:
        """See ports.Peer."""
        if self._transport is None:
            return
        if hold or self._output:
            self._output.add(hold, pieces)
            self._pace()
        else:
            self._send(self._transport, pieces)

    def release(self, hold: int) -> None:
        """See ports.Peer."""
        pieces = self._output.release(hold)
        if pieces and self._transport is not None:
            self._send(self._transport, pieces)
        if self._ending_at_ms is not None:
            self.end()

    def _send(self, transport: asyncio.Transport, pieces: list[bytes | memoryview]) -> None:
        transport.writelines(pieces)
        session = self._session
        if session is not None and not session.is_paused:
            if session.is_throttled:
                session.resume()
                self._engine.touch()
            if session.blocked_reason is BlockedReason.OUTPUT:
                asyncio.get_running_loop().call_soon(self.go_on)
        if not self._reads or self._unsent_bytes(transport) > UNSENT_BYTES_MAX:
            self._pace()

    def _unsent_bytes(self, transport: asyncio.Transport) -> int:
        return transport.get_write_buffer_size() + self._output.size_bytes

    def end(self) -> None:
        """See ports.Peer; a peer that may still be sending closes the socket itself."""
        if self._ending_at_ms is None:
            self._ending_at_ms = elapsed_ms()
        if self._transport is None or self._output or self._lingering is not None:
            return
        session = self._session
        client_closes = session is not None and session.client_closes
        if client_closes or not self._is_known:
            self._lingering = LingeringClose(self._transport, peer_closes=client_closes)
            if not self._reads:
                self._reads = True
                self._transport.resume_reading()
        else:
            self._transport.close()

    def end_after_flush(self) -> None:
        """Close once the session's last output is written."""
        self._engine.touch()
        asyncio.get_running_loop().call_soon(self.end)

    # -- reading, or not ----------------------------------------------------------------------

    def _settle(self, session: ClientConnection) -> None:
        """Have the session's work flushed, and read on or pause."""
        before, self._published = self._published, session.publisher.taken
        published = self._published - before
        if published:
            self._engine.published(session, published)
        else:
            self._engine.touch(session)
        if session.state is AmqpState.CLOSED:
            self.end_after_flush()
            return
        if session.blocked_reason is BlockedReason.TURN:
            self._wake()
        # A connection that only consumes is read from: the leader of its queue may be gone for long.
        if published and not self._waits_for_disk and self._engine.is_overloaded():
            self._waits_for_disk = True
            self._engine.when_relieved(self._disk_has_caught_up)
        if (
            not self._reads
            or self._turn_is_over
            or self._waits_for_disk
            or session.blocked_reason is not None
        ):
            self._pace()

    def _begin_turn(self) -> None:
        self._turn_is_over = False
        self._pace()

    def _disk_has_caught_up(self) -> None:
        self._waits_for_disk = False
        self._pace()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Continue a blocked session, because its reason may be over."""
        self._is_woken = False
        if self._session is not None and self._transport is not None:
            try:
                self._session.go_on(elapsed_ms())
                self._settle(self._session)
            except Exception:
                # A bug in one connection must not end the watch of alarms, which has all connections go on.
                logger.exception("connection_failed name=%s action=dropped", self.name)
                self.abort()

    def _pace(self) -> None:
        """Read from the socket, or pause reading; see the module.

        Reading also pauses at the end of a turn: otherwise the event loop would read from the same socket tens of
        times before any other, and one fast publisher would delay acks, and so deliveries.
        """
        transport, session = self._transport, self._session
        if transport is None or transport.is_closing() or self._lingering is not None:
            return
        listens = not (
            self._has_read_last
            or self._waits_for_disk
            or (session is not None and session.blocked_reason is not None)
            or self._unsent_bytes(transport) > UNSENT_BYTES_MAX
        )
        if session is not None and session.is_reading != listens:
            session.set_reading(listens, elapsed_ms(), for_disk=self._waits_for_disk)
        reads = listens and not self._turn_is_over
        if reads != self._reads:
            self._reads = reads
            (transport.resume_reading if reads else transport.pause_reading)()

    # -- time and ends ------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Handle heartbeats and timeouts."""
        session = self._session
        if self._lingering is not None:
            return
        if self._ending_at_ms is not None:
            if now_ms - self._ending_at_ms > ENDING_TIMEOUT_MS:
                self.abort()
        elif session is not None:
            session.tick(now_ms)
            if session.state is AmqpState.CLOSED:
                self.end_after_flush()
            elif self._takes_nothing(session, now_ms):
                session.end_reason = "missed heartbeats from client, which does not read"
                self.abort()
            else:
                self._pace()
        elif self.amqp10 is not None:
            self.amqp10.tick()

    def _takes_nothing(self, session: ClientConnection, now_ms: int) -> bool:
        transport = self._transport
        if transport is None or not session.heartbeat_ms or session.is_reading:
            self._standstill.is_read()
            return False
        return self._standstill.is_lasting(transport.get_write_buffer_size(), now_ms, session.heartbeat_ms)

    def pause_reading(self) -> None:
        """Read no more; octets that arrived before are the last that are served."""
        self._has_read_last = True
        self._pace()

    def say_goodbye(self, reason: str) -> None:
        """Send a close with the reason, and read on until the client answers.

        Closing a socket with unread octets resets the connection, and the client may lose its last confirms.
        """
        if self.amqp10 is not None:
            self.amqp10.cut(reason)
            return
        if self._session is None or self._transport is None:
            self.end()
            return
        self._session.force_close(reason)
        self._engine.flush()
        if self._session.state is AmqpState.CLOSED:
            self.end()
        else:
            self._has_read_last = False
            self._pace()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


def _do_nothing() -> None:
    """Take the call of a session whose socket is gone."""
