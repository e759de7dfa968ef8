"""What any session needs of its node."""

from __future__ import annotations

from typing import Protocol

from leveret.core.broker.alarms import Alarms
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.session.certificate import LoginRule


class Sender(Protocol):
    """A session with output."""

    def take_output(self) -> bytes:
        """All octets that wait, once."""


class Limits(Protocol):
    """What an AMQP 0-9-1 connection is offered and may use; None for no limit."""

    @property
    def heartbeat_s(self) -> int:
        """Offered interval, 0 for none."""

    @property
    def frame_max_bytes(self) -> int:
        """Largest frame offered."""

    @property
    def initial_frame_max_bytes(self) -> int:
        """Largest frame until both sides have agreed on one."""

    @property
    def channel_max(self) -> int:
        """Most channels offered."""

    @property
    def channel_max_per_node(self) -> int | None:
        """Most channels of all connections together."""

    @property
    def connection_max(self) -> int | None:
        """Most connections of the node."""

    @property
    def consumer_max_per_channel(self) -> int | None:
        """Most consumers of a channel."""

    @property
    def message_bytes_max(self) -> int:
        """Largest message that is taken."""

    @property
    def consumer_timeout_ms(self) -> int:
        """Longest time a delivery may wait for its acknowledgement, where its queue does not say."""

    @property
    def handshake_timeout_ms(self) -> int:
        """Time from connecting to an open virtual host."""

    @property
    def auth_mechanisms(self) -> tuple[str, ...]:
        """SASL mechanisms, in the order they are offered."""


class SessionHost(Protocol):
    """The node, as a session sees it."""

    broker: Broker
    cluster_name: str
    node_name: str
    version: str
    alarms: Alarms
    outbox: list[Sender]
    """Sessions that have octets to send, each once."""

    @property
    def limits(self) -> Limits:
        """What connections are offered."""

    @property
    def certificate_login(self) -> LoginRule:
        """Who a client's certificate logs in."""

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """Check credentials; return the user's name, or raise AuthenticationFailed."""

    def authenticate_external(self, username: str, from_loopback: bool) -> str:
        """Check a name that somebody else vouches for; return it, or raise AuthenticationFailed."""

    def open_vhost(self, user: str, vhost: str) -> None:
        """Check that the vhost exists and the user may enter it, or raise a Refusal."""

    def channel_failed(self, name: str, user: str, number: int, operation: str, text: str) -> None:
        """Tell the operator that the node closed channel `number` of a connection, and why.

        `name` is both ends of the connection, `operation` the method that was refused, such as
        `queue.declare`, empty if it was none; `text` is what the client is told.
        """

    def append_now(self, queue: Queue) -> None:
        """Append what the queue gathered, so that it counts and can be taken."""

    def unique_id(self) -> str:
        """22 characters that nobody else gets, for names the server makes up."""
