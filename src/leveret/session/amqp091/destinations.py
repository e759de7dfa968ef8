"""The destinations of a channel's messages, and the messages gathered for them: by columns, or alike."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from leveret.core.broker.direct_reply import DirectReply
from leveret.core.queues.counters import Counters
from leveret.core.queues.head import Head, expiration_ms_of
from leveret.core.queues.messages import Messages
from leveret.core.queues.queue import Queue
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.wire import amqp091 as wire
from leveret.wire.content_header import NO_TERMS, Traits
from leveret.wire.properties import shortstr
from leveret.wire.strides import Strides

FEW_QUEUES: Final = 100
"""The most queues that get messages in one step: up to 3 ms if they have logs, 16 ms if each makes its log."""


class Source:
    """A channel and an exchange: messages that come through both are counted together."""

    __slots__ = ("channel", "exchange")

    def __init__(self, channel: ChannelBase, exchange: Counters) -> None:
        """See the class."""
        self.channel = channel
        self.exchange = exchange


class Destination:
    """The target queues of a channel's messages, and the columns for messages to them.

    Messages to one queue are mostly gathered at the queue, together with those of other publishers
    (core.queues.gathered). Other destinations gather the messages of one read by themselves.

    Attributes:
        source: whose messages are gathered at the one queue; None for a destination that gathers by itself.
        guarded: whether any of the queues may refuse messages.
        is_wide: whether the queues are so many that they get messages in several steps.
        is_alone: whether nothing is gathered beside it, so that refused and returned messages keep their order.
        traits: the traits of the last gathered message, None without any; all have its time to live and priority.
        is_persistent: whether any gathered message is persistent.
        routes, headers, bodies: the gathered messages (core.queues.messages).
    """

    __slots__ = (
        "bodies",
        "channel",
        "exchange",
        "guarded",
        "headers",
        "is_alone",
        "is_persistent",
        "is_wide",
        "mandatory",
        "queues",
        "replies",
        "routes",
        "source",
        "traits",
    )

    def __init__(
        self,
        channel: ChannelBase,
        queues: list[Queue],
        exchange: Counters,
        replies: tuple[DirectReply, ...] = (),
        *,
        mandatory: bool = False,
        source: Source | None = None,
    ) -> None:
        """Begin without messages."""
        self.channel = channel
        self.source = source
        self.queues = queues
        self.exchange = exchange
        self.replies = replies
        self.mandatory = mandatory
        self.guarded = any(queue.settings.may_reject for queue in queues)
        # A refusal is known at once, so the check for room and the gathering are one step.
        self.is_wide = len(queues) > FEW_QUEUES and not self.guarded
        self.is_alone = self.guarded or self.is_wide or not queues
        self.traits: Traits | None = None
        self.is_persistent = False
        self.routes: list[bytes] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []

    def take(self) -> Messages:
        """The gathered messages, once."""
        expiration, priority = NO_TERMS if self.traits is None else self.traits.terms
        self.traits = None
        messages = Messages(
            self.routes,
            self.headers,
            self.bodies,
            expiration_ms=expiration_ms_of(expiration) if expiration else None,
            priority=priority,
            is_persistent=self.is_persistent,
        )
        self.is_persistent = False
        self.routes, self.headers, self.bodies = [], [], []
        return messages

    def at_commit(self) -> Destination:
        """The destination at a commit: since the publish its queues may be gone, or others may have their names."""
        existing = self.channel.connection.broker.queues
        queues = [existing[queue.key] for queue in self.queues if queue.key in existing]
        if queues == self.queues:
            return self
        return Destination(self.channel, queues, self.exchange, self.replies, mandatory=self.mandatory)


class PublishRoute:
    """The octets of a basic.publish method, and the destination of messages that begin with them.

    Attributes:
        octets: exchange and routing key as two short strings.
        header_head: the first octets of the header frame behind the method, up to its size.
        body_head: the end of that frame, and the first octets of the body frame behind it, up to its size.
        destination: None if it depends on each message's headers.
        names: the names of the headers that decide it; None if there are none, or if several exchanges ask for headers.
        by_headers: the destinations by the octets of these headers.
    """

    __slots__ = (
        "body_head",
        "by_headers",
        "channel",
        "destination",
        "exchange",
        "header_head",
        "mandatory",
        "names",
        "octets",
        "routing_key",
    )

    def __init__(
        self,
        channel: ChannelBase,
        exchange: bytes,
        routing_key: bytes,
        destination: Destination | None,
        *,
        mandatory: bool,
    ) -> None:
        """See the class."""
        self.channel = channel
        number = channel.number.to_bytes(2, "big")
        self.header_head = bytes((wire.FRAME_HEADER,)) + number
        self.body_head = bytes((wire.FRAME_END, wire.FRAME_BODY)) + number
        self.exchange = exchange
        self.routing_key = routing_key
        self.octets = shortstr(exchange) + shortstr(routing_key)
        self.destination = destination
        self.mandatory = mandatory
        self.names: Container[bytes] | None = None
        self.by_headers: dict[bytes, Destination] = {}

    def missing_bytes(self, data: bytes, header_at: int, content_bytes_max: int) -> int:
        """The least octets to wait for, if `data` ends within a regular message, whose header is due at `header_at`.

        Within a frame these are all that it lacks. Between two frames it is one octet: frames of other channels may
        come in between. 0 if nothing is missing, or if the message goes the long path, so that no error waits for
        octets that may never come.
        """
        end, frame_head = len(data), data[header_at : header_at + wire.FRAME_HEAD_BYTES]
        if self.channel.incoming is not None or not self.header_head.startswith(frame_head[:3]):
            return 0
        size = int.from_bytes(frame_head[3:], "big")
        if len(frame_head) < wire.FRAME_HEAD_BYTES or end < header_at + wire.HEADER_BEGIN.size:
            may_be_regular = wire.HEADER_BYTES_MIN <= size <= content_bytes_max
            return 1 if may_be_regular or len(frame_head) < wire.FRAME_HEAD_BYTES else 0
        _, _, of_class, body_bytes, _ = wire.HEADER_BEGIN.unpack_from(data, header_at)
        if of_class != wire.CLASS_BASIC or not 0 < body_bytes <= content_bytes_max - size:
            return 0
        body_head_at = header_at + wire.FRAME_HEAD_BYTES + size
        body_at = body_head_at + wire.NEXT_BODY.size
        if not wire.NEXT_BODY.pack(self.body_head, body_bytes).startswith(data[body_head_at:body_at]):
            return 0
        return max(0, body_at + body_bytes + 1 - end) if end >= body_at else max(1, body_head_at + 1 - end)


class Shape(Strides):
    """The octets before a body, and the destination of messages that begin with them."""

    __slots__ = ("destination", "head")

    def __init__(self, octets: bytes, head: Head, destination: Destination) -> None:
        """See the module."""
        super().__init__(octets, head.body_bytes, wire.FRAME_END_OCTET)
        self.head = head
        self.destination = destination

    def bodies_first(self, data: bytes, position: int, end: int) -> list[bytes]:
        """The bodies of whole messages of this shape from `position` on, up to the first of another.

        Raises:
            FrameError: the first message has no frame end.
        """
        octets, length, size = self.before, len(self.before), self.head.body_bytes
        bodies: list[bytes] = []
        while data.startswith(octets, position):
            start = position + length
            stop = start + size
            if stop >= end:
                break
            if data[stop] != wire.FRAME_END:
                if bodies:
                    # The messages before are whole: they are published first, as they would be one by one.
                    break
                raise wire.FrameError("the octet after a body frame is not a frame end")
            bodies.append(data[start:stop])
            position = stop + 1
        return bodies
