"""Delivery: a channel's consumers and unacked deliveries, and the frames of delivered messages."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from struct import Struct
from typing import Any, Final, Protocol

from pamqp import commands

from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.counters import Counters
from leveret.core.queues.head import Head
from leveret.core.queues.messages import Messages, Run
from leveret.core.rules.queue_arguments import check_consumer_arguments
from leveret.core.rules.validation import CLASSIC, STREAM, queue_type
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.pieces import LARGE_PIECE_BYTES
from leveret.session.amqp091.tracing import trace_delivered
from leveret.wire import amqp091 as wire

_pack_tag: Callable[[int], bytes] = Struct(">Q").pack
UNLIMITED: Final = 1 << 30
FEW: Final = 16
"""The most runs of deliveries, or consumers, that are handled in one step; more take several (settling)."""
BLOCK_RUNS: Final = 512
"""The most runs in a block of unsettled deliveries to which a run is added; splits may double it."""
AROUND_MAX: Final = 1024
"""The most routes for which a consumer caches prepared octets."""


class ConsumerSource(DeliverySource, Protocol):
    """A queue of any leader, with which a channel registers its consumers."""

    def add_consumer(self, consumer: ChannelConsumer) -> None:
        """Register a consumer."""

    def remove_consumer(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer."""


class Unacked:
    """Deliveries with consecutive tags and consecutive offsets of one queue."""

    __slots__ = ("consumer", "count", "delivered_at_ms", "offset", "queue", "tag")

    def __init__(
        self,
        tag: int,
        offset: int,
        count: int,
        queue: DeliverySource,
        consumer: ChannelConsumer | None,
        delivered_at_ms: int,
    ) -> None:
        """`consumer` is None for messages of a basic.get."""
        self.tag = tag
        self.offset = offset
        self.count = count
        self.queue = queue
        self.consumer = consumer
        self.delivered_at_ms = delivered_at_ms

    def part(self, first: int, count: int) -> Unacked:
        """The `count` deliveries from index `first` on, as a run of their own."""
        return Unacked(
            self.tag + first, self.offset + first, count, self.queue, self.consumer, self.delivered_at_ms
        )


class UnackedRuns:
    """A channel's unsettled deliveries in order of tag.

    The runs are in blocks of bounded length, none of them empty unless it is the only one. So an ack of a run in the
    middle costs as much with 100,000 runs as with a thousand.
    """

    def __init__(self) -> None:
        """Begin without deliveries."""
        self._blocks: list[deque[Unacked]] = [deque()]
        self.count = 0

    def add(self, run: Unacked) -> None:
        """Append a run, whose tags follow all others; joins it with the last one if possible.

        So messages that were delivered together are returned together, even if they differ.
        """
        self.count += run.count
        block = self._blocks[-1]
        last = block[-1] if block else None
        if (
            last is not None
            and last.offset + last.count == run.offset
            and last.tag + last.count == run.tag
            and last.queue is run.queue
            and last.consumer is run.consumer
            and last.delivered_at_ms == run.delivered_at_ms
        ):
            last.count += run.count
        elif len(block) < BLOCK_RUNS:
            block.append(run)
        else:
            self._blocks.append(deque((run,)))

    def take_up_to(self, tag: int) -> Collection[Unacked]:
        """Remove and return all deliveries with a tag of at most `tag`; 0 means all."""
        newest = self._blocks[-1]
        is_few = len(self._blocks) == 1 and len(newest) <= FEW
        if not is_few and (not tag or newest[-1].tag + newest[-1].count - 1 <= tag):
            return self._replace(())
        taken: list[Unacked] = []
        block = self._blocks[0]
        while block and (not tag or block[0].tag <= tag):
            run = block[0]
            if tag and run.tag + run.count - 1 > tag:
                taken.append(_split_front(run, tag - run.tag + 1))
                break
            taken.append(block.popleft())
            block = block or self._next_block()
        self.count -= sum(run.count for run in taken)
        return taken

    def take_first(self, count: int) -> list[Unacked]:
        """Remove and return at most `count` runs from the front; empty if there is none."""
        taken: list[Unacked] = []
        block = self._blocks[0]
        while block and len(taken) < count:
            taken.append(block.popleft())
            block = block or self._next_block()
        self.count -= sum(run.count for run in taken)
        return taken

    def take_of(self, source: DeliverySource) -> list[Unacked]:
        """Remove and return all deliveries of one queue."""
        taken = [run for run in self if run.queue is source]
        if taken:
            self._replace([run for run in self if run.queue is not source])
        return taken

    def put_back(self, runs: Collection[Unacked]) -> None:
        """Put removed runs back (a rolled back transaction): all in one call, because each call sorts."""
        self._replace(sorted([*self, *runs], key=lambda run: run.tag))

    def take_one(self, tag: int) -> Unacked | None:
        """Remove and return one delivery, None if it is not there."""
        return self.take_from(tag, tag)

    def take_from(self, tag: int, last: int) -> Unacked | None:
        """Remove and return the delivery with a tag, and those of its run up to `last`.

        None if there is no such tag.
        """
        number = index = 0
        block = self._blocks[0]
        if not block:
            return None
        run = block[0]
        if not run.tag <= tag < run.tag + run.count:
            number = self._block_of(tag)
            block = self._blocks[number]
            index = _index_in(block, tag)
            if index < 0:
                return None
            run = block[index]
        before = tag - run.tag
        count = min(run.count - before, last - tag + 1)
        self.count -= count
        if count == run.count:
            del block[index]
            if not block and len(self._blocks) > 1:
                del self._blocks[number]
            return run
        if not before:
            return _split_front(run, count)
        taken = run.part(before, count)
        after = run.count - before - count
        if after:
            block.insert(index + 1, run.part(before + count, after))
            if len(block) > 2 * BLOCK_RUNS:
                rest = deque(block.pop() for _ in range(BLOCK_RUNS))
                rest.reverse()
                self._blocks.insert(number + 1, rest)
        run.count = before
        return taken

    @property
    def oldest(self) -> Unacked | None:
        """The run with the lowest tags, None if nothing is unsettled."""
        block = self._blocks[0]
        return block[0] if block else None

    def __contains__(self, tag: int) -> bool:
        """Whether this delivery is unsettled."""
        return _index_in(self._blocks[self._block_of(tag)], tag) >= 0

    def __len__(self) -> int:
        """The number of runs."""
        return sum(map(len, self._blocks))

    def __iter__(self) -> Iterator[Unacked]:
        """The runs, oldest first."""
        return chain.from_iterable(self._blocks)

    def _block_of(self, tag: int) -> int:
        """The number of the only block that may hold `tag`; the first one is looked at first."""
        blocks = self._blocks
        if len(blocks) == 1 or tag < blocks[1][0].tag:
            return 0
        return bisect_right(blocks, tag, key=_first_tag) - 1

    def _next_block(self) -> deque[Unacked]:
        """Remove the first block, which is empty, and return the next one; the only block stays."""
        if len(self._blocks) > 1:
            del self._blocks[0]
        return self._blocks[0]

    def _replace(self, runs: Iterable[Unacked]) -> list[Unacked]:
        """Hold these runs, and return all that were held."""
        held = list(self)
        left, self._blocks, self.count = iter(runs), [], 0
        while block := deque(islice(left, BLOCK_RUNS)):
            self._blocks.append(block)
            self.count += sum(run.count for run in block)
        self._blocks = self._blocks or [deque()]
        return held


def _first_tag(block: deque[Unacked]) -> int:
    return block[0].tag


def _index_in(runs: deque[Unacked], tag: int) -> int:
    """The index of the run that holds `tag`, -1 for none."""
    if not runs or tag < runs[0].tag:
        return -1
    low, high = 0, len(runs)
    while high - low > 1:
        middle = (low + high) // 2
        if runs[middle].tag <= tag:
            low = middle
        else:
            high = middle
    return low if tag < runs[low].tag + runs[low].count else -1


def _split_front(run: Unacked, count: int) -> Unacked:
    """Cut the first `count` deliveries off `run`."""
    front = run.part(0, count)
    run.tag += count
    run.offset += count
    run.count -= count
    return front


class ChannelConsumer:
    """One basic.consume on one channel.

    Attributes:
        arguments: the arguments of the basic.consume.
        prefetch: the most unacked deliveries, 0 for no limit.
        last_of_stream: of a stream's consumer, the messages that were delivered last.
        stream_begin: of a stream's consumer, the offset at which it began; None while that is not known.
    """

    __slots__ = (
        "_heads",
        "_reads_stream",
        "arguments",
        "channel",
        "exclusive",
        "last_of_stream",
        "no_ack",
        "prefetch",
        "priority",
        "queue",
        "stream_begin",
        "tag",
        "unacked_count",
    )

    def __init__(
        self,
        channel: DeliveryChannel,
        queue: ConsumerSource,
        tag: bytes,
        method: commands.Basic.Consume,
        prefetch: int,
    ) -> None:
        """Read the method's arguments.

        Raises:
            PreconditionFailed: an argument is invalid.
        """
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.arguments: dict[str, Any] = dict(method.arguments or {})
        self.no_ack = method.no_ack
        kind = queue_type(queue.definition.arguments)
        # As in RabbitMQ, the other types have no exclusive consumers.
        self.exclusive = method.exclusive and kind == CLASSIC
        self.prefetch = prefetch
        check_consumer_arguments(queue.definition, self.arguments)
        self.priority: int = self.arguments.get("x-priority", 0)
        self.unacked_count = 0
        self.last_of_stream: Messages | None = None
        self.stream_begin: int | None = None
        self._reads_stream = kind == STREAM
        self._heads = DeliverHeads(channel.number, tag)

    def capacity(self) -> int:
        """See core.queues.consumers: by the prefetch of consumer and channel, and the socket's back-pressure."""
        channel = self.channel
        if not channel.connection.takes_deliveries():
            return 0
        room = self.prefetch - self.unacked_count if self.prefetch and not self.no_ack else UNLIMITED
        if channel.global_prefetch:
            left = channel.global_prefetch - channel.limited_count
            channel.was_full = channel.was_full or left <= 0
            # As in RabbitMQ, a full channel gives nothing to consumers without acks either, which do not count.
            room = min(room, left) if left <= 0 or not self.no_ack else room
        return room

    def begins_at(self, offset: int) -> None:
        """See core.queues.stream.StreamConsumer."""
        self.stream_begin = offset

    def queue_deleted(self) -> None:
        """Note that the queue is gone: RabbitMQ's consumer_cancel_notify, if the client asked for it."""
        self.channel.consumer_cancelled(self)

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        """Frame the runs, and keep them as unacked unless they need no acknowledgement."""
        channel = self.channel
        if channel.global_prefetch and len(channel.consumers) > 1 and self.tag in channel.consumers:
            channel.consumers[self.tag] = channel.consumers.pop(self.tag)
        for run in runs:
            messages = run.taken()
            count = len(messages)
            if self._reads_stream:
                self.last_of_stream = messages
            first = channel.next_tag
            channel.next_tag = first + count
            if channel.connection.broker.traced_vhosts:
                trace_delivered(channel.connection, channel.number, queue, messages, redelivered)
            channel.connection.send_pieces(
                delivery_frames(channel, self._heads, messages, first, redelivered)
            )
            self._count(channel.counters, count, redelivered)
            self._count(channel.connection.counters, count, redelivered)
            if not self.no_ack:
                now_ms = channel.connection.now_ms
                channel.unacked.add(Unacked(first, run.first, count, queue, self, now_ms))
                self.unacked_count += count

    def _count(self, counters: Counters, count: int, redelivered: bool) -> None:
        if self.no_ack:
            counters.deliver_no_ack += count
        else:
            counters.deliver += count
        if redelivered:
            counters.redeliver += count


class RemoteDeliveries(Protocol):
    """A client's channel at another node that leads queues of its consumers (session.forwarding.remote_channel)."""

    def limit(self) -> None:
        """Take the channel's new limit for all its consumers together."""

    def made_room(self) -> None:
        """Note that the channel may take more deliveries."""

    def wake(self) -> None:
        """Note that the client takes more, so that its consumers may."""

    def close(self) -> None:
        """End with the client's channel."""


class DeliveryChannel:
    """The deliveries on a channel: its consumers, and their unacked messages.

    Attributes:
        consumers: by tag; with a `global_prefetch` those that were sent something last are at the end.
        next_tag: the tag of the next delivery.
        prefetch: the prefetch of later consumers, 0 for no limit.
        global_prefetch: the limit for all its consumers together, 0 for none.
        was_full: whether a consumer was passed over for that limit since all were woken.
        remote_channels: its channels at other nodes, by node.
        waiting_notices: cancellations whose notices wait for the answer to a deletion; None while there is none.
        deleted_count: the number of messages deleted with a queue whose delete-ok is still to be sent.
        has_got: whether a message was fetched by a basic.get that needs an acknowledgement.
    """

    def __init__(self, connection: ConnectionBase, number: int) -> None:
        """Begin without consumers."""
        self.connection = connection
        self.number = number
        self.consumers: dict[bytes, ChannelConsumer] = {}
        self.counters = Counters()
        self.unacked = UnackedRuns()
        self.next_tag = 1
        self.prefetch = 0
        self.global_prefetch = 0
        self.was_full = False
        self.is_closing = False
        self.waiting_notices: list[bytes] | None = None
        self.deleted_count = 0
        self.has_got = False
        self.remote_channels: dict[str, RemoteDeliveries] = {}

    @property
    def limited_count(self) -> int:
        """The number of unsettled deliveries that count for `global_prefetch`: those to consumers, as in RabbitMQ."""
        if not self.has_got:
            return self.unacked.count
        return sum(run.count for run in self.unacked if run.consumer is not None)

    def mark(self, queue: DeliverySource) -> None:
        """Mark a queue for the next flush, because it has something to log or to deliver."""
        existing = self.connection.broker.queues.get(queue.key)
        if existing is not None and existing is queue:
            self.connection.broker.dirty[existing] = None

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """Remove the consumer of a deleted queue, and tell the client if it can understand that."""
        self.consumers.pop(consumer.tag, None)
        if not self.is_closing and self.connection.client_can("consumer_cancel_notify"):
            notice = wire.named_reply(self.number, 60, 30, consumer.tag, b"\x01")
            if self.waiting_notices is None:
                self.connection.send(notice)
            else:
                self.waiting_notices.append(notice)

    def wake(self, consumer: ChannelConsumer) -> None:
        """Let a consumer's queue serve it at the next flush, because it may take more."""
        consumer.queue.consumers.wake(consumer)
        self.mark(consumer.queue)

    def wake_consumers(self) -> None:
        """Wake all consumers, because the channel may take more."""
        self.was_full = False
        for consumer in self.consumers.values():
            self.wake(consumer)
        for remote_channel in self.remote_channels.values():
            remote_channel.wake()

    def deliveries(self) -> Iterator[Unacked]:
        """All unsettled deliveries."""
        yield from self.unacked

    def requeue(self, runs: Collection[Unacked]) -> None:
        """Return deliveries to their queues, in their old places."""
        for run in runs:
            run.queue.requeue(run.offset, run.count)
        self.let_go(runs)

    def let_go(self, runs: Collection[Unacked]) -> None:
        """Stop counting deliveries against the prefetch limits."""
        if self.global_prefetch and self.was_full:
            # Not for each ack: a channel may have thousands of consumers. Before the queues of these deliveries are
            # marked: the queue that is marked first takes the room, and its consumer is the last one here then.
            self.wake_consumers()
        for run in runs:
            if run.consumer is not None:
                run.consumer.unacked_count -= run.count
                run.queue.consumers.wake(run.consumer)
            self.mark(run.queue)
        if self.global_prefetch:
            for remote_channel in list(self.remote_channels.values()):
                remote_channel.made_room()


class DeliverHeads:
    """The octets around the tag in a consumer's deliveries, by exchange and routing key.

    Most consumers have few of these.
    """

    __slots__ = ("_around", "_before", "_channel", "_tag")

    def __init__(self, channel: int, tag: bytes) -> None:
        """Serve the consumer with this tag on a channel."""
        self._channel = channel
        self._tag = tag
        self._before: dict[int, bytes] = {}
        self._around: dict[tuple[bytes, bool], tuple[bytes, bytes]] = {}

    def of(self, route_bytes: int) -> bytes:
        """A basic.deliver frame up to the tag, for an exchange and routing key of this size as two short strings."""
        found = self._before.get(route_bytes)
        if found is None:
            found = self._before[route_bytes] = wire.deliver_head(self._channel, self._tag, route_bytes)
        return found

    def around(self, route: bytes, redelivered: bool) -> tuple[bytes, bytes]:
        """The octets from the frame end before a delivery up to its tag, and from the tag up to the body's size."""
        key = route, redelivered
        found = self._around.get(key)
        if found is None:
            if len(self._around) >= AROUND_MAX:
                self._around.clear()
            before = wire.FRAME_END_OCTET + self.of(len(route))
            header_head = bytes((wire.FRAME_HEADER,)) + self._channel.to_bytes(2, "big")
            behind = bytes((redelivered,)) + route + wire.FRAME_END_OCTET + header_head
            found = self._around[key] = before, behind
        return found


def delivery_frames(
    channel: DeliveryChannel, heads: DeliverHeads, messages: Messages, first: int, redelivered: bool
) -> list[bytes | memoryview]:
    """basic.deliver and content of messages, tags from `first` on, in pieces: large bodies are not copied."""
    head, bodies = messages.head, messages.bodies
    body_max = min(channel.connection.frame_max_bytes, wire.SENT_FRAME_BYTES_MAX) - wire.FRAME_OVERHEAD
    copied_max = min(body_max, LARGE_PIECE_BYTES - 1)
    if head is None:
        sizes = list(map(len, bodies))
        if min(sizes) and max(sizes) <= copied_max:
            return [_frames_that_differ(channel.number, heads, messages, sizes, first, redelivered)]
    if head is None or head.body_bytes > copied_max:
        frames: list[bytes | memoryview] = []
        for tag, body in enumerate(bodies, first):
            each = messages.head_at(tag - first)
            frames += (
                heads.of(len(each.route)),
                _pack_tag(tag),
                *_content(channel, each, body, redelivered),
            )
        return frames
    middle = frames_before_body(head, channel.number, redelivered)
    tags = map(_pack_tag, range(first, first + len(bodies)))
    before = heads.of(len(head.route))
    parts = zip(repeat(before), tags, repeat(middle), bodies, repeat(wire.FRAME_END_OCTET))
    return [b"".join(chain.from_iterable(parts))]


def _frames_that_differ(
    number: int, heads: DeliverHeads, messages: Messages, sizes: list[int], first: int, redelivered: bool
) -> bytes:
    """The frames of messages that differ, with three frames each.

    Headers and bodies are copied once, into the result.
    """
    routes = messages.routes
    pack_between = wire.BETWEEN_FRAMES.pack
    if len(routes) == 1:
        # A small prefetch delivers one at a time: without columns this takes a third of the time.
        before, behind = heads.around(routes[0], redelivered)
        body_head = pack_between(wire.FRAME_END, wire.FRAME_BODY, number, sizes[0])
        header, body = messages.headers[0], messages.bodies[0]
        return b"".join((before[1:], _pack_tag(first), behind, header, body_head, body, wire.FRAME_END_OCTET))
    around = {route: heads.around(route, redelivered) for route in set(routes)}
    befores: Iterable[bytes]
    behinds: Iterable[bytes]
    if len(around) == 1:
        [(before, behind)] = around.values()
        befores, behinds = repeat(before), repeat(behind)
    else:
        befores, behinds = zip(*map(around.__getitem__, routes), strict=True)
    tags = map(_pack_tag, range(first, first + len(routes)))
    body_heads = map(pack_between, repeat(wire.FRAME_END), repeat(wire.FRAME_BODY), repeat(number), sizes)
    columns = (befores, tags, behinds, messages.headers, body_heads, messages.bodies)
    # Some columns are infinite.
    parts = chain.from_iterable(zip(*columns, strict=False))
    # Each message begins with the frame end of the one before, which the first message lacks.
    return b"".join([next(parts)[1:], *parts, wire.FRAME_END_OCTET])


def frames_before_body(head: Head, channel: int, redelivered: bool) -> bytes:
    """The octets from a delivery tag to the body, cached in the head; a frame end must follow the body."""
    key = channel << 1 | redelivered
    found = head.frames.get(key)
    if found is None:
        found = head.frames[key] = wire.content_head(
            channel, redelivered, head.route, head.header, head.body_bytes
        )
    return found


def content(channel: DeliveryChannel, sized_header: bytes, body: bytes) -> Sequence[bytes | memoryview]:
    """The frames of a message behind its method, in pieces, which share the octets of a large body."""
    number, frame_max = channel.number, min(channel.connection.frame_max_bytes, wire.SENT_FRAME_BYTES_MAX)
    head = wire.CONTENT_HEAD.pack(wire.FRAME_HEADER, number)
    if 0 < len(body) <= frame_max - wire.FRAME_OVERHEAD:
        between = wire.BETWEEN_FRAMES.pack(wire.FRAME_END, wire.FRAME_BODY, number, len(body))
        return head, sized_header, between, body, wire.FRAME_END_OCTET
    return head, sized_header, wire.FRAME_END_OCTET, *wire.body_pieces(number, body, frame_max)


def _content(
    channel: DeliveryChannel, head: Head, body: bytes, redelivered: bool
) -> Sequence[bytes | memoryview]:
    """The octets from a delivery tag to the end of a message of any size, in pieces, as `content`."""
    frame_max = min(channel.connection.frame_max_bytes, wire.SENT_FRAME_BYTES_MAX)
    if len(body) <= frame_max - wire.FRAME_OVERHEAD:
        return frames_before_body(head, channel.number, redelivered), body, wire.FRAME_END_OCTET
    behind_tag = bytes((redelivered,)) + head.route + wire.FRAME_END_OCTET
    return behind_tag, *content(channel, head.sized_header, body)
