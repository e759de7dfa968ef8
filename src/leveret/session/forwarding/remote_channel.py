"""A client's channel at one leader of queues that it uses; `remote_ports` has an object for each of these queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.messages import Run
from leveret.model.definitions import QueueKey
from leveret.model.errors import PeerError
from leveret.session.amqp091.delivery import ChannelConsumer, DeliveryChannel
from leveret.session.amqp091.remote_queues import Got
from leveret.session.amqp091.replies import NAMES, Fault
from leveret.session.forwarding.deliveries import Delivered, IncomingDelivery
from leveret.wire import amqp091 as wire
from leveret.wire import forwarding
from leveret.wire.amqp091 import (
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME_OK,
    BASIC_GET_EMPTY,
    BASIC_GET_OK,
    BASIC_QOS_OK,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN_OK,
)

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The octets of deliveries to one consumer in flight, about."""
WINDOW_MAX: Final = 2048
WINDOW_MIN: Final = 8


ACK, REJECT, REQUEUE = range(3)
"""The kinds of settlements."""


class Registry(Protocol):
    """Keeps consumers whose queue gets another leader; session.forwarding.leaders."""

    def detach(self, sources: Collection[DeliverySource], channel: DeliveryChannel) -> None:
        """Register the consumers of sources anew, because these deliver nothing more and take no settlements."""

    def has(self, key: QueueKey, epoch: int) -> bool:
        """Whether this queue still exists, led by any node."""

    def forget(self, consumer: ChannelConsumer) -> None:
        """Cancel the pending registration of a consumer."""

    def ended(self, remote_channel: RemoteChannel) -> None:
        """Note that a remote channel has ended."""

    def left(self, key: QueueKey, remote_channel: RemoteChannel) -> None:
        """Note that a remote channel does not use a queue any more."""

    def ask_again(self, channel: DeliveryChannel) -> None:
        """Repeat the client's method in a while, because its node does not lead the queue, or does not know it yet."""


class LeaderConnection(Protocol):
    """The connection to the leader, as its channels use it."""

    leader: str

    def send(self, octets: bytes) -> None:
        """Send whole frames."""

    def has_settlements(self, remote_channel: RemoteChannel) -> None:
        """Call the channel's `flush` before the next octets go."""

    def release(self, number: int) -> None:
        """Free the number of a channel that is closed on both sides."""


class _Window:
    """The number of deliveries that a consumer may still get, and the number granted at once."""

    __slots__ = ("left", "size")

    def __init__(self) -> None:
        self.left = self.size = forwarding.CREDIT_FIRST


class _SettledWaiter:
    """A transaction that waits once for its settlements at the leader of a queue."""

    __slots__ = ("_notify", "key")

    def __init__(self, key: QueueKey, notify: Callable[[bool], None]) -> None:
        self.key = key
        self._notify: Callable[[bool], None] | None = notify

    def report(self, *, ok: bool) -> None:
        """Report whether they are on the leader's disk; False if that is unknown."""
        notify, self._notify = self._notify, None
        if notify is not None:
            notify(ok)


class _Expected(NamedTuple):
    """The answer to a method.

    Attributes:
        methods: the answer is one of these.
        then: takes its payload.
        tag: of a consumer that the method registers; empty for other methods.
    """

    methods: tuple[bytes, ...]
    then: Callable[[bytes], None]
    tag: bytes


class RemoteChannel:
    """A client's channel at one leader; see the module.

    Attributes:
        channel: the client's.
        ports: the queues that it uses, by their keys.
        consumers: the registered ones, and those being registered, by a tag of each registration: so answers about
            earlier registrations are recognised.
    """

    def __init__(
        self, channel: DeliveryChannel, link: LeaderConnection, number: int, registry: Registry
    ) -> None:
        """Open the channel."""
        self.channel = channel
        self.number = number
        self.ports: dict[QueueKey, DeliverySource] = {}
        self._deleted: dict[QueueKey, DeliverySource] = {}
        """Deleted queues of which this channel had a consumer, or a delivery, when their end was told."""
        self.consumers: dict[bytes, ChannelConsumer] = {}
        self._link = link
        self._registry = registry
        self._windows: dict[bytes, _Window] = {}
        self._tags: dict[ChannelConsumer, bytes] = {}
        self._last_tag = 0
        self._expected: deque[_Expected] = deque()
        self._settled: list[_SettledWaiter] = []
        self._got: Got | None = None
        self._gets_no_ack = False
        self._incoming: IncomingDelivery | None = None
        self._done = OffsetSet(1)
        self._settling: list[tuple[int, int, int]] = []
        self._asked: Callable[[bytes], None] | None = None
        self._asked_key: QueueKey | None = None
        self._is_over = False
        self._is_closed = False
        self._prefetch = 0
        self._limit = 0
        self._undelivered: deque[Delivered] = deque()
        self._goes_first = False
        channel.remote_channels[link.leader] = self
        self._send(forwarding.channel_open(number), (CHANNEL_OPEN_OK,), _ignore)
        self.limit()

    # -- to the leader ------------------------------------------------------------------------

    def _send(
        self, octets: bytes, answers: tuple[bytes, ...], then: Callable[[bytes], None], tag: bytes = b""
    ) -> None:
        self._link.send(self.flush() + octets)
        self._expected.append(_Expected(answers, then, tag))

    def ask(
        self,
        key: QueueKey,
        octets: bytes,
        answers: tuple[bytes, ...],
        then: Callable[[bytes], None],
        tag: bytes = b"",
    ) -> None:
        """Forward a client's method for a queue; its connection waits until `then` is called.

        `tag` is that of a consumer that the method registers.
        """

        def answered(payload: bytes) -> None:
            # The question may have been repeated at another leader meanwhile.
            if self._asked is answered:
                self._asked = None
                then(payload)
                self.channel.connection.answered()

        self._asked, self._asked_key = answered, key
        self.channel.connection.ask()
        self._send(octets, answers, answered, tag)

    def get(self, key: QueueKey, then: Got, *, no_ack: bool) -> None:
        """Ask for one message."""
        self._got, self._gets_no_ack = then, no_ack
        octets = forwarding.get(self.number, key[1].encode(), no_ack=no_ack)
        self.ask(key, octets, (BASIC_GET_OK, BASIC_GET_EMPTY), lambda _: then(None, False, 0))

    def register(self, consumer: ChannelConsumer, key: QueueKey, then: Callable[[], None] | None) -> None:
        """Register a consumer; `then` is for a client that asks for it now."""
        number, connection = self.number, self.channel.connection
        if consumer.prefetch != self._prefetch:
            self._prefetch = consumer.prefetch
            self._send(forwarding.qos(number, consumer.prefetch, for_channel=False), (BASIC_QOS_OK,), _ignore)
        self._last_tag += 1
        tag = b"%d" % self._last_tag
        client = {
            "tag": consumer.tag.decode(errors="replace"),
            "connection": connection.peer,
            "number": self.channel.number,
            "user": connection.user or "",
            "node": connection.host.node_name,
        }
        octets = forwarding.consume(
            number,
            key[1].encode(),
            tag,
            no_ack=consumer.no_ack,
            exclusive=consumer.exclusive,
            arguments=consumer.arguments | {forwarding.CLIENT: client},
        )
        self.consumers[tag] = consumer
        self._tags[consumer] = tag
        self._windows[tag] = _Window()
        if then is None:
            self._send(octets, (BASIC_CONSUME_OK,), _ignore, tag)
        else:
            registered = then
            self.ask(key, octets, (BASIC_CONSUME_OK,), lambda _: registered(), tag)

    def tag_of(self, consumer: ChannelConsumer) -> bytes:
        """The tag of a registered consumer at the leader."""
        return self._tags[consumer]

    def forget(self, consumer: ChannelConsumer) -> None:
        """Forget a consumer."""
        tag = self._tags.pop(consumer, b"")
        self.consumers.pop(tag, None)
        self._windows.pop(tag, None)
        _not_active(consumer)
        for found in [each for each in self._undelivered if each.consumer_tag == tag]:
            self._undelivered.remove(found)
            self.settle(REQUEUE, found.first_tag, found.first_tag + len(found.messages))

    # -- the limit of the channel ---------------------------------------------------------------
    # Each leader applies it for itself. So deliveries beyond the limit for all leaders together are held here.

    def limit(self) -> None:
        """Take the channel's new limit for all its consumers together."""
        if self.channel.global_prefetch != self._limit:
            self._limit = self.channel.global_prefetch
            self._send(forwarding.qos(self.number, self._limit, for_channel=True), (BASIC_QOS_OK,), _ignore)
            self._hand_on()

    def made_room(self) -> None:
        """Deliver held messages, because the channel may take more; first or last, in turns with other queues."""
        if self._undelivered:
            self._goes_first = not self._goes_first
            if self._goes_first:
                self._hand_on()
            if self._undelivered:
                self._link.has_settlements(self)

    def _hand_on(self) -> bool:
        """Deliver held messages, as far as the channel takes them; return whether there were any."""
        channel, has_handed = self.channel, False
        while self._undelivered:
            found = self._undelivered[0]
            count = len(found.messages)
            room = channel.global_prefetch - channel.limited_count if channel.global_prefetch else count
            if room <= 0:
                break
            self._undelivered.popleft()
            if room < count:
                rest = found.messages.cut(room, count)
                self._undelivered.appendleft(found._replace(first_tag=found.first_tag + room, messages=rest))
                found = found._replace(messages=found.messages.cut(0, room))
            self._deliver(self.consumers[found.consumer_tag], found)
            has_handed = True
        if has_handed:
            # Next time other leaders come first.
            channel.remote_channels[self._link.leader] = channel.remote_channels.pop(self._link.leader)
        return has_handed

    def _deliver(self, consumer: ChannelConsumer, found: Delivered) -> None:
        consumer.deliver(consumer.queue, [Run(found.first_tag, found.messages)], found.redelivered)

    def when_settled(self, key: QueueKey, notify: Callable[[bool], None]) -> None:
        """See RemotePorts."""
        if self._is_over:
            notify(False)
            return
        self._settled.append(_SettledWaiter(key, notify))
        self._send(forwarding.settle(self.number), (forwarding.SETTLE_OK,), self._are_settled)

    def _are_settled(self, _: bytes) -> None:
        self._settled.pop(0).report(ok=True)

    def _doubt(self, key: QueueKey | None) -> None:
        """Note that a leader took deliveries of a queue (None: of some queue) back: settlements in flight may be late.

        The leader reports it before it answers them. It ignores settlements of deliveries that it has taken back.
        """
        for each in self._settled:
            if key is None or each.key == key:
                each.report(ok=False)

    def settle(self, kind: int, first: int, end: int) -> None:
        """Settle deliveries with these tags; the leader gets that with the next octets."""
        if self._is_over:
            return
        settling = self._settling
        if settling and settling[-1][0] == kind and settling[-1][2] == first:
            settling[-1] = (kind, settling[-1][1], end)
        else:
            settling.append((kind, first, end))
        self._link.has_settlements(self)

    def flush(self) -> bytes:
        """The frames of the settlements since the last call, as few as possible."""
        if self._undelivered and self._hand_on():
            self.channel.connection.wake()
        if not self._settling:
            return b""
        settling, self._settling = sorted(self._settling, key=lambda each: each[1]), []
        frames: list[bytes] = []
        for kind, first, end in settling:
            if self._done.floor >= first:
                frames.append(self._settlement(kind, end - 1, multiple=True))
            else:
                frames += [self._settlement(kind, tag, multiple=False) for tag in range(first, end)]
            self._done.add(first, end)
        return b"".join(frames)

    def _settlement(self, kind: int, tag: int, *, multiple: bool) -> bytes:
        if kind == ACK:
            return wire.ack(self.number, tag, multiple)
        return forwarding.nack(self.number, tag, multiple=multiple, requeue=kind == REQUEUE)

    def wake(self) -> None:
        """Grant more deliveries, because the client takes more."""
        for tag, window in self._windows.items():
            self._grant(tag, window)

    def _grant(self, tag: bytes, window: _Window) -> None:
        if window.left <= window.size // 2 and self.channel.connection.takes_deliveries():
            self._link.send(forwarding.credit(self.number, tag, window.size - window.left))
            window.left = window.size

    # -- from the leader ----------------------------------------------------------------------

    def delivered(self, found: Delivered) -> None:
        """Take messages for a consumer."""
        if self._is_over:
            return
        first, count = found.first_tag, len(found.messages)
        consumer, window = self.consumers.get(found.consumer_tag), self._windows.get(found.consumer_tag)
        if consumer is None or window is None:
            self.settle(REQUEUE, first, first + count)
            return
        if consumer.no_ack:
            self._done.add(first, first + count)
        if self.channel.global_prefetch and not consumer.no_ack:
            self._undelivered.append(found)
            self._hand_on()
        else:
            self._deliver(consumer, found)
        window.left -= count
        fits = WINDOW_BYTES * count // max(1, found.messages.body_bytes)
        window.size = max(WINDOW_MIN, min(WINDOW_MAX, fits))
        self._grant(found.consumer_tag, window)

    def frame(self, kind: int, payload: bytes) -> None:
        """Take a frame that is not part of a run of deliveries.

        Raises:
            LeveretError: the frame is invalid.
        """
        if kind == wire.FRAME_METHOD:
            self._method(payload)
        elif self._incoming is None:
            if not self._is_over:
                raise PeerError("content that follows no method")
        elif self._incoming.take(kind, payload):
            incoming, self._incoming = self._incoming, None
            if not self._is_over:
                self._message(incoming)

    def _method(self, payload: bytes) -> None:
        method = payload[:4]
        if method == CHANNEL_CLOSE:
            self._closed_by_leader(payload)
        elif method == CHANNEL_CLOSE_OK:
            self._link.release(self.number)
        elif method == wire.BASIC_DELIVER:
            self._incoming = IncomingDelivery(payload)
        elif self._is_over:
            if method == BASIC_GET_OK:
                self._incoming = IncomingDelivery(payload)
        elif method == BASIC_CANCEL:
            self._cancelled(payload[5 : 5 + payload[4]])
        elif method == forwarding.MOVED:
            self._moved(forwarding.decode_tag(payload))
        elif method == forwarding.ACTIVE:
            self._is_active(forwarding.decode_tag(payload))
        elif method == forwarding.BEGINS:
            self._begins(*forwarding.decode_begins(payload))
        elif method == forwarding.REFUSED:
            self._refused(*forwarding.decode_refused(payload))
        else:
            self._answer(method, payload)

    def _answer(self, method: bytes, payload: bytes) -> None:
        if not self._expected or method not in self._expected[0].methods:
            raise PeerError(f"method {method.hex()} where something else was asked")
        if method == BASIC_GET_OK:
            self._incoming = IncomingDelivery(payload)
            return
        self._expected.popleft().then(payload)

    def _message(self, incoming: IncomingDelivery) -> None:
        if incoming.method[:4] == wire.BASIC_DELIVER:
            self.delivered(incoming.delivered(self.number))
            return
        found = incoming.delivered(self.number)
        answered = self._expected.popleft().then
        if self._gets_no_ack:
            self._done.add(found.first_tag, found.first_tag + 1)
        if self._asked is not answered or self._got is None:
            if not self._gets_no_ack:
                self.settle(REQUEUE, found.first_tag, found.first_tag + 1)
            return
        self._asked = None
        self._got(Run(found.first_tag, found.messages), found.redelivered, incoming.ready_count)
        self.channel.connection.answered()

    def _cancelled(self, tag: bytes) -> None:
        """Cancel a consumer, because the queue is gone, or cannot be led."""
        consumer = self.consumers.get(tag)
        if consumer is not None:
            self.forget(consumer)
            self.channel.consumer_cancelled(consumer)

    def _is_active(self, tag: bytes) -> None:
        """Note the active consumer of a queue with a single active one."""
        consumer = self.consumers.get(tag)
        if consumer is not None:
            consumer.queue.consumers.active = consumer

    def _begins(self, tag: bytes, offset: int) -> None:
        """Note where a stream's consumer begins."""
        consumer = self.consumers.get(tag)
        if consumer is not None:
            consumer.begins_at(offset)

    def _moved(self, tag: bytes) -> None:
        consumer = self.consumers.get(tag)
        if consumer is not None:
            key = consumer.queue.key
            self._registry.detach((consumer.queue,), self.channel)
            self._doubt(key)
        elif not tag:
            self._doubt(None)

    def _refused(self, method: int, code: int, text: str) -> None:
        """Handle a refusal of the oldest method that has no answer; all else of this channel goes on.

        The leader may not lead the queue, or not yet: the method is repeated in a while.
        """
        # The first answer to a method has the next id.
        if not self._expected or (method + 1).to_bytes(4, "big") not in self._expected[0].methods:
            raise PeerError(f"method {method:08x} is refused where something else was asked")
        refused = self._expected.popleft()
        consumer = self.consumers.get(refused.tag)
        if consumer is not None:
            self.forget(consumer)
        if self._asked is refused.then:
            self._asked = None
            if code == forwarding.NOT_LED:
                self._registry.ask_again(self.channel)
            else:
                self.channel.connection.fail(_fault(code, text), self.channel.number, method)
                self.channel.connection.answered()
        elif consumer is not None and code == forwarding.NOT_LED:
            self._registry.detach((consumer.queue,), self.channel)
        elif consumer is not None:
            # As in RabbitMQ. Another client's exclusive consumer, for example, was faster at the next leader.
            self.channel.consumer_cancelled(consumer)

    def _closed_by_leader(self, payload: bytes) -> None:
        """Handle a close by the leader: the client's node did something wrong, or the leader cannot go on."""
        self._link.send(forwarding.channel_close_ok(self.number))
        if self._is_closed:
            # Both sides closed it at once: its number is free after the leader's answer.
            return
        self._link.release(self.number)
        code = int.from_bytes(payload[4:6], "big")
        end = 7 + payload[6]
        text = payload[7:end].decode(errors="replace")
        method = int.from_bytes(payload[end : end + 4], "big")
        asked = self._asked
        if code == forwarding.NOT_LED:
            # A leader of a build from before 2026-11-30 closes the channel where others refuse the method.
            if asked is not None:
                self._asked = None
                self._registry.ask_again(self.channel)
            self.lost()
            return
        # This error is the outcome for waiting transactions, rather than the loss of the leader.
        self._settled.clear()
        self._end()
        self.channel.connection.fail(_fault(code, text), self.channel.number, method)
        if asked is not None:
            self.channel.connection.answered()

    # -- ends ---------------------------------------------------------------------------------

    def drop(self, sources: Collection[DeliverySource]) -> None:
        """Ignore further deliveries of queues that have another leader."""
        for source in sources:
            self.ports.pop(source.key, None)
        for tag, consumer in list(self.consumers.items()):
            if consumer.queue in sources:
                self.forget(consumer)
                if not self._is_over:
                    # The registration may be in flight, or may be reported again.
                    self._send(forwarding.cancel(self.number, tag), (BASIC_CANCEL_OK,), _ignore)

    def leave(self, source: DeliverySource) -> None:
        """Leave a queue that has another leader; other queues may keep theirs."""
        self._registry.detach((source,), self.channel)
        if self._asked is not None and self._asked_key == source.key:
            self._asked = None
            self.channel.connection.repeat()
        self._doubt(source.key)

    def drop_deleted(self, key: QueueKey, epoch: int) -> None:
        """Forget a deleted queue once this channel has no consumer and no delivery of it.

        The leader cancels consumers, usually before other nodes know of the deletion.
        """
        source = self.ports.get(key)
        if source is not None and source.definition.epoch == epoch:
            self._deleted[key] = source
            self._drop_unused()

    def _drop_unused(self) -> None:
        """Forget the deleted queues that this channel uses no more; the next deletion looks at the others again."""
        used: set[object] = {consumer.queue for consumer in self.consumers.values()}
        used.update(run.queue for run in self.channel.deliveries())
        for key, source in list(self._deleted.items()):
            if source not in used:
                del self._deleted[key]
                if self.ports.get(key) is source:
                    del self.ports[key]
                    self._registry.left(key, self)

    def dropped(self, first: int, count: int) -> None:
        """Return deliveries to a leader that is left, and that may not know it yet; it ignores those it took back.

        Otherwise its acknowledgement of later deliveries, of other queues, would settle these, too.
        """
        self.settle(REQUEUE, first, first + count)

    def lost(self) -> None:
        """Ask again, and register consumers anew, because the leader is gone."""
        if self._is_over:
            return
        asked, sources = self._asked, list(self.ports.values())
        self._is_over = True
        self._registry.detach(sources, self.channel)
        self._end()
        if asked is not None:
            self.channel.connection.repeat()

    def close(self) -> None:
        """End with the client's channel."""
        if self._is_over:
            return
        self._is_closed = True
        self._link.send(self.flush() + forwarding.channel_close(self.number))
        asked = self._asked
        self._end()
        if asked is not None:
            self.channel.connection.answered()

    def _end(self) -> None:
        self._is_over = True
        self._asked = None
        for consumer in self.consumers.values():
            _not_active(consumer)
        self.consumers.clear()
        self._tags.clear()
        self._windows.clear()
        self._settling.clear()
        self._undelivered.clear()
        settled, self._settled = self._settled, []
        for each in settled:
            each.report(ok=False)
        self._registry.ended(self)
        if self.channel.remote_channels.get(self._link.leader) is self:
            del self.channel.remote_channels[self._link.leader]


def _fault(code: int, text: str) -> Fault:
    """The fault of a client, as its leader names it."""
    name, _, reason = text.partition(" - ")
    is_known = code in NAMES and name == NAMES[code]
    return Fault(code if is_known else 541, reason if is_known else text)


def _not_active(consumer: ChannelConsumer) -> None:
    """Mark a consumer as not active, as far as is known."""
    consumers = consumer.queue.consumers
    if consumers.active is consumer:
        consumers.active = None


def _ignore(_: bytes) -> None:
    """Ignore the answer."""
