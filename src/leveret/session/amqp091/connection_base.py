"""The part of an AMQP 0-9-1 connection that its channels, publishes and consumers use: the peer, and the output.

This is the lower half of `connection.ClientConnection`, which takes the octets and makes the channels. The code on a
message's path uses this half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from pamqp import base

from leveret.core.broker.actor import Actor
from leveret.core.queues.confirms import ConfirmingChannel
from leveret.model.errors import LeveretError
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.amqp091.pieces import LARGE_PIECE_BYTES, in_few_pieces
from leveret.session.certificate import TlsPeer
from leveret.session.host import SessionHost
from leveret.wire import amqp091 as wire

OUT_BYTES_MAX: Final = 1024 * 1024


class ConnectionBase(ABC):
    """See the module.

    Attributes:
        out: octets to send, in order.
        counters: the node's message counters.
        frames_left: the number of frames that may be taken in this turn; None for any number.
        wake: makes the runtime call `go_on` soon.
        confirming: channels with publishes since the last flush, in order.
        waits_for_definitions: whether `out` must wait until the records of the next flush are durable.
        is_paused: whether the socket takes no octets for now.
        is_throttled: whether deliveries stopped because `out` was full; `resume` continues them.
        unread_replies_bytes: the octets of direct replies since the socket stopped to take octets.
        drops_replies: whether further ones were dropped since then.
        blocked_reason: the event that further frames wait for, None for none.
        is_traced: whether its messages are copied to amq.rabbitmq.trace if its vhost is traced.
        tls: the TLS parameters and certificate, None without TLS.
        now_ms: the time of the latest event, by the clock of durations.
    """

    is_traced: ClassVar[bool] = True

    def __init__(
        self, host: SessionHost, *, peer: str, from_loopback: bool, now_ms: int, tls: TlsPeer | None = None
    ) -> None:
        """Begin with a peer that has not logged in."""
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
        self.out: list[bytes | memoryview] = []
        self.out_bytes = 0
        self.sent_bytes = 0
        self.confirming: dict[ConfirmingChannel, None] = {}
        self.waits_for_definitions = False
        self.is_paused = False
        self.is_throttled = False
        self.unread_replies_bytes = 0
        self.drops_replies = False
        self.blocked_reason: BlockedReason | None = None
        self.frames_left: int | None = None
        self.wake: Callable[[], None] = _do_nothing
        self.now_ms = now_ms

    def client_can(self, capability: str) -> bool:
        """Whether the client announced a capability."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and bool(capabilities.get(capability))

    def takes_deliveries(self) -> bool:
        """Whether consumers may be sent more now: the socket takes octets, and few wait for the next write."""
        if self.out_bytes >= OUT_BYTES_MAX:
            self.is_throttled = True
        return not (self.is_paused or self.is_throttled)

    def take_turn(self, frames: int) -> None:
        """Something took as long as so many frames."""
        if self.frames_left is not None:
            self.frames_left -= frames

    @property
    def is_turn_over(self) -> bool:
        """Whether it is others' turn."""
        return self.frames_left is not None and self.frames_left <= 0

    # -- octets out ---------------------------------------------------------------------------

    def send(self, octets: bytes) -> None:
        """Gather octets for the next write."""
        if not self.out:
            self.host.outbox.append(self)
        self.out.append(octets)
        self.out_bytes += len(octets)
        self.sent_bytes += len(octets)

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Gather octets that are not to be joined if they are large."""
        if not self.out:
            self.host.outbox.append(self)
        self.out += pieces
        size = sum(map(len, pieces))
        self.out_bytes += size
        self.sent_bytes += size

    def take_output(self) -> list[bytes | memoryview]:
        """All waiting octets, once, in pieces: large ones are not copied."""
        out, self.out = self.out, []
        out_bytes, self.out_bytes = self.out_bytes, 0
        return [b"".join(out)] if out_bytes < LARGE_PIECE_BYTES else in_few_pieces(out)

    def reply(self, method: base.Frame) -> None:
        """Send a method of the connection itself."""
        self.send(wire.marshal(method, 0))

    # -- what channels tell -------------------------------------------------------------------

    @abstractmethod
    def channel_closes(self, number: int) -> None:
        """Note that the client closes a channel."""

    @abstractmethod
    def fail(self, error: LeveretError, number: int, method: int) -> None:
        """Close the channel or the connection, as the code demands."""

    @property
    @abstractmethod
    def awaits_answer(self) -> bool:
        """Whether the connection waits for an answer."""

    @abstractmethod
    def ask(self) -> None:
        """Block until `answered` or `repeat`, because another node or later steps carry out the current method."""

    @abstractmethod
    def answered(self) -> None:
        """End the wait: the answer is here."""

    @abstractmethod
    def repeat(self) -> None:
        """Process the current method again, as if it had just arrived: its answer comes from itself, or never."""


def _do_nothing() -> None:
    """Do nothing: without a runtime, the caller calls `go_on` itself."""
