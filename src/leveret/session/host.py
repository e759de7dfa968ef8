"""The interface of a session to its node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from leveret.core.broker.alarms import Alarms
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.session.certificate import LoginRule


class Sender(Protocol):
    """A session with output."""

    def take_output(self) -> list[bytes | memoryview]:
        """All waiting octets, once, in pieces."""


class Limits(Protocol):
    """The offers and limits for an AMQP 0-9-1 connection; None for no limit."""

    @property
    def heartbeat_s(self) -> int:
        """The offered interval, 0 for none."""

    @property
    def frame_max_bytes(self) -> int:
        """The largest offered frame."""

    @property
    def initial_frame_max_bytes(self) -> int:
        """The largest frame until both sides have agreed on one."""

    @property
    def channel_max(self) -> int:
        """The most offered channels."""

    @property
    def channel_max_per_node(self) -> int | None:
        """The most channels of all connections together."""

    @property
    def connection_max(self) -> int | None:
        """The most connections of the node."""

    @property
    def consumer_max_per_channel(self) -> int | None:
        """The most consumers of a channel."""

    @property
    def message_bytes_max(self) -> int:
        """The largest accepted message."""

    @property
    def consumer_timeout_ms(self) -> int:
        """The longest wait of a delivery for its acknowledgement, unless its queue has a limit of its own."""

    @property
    def handshake_timeout_ms(self) -> int:
        """The time from connecting to an open virtual host."""

    @property
    def auth_mechanisms(self) -> tuple[str, ...]:
        """SASL mechanisms, in the order they are offered."""


class SessionHost(Protocol):
    """The node, as a session uses it."""

    broker: Broker
    cluster_name: str
    node_name: str
    version: str
    alarms: Alarms
    outbox: list[Sender]
    """Sessions that have octets to send, each once."""

    @property
    def limits(self) -> Limits:
        """The offers and limits for connections."""

    @property
    def certificate_login(self) -> LoginRule:
        """The rule for the user in a client's certificate."""

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """Check credentials; return the user's name, or raise AuthenticationFailed."""

    def authenticate_external(self, username: str, from_loopback: bool) -> str:
        """Log in a user that TLS has authenticated; return the name, or raise AuthenticationFailed."""

    def open_vhost(self, user: str, vhost: str) -> None:
        """Check that the vhost exists and the user may enter it, or raise a Refusal."""

    def channel_failed(self, name: str, user: str, number: int, operation: str, text: str) -> None:
        """Log that the node closed channel `number` of a connection, with the reason.

        `name` is both ends of the connection, `operation` the refused method, such as `queue.declare`, empty for
        none; `text` is the client's reply text.
        """

    def replies_dropped(self, name: str, user: str) -> None:
        """Log that direct replies to a connection are dropped, because it does not read them."""

    def append_now(self, queue: Queue) -> None:
        """Append the queue's gathered messages, so that they count and can be taken."""

    def waits_for_nodes(self, queues: Iterable[object]) -> bool:
        """Whether messages in these queues are not safe before other nodes have them, or know the queues."""

    def clock_ms(self) -> int:
        """The time of day, which is stored and shown. Sessions measure durations by the time that they are told."""

    def unique_id(self) -> str:
        """22 unique characters, for names made by the server."""
