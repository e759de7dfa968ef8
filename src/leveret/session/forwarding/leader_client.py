"""A node's end of the forwarding connection to a leader: its channels, and the octets of both directions.

This node's publishes to a queue go through an `Outlet`, and its clients' methods through their remote channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from leveret.core.broker.alarms import resources
from leveret.core.queues.messages import Messages
from leveret.model.errors import PeerError
from leveret.session.amqp091.pieces import in_few_pieces
from leveret.session.amqp091.replies import Fault
from leveret.session.forwarding.deliveries import Deliveries
from leveret.session.forwarding.remote_channel import RemoteChannel
from leveret.session.forwarding.unconfirmed import Unconfirmed
from leveret.session.host import Sender
from leveret.wire import amqp091 as wire
from leveret.wire import forwarding
from leveret.wire.amqp091 import (
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN_OK,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_UNBLOCKED,
    FRAME_HEAD_BYTES,
)
from leveret.wire.properties import shortstr

CHANNEL_MAX: Final = 65535
PUBLISHING_MAX: Final = 60_000
"""The most channels in use when another one may begin to publish into a queue; the rest is for clients' channels."""
PIECE_BYTES: Final = 1024 * 1024
"""The most octets of publishes that are encoded at once."""
_MULTIPLE: Final = 1
_REQUEUE: Final = 2
_KEPT: Final = 4


class ForwardedPublication(Protocol):
    """The messages of one queue, for any leader; session.forwarding.leaders."""

    unconfirmed: Unconfirmed

    def decided(self, number: int, *, ok: bool, is_final: bool = False, is_kept: bool = False) -> None:
        """Note that the leader has, or refuses, everything up to `number`; see Unconfirmed.settle."""

    def is_at(self, number: int) -> None:
        """Note the last message that the leader has, on disk or not."""

    def detached(self) -> None:
        """Note that the leader does not lead the queue, or does not know it yet: the outlet is gone."""


class _Channel(Protocol):
    def frame(self, kind: int, payload: bytes) -> None:
        """Take a frame of this channel."""

    def lost(self) -> None:
        """Note that the connection is gone."""


class LeaderClient:
    """A node's connection to a leader.

    Attributes:
        leader, vhost: the leader, and the connection's vhost.
        is_up: whether it is connected.
        blocked_by: the alarms for which the leader takes no publishes.
        push: sends all waiting octets at once.
    """

    def __init__(self, leader: str, vhost: str, outbox: list[Sender]) -> None:
        """Begin unconnected; `outbox` gets it whenever it has octets to send."""
        self.leader = leader
        self.vhost = vhost
        self.is_up = False
        self.blocked_by: tuple[str, ...] = ()
        self.push: Callable[[], None] = _do_nothing
        self.channels: dict[int, _Channel] = {}
        self._outbox = outbox
        self._out: list[bytes | memoryview] = []
        self._is_noted = False
        self._settling: dict[RemoteChannel, None] = {}
        self._deliveries = Deliveries()
        self._rest: list[bytes] = []
        self._missing_bytes = 0
        self._last_number = 0

    # -- octets out ---------------------------------------------------------------------------

    def up(self) -> None:
        """Note that the connection is made."""
        self.is_up = True
        self.send(wire.frame(wire.FRAME_METHOD, 0, CONNECTION_OPEN + shortstr(self.vhost.encode()) + b"\0\0"))

    def send(self, octets: bytes) -> None:
        """Gather whole frames for the next write."""
        self._note()
        self._out.append(octets)

    def publish(self, number: int, messages: Messages) -> None:
        """Send messages on the channel with a number; a large one in pieces, because to join them would take long."""
        if len(messages) > 1 or len(messages.bodies[0]) <= forwarding.SENT_BODY_BYTES_MAX:
            self.send(encoded(number, messages))
            return
        head = messages.head_at(0)
        self._note()
        self._out += forwarding.large_publish(number, head.route, head.header, messages.bodies[0])

    def has_settlements(self, remote_channel: RemoteChannel) -> None:
        """Note settlements of a client's channel: their frames go with the next octets."""
        self._note()
        self._settling[remote_channel] = None

    def _note(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._outbox.append(self)

    def take_output(self) -> list[bytes | memoryview]:
        """All waiting octets, once, in pieces: large ones are not copied."""
        self._is_noted = False
        settling, self._settling = self._settling, {}
        for remote_channel in settling:
            self._out.append(remote_channel.flush())
        out, self._out = self._out, []
        return in_few_pieces(out)

    # -- channels -----------------------------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        """Whether no more channels may publish: unused ones have to be closed first."""
        return len(self.channels) >= PUBLISHING_MAX

    def number(self) -> int:
        """A free channel number.

        Raises:
            Fault: there is none.
        """
        if len(self.channels) >= CHANNEL_MAX:
            raise Fault(506, f"all {CHANNEL_MAX} channels to node '{self.leader}' are in use")
        number = self._last_number
        while True:
            number = number % CHANNEL_MAX + 1
            if number not in self.channels:
                self._last_number = number
                return number

    def release(self, number: int) -> None:
        """Free the number of a channel that is closed on both sides."""
        self.channels.pop(number, None)

    # -- octets in ----------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take octets from the leader.

        Raises:
            LeveretError: the octets are invalid; the connection must end.
        """
        if self._rest:
            self._rest.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return
            data = b"".join(self._rest)
            self._rest.clear()
        position, end = 0, len(data)
        while end - position >= FRAME_HEAD_BYTES:
            found = self._deliveries.take(data, position)
            if found is not None:
                position = found.end
                channel = self.channels.get(found.channel)
                if not isinstance(channel, RemoteChannel):
                    raise PeerError(
                        f"node '{self.leader}' delivers to channel {found.channel}, which has no consumers"
                    )
                channel.delivered(found)
                continue
            kind, number, size = wire.FRAME_HEAD.unpack_from(data, position)
            stop = position + FRAME_HEAD_BYTES + size
            if stop >= end:
                break
            if data[stop] != wire.FRAME_END:
                raise wire.FrameError("the octet after a frame is not a frame end")
            self._frame(kind, number, data[position + FRAME_HEAD_BYTES : stop])
            position = stop + 1
        if position < end:
            self._rest.append(data[position:])
            if end - position >= FRAME_HEAD_BYTES:
                _, _, size = wire.FRAME_HEAD.unpack_from(data, position)
                self._missing_bytes = size + wire.FRAME_OVERHEAD - (end - position)
            else:
                self._missing_bytes = 1

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if not number:
            self._connection_method(payload)
            return
        channel = self.channels.get(number)
        if channel is None:
            raise PeerError(f"node '{self.leader}' speaks on channel {number}, which is not open")
        channel.frame(kind, payload)

    def _connection_method(self, payload: bytes) -> None:
        method = payload[:4]
        if method in (CONNECTION_BLOCKED, CONNECTION_UNBLOCKED):
            self.blocked_by = resources(_reason(payload)) if method == CONNECTION_BLOCKED else ()
        elif method == CONNECTION_CLOSE:
            text = payload[7 : 7 + payload[6]].decode(errors="replace")
            raise PeerError(f"node '{self.leader}' closed its forwarding connection: {text}")
        elif method != CONNECTION_OPEN_OK:
            raise PeerError(f"node '{self.leader}' sent method {method.hex()} on channel 0")

    def lost(self) -> None:
        """Note that the connection is gone, with all its channels."""
        self.is_up, self.blocked_by = False, ()
        self._out.clear()
        self._settling.clear()
        self._rest.clear()
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.lost()
        self._out.clear()
        self._settling.clear()


class Outlet:
    """A channel that publishes into one queue; see wire.forwarding."""

    def __init__(
        self,
        leader_client: LeaderClient,
        publication: ForwardedPublication,
        queue: bytes,
        epoch: int,
        reference: bytes,
    ) -> None:
        """Open the channel and send all unconfirmed messages; the leader skips those that it has, by their numbers."""
        self._leader_client = leader_client
        self._publication = publication
        self.number = leader_client.number()
        leader_client.channels[self.number] = self
        self._before = publication.unconfirmed.known
        self._is_closed = False
        leader_client.send(
            forwarding.channel_open(self.number)
            + forwarding.target(self.number, queue, epoch, reference)
            + forwarding.numbers(self.number, self._before + 1, publication.unconfirmed.sent)
        )
        for messages in publication.unconfirmed.runs():
            self.publish(messages)

    def publish(self, messages: Messages) -> None:
        """Send messages that follow the ones sent before."""
        self._publication.unconfirmed.sent = self._publication.unconfirmed.last
        for part in messages.parts(len(messages), PIECE_BYTES):
            self._leader_client.publish(self.number, part)

    def frame(self, kind: int, payload: bytes) -> None:
        """Take a frame of the leader about it.

        Raises:
            LeveretError: the frame is invalid.
        """
        method = payload[:4]
        if method == wire.BASIC_ACK and len(payload) == 13:
            self._settled(payload, ok=True)
        elif method == wire.BASIC_NACK and len(payload) == 13:
            self._settled(payload, ok=False)
        elif method == forwarding.TARGET_OK:
            self._publication.is_at(forwarding.decode_number(payload))
        elif method == CHANNEL_CLOSE:
            self._leader_client.send(forwarding.channel_close_ok(self.number))
            if not self._is_closed:
                self._leader_client.release(self.number)
                self._publication.detached()
        elif method == CHANNEL_CLOSE_OK:
            self._leader_client.release(self.number)
        elif method != CHANNEL_OPEN_OK:
            raise PeerError(f"method {method.hex()} on a channel that publishes")

    def _settled(self, payload: bytes, *, ok: bool) -> None:
        """Take a confirm; a leader confirms in order, so a single one is for the next number.

        Raises:
            PeerError: it is for a later number, and would count for all earlier ones.
        """
        if self._is_closed:
            return
        number = self._before + int.from_bytes(payload[4:12], "big")
        known = self._publication.unconfirmed.known
        if not payload[12] & _MULTIPLE and number > known + 1:
            raise PeerError(f"a confirm of message {number} alone, where {known} was the last")
        bits = payload[12]
        self._publication.decided(
            number, ok=ok, is_final=bool(bits & _REQUEUE), is_kept=not ok and bool(bits & _KEPT)
        )

    def close(self) -> None:
        """Close the channel, after the last publish."""
        self._is_closed = True
        self._leader_client.send(forwarding.channel_close(self.number))

    def lost(self) -> None:
        """Note that the connection is gone."""
        if not self._is_closed:
            self._publication.detached()


def encoded(number: int, messages: Messages) -> bytes:
    """The frames that publish messages on the channel with a number."""
    head = messages.head
    if head is None:
        return forwarding.publishes_that_differ(number, messages.routes, messages.headers, messages.bodies)
    # Negative, because keys of deliveries are positive. Its channel's number alone decides about it.
    key = -number
    before = head.frames.get(key)
    if before is None:
        before = head.frames[key] = forwarding.publish_head(number, head.route, head.header, head.body_bytes)
    return forwarding.publishes(before, messages.bodies, head.body_bytes)


def _reason(payload: bytes) -> str:
    return payload[5 : 5 + payload[4]].decode(errors="replace")


def _do_nothing() -> None:
    """Do nothing: the octets go with the next flush."""
