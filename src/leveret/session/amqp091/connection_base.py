"""What the channels, publishes and consumers of an AMQP 0-9-1 connection use of it: who the peer is, and its output.

The lower half of `connection.ClientConnection`, which takes the octets and makes the channels. All that a message
touches on its way looks at this half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from pamqp import base

from leveret.core.broker.actor import Actor
from leveret.core.queues.confirms import ConfirmingChannel
from leveret.model.errors import LeveretError
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.certificate import TlsPeer
from leveret.session.host import SessionHost
from leveret.wire import amqp091 as wire

OUT_BYTES_MAX: Final = 1024 * 1024


class ConnectionBase(ABC):
    """See the module.

    Attributes:
        out: octets to send, in order.
        counters: of all its messages; the node's.
        wake: has the runtime call `go_on` soon.
        confirming: channels with publishes since the last flush, in order.
        waits_for_definitions: whether `out` must wait until what the next flush appends is durable.
        is_paused: whether the socket takes no more for now.
        is_throttled: whether deliveries stopped because `out` was full; `resume` lets them go on.
        blocked_reason: what is waited for before more is taken, None for nothing.
        is_traced: whether what goes over it is copied to amq.rabbitmq.trace where its vhost is traced.
        tls: how the connection is encrypted, None if it is not.
    """

    is_traced: ClassVar[bool] = True

    def __init__(
        self, host: SessionHost, *, peer: str, from_loopback: bool, now_ms: int, tls: TlsPeer | None = None
    ) -> None:
        """Of a peer that has not logged in."""
        self.host = host
        self.broker = host.broker
        self.peer = peer
        self.from_loopback = from_loopback
        self.tls = tls
        self.user: str | None = None
        self.vhost: str | None = None
        self.actor = Actor(host.broker, "", "")
        self.client_properties: dict[str, Any] = {}
        self.frame_max_bytes = host.limits.initial_frame_max_bytes
        self.channel_max = host.limits.channel_max
        self.heartbeat_ms = 0
        self.counters = host.broker.counters
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.sent_bytes = 0
        self.confirming: dict[ConfirmingChannel, None] = {}
        self.waits_for_definitions = False
        self.is_paused = False
        self.is_throttled = False
        self.blocked_reason: BlockedReason | None = None
        self.wake: Callable[[], None] = _do_nothing
        self.now_ms = now_ms

    def client_can(self, capability: str) -> bool:
        """Whether the client announced a capability."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and bool(capabilities.get(capability))

    def takes_deliveries(self) -> bool:
        """Whether consumers may be sent more now: the socket takes it and not too much waits for the next write."""
        if self.out_bytes >= OUT_BYTES_MAX:
            self.is_throttled = True
        return not (self.is_paused or self.is_throttled)

    # -- octets out ---------------------------------------------------------------------------

    def send(self, octets: bytes) -> None:
        """Gather octets for the next write."""
        if not self.out:
            self.host.outbox.append(self)
        self.out.append(octets)
        self.out_bytes += len(octets)
        self.sent_bytes += len(octets)

    def take_output(self) -> bytes:
        """All octets that wait, once."""
        octets = b"".join(self.out)
        self.out.clear()
        self.out_bytes = 0
        return octets

    def reply(self, method: base.Frame) -> None:
        """Send a method of the connection itself."""
        self.send(wire.marshal(method, 0))

    # -- what channels tell -------------------------------------------------------------------

    @abstractmethod
    def channel_closes(self, number: int) -> None:
        """The client closes a channel."""

    @abstractmethod
    def fail(self, error: LeveretError, number: int, method: int) -> None:
        """Close the channel or the connection, as the code demands."""

    @property
    @abstractmethod
    def awaits_answer(self) -> bool:
        """Whether an answer is waited for."""

    @abstractmethod
    def ask(self) -> None:
        """Another node, or turns, do what the method at hand wants: take nothing more until `answered`, or `repeat`."""

    @abstractmethod
    def answered(self) -> None:
        """What was asked is answered."""

    @abstractmethod
    def repeat(self) -> None:
        """The method is to be taken again, as if it came only now: there will be no answer, or it is to give one."""


def _do_nothing() -> None:
    """Nobody runs it: who uses it calls `go_on` by themselves."""
