"""Where messages of a channel go, and messages that are on the way there: by columns, or alike."""

from __future__ import annotations

from typing import Final

from leveret.core.broker.direct_reply import DirectReply
from leveret.core.queues.counters import Counters
from leveret.core.queues.head import Head, expiration_ms_of
from leveret.core.queues.messages import Messages
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import DROP_HEAD
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.wire import amqp091 as wire
from leveret.wire.content_header import NO_TERMS
from leveret.wire.properties import shortstr
from leveret.wire.strides import Strides

FEW_QUEUES: Final = 100
"""So many take messages in one step: up to 3 ms where they have logs, 16 ms where each makes its log."""


class Destination:
    """Where messages of a channel go; gathers those of one read by columns, until they are handed over.

    Attributes:
        guarded: whether any queue may refuse messages.
        is_wide: whether the queues are so many that they take messages in turns.
        is_alone: whether nothing else is gathered beside it: what is refused, or comes back, has its place among all.
        terms: time to live and priority of all that is gathered (wire.content_header.Traits), None if nothing is.
        is_persistent: whether any of it is.
        routes, headers, bodies: what is gathered; see core.queues.messages.
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
        "reply",
        "routes",
        "terms",
    )

    def __init__(
        self,
        channel: ChannelBase,
        queues: list[Queue],
        exchange: Counters,
        reply: DirectReply | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        """Nothing gathered."""
        self.channel = channel
        self.queues = queues
        self.exchange = exchange
        self.reply = reply
        self.mandatory = mandatory
        self.guarded = any(queue.settings.overflow != DROP_HEAD for queue in queues)
        # What is refused is known at once, so room is looked up, and messages are taken, in one step.
        self.is_wide = len(queues) > FEW_QUEUES and not self.guarded
        self.is_alone = self.guarded or self.is_wide or not queues
        self.terms: tuple[bytes, int] | None = None
        self.is_persistent = False
        self.routes: list[bytes] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []

    def take(self) -> Messages:
        """What was gathered, once."""
        expiration, priority = self.terms or NO_TERMS
        self.terms = None
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
        """The same for now: since a transaction's publish its queues may have gone, or others have their names."""
        existing = self.channel.connection.broker.queues
        queues = [existing[queue.key] for queue in self.queues if queue.key in existing]
        if queues == self.queues:
            return self
        return Destination(self.channel, queues, self.exchange, self.reply, mandatory=self.mandatory)


class PublishRoute:
    """Octets of a basic.publish frame, and where messages that begin with them go.

    Attributes:
        octets: exchange and routing key as two short strings.
        destination: None if that depends on each message's headers.
    """

    __slots__ = ("channel", "destination", "exchange", "mandatory", "number", "octets", "routing_key")

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
        self.number = channel.number
        self.exchange = exchange
        self.routing_key = routing_key
        self.octets = shortstr(exchange) + shortstr(routing_key)
        self.destination = destination
        self.mandatory = mandatory


class Shape(Strides):
    """Octets before a body, and where messages that start with them go."""

    __slots__ = ("destination", "head")

    def __init__(self, octets: bytes, head: Head, destination: Destination) -> None:
        """See the module."""
        super().__init__(octets, head.body_bytes, wire.FRAME_END_OCTET)
        self.head = head
        self.destination = destination

    def bodies_first(self, data: bytes, position: int, end: int) -> list[bytes]:
        """The bodies of whole messages of this shape from `position` on, up to the first of another.

        Raises:
            FrameError: the first one does not end where it must.
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
                    # Those before it are whole: they are published first, as they would be one by one.
                    break
                raise wire.FrameError("the octet after a body frame is not a frame end")
            bodies.append(data[start:stop])
            position = stop + 1
        return bodies
