"""Publishing, the hot path in.

`basic.publish` frames repeat: a client that sends the same kind of message sends the same octets up
to the body. A **shape** is those octets (method frame, header frame, body frame's head) with what
they mean: the channel, the queues, the stored head. While a read goes on with the octets of a known
shape, a message costs one comparison and one slice, and a whole run of them goes to the queues at
once. Everything else takes the long way, frame by frame, which also finds all errors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.core.broker.dead_letters import headers_of
from leveret.core.broker.direct_reply import DirectReply
from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.counters import Counters
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import DROP_HEAD, REJECT_PUBLISH_DLX
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model.definitions import User
from leveret.model.errors import PreconditionFailed, Refusal
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.direct_reply import with_reply_name
from leveret.session.amqp091.incoming import IncomingMessage
from leveret.session.amqp091.replies import Fault
from leveret.session.amqp091.tracing import trace_published
from leveret.wire import amqp091 as wire
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.amqp091 import FRAME_HEAD_BYTES

SHAPES_MAX: Final = 4096
SHAPES_BYTES_MAX: Final = 1024 * 1024
"""Of all shapes of a connection, so that large headers, each another, are not all kept."""
_EXPIRATION_DIGITS_MAX: Final = 18
IMPERSONATOR: Final = "impersonator"
"""The tag of users that may publish messages with the user-id of another."""
BULK_MIN: Final = 4
"""Messages in a read from which on they are taken apart all at once."""
BULK_FIRST: Final = 16
BULK_GROWTH: Final = 8
"""How many are, at first, and how many times as many when those were of one shape."""
_MANDATORY: Final = 1
_IMMEDIATE: Final = 2


class PublishTarget:
    """Where messages of one exchange, routing key and header go, and the head they go under."""

    __slots__ = ("exchange", "guarded", "head", "queues", "reply")

    def __init__(
        self, head: Head, queues: list[Queue], exchange: Counters, reply: DirectReply | None
    ) -> None:
        """`exchange` counts what is published to it; `reply` is a client that takes replies without a queue."""
        self.head = head
        self.queues = queues
        self.exchange = exchange
        self.reply = reply
        self.guarded = any(queue.settings.overflow != DROP_HEAD for queue in queues)


class Shape:
    """Octets before a body, and where messages that start with them go."""

    __slots__ = (
        "_unpack",
        "body_bytes",
        "channel",
        "following",
        "length",
        "mandatory",
        "octets",
        "stride",
        "target",
    )

    def __init__(self, octets: bytes, channel: ChannelBase, target: PublishTarget, mandatory: bool) -> None:
        """See the module."""
        self.octets = octets
        self.length = len(octets)
        self.channel = channel
        self.target = target
        self.body_bytes = target.head.body_bytes
        self.stride = self.length + self.body_bytes + 1
        self.mandatory = mandatory
        self.following: Shape | None = None
        self._unpack = struct.Struct(f"{self.length}s{self.body_bytes}sB").iter_unpack

    def at_commit(self) -> Shape:
        """The same for now: since a transaction's publish its queues may have gone, or others have their names."""
        existing, target = self.channel.connection.broker.queues, self.target
        queues = [existing[queue.key] for queue in target.queues if queue.key in existing]
        if queues == target.queues:
            return self
        return Shape(
            self.octets,
            self.channel,
            PublishTarget(target.head, queues, target.exchange, target.reply),
            self.mandatory,
        )

    def bodies_all(self, data: bytes, position: int, end: int) -> list[bytes]:
        """The bodies of whole messages of this shape from `position` on, many at a time; none where there are few.

        Three times as fast as one by one; a read mostly holds messages of one shape. Where it does not, little is
        looked at in vain: never more than some times what was found before.
        """
        octets, mark, stride = self.octets, wire.FRAME_END, self.stride
        bodies: list[bytes] = []
        step = BULK_FIRST
        while (count := min(step, (end - position) // stride)) >= BULK_MIN:
            stop = position + count * stride
            if not data.startswith(octets, stop - stride):
                break
            messages = self._unpack(memoryview(data)[position:stop])
            found = [body for before, body, after in messages if before == octets and after == mark]
            if len(found) < count:
                break
            bodies += found
            position = stop
            step *= BULK_GROWTH
        return bodies

    def bodies_first(self, data: bytes, position: int, end: int) -> list[bytes]:
        """The bodies of whole messages of this shape from `position` on, up to the first of another.

        Raises:
            FrameError: the first one does not end where it must.
        """
        octets, length, size = self.octets, self.length, self.body_bytes
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


def resolve(channel: ChannelBase, exchange: bytes, routing_key: bytes, header: bytes) -> PublishTarget:
    """Where a message goes, after the checks of permission, existence and properties.

    Raises:
        Refusal: no such exchange, no permission, an internal exchange, another user's user-id, a property
            that is not valid.
    """
    connection = channel.connection
    name = _text(exchange)
    vhost = connection.vhost or ""
    connection.actor.require("write", "exchange", name)
    definition = connection.broker.exchange(vhost, name)
    if definition.internal:
        raise Fault(403, f"cannot publish to internal exchange '{name}' in vhost '{vhost}'")
    if name and definition.type == "topic":
        connection.actor.require_topic("write", name, _text(routing_key))
    flags = props.property_flags(header)
    _check_properties(props.split_whole(header), connection)
    if flags & props.REPLY_TO:
        header = with_reply_name(channel.reply_consumer, header)
    keys = [routing_key]
    if flags & props.HEADERS and b"CC" in header:
        header, keys = _carbon_copies(header, keys)
    broker, asked = connection.broker, header
    queues: dict[Queue, None] = {}
    for key in keys:
        queues |= dict.fromkeys(broker.route(vhost, name, _text(key), lambda: headers_of(asked)))
    reply = None if name or not broker.direct_replies else broker.direct_replies.get(_text(routing_key))
    head = make_head(exchange, routing_key, header)
    return PublishTarget(head, list(queues), broker.topologies[vhost].exchanges[name].counters, reply)


def _check_properties(properties: dict[int, bytes], connection: ConnectionBase) -> None:
    """What is malformed would be the consumers' trouble: their clients take it for a broken connection."""
    tables.check(properties.get(props.HEADERS, b""))
    claimed, user = properties.get(props.USER_ID), connection.user or ""
    if claimed is not None and claimed != user.encode() and not _may_impersonate(connection.broker, user):
        raise PreconditionFailed(
            f"user_id property set to '{_text(claimed)}' but authenticated user was '{user}'"
        )
    expiration = properties.get(props.EXPIRATION)
    if expiration is not None and not (expiration.isdigit() and len(expiration) <= _EXPIRATION_DIGITS_MAX):
        text = _text(expiration)
        raise PreconditionFailed(f"invalid expiration '{text}': {_why_no_expiration(text)}")


def _may_impersonate(broker: Broker, user: str) -> bool:
    existing = broker.definitions.by_kind["users"].get((user,))
    return isinstance(existing, User) and IMPERSONATOR in existing.tags


def _why_no_expiration(text: str) -> str:
    """What is wrong with an expiration, in RabbitMQ's words."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    number = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    if not number:
        return "no_integer"
    if len(number) < len(digits):
        return f'{{leftover_string,"{digits[len(number) :]}"}}'
    if text.startswith("-"):
        return f"{{value_negative,{int(text)}}}"
    return f"{{value_too_large,{int(text)}}}"


def _carbon_copies(header: bytes, keys: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The header without BCC, and all routing keys: the message's own, CC's and BCC's."""
    properties = props.split(header)
    headers = tables.split(properties[props.HEADERS])
    keys = keys[:]
    for name in (b"CC", b"BCC"):
        value = headers.get(name)
        if value is None:
            continue
        if value[:1] != b"A":
            kind = "longstr" if value[:1] == b"S" else "table" if value[:1] == b"F" else "signedint"
            raise PreconditionFailed(
                f'invalid message: {{unacceptable_type_in_header,"{name.decode()}",{kind}}}'
            )
        keys += tables.texts_of(tables.split_array(value))
    if headers.pop(b"BCC", None) is not None:
        properties[props.HEADERS] = tables.join(headers)
        header = props.join(properties, props.body_bytes_of(header))
    return header, keys


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise props.SyntaxFault(f"a name is not UTF-8: {error}") from None


class Publisher:
    """One connection's publishes; owns the cache of shapes.

    Attributes:
        taken: how many there were.
    """

    def __init__(self, connection: ConnectionBase, channels: Mapping[int, ChannelBase]) -> None:
        """No shapes yet; `channels` are those that the connection has open, by number."""
        self.taken = 0
        self._connection = connection
        self._channels = channels
        self._shapes: dict[bytes, Shape] = {}
        self._shapes_bytes = 0
        self._last: Shape | None = None
        self._version = -1

    def forget(self) -> None:
        """Routes or channels changed; look everything up anew."""
        self._shapes.clear()
        self._shapes_bytes = 0
        self._last = None

    def resolve(
        self, channel: ChannelBase, exchange: bytes, routing_key: bytes, header: bytes
    ) -> PublishTarget:
        """Where a message goes, see `resolve` of the module."""
        return resolve(channel, exchange, routing_key, header)

    def fast(self, data: bytes, position: int, end: int) -> int:
        """Take publishes at `position` as long as they are whole and regular; return where that stops."""
        version = self._connection.broker.version
        if version != self._version:
            self.forget()
            self._version = version
        shape = self._last
        while True:
            if shape is None or not data.startswith(shape.octets, position):
                shape = self._next_shape(shape, data, position, end)
                if shape is None:
                    return position
                self._last = shape
            bodies = shape.bodies_all(data, position, end) or shape.bodies_first(data, position, end)
            if not bodies:
                return position
            position += len(bodies) * shape.stride
            self.count(shape.channel, len(bodies))
            self.publish(shape, bodies)
            if position >= end:
                return position

    def _next_shape(self, before: Shape | None, data: bytes, position: int, end: int) -> Shape | None:
        """The shape at `position`; what followed `before` the last time is looked at first."""
        following = before.following if before is not None else None
        if following is not None and data.startswith(following.octets, position):
            return following
        found = self._shape_at(data, position, end)
        if before is not None:
            before.following = found
        return found

    def publish(self, shape: Shape, bodies: list[bytes]) -> None:
        """Hand whole messages of one shape to their queues; number them if they are to be confirmed."""
        channel, target = shape.channel, shape.target
        transaction = channel.transaction
        if transaction is not None and transaction.committing is None:
            transaction.publishes.append((partial(self._publish_at_commit, shape), bodies))
            return
        if self._connection.broker.traced_vhosts:
            trace_published(self._connection, channel.number, target.queues, target.head, bodies)
        if self._connection.broker.refuses_durable and self._refuse_durable(shape, len(bodies)):
            return
        if target.guarded:
            self._publish_guarded(shape, bodies)
            return
        batch = self.batch_of(channel, len(bodies), refused=False)
        self.hand_over(channel, target, target.queues, bodies, batch)
        if not target.queues:
            self._unroutable(shape, bodies)

    def _publish_at_commit(self, shape: Shape, bodies: list[bytes]) -> None:
        self.publish(shape.at_commit(), bodies)

    def hand_over(
        self,
        channel: ChannelBase,
        target: PublishTarget,
        queues: list[Queue],
        bodies: list[bytes],
        batch: ConfirmBatch | None,
    ) -> None:
        """Give whole messages to these queues, which may be none of the target's."""
        head, count = target.head, len(bodies)
        dirty = self._connection.broker.dirty
        for queue in queues:
            queue.gather(head, bodies)
            dirty[queue] = None
            if batch is not None:
                needs_disk = queue.must_keep(head)
                batch.queues[queue] = needs_disk or batch.queues.get(queue, False)
        target.exchange.publish_in += count
        target.exchange.publish_out += count * len(queues)
        self._connection.counters.publish_out += count * len(queues)

    @property
    def is_ahead(self) -> bool:
        """Whether what is published now goes to queues whose consumers are far behind."""
        shape = self._last
        return shape is not None and any(queue.is_behind for queue in shape.target.queues)

    def count(self, channel: ChannelBase, count: int) -> None:
        """Messages came in on a channel."""
        self.taken += count
        counters = self._connection.counters
        channel.counters.publish += count
        counters.publish += count
        if channel.confirms is not None:
            counters.publish_confirm += count

    def _unroutable(self, shape: Shape, bodies: list[bytes]) -> None:
        """Messages that no queue took: to the client that waits for the reply, back, or away."""
        channel, target = shape.channel, shape.target
        if target.reply is not None:
            target.reply.take_reply(target.head, bodies)
            return
        for counters in (channel.counters, self._connection.counters):
            if shape.mandatory:
                counters.return_unroutable += len(bodies)
            else:
                counters.drop_unroutable += len(bodies)
        if shape.mandatory:
            for body in bodies:
                channel.return_unroutable(target.head, body)

    def _publish_guarded(self, shape: Shape, bodies: list[bytes]) -> None:
        """As many at a time as all have room for: one that is full refuses the rest, which is nacked."""
        channel, target = shape.channel, shape.target
        while bodies:
            rooms = {queue: queue.room(target.head.body_bytes) for queue in target.queues}
            full = [queue for queue, room in rooms.items() if not room]
            takers = [queue for queue, room in rooms.items() if room]
            remote = [queue for queue in takers if isinstance(queue, RemoteQueue)]
            # Another node may reject any of them: then that one is nacked, and no other.
            count = 1 if remote else min([len(bodies), *(rooms[queue] for queue in takers)])
            part, bodies = bodies[:count], bodies[count:]
            for queue in full:
                if queue.settings.overflow == REJECT_PUBLISH_DLX:
                    queue.refuse(target.head, part)
                    self._connection.broker.dirty[queue] = None
            if remote and channel.confirms is not None:
                channel.confirms.end_batch()
            batch = self.batch_of(channel, count, refused=bool(full))
            self.hand_over(channel, target, takers, part, batch)
            if batch is not None and remote and channel.confirms is not None:
                batch.places |= {queue: queue.place for queue in remote}
                channel.confirms.end_batch()

    def _refuse_durable(self, shape: Shape, count: int) -> bool:
        """Refuse what could not be confirmed now, so that nothing of it is stored; who asks for no confirm, is not."""
        channel, target = shape.channel, shape.target
        if channel.confirms is None and channel.transaction is None:
            return False
        if not any(queue.must_keep(target.head) for queue in target.queues):
            return False
        self.batch_of(channel, count, refused=True)
        return True

    def batch_of(self, channel: ChannelBase, count: int, *, refused: bool) -> ConfirmBatch | None:
        """Number publishes if they are to be confirmed; those that are refused have no batch to wait with."""
        if channel.confirms is not None:
            self._connection.confirming[channel] = None
            if not refused:
                return channel.confirms.publish(count)
            channel.confirms.refuse(count)
        elif channel.transaction is not None and channel.transaction.committing is not None:
            channel.transaction.committing.refused |= refused
            return channel.transaction.committing
        return None

    def _shape_at(self, data: bytes, position: int, end: int) -> Shape | None:
        """The shape of the publish at `position`, None unless all before its body is there and regular."""
        if (
            end - position < 12
            or data[position] != wire.FRAME_METHOD
            or data[position + FRAME_HEAD_BYTES : position + FRAME_HEAD_BYTES + 4] != wire.BASIC_PUBLISH
        ):
            return None
        _, number, size = wire.FRAME_HEAD.unpack_from(data, position)
        header_at = position + 8 + size
        if end - header_at < FRAME_HEAD_BYTES:
            return None
        kind, number2, header_size = wire.FRAME_HEAD.unpack_from(data, header_at)
        body_at = header_at + 8 + header_size
        if kind != wire.FRAME_HEADER or number2 != number or end - body_at < FRAME_HEAD_BYTES:
            return None
        octets = data[position : body_at + FRAME_HEAD_BYTES]
        found = self._shapes.get(octets)
        return found or self._new_shape(octets, number, header_at - position, body_at - position)

    def _new_shape(self, octets: bytes, number: int, header_at: int, body_at: int) -> Shape | None:
        channel = self._channels.get(number)
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
        header = octets[header_at + FRAME_HEAD_BYTES : body_at - 1]
        frame_max = self._connection.frame_max_bytes
        if (
            props.body_bytes_of(header) != size
            or size > self._connection.host.limits.message_bytes_max
            or max(size, body_at - header_at, header_at) > frame_max - wire.FRAME_OVERHEAD
        ):
            return None
        exchange, routing_key, flags = wire.split_publish(octets[FRAME_HEAD_BYTES : header_at - 1])
        try:
            target = self.resolve(channel, exchange, routing_key, header)
        except (Refusal, Fault):
            return None
        if flags & _IMMEDIATE:
            return None
        shape = Shape(octets, channel, target, bool(flags & _MANDATORY))
        self._shapes_bytes += len(octets)
        if len(self._shapes) >= SHAPES_MAX or self._shapes_bytes > SHAPES_BYTES_MAX:
            self._shapes.clear()
            self._shapes_bytes = len(octets)
        self._shapes[octets] = shape
        return shape

    def finish(self, channel: ChannelBase, incoming: IncomingMessage) -> None:
        """Publish a message that came the long way."""
        if incoming.flags & _IMMEDIATE:
            raise Fault(540, "immediate=true")
        target = self.resolve(channel, incoming.exchange, incoming.routing_key, incoming.header or b"")
        self.count(channel, 1)
        shape = Shape(b"", channel, target, bool(incoming.flags & _MANDATORY))
        self.publish(shape, [bytes(incoming.body)])
