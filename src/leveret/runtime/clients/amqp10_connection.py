"""An AMQP 1.0 client of the AMQP port, such as a downstream's schema link, as operators see and close it."""

from __future__ import annotations

from collections.abc import Callable

from leveret.core.broker.limits import ConnectionRegistry, OtherConnection
from leveret.runtime.clients import connection_log
from leveret.session.amqp10.engine import CHANNEL_MAX, FRAME_BYTES_MAX, IDLE_TIMEOUT_S
from leveret.session.amqp10.server import CLIENT_CLOSED, Amqp10Host, Amqp10Session, Amqp10State
from leveret.session.certificate import TlsPeer


class Amqp10Connection:
    """The session, with what its socket knows of it.

    Attributes:
        name: both ends, as RabbitMQ writes them.
        since_ms: when it was accepted, Unix time.
        octets_received, octets_sent: counters.
        channel_max, frame_max_bytes, heartbeat_s: what this end offers.
        unsent_bytes: none; the transport has them.
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
        clock_ms: Callable[[], int],
    ) -> None:
        """Await the protocol header; `write` sends octets, and looks whether the session has ended.

        It is one of `connections` from when it is let in until it ends.
        """
        self.name = name
        self.tls = tls
        self.since_ms = clock_ms()
        self.octets_received = 0
        self.octets_sent = 0
        self._session = Amqp10Session(host, from_loopback=from_loopback)
        self._write = write
        self._clock_ms = clock_ms
        self._connections = connections
        self._member: OtherConnection | None = None

    @property
    def user(self) -> str:
        """Empty before login."""
        return self._session.user

    @property
    def vhost(self) -> str:
        """Empty before it was let in."""
        return self._session.vhost

    @property
    def state(self) -> str:
        """`running`, or what it is doing instead."""
        return self._session.state.value

    @property
    def is_open(self) -> bool:
        """Whether it was let in; nobody is shown others."""
        return self._member is not None

    @property
    def channels(self) -> int:
        """How many sessions it has."""
        return self._session.sessions

    @property
    def peer_properties(self) -> dict[str, str]:
        """What the client says it is; its container's name stands for the connection's."""
        return self._session.peer_properties

    @property
    def is_closed(self) -> bool:
        """Whether the socket is to be closed once all is sent."""
        return self._session.state is Amqp10State.CLOSED

    def receive(self, data: bytes) -> None:
        """Octets came."""
        self.octets_received += len(data)
        self._send(self._session.receive(data, self._clock_ms()))
        if self._member is None and self._session.state is Amqp10State.RUNNING:
            self._member = OtherConnection(self._connections, self.user, self.vhost, self.cut)
            connection_log.authenticated(self.name, self.user, self.vhost)

    def tick(self) -> None:
        """Let time pass."""
        self._send(self._session.tick(self._clock_ms()))

    def cut(self, reason: str) -> None:
        """Tell the client why it must go, and end."""
        self._leave()
        self._send(self._session.force_close(reason, self._clock_ms()))

    def lost(self, why: str) -> None:
        """The socket is gone."""
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
