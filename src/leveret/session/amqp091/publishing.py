"""Publishing, the hot path in.

Applications' messages differ: in their ids, times, trace headers, and in the sizes of their bodies. Their targets
repeat, so the octets of a `basic.publish` method are a known **route** to a channel and its queues. The contents are
opaque, except the properties that `wire.content_header` reads. So the frames of a whole read are found first, and
messages are gathered by columns for each **destination**, a list of queues. The columns of a destination of one queue
are the queue's own, for all publishers until the next flush; several queues get all their messages of one read at once.

Messages that are alike but for their bodies are the easy case: the octets up to the body are a known **shape**, and a
run of bodies is sliced out at once. Everything else takes the long path, frame by frame, which also finds all errors.
A read may end in the midst of a message, and some clients send each frame by itself: a message that is regular so far
waits for its rest, because its frames cost much less together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar, Final

from leveret.core.broker.deferred_work import ENOUGH
from leveret.core.queues.confirms import ConfirmBatch, ConfirmParts
from leveret.core.queues.head import Head, head_of_octets, make_head
from leveret.core.queues.messages import Messages, alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import REJECT_PUBLISH_DLX
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model.errors import LeveretError
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.destinations import Destination, PublishRoute, Shape, Source
from leveret.session.amqp091.direct_reply import REPLY_TO, with_reply_name
from leveret.session.amqp091.incoming import IncomingMessage
from leveret.session.amqp091.replies import Fault
from leveret.session.amqp091.routing import (
    HEADER_BYTES_OF_A_FRAME,
    Resolved,
    find_targets,
    is_expiration,
    resolve,
)
from leveret.session.amqp091.settling import answered_at_end
from leveret.session.amqp091.tracing import trace_published
from leveret.wire import amqp091 as wire
from leveret.wire import properties as props
from leveret.wire.amqp091 import FRAME_HEAD_BYTES
from leveret.wire.content_header import TRANSIENT, Traits, named_octets
from leveret.wire.strides import BULK_MIN

ROUTES_MAX: Final = 4096
"""The most routes of a connection, and the most destinations."""
ROUTES_BYTES_MAX: Final = 1024 * 1024
"""The most octets of all routes of a connection, so that long names that never repeat are not all cached."""
NAMED_BYTES_MAX: Final = 256
"""The most octets of the headers by which a destination is known."""
ROUTES_OF_NODE_MAX: Final = 100_000
"""The most routes and destinations of all connections; each takes up to a kilobyte."""
LARGE_HEADER_BYTES: Final = 4096
"""A longer header counts for the turn, however regular its message: its check takes 0.1 us an octet."""
QUEUES_A_TURN: Final = 8
"""The number of queues of a wide destination that get messages with one flush. A new log takes 0.2 to 0.6 ms."""
_MANDATORY: Final = 1
_IMMEDIATE: Final = 2
_PROPERTIES_AT: Final = 4 + 14
"""The position of the properties in a content header with its size before it."""
_NEXT_FRAME: Final = struct.Struct(">B3xI")
"""A frame end, and the size of the frame behind it."""
_NEXT_BYTES: Final = _NEXT_FRAME.size
_LOOKED_INTO: Final = props.REPLY_TO | props.USER_ID | props.EXPIRATION
"""The properties whose values may have to be checked or changed; in the headers these are CC and BCC."""
_C: Final = ord("C")
_NO_PROPERTIES: Final = b"\x00\x3c" + bytes(12)
"""A content header without properties and body."""
_REPLY_TO: Final = REPLY_TO.encode()


class Publisher:
    """One connection's publishes; owns the cache of routes.

    Attributes:
        taken: the number of publishes.
        missing_bytes: the least octets to wait for, if the read ends within a regular publish; 0 if it ends otherwise.
        gathers_at_queues: whether messages may be gathered at their queues, together with those of others.
    """

    gathers_at_queues: ClassVar[bool] = True

    def __init__(self, connection: ConnectionBase, channels: Mapping[int, ChannelBase]) -> None:
        """Begin without routes; `channels` are the open channels of the connection, by number."""
        self.taken = self.missing_bytes = 0
        self._connection = connection
        self._channels = channels
        self._routes: dict[bytes, PublishRoute] = {}
        self._routes_bytes = 0
        self._named = 0
        """The number of destinations that routes know by headers."""
        self._destinations: dict[tuple[object, ...], Destination] = {}
        self._sources: dict[tuple[int, bytes], Source] = {}
        self._looks_at_each = False
        self._gathering: list[Destination] = []
        self._gathers_one_alone = False
        self._gathering_queues: set[Queue] = set()
        self._last: Destination | None = None
        self._shape: Shape | None = None
        self._version = -1

    def forget(self) -> None:
        """Forget all routes and destinations, because routes or channels changed."""
        self._forget_routes()
        self._last = None
        self._shape = None

    def resolve(self, channel: ChannelBase, exchange: bytes, routing_key: bytes, header: bytes) -> Resolved:
        """The destination of a message, see the function `resolve`."""
        return resolve(channel, exchange, routing_key, header)

    def fast(self, data: bytes, position: int, end: int) -> int:
        """Take whole and regular publishes from `position` on; return the position behind them.

        If `missing_bytes` is set, `data` ends there in the midst of another one.
        """
        was_missing, self.missing_bytes = self.missing_bytes, 0
        if not data.startswith(wire.BASIC_PUBLISH, position + FRAME_HEAD_BYTES):
            return position
        if was_missing and self._connection.host.alarms.active:
            # A message whose method came before the alarm: it alone is taken.
            return position
        broker = self._connection.broker
        looks_at_each = broker.refuses_durable or bool(broker.traced_vhosts)
        if broker.version != self._version or looks_at_each != self._looks_at_each:
            self.forget()
            self._version, self._looks_at_each = broker.version, looks_at_each
        while True:
            shape = self._shape
            if (
                shape is not None
                and data.startswith(shape.before, position)
                and shape.destination.channel.incoming is None
            ):
                bodies = shape.bodies(data, position, end) or shape.bodies_first(data, position, end)
                if not bodies:
                    self.missing_bytes = max(0, position + shape.stride - end)
                    return position
                position += len(bodies) * shape.stride
                self._last = shape.destination
                self._publish(shape.destination, alike(shape.head, bodies))
                if self._connection.awaits_answer:
                    return position
                if len(bodies) < BULK_MIN and position < end:
                    self._shape = None
            else:
                before, position = position, self._gather(data, position, end)
                if self._gathering:
                    self._hand_over_gathered()
                if self.missing_bytes or self._connection.awaits_answer:
                    return position
                if position == before and self._shape is shape:
                    return position
            if position >= end:
                return position

    def _gather(self, data: bytes, position: int, end: int) -> int:
        """Gather whole regular messages by their destinations, until several are alike.

        Return the position behind them.
        """
        if end - position < FRAME_HEAD_BYTES:
            return position
        fixed, next_body = wire.HEADER_BEGIN.unpack_from, wire.NEXT_BODY.unpack_from
        next_frame, frame_end, basic = _NEXT_FRAME.unpack_from, wire.FRAME_END, wire.CLASS_BASIC
        routes, read_traits = self._routes, self._connection.broker.headers.read
        last_fixed, last_next = end - wire.HEADER_BEGIN.size, end - _NEXT_BYTES
        content_max = self._content_bytes_max
        last_header, last_route, alike_count, count = b"", None, 0, 0
        current: Destination | None = None
        source: Source | None = None
        stored, traits = b"", TRANSIENT
        method_bytes = 8 + int.from_bytes(data[position + 3 : position + 7], "big")
        while method_bytes:
            # The frames of one message; each frame head is unpacked together with the end of the frame before.
            header_at = position + method_bytes
            route = routes.get(data[position:header_at])
            if route is None:
                route = self._new_route(data, position, end)
                if route is None:
                    break
            if header_at > last_fixed:
                break
            head, size, of_class, body_size, flags = fixed(data, header_at)
            header_end = header_at + FRAME_HEAD_BYTES + size
            body_at = header_end + 8
            stop = body_at + body_size
            if stop <= last_next:
                octet, following_bytes = next_frame(data, stop)
                following_bytes += 8
            elif stop < end:
                octet, following_bytes = data[stop], 0
            else:
                break
            if (
                octet != frame_end
                or head != route.header_head
                or of_class != basic
                or next_body(data, header_end) != (route.body_head, body_size)
                or size + body_size > content_max
                or not body_size
                or (size > LARGE_HEADER_BYTES and self._connection.is_turn_over)
            ):
                break
            header = data[header_at + 3 : header_end]
            if header == last_header and route is last_route and current is not None:
                alike_count += 1
                if alike_count == BULK_MIN:
                    alike_head = head_of_octets(route.octets, stored[4:])
                    self._shape = Shape(data[position:body_at], alike_head, current)
                    break
            else:
                if header != last_header:
                    try:
                        traits = read_traits(header, _PROPERTIES_AT, flags)
                    except props.SyntaxFault:
                        break
                destination, stored = route.destination, header
                # `in` raises and drops an exception for octets. One octet is found in a tenth of the time of two.
                if (
                    destination is None
                    or flags & _LOOKED_INTO
                    or (header.find(_C) >= 0 and header.find(b"CC") >= 0)
                ):
                    if self._connection.is_turn_over or route.channel.incoming is not None:
                        # To find where it goes may take long, or frames of another message are due.
                        break
                    found = self._look_into(route, header, flags, traits)
                    if found is None:
                        break
                    destination, stored = found
                if destination.source is not source:
                    if source is not None:
                        self._gathered_at_queues(source, count)
                    source, count = destination.source, 0
                    is_held_up = self._gathers_one_alone and not self._hand_over_alone()
                    if is_held_up or route.channel.incoming is not None:
                        break
                if traits is not destination.traits and not self._turn_to(destination, traits):
                    break
                if size > LARGE_HEADER_BYTES and header != last_header:
                    self._connection.take_turn(size // HEADER_BYTES_OF_A_FRAME)
                current = destination
                last_header, last_route, alike_count = header, route, 1
            count += 1
            current.routes.append(route.octets)
            current.headers.append(stored)
            current.bodies.append(data[body_at:stop])
            position, method_bytes = stop + 1, following_bytes
        if source is not None:
            self._gathered_at_queues(source, count)
        if current is not None:
            self._last = current
        if method_bytes and route is not None:
            self.missing_bytes = route.missing_bytes(data, header_at, content_max)
        return position

    @property
    def _content_bytes_max(self) -> int:
        """The most octets of a header and a body, each in one frame."""
        connection = self._connection
        return min(connection.host.limits.message_bytes_max, connection.frame_max_bytes - wire.FRAME_OVERHEAD)

    def _turn_to(self, destination: Destination, traits: Traits) -> bool:
        """Gather for a further destination; each queue still gets its messages in the order of their arrival.

        Return False if the destination has to wait until the gathered messages are published.
        """
        queues = destination.queues
        if destination.source is not None:
            if self._gathering and not self._gathering_queues.isdisjoint(queues):
                self._hand_over_gathered()
            self._turn_to_queue(destination, queues[0], traits)
            return True
        before = destination.traits
        if before is None or before.terms != traits.terms:
            if destination.channel.incoming is not None:
                # Frames of another message are due.
                return False
            if self._gathering:
                if self._gathering[0].is_wide:
                    # Its queues get messages in several steps, and later messages may be for one of them.
                    return False
                if (
                    before is not None
                    or destination.is_alone
                    or self._gathers_one_alone
                    or self._looks_at_each
                    or not self._gathering_queues.isdisjoint(queues)
                ):
                    self._hand_over_gathered()
            for queue in queues:
                # Later messages to one of them come back here, so that these are handed over before.
                queue.gathered.close()
            self._gathering.append(destination)
            self._gathering_queues.update(queues)
            self._gathers_one_alone = destination.is_alone
        destination.traits = traits
        if traits.is_persistent:
            destination.is_persistent = True
        return True

    def _turn_to_queue(self, destination: Destination, queue: Queue, traits: Traits) -> None:
        """Gather at the queue until its next flush, or until other messages for it come in between.

        The open batch of the channel waits for the queue from now on. If it ends before the flush, so do the columns
        (`_end_batch`), and the next message comes back here to have the next batch wait.
        """
        queue.gathered.open(traits.terms).admit(destination, traits)
        connection, channel = self._connection, destination.channel
        connection.broker.dirty[queue] = None
        if channel.confirms is not None:
            connection.confirming[channel] = None
            waits_for = channel.confirms.publish(0).queues
            if not waits_for.get(queue):
                waits_for[queue] = queue.must_keep(traits.is_persistent)

    def _hand_over_alone(self) -> bool:
        """Publish messages that are to be gathered alone; return False if later ones have to wait."""
        if self._gathering[0].is_wide:
            return False
        self._hand_over_gathered()
        return True

    def _gathered_at_queues(self, source: Source, count: int) -> None:
        """Count and number messages that were gathered at their queues."""
        if not count:
            return
        self.count(source.channel, count)
        if source.channel.confirms is not None:
            source.channel.confirms.publish(count)
        source.exchange.publish_in += count
        source.exchange.publish_out += count
        self._connection.counters.publish_out += count

    def _end_batch(self, channel: ChannelBase) -> None:
        """End a channel's open batch of confirms; what it waits for is complete."""
        ended = None if channel.confirms is None else channel.confirms.end_batch()
        for queue in () if ended is None else ended.queues:
            assert isinstance(queue, Queue)
            queue.gathered.close()

    def _hand_over_gathered(self) -> None:
        """Publish the gathered messages."""
        gathering, self._gathering = self._gathering, []
        self._gathers_one_alone = False
        self._gathering_queues.clear()
        channel: ChannelBase | None = None
        count = 0
        for destination in gathering:
            if destination.channel is not channel:
                if channel is not None:
                    self.count(channel, count)
                channel, count = destination.channel, 0
            messages = destination.take()
            count += len(messages)
            self.publish(destination, messages)
        if channel is not None:
            self.count(channel, count)

    def _publish(self, destination: Destination, messages: Messages) -> None:
        self.count(destination.channel, len(messages))
        self.publish(destination, messages)

    def _look_into(
        self, route: PublishRoute, header: bytes, flags: int, traits: Traits
    ) -> tuple[Destination, bytes] | None:
        """Destination and header of a message that need more than its route; None if the message is refused."""
        known = route.destination
        expiration, _ = traits.terms
        if expiration and not is_expiration(expiration):
            return None
        try:
            if (
                flags & props.USER_ID
                or (flags & props.HEADERS and b"CC" in header)
                or (flags & props.EXPIRATION and not expiration)
            ):
                found = self.resolve(route.channel, route.exchange, route.routing_key, header[4:])
            else:
                if flags & props.REPLY_TO and _REPLY_TO in header:
                    named = with_reply_name(route.channel.reply_consumer, header[4:])
                    header = len(named).to_bytes(4, "big") + named
                return known or self._by_headers(route, header), header
        except LeveretError:
            # The long path raises the same error, in its place.
            return None
        sized = len(found.header).to_bytes(4, "big") + found.header
        return self._destination(route.channel, route.exchange, found, mandatory=route.mandatory), sized

    def _by_headers(self, route: PublishRoute, header: bytes) -> Destination:
        """The destination of a message whose headers decide it; headers with the same octets have the same.

        Raises:
            LeveretError: the message is refused.
        """
        names, octets = route.names, b""
        if names is not None:
            octets = named_octets(header[4:], names)
            known = route.by_headers.get(octets)
            if known is not None:
                return known
        # The route was checked, but for the headers.
        found = find_targets(route.channel, route.exchange.decode(), [route.routing_key], header[4:])
        destination = self._destination(route.channel, route.exchange, found, mandatory=route.mandatory)
        route.names = found.by_headers[0] if len(found.by_headers) == 1 else None
        if names is not None and names is route.names and len(octets) <= NAMED_BYTES_MAX:
            self._make_room(is_full=self._named >= ROUTES_MAX)
            route.by_headers[octets] = destination
            self._named += 1
            self._connection.broker.known_routes += 1
        return destination

    def _destination(
        self, channel: ChannelBase, exchange: bytes, found: Resolved, *, mandatory: bool
    ) -> Destination:
        """The destination shared by all routes to the same queues."""
        key = (channel.number, exchange, mandatory, found.replies, *found.queues)
        known = self._destinations.get(key)
        if known is None:
            self._make_room(is_full=len(self._destinations) >= ROUTES_MAX)
            known = Destination(channel, found.queues, found.exchange, found.replies, mandatory=mandatory)
            if self.gathers_at_queues and self._may_gather_at_queue(known):
                source = self._sources.get((channel.number, exchange))
                if source is None:
                    source = self._sources[channel.number, exchange] = Source(channel, found.exchange)
                known.source = source
            self._destinations[key] = known
            self._connection.broker.known_routes += 1
        return known

    def _may_gather_at_queue(self, destination: Destination) -> bool:
        """Whether its messages need no look before a queue has them, and go to nobody else."""
        return (
            len(destination.queues) == 1
            and not (destination.replies or destination.guarded or self._looks_at_each)
            and destination.channel.transaction is None
        )

    def _new_route(self, data: bytes, position: int, end: int) -> PublishRoute | None:
        """The route of the publish at `position`; None for one that takes the long path."""
        kind, number, size = wire.FRAME_HEAD.unpack_from(data, position)
        stop = position + FRAME_HEAD_BYTES + size
        if (
            kind != wire.FRAME_METHOD
            or stop >= end
            or data[stop] != wire.FRAME_END
            or not data.startswith(wire.BASIC_PUBLISH, position + FRAME_HEAD_BYTES)
            or size > self._connection.frame_max_bytes - wire.FRAME_OVERHEAD
        ):
            return None
        channel = self._channels.get(number)
        if channel is None or channel.is_closing or channel.incoming:
            return None
        try:
            exchange, routing_key, flags = wire.split_publish(data[position + FRAME_HEAD_BYTES : stop])
            found = self.resolve(channel, exchange, routing_key, _NO_PROPERTIES)
        except LeveretError:
            return None
        if flags & _IMMEDIATE:
            return None
        mandatory = bool(flags & _MANDATORY)
        destination = (
            None if found.by_headers else self._destination(channel, exchange, found, mandatory=mandatory)
        )
        route = PublishRoute(channel, exchange, routing_key, destination, mandatory=mandatory)
        octets = data[position : stop + 1]
        self._remember(octets, route)
        return route

    def _remember(self, octets: bytes, route: PublishRoute) -> None:
        self._make_room(
            is_full=len(self._routes) >= ROUTES_MAX or self._routes_bytes + len(octets) > ROUTES_BYTES_MAX
        )
        self._routes[octets] = route
        self._routes_bytes += len(octets)
        self._connection.broker.known_routes += 1

    def _make_room(self, *, is_full: bool) -> None:
        """Forget all routes before one more would be too many, for this connection or for the node."""
        if is_full or self._connection.broker.known_routes >= ROUTES_OF_NODE_MAX:
            self._forget_routes()

    def _forget_routes(self) -> None:
        self._connection.broker.known_routes -= len(self._routes) + len(self._destinations) + self._named
        self._routes.clear()
        self._named = 0
        self._destinations.clear()
        self._sources.clear()
        self._routes_bytes = 0

    def publish(self, destination: Destination, messages: Messages) -> None:
        """Publish whole messages to their queues; number them if they are to be confirmed."""
        channel = destination.channel
        transaction = channel.transaction
        if transaction is not None and transaction.committing is None:
            transaction.publishes.append((partial(self._publish_at_commit, destination), messages))
            transaction.reached += len(destination.queues)
            return
        broker = self._connection.broker
        if (broker.traced_vhosts or broker.refuses_durable) and not self._takes(destination, messages):
            return
        for reply in destination.replies:
            reply.take_reply(messages)
        if destination.is_wide:
            self._publish_in_turns(destination, messages)
            return
        if destination.guarded:
            for head, bodies in messages.by_head():
                self._publish_guarded(destination, head, bodies)
            return
        batch = self.batch_of(channel, len(messages.bodies), refused=False)
        self.hand_over(destination, destination.queues, messages, batch)
        if not destination.queues:
            self._unroutable(destination, messages)

    def _takes(self, destination: Destination, messages: Messages) -> bool:
        """Whether messages may go to queues now."""
        broker = self._connection.broker
        if broker.traced_vhosts:
            trace_published(self._connection, destination.channel.number, destination.queues, messages)
        return not (broker.refuses_durable and self._refuse_durable(destination, messages))

    def _publish_in_turns(self, destination: Destination, messages: Messages) -> None:
        channel, parts = destination.channel, None
        if channel.confirms is not None:
            self._end_batch(channel)
            batch = channel.confirms.publish_apart(len(messages))
            parts = ConfirmParts(self._connection.broker.confirming, lambda _, ok: channel.confirm(batch, ok))

        def work() -> Iterator[object]:
            yield from self._hand_over_in_turns(destination, messages, parts)
            if parts is not None:
                parts.end()
            done()

        with answered_at_end(self._connection) as done:
            self._connection.broker.deferred_work.begin(work())

    def _hand_over_in_turns(
        self, destination: Destination, messages: Messages, parts: ConfirmParts | None
    ) -> Iterator[object]:
        """Publish whole messages to many queues: to some with each flush, with other clients served in between."""
        existing = self._connection.broker.queues
        for first in range(0, len(destination.queues), QUEUES_A_TURN):
            keys = [queue.key for queue in destination.queues[first : first + QUEUES_A_TURN]]
            queues = [existing[key] for key in keys if key in existing]
            self.hand_over(destination, queues, messages, None if parts is None else parts.batch())
            if first:
                # They arrived once.
                destination.exchange.publish_in -= len(messages)
            yield ENOUGH

    def _publish_at_commit(
        self, destination: Destination, messages: Messages, parts: ConfirmParts | None
    ) -> Iterator[object]:
        """See transactions.CommittedPublish."""
        now = destination.at_commit()
        if parts is None or not now.is_wide:
            self.publish(now, messages)
        elif self._takes(now, messages):
            yield from self._hand_over_in_turns(now, messages, parts)

    def hand_over(
        self,
        destination: Destination,
        queues: list[Queue],
        messages: Messages,
        batch: ConfirmBatch | None,
    ) -> None:
        """Publish whole messages to these queues, which may differ from the destination's."""
        connection, exchange = self._connection, destination.exchange
        count = len(messages.bodies)
        dirty = connection.broker.dirty
        for queue in queues:
            queue.gathered.add(messages)
            dirty[queue] = None
            if batch is not None and not batch.queues.get(queue):
                batch.queues[queue] = queue.must_keep(messages.is_persistent)
        exchange.publish_in += count
        count *= len(queues)
        exchange.publish_out += count
        connection.counters.publish_out += count

    @property
    def outpaces_consumers(self) -> bool:
        """Whether the last publishes went to queues whose consumers are far behind."""
        last = self._last
        return last is not None and any(queue.is_behind for queue in last.queues)

    def count(self, channel: ChannelBase, count: int) -> None:
        """Count messages that arrived on a channel."""
        self.taken += count
        counters = self._connection.counters
        channel.counters.publish += count
        counters.publish += count
        if channel.confirms is not None:
            counters.publish_confirm += count

    def _unroutable(self, destination: Destination, messages: Messages) -> None:
        """Handle messages without a queue: return them or drop them; direct replies are not dropped."""
        channel = destination.channel
        if destination.replies and not destination.mandatory:
            return
        for counters in (channel.counters, self._connection.counters):
            if destination.mandatory:
                counters.return_unroutable += len(messages)
            else:
                counters.drop_unroutable += len(messages)
        if destination.mandatory:
            for head, bodies in messages.by_head():
                for body in bodies:
                    channel.return_unroutable(head, body)

    def _publish_guarded(self, destination: Destination, head: Head, bodies: list[bytes]) -> None:
        """Publish as many at a time as all queues have room for; one that is full refuses the rest, which is nacked."""
        channel = destination.channel
        while bodies:
            rooms = {queue: queue.room(head.body_bytes) for queue in destination.queues}
            full = [queue for queue, room in rooms.items() if not room]
            takers = [queue for queue, room in rooms.items() if room]
            remote = [queue for queue in takers if isinstance(queue, RemoteQueue)]
            # The node of a remote queue may reject any single message: then that one is nacked, and no other.
            count = 1 if remote else min([len(bodies), *(rooms[queue] for queue in takers)])
            part, bodies = alike(head, bodies[:count]), bodies[count:]
            for queue in full:
                if queue.settings.overflow == REJECT_PUBLISH_DLX:
                    queue.refuse(part)
                    self._connection.broker.dirty[queue] = None
            if remote:
                self._end_batch(channel)
            batch = self.batch_of(channel, count, refused=bool(full))
            self.hand_over(destination, takers, part, batch)
            if batch is not None and remote:
                batch.places |= {queue: queue.place for queue in remote}
                self._end_batch(channel)

    def _refuse_durable(self, destination: Destination, messages: Messages) -> bool:
        """Refuse publishes with confirms that could not be confirmed now, before any of them is stored."""
        channel = destination.channel
        if channel.confirms is None and channel.transaction is None:
            return False
        if not any(queue.must_keep(messages.is_persistent) for queue in destination.queues):
            return False
        self.batch_of(channel, len(messages), refused=True)
        return True

    def batch_of(self, channel: ChannelBase, count: int, *, refused: bool) -> ConfirmBatch | None:
        """Number publishes if they are to be confirmed; refused ones have no batch to wait with."""
        if channel.confirms is not None:
            self._connection.confirming[channel] = None
            if not refused:
                return channel.confirms.publish(count)
            self._end_batch(channel)
            channel.confirms.refuse(count)
        elif channel.transaction is not None and channel.transaction.committing is not None:
            channel.transaction.committing.refused |= refused
            return channel.transaction.committing
        return None

    def finish(self, channel: ChannelBase, incoming: IncomingMessage) -> None:
        """Publish a message of the long path."""
        if incoming.flags & _IMMEDIATE:
            raise Fault(540, "immediate=true")
        self.publish_one(
            channel,
            incoming.exchange,
            incoming.routing_key,
            incoming.header or b"",
            incoming.body.getvalue(),
            mandatory=bool(incoming.flags & _MANDATORY),
        )

    def publish_one(
        self,
        channel: ChannelBase,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
        *,
        mandatory: bool,
    ) -> Destination:
        """Publish a message by its parts; return its destination.

        Raises:
            LeveretError: see `resolve`.
        """
        found = self.resolve(channel, exchange, routing_key, header)
        destination = Destination(channel, found.queues, found.exchange, found.replies, mandatory=mandatory)
        self._last = destination
        self._publish(destination, alike(make_head(exchange, routing_key, found.header), [body]))
        return destination
