"""Publishing, the hot path in.

`basic.publish` frames repeat: a client that sends the same kind of message sends the same octets up
to the body. A **shape** is those octets (method frame, header frame, body frame's head) with what
they mean: the channel, the queues, the stored head. While a read goes on with the octets of a known
shape, a message costs one comparison and one slice, and a whole run of them goes to the queues at
once. Everything else takes the long way, frame by frame, which also finds all errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.core.queue import Head, Queue
from leveret.model.errors import Refusal
from leveret.session.amqp091.replies import Fault
from leveret.session.stored import make_head
from leveret.wire import amqp091 as wire

if TYPE_CHECKING:
    from leveret.session.amqp091.channel import Channel
    from leveret.session.amqp091.connection import ClientConnection

SHAPES_MAX: Final = 4096
MESSAGE_BYTES_MAX: Final = 128 * 1024 * 1024
_MANDATORY: Final = 1
_IMMEDIATE: Final = 2


class Shape:
    """Octets before a body, and where messages that start with them go."""

    __slots__ = ("body_bytes", "channel", "head", "length", "mandatory", "octets", "queues")

    def __init__(
        self, octets: bytes, channel: Channel, head: Head, queues: list[Queue], mandatory: bool
    ) -> None:
        """See the module."""
        self.octets = octets
        self.length = len(octets)
        self.channel = channel
        self.head = head
        self.body_bytes = head.body_bytes
        self.queues = queues
        self.mandatory = mandatory


class Incoming:
    """A message whose frames are still coming (the long way)."""

    __slots__ = ("exchange", "flags", "header", "left", "parts", "routing_key")

    def __init__(self, payload: bytes) -> None:
        """`payload` is the basic.publish method's."""
        self.exchange, self.routing_key, self.flags = wire.split_publish(payload)
        self.header: bytes | None = None
        self.left = 0
        self.parts: list[bytes] = []

    def unexpected(self) -> Fault:
        """Another frame came than the one this message needs next."""
        if self.header is None:
            return Fault(505, "expected content header for class 60, got non content header frame instead")
        return Fault(505, "expected content body, got non content body frame instead")

    def take_header(self, payload: bytes) -> bool:
        """Take the content header; tell whether the message is whole (its body is empty)."""
        if payload[:2] != b"\x00\x3c":
            other = int.from_bytes(payload[:2], "big")
            raise Fault(505, f"expected content header for class 60, got one for class {other} instead")
        self.header = payload
        self.left = wire.body_bytes_of(payload)
        if self.left > MESSAGE_BYTES_MAX:
            raise Fault(
                406, f"message size {self.left} is larger than configured max size {MESSAGE_BYTES_MAX}"
            )
        return self.left == 0

    def take_body(self, payload: bytes) -> bool:
        """Take a body frame; tell whether the message is whole."""
        self.left -= len(payload)
        if self.left < 0:
            raise Fault(501, "body frames hold more than the content header announced")
        self.parts.append(payload)
        return self.left == 0


def resolve(channel: Channel, exchange: bytes, routing_key: bytes, header: bytes) -> list[Queue]:
    """The queues a message goes to, after the checks of permission and existence.

    Raises:
        Refusal: no such exchange, no permission, an internal exchange, another user's user-id.
    """
    connection = channel.connection
    name = _text(exchange)
    vhost = connection.vhost or ""
    definition = connection.broker.exchange(vhost, name)
    connection.access.require("write", "exchange", name)
    if definition.internal:
        raise Fault(403, f"cannot publish to internal exchange '{name}' in vhost '{vhost}'")
    if name and definition.type == "topic":
        connection.access.require_topic("write", name, _text(routing_key))

    if wire.property_flags(header) & wire.FLAG_USER_ID:
        claimed = wire.decode_properties(header).user_id
        if claimed != connection.user:
            raise Fault(
                406, f"user_id property set to '{claimed}' but authenticated user was '{connection.user}'"
            )

    def headers() -> dict[str, Any]:
        return wire.decode_properties(header).headers or {}

    return connection.broker.route(vhost, name, _text(routing_key), headers)


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise wire.SyntaxFault(f"a name is not UTF-8: {error}") from None


class Publisher:
    """One connection's publishes; owns the cache of shapes."""

    def __init__(self, connection: ClientConnection) -> None:
        """No shapes yet."""
        self._connection = connection
        self._shapes: dict[bytes, Shape] = {}
        self._last: Shape | None = None
        self._version = -1

    def forget(self) -> None:
        """Routes or channels changed; look everything up anew."""
        self._shapes.clear()
        self._last = None

    def fast(self, data: bytes, position: int, end: int) -> int:
        """Take publishes at `position` as long as they are whole and regular; return where that stops."""
        version = self._connection.broker.version
        if version != self._version:
            self.forget()
            self._version = version
        shape = self._last
        while True:
            if shape is None or not data.startswith(shape.octets, position):
                shape = self._shape_at(data, position, end)
                if shape is None:
                    return position
                self._last = shape
            octets, length, size = shape.octets, shape.length, shape.body_bytes
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
            if not bodies:
                return position
            self.publish(shape, bodies)
            if position >= end:
                return position

    def publish(self, shape: Shape, bodies: list[bytes]) -> None:
        """Hand whole messages of one shape to their queues; number them if they are to be confirmed."""
        channel, head = shape.channel, shape.head
        confirms = channel.confirms
        batch = confirms.publish(len(bodies)) if confirms is not None else None
        dirty = self._connection.broker.dirty
        for queue in shape.queues:
            queue.gather(head, bodies)
            dirty[queue] = None
            if batch is not None:
                needs_disk = head.persistent and queue.definition.durable
                batch.queues[queue] = needs_disk or batch.queues.get(queue, False)
        if batch is not None:
            self._connection.confirming[channel] = None
        if not shape.queues and shape.mandatory:
            for body in bodies:
                channel.return_unroutable(head, body)

    def _shape_at(self, data: bytes, position: int, end: int) -> Shape | None:
        """The shape of the publish at `position`, None unless all before its body is there and regular."""
        if (
            end - position < 12
            or data[position] != wire.FRAME_METHOD
            or data[position + 7 : position + 11] != wire.BASIC_PUBLISH
        ):
            return None
        _, number, size = wire.FRAME_HEAD.unpack_from(data, position)
        header_at = position + 8 + size
        if end - header_at < 7:
            return None
        kind, number2, header_size = wire.FRAME_HEAD.unpack_from(data, header_at)
        body_at = header_at + 8 + header_size
        if kind != wire.FRAME_HEADER or number2 != number or end - body_at < 7:
            return None
        octets = data[position : body_at + 7]
        found = self._shapes.get(octets)
        return found or self._new_shape(octets, number, header_at - position, body_at - position)

    def _new_shape(self, octets: bytes, number: int, header_at: int, body_at: int) -> Shape | None:
        channel = self._connection.channels.get(number)
        kind, number2, size = wire.FRAME_HEAD.unpack_from(octets, body_at)
        ends = octets[header_at - 1] == octets[body_at - 1] == wire.FRAME_END
        if (
            channel is None
            or channel.is_closing
            or channel.incoming
            or not (ends and size)
            or kind != wire.FRAME_BODY
            or number2 != number
        ):
            return None
        header = octets[header_at + 7 : body_at - 1]
        frame_max = self._connection.frame_max_bytes
        if (
            wire.body_bytes_of(header) != size
            or max(size, body_at - header_at, header_at) > frame_max - wire.FRAME_OVERHEAD
        ):
            return None
        exchange, routing_key, flags = wire.split_publish(octets[7 : header_at - 1])
        try:
            queues = resolve(channel, exchange, routing_key, header)
        except (Refusal, Fault):
            return None
        if flags & _IMMEDIATE:
            return None
        shape = Shape(
            octets, channel, make_head(exchange, routing_key, header), queues, bool(flags & _MANDATORY)
        )
        if len(self._shapes) >= SHAPES_MAX:
            self._shapes.clear()
        self._shapes[octets] = shape
        return shape

    def finish(self, channel: Channel, incoming: Incoming) -> None:
        """Publish a message that came the long way."""
        if incoming.flags & _IMMEDIATE:
            raise Fault(540, "immediate=true")
        header = incoming.header or b""
        queues = resolve(channel, incoming.exchange, incoming.routing_key, header)
        head = make_head(incoming.exchange, incoming.routing_key, header)
        shape = Shape(b"", channel, head, queues, bool(incoming.flags & _MANDATORY))
        self.publish(shape, [b"".join(incoming.parts)])
