"""An AMQP 1.0 connection on the AMQP port, such as a downstream's schema link, as operators list and close it."""

from __future__ import annotations

from collections.abc import Callable

from leveret.core.broker.limits import ConnectionRegistry, OtherConnection
from leveret.runtime.clients import connection_log
from leveret.runtime.process.clock import clock_ms, elapsed_ms
from leveret.session.amqp10.engine import CHANNEL_MAX, FRAME_BYTES_MAX, IDLE_TIMEOUT_S
from leveret.session.amqp10.server import CLIENT_CLOSED, Amqp10Host, Amqp10Session, Amqp10State
from leveret.session.certificate import TlsPeer


class Amqp10Connection:
    """The session, with the facts about its socket.

    Attributes:
        name: both ends, as RabbitMQ writes them.
        proxied_by: the node that passes the connection on to this one; empty for none.
        since_ms: the Unix time of its acceptance. octets_received, octets_sent: counters. channel_max, frame_max_bytes,
            heartbeat_s: this end's offers.
        unsent_bytes: always 0; the transport has the unsent octets.
    """

    protocol = "AMQP 1-0"
    mechanism = "PLAIN"
    channel_max = CHANNEL_MAX
    frame_max_bytes = FRAME_BYTES_MAX
    heartbeat_s = IDLE_TIMEOUT_S
    unsent_bytes = 0

    def __init__(
        self,
        host: Amqp10Host,
        write: Callable[[bytes], None],
        connections: ConnectionRegistry,
        *,
        name: str,
        from_loopback: bool,
        tls: TlsPeer | None,
        proxied_by: str = "",
    ) -> None:
        """Wait for the protocol header; `write` sends octets, and checks whether the session has ended.

        It is in `connections` from its admission to its end.
        """
        self.name = name
        self.tls = tls
        self.proxied_by = proxied_by
        self.since_ms = clock_ms()
        self.octets_received = 0
        self.octets_sent = 0
        self._session = Amqp10Session(host, from_loopback=from_loopback)
        self._write = write
        self._connections = connections
        self._member: OtherConnection | None = None

    @property
    def user(self) -> str:
        """The user; empty before login."""
        return self._session.user

    @property
    def vhost(self) -> str:
        """The vhost; empty before admission."""
        return self._session.vhost

    @property
    def state(self) -> str:
        """The state: `running`, or another one of RabbitMQ's."""
        return self._session.state.value

    @property
    def is_open(self) -> bool:
        """Whether it is admitted to a vhost; only such connections are listed."""
        return self._member is not None

    @property
    def channels(self) -> int:
        """The number of its sessions."""
        return self._session.sessions

    @property
    def peer_properties(self) -> dict[str, str]:
        """The client's properties; its container's name is the connection's name."""
        return self._session.peer_properties

    @property
    def is_closed(self) -> bool:
        """Whether the socket is to be closed after the last output."""
        return self._session.state is Amqp10State.CLOSED

    def receive(self, data: bytes) -> None:
        """Take octets from the socket."""
        self.octets_received += len(data)
        self._send(self._session.receive(data, elapsed_ms()))
        if self._member is None and self._session.state is Amqp10State.RUNNING:
            self._member = OtherConnection(self._connections, self.user, self.vhost, self.cut)
            connection_log.authenticated(self.name, self.user, self.vhost)

    def tick(self) -> None:
        """Handle timeouts and heartbeats."""
        self._send(self._session.tick(elapsed_ms()))

    def cut(self, reason: str) -> None:
        """End the connection; the client gets the reason."""
        self._leave()
        self._send(self._session.force_close(reason, elapsed_ms()))

    def lost(self, why: str) -> None:
        """Note that the socket is gone."""
        self._leave()
        reason = self._session.end_reason or why or ("peer_hung_up" if self.is_open else "")
        user = self.user if self.is_open else ""
        is_trouble = reason not in ("", CLIENT_CLOSED)
        connection_log.closed(self.name, user, self.vhost, reason, is_trouble=is_trouble)

    def _leave(self) -> None:
        if self._member is not None:
            self._member.leave()

    def _send(self, octets: bytes) -> None:
        self.octets_sent += len(octets)
        self._write(octets)
