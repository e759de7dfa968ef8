"""The leader's end of a forwarding connection: publishes and methods of another node's clients.

The node at the other end has proven itself, and has checked what its clients may do; so everything is allowed. A
channel is bound to one queue by forwarding.target, and then takes publishes into it, whatever their exchange and
routing key; or it is the remote channel of a client's channel. See wire.forwarding.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pamqp import commands

from leveret.core.broker.actor import Unrestricted
from leveret.core.broker.churn import Churn
from leveret.core.queues.confirms import Confirm, ConfirmBatch, Confirms
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.consumers import QueueConsumer as AnyConsumer
from leveret.core.queues.counters import Counters
from leveret.core.queues.messages import Messages, Run, count_of
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.model.errors import LedElsewhere, LeveretError
from leveret.session.amqp091.blocked import need_definitions_lock
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.session.amqp091.delivery import ChannelConsumer, ConsumerSource, DeliveryChannel, Unacked
from leveret.session.amqp091.destinations import Destination
from leveret.session.amqp091.publishing import Publisher
from leveret.session.amqp091.remote_queues import ConnectionHost
from leveret.session.amqp091.replies import Fault, code_of, reply_text
from leveret.session.amqp091.routing import Resolved
from leveret.session.stream.types import code_of as stream_code_of
from leveret.wire import amqp091 as wire
from leveret.wire import forwarding
from leveret.wire.stream.codec import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_CAPABILITIES: Final = {"capabilities": {"consumer_cancel_notify": True, "connection.blocked": True}}
_CHANNEL_MAX: Final = 65535
_ANSWERED: Final = {
    int.from_bytes(method, "big")
    for method in (
        wire.BASIC_CANCEL,
        wire.BASIC_CONSUME,
        wire.BASIC_GET,
        wire.QUEUE_DECLARE,
        wire.QUEUE_DELETE,
        wire.QUEUE_PURGE,
    )
}
"""The methods of clients that a leader answers."""


class ForwardedConsumer(NamedTuple):
    """The client of a forwarded consumer; `tag` is the client's own name of it."""

    tag: str
    connection: str
    number: int
    user: str
    node: str


class _ForAnotherNode(Unrestricted):
    """Performs operations for another node's client, whose permissions that node has checked."""

    def check_lock(self, queue: Queue) -> None:
        """Accept: the client's node checks exclusive locks."""


class ForwardedConnection(ClientConnection):
    """A forwarding connection that another node made; see the module.

    Alarms do not block its publishes, because acks come over the same connection, and free memory and disk. The other
    node is notified, and stops its publishers.
    """

    waits_for_alarms = False
    # Tracing is each node's own: messages of other nodes' clients are traced there, or not at all.
    is_traced = False

    def __init__(
        self, host: ConnectionHost, *, node: str, now_ms: int, serving: dict[ForwardedConnection, None]
    ) -> None:
        """Wait for connection.open.

        Args:
            host: this node.
            node: the proven name of the other end.
            now_ms: the time.
            serving: all such connections, with this one from now on until it is lost.
        """
        super().__init__(host, peer=node, from_loopback=False, now_ms=now_ms)
        self._serving = serving
        serving[self] = None
        self.state = AmqpState.OPEN_WAIT
        self.frame_max_bytes = forwarding.FRAME_BYTES_MAX
        self.channel_max = _CHANNEL_MAX
        self.client_properties = _CAPABILITIES
        # Its messages and channels are counted at the clients' nodes.
        self.counters = Counters()
        self.churn = Churn()

    def make_publisher(self) -> Publisher:
        """See ClientConnection."""
        return _Publisher(self, self.channels)

    def make_channel(self, number: int) -> Channel:
        """See ClientConnection."""
        return ForwardedChannel(self, number)

    def check_channel_limits(self) -> None:
        """Accept: only the frame format limits channels."""

    def open(self, vhost: str) -> None:
        """Enter the vhost with all permissions; it is no client's connection, so it is not listed.

        An earlier connection of the same node to the vhost ends, because that node has lost it before it made this
        one. If this node has not heard of the loss yet, its deliveries return only now, and its exclusive consumers
        would keep themselves from being registered again.
        """
        self.broker.topology(vhost)
        for earlier in [each for each in self._serving if (each.peer, each.vhost) == (self.peer, vhost)]:
            earlier.lost()
            earlier.wake()
        self.vhost = vhost
        self.actor = _ForAnotherNode(self.broker, vhost, owner=self)
        self.actor.before_change = partial(need_definitions_lock, self.broker)
        self.state = AmqpState.OPEN
        self.reply(commands.Connection.OpenOk())
        # An alarm may have begun before.
        self.notify_blocked()

    def lost(self) -> None:
        """See ClientConnection."""
        self._serving.pop(self, None)
        super().lost()

    @property
    def alarms(self) -> tuple[str, ...]:
        """This node's own alarms: if those of others were passed on, two nodes could sustain each other's for ever."""
        return self.host.alarms.own

    def alarms_changed(self, now_ms: int) -> None:
        """Notify the other node of a change of alarms."""
        if self.state is AmqpState.OPEN:
            self.notify_blocked()
        self.go_on(now_ms)

    def fail(self, error: LeveretError, number: int, method: int) -> None:
        """Refuse one client's method, or close its channel; the other node closes its client's connection if necessary.

        A method with an answer has changed nothing when it fails, and its client's channel may have deliveries of other
        queues here: to close that would return all of them.
        """
        channel = self.channels.get(number)
        if channel is None:
            super().fail(error, number, method)
            return
        code = error.code if isinstance(error, Fault) else code_of(error)
        text = str(error) if code == forwarding.NOT_LED else reply_text(code, str(error))
        if method in _ANSWERED:
            self.send(forwarding.refused(number, method, code, text))
            return
        self.send(wire.close_method(number, code, text, method >> 16, method & 0xFFFF))
        channel.abandon()
        self.publisher.forget()


class ForwardedChannel(Channel):
    """A target channel, or a client's remote channel."""

    lifts_limit = False

    def __init__(self, connection: ForwardedConnection, number: int) -> None:
        """Begin as neither."""
        super().__init__(connection, number, connection.publisher, connection.host.leaders)
        self.target: Queue | None = None
        self.reference = b""
        self.next_number = 0
        self.again = 0
        self._before = 0
        # The last publish that the disk refused first, 0 for none.
        self._refused_last = 0
        self._held: list[ConfirmBatch] = []
        self._settled: dict[object, bool] = {}
        self._settling: list[_Settling] = []

    def frame(self, kind: int, payload: bytes) -> None:
        """See Channel; also takes the methods of forwarding connections."""
        if kind == wire.FRAME_METHOD and payload[:2] == forwarding.CLASS and not self.is_closing:
            self._forward_method(payload)
        else:
            super().frame(kind, payload)

    def _forward_method(self, payload: bytes) -> None:
        match payload[:4]:
            case forwarding.TARGET:
                self._bind(forwarding.decode_target(payload))
            case forwarding.NUMBERS:
                self.next_number, self.again = forwarding.decode_numbers(payload)
                self._before = self.next_number - 1
            case forwarding.CREDIT:
                self._credit(*forwarding.decode_credit(payload))
            case forwarding.STORE:
                self._store(forwarding.decode_store(payload))
            case forwarding.SETTLE:
                self._settling.append(_Settling(self._settled))
                self._settled = {}
                self.connection.confirming[self] = None
            case _:
                raise Fault(540, f"relay method {payload[:4].hex()}")

    def _bind(self, asked: forwarding.ForwardingTarget) -> None:
        self._check_led(asked.queue)
        # Unfinished returns to the queue do not block publishes.
        queue = self.connection.broker.queue(self.connection.vhost or "", asked.queue)
        if queue.epoch != asked.epoch:
            raise Fault(
                forwarding.NOT_LED, f"queue '{asked.queue}' has epoch {queue.epoch}, not {asked.epoch}"
            )
        self.target, self.reference = queue, asked.reference
        self.confirms = Confirms()
        self.connection.send(forwarding.target_ok(self.number, max(0, queue.last_sequence(asked.reference))))

    def _store(self, asked: forwarding.ForwardedBatch) -> None:
        """Publish a batch of the stream protocol into the target."""
        stream, broker = self.target, self.connection.broker
        if not isinstance(stream, Stream):
            raise Fault(503, "a batch on a channel whose target is no stream")
        if broker.queues.get(stream.key) is not stream:
            raise Fault(forwarding.NOT_LED, f"stream '{stream.key[1]}' is not led here any more")
        batch = StreamBatch(asked.reference, asked.ids, asked.entries, asked.records, asked.filters)
        batch.done = partial(self._stored, asked.number, bool(asked.reference))
        stream.publish(batch)
        broker.dirty[stream] = None

    def _stored(self, number: int, is_numbered: bool, error: LeveretError | None) -> None:
        """Tell the publisher's node whether the stream has a batch.

        If it lacks one of a publisher with a reference, no later batch on this channel is taken: that publisher
        publishes this one again, and it would count as stored by the higher ids.
        """
        connection = self.connection
        if self.is_closing or not isinstance(connection, ForwardedConnection):
            return
        if error is not None and (is_numbered or isinstance(error, LedElsewhere)):
            connection.fail(Fault(forwarding.NOT_LED, str(error)), self.number, 0)
        else:
            code = Code.OK if error is None else stream_code_of(error)
            connection.send(forwarding.stored(self.number, number, code, str(error or "")))
        connection.wake()

    def _credit(self, tag: bytes, count: int) -> None:
        consumer = self.consumers.get(tag)
        # It may have been cancelled meanwhile.
        if isinstance(consumer, ForwardedChannelConsumer):
            consumer.credit += count
            self.wake(consumer)

    # -- what differs from a client's channel -------------------------------------------------

    def queue(self, name: str) -> Queue:
        """See Channel; refuses queues that this node does not lead, or does not know yet.

        Raises:
            Fault: this node does not lead it; the other node, which knows the queue, asks again later.
        """
        self._check_led(name)
        return super().queue(name)

    def _check_led(self, name: str) -> None:
        queue = self.connection.broker.queues.get((self.connection.vhost or "", name))
        if queue is None or queue.is_remote:
            raise Fault(
                forwarding.NOT_LED, f"queue '{name}' is not led by node '{self.connection.host.node_name}'"
            )

    def make_consumer(
        self, queue: ConsumerSource, tag: bytes, method: commands.Basic.Consume
    ) -> ChannelConsumer:
        """See Channel."""
        queue.consumers.on_active = _notify_active
        return ForwardedChannelConsumer(self, queue, tag, method, self.prefetch)

    def tick(self, now_ms: int) -> None:
        """Have the next flush confirm what is stored; the client's node checks the consumer timeout."""
        if self._held:
            self.connection.confirming[self] = None

    def moved(self, consumer: AnyConsumer) -> None:
        """Tell the consumer's node that the queue has another leader, so that it registers the consumer there."""
        tag = consumer.tag if isinstance(consumer, ForwardedChannelConsumer) else b""
        self.consumers.pop(tag, None)
        if not self.is_closing:
            self.connection.send(forwarding.moved(self.number, tag))

    def taken_back(self) -> None:
        """Note that deliveries were taken back, also of clients without a consumer: settlements of them are too late.

        The other node gets this before the answer to settlements in flight, and does not rely on that answer then.
        """
        if not self.is_closing:
            self.connection.send(forwarding.moved(self.number, b""))

    def close_batches(self) -> list[ConfirmBatch]:
        """See Channel."""
        settling, self._settling = self._settling, []
        held, self._held = self._held, []
        return [*held, *super().close_batches(), *settling]

    @property
    def takes_publishes(self) -> bool:
        """Whether the disk has refused no message of this channel.

        Behind a refused message none is taken: by its number the refused one would count as stored for the other node,
        if this node is lost before the refusal arrives. The other node publishes it again on another channel.
        """
        return not self._refused_last

    def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
        """See Channel."""
        if not isinstance(batch, _Settling):
            if ok or batch.refused or batch.unmet or self.target is None or self.is_closing:
                super().confirm(batch, ok)
            else:
                self._nack_unstored(self.target, batch)
            if (
                self._refused_last
                and self.confirms is not None
                and self.confirms.confirmed >= self._refused_last
            ):
                self._detach()
        elif not ok:
            node = self.connection.host.node_name
            reason = "its disk refused them, or their queue has another leader; see that node's log"
            error = Fault(506, f"node '{node}' did not keep the settlements: {reason}")
            self.connection.fail(error, self.number, 0)
        elif not self.is_closing:
            self.connection.send(forwarding.settle_ok(self.number))

    def _nack_unstored(self, queue: Queue, batch: ConfirmBatch) -> None:
        """Nack messages that the disk refused, in their turn, and those only.

        The flush that met the refusal may have stored some, or got some that were stored before. A broker publishes
        nacked dead letters again, and they would be there twice. Those of a queue that moved get no answer here.
        """
        present = self.connection.broker.queues.get(queue.key)
        if present is not queue and present is not None and present.epoch == queue.epoch:
            # Another node leads it: that node gets what has no confirm, and has each message once, by its number.
            self._detach("the queue has another leader")
            return
        if queue.damage is not None or present is not queue:
            # Earlier messages may have no outcome here any more.
            super().confirm(batch, ok=False)
            self._detach()
            return
        stored_last = queue.last_sequence(self.reference) - self._before
        if stored_last >= batch.last:
            self._held.append(batch)
        elif stored_last > batch.last - batch.count:
            # On the next channel the stored ones are a batch of their own.
            self._detach()
        else:
            self._refused_last = self._refused_last or batch.last
            super().confirm(batch, ok=False)

    def _detach(self, why: str = "the disk refused messages") -> None:
        """Have the other node publish on another channel what has no confirm."""
        self.connection.fail(Fault(forwarding.NOT_LED, why), self.number, 0)

    def encode_confirm(self, confirm: Confirm) -> bytes:
        """See Channel; a nack with `requeue` is for good: a broker does not publish the messages again.

        One without `kept` is of a full queue: a queue that keeps its dead letters publishes those again all the same.
        """
        if confirm.is_final:
            return forwarding.nack(
                self.number, confirm.tag, multiple=confirm.multiple, requeue=True, kept=confirm.is_kept
            )
        return super().encode_confirm(confirm)

    def take(self, tag: int, multiple: bool) -> Collection[Unacked]:
        """See Channel; deliveries of a queue that has another leader now are gone."""
        if multiple:
            return self.unacked.take_up_to(tag)
        run = self.unacked.take_one(tag)
        return [] if run is None else [run]

    def let_go(self, runs: Collection[Unacked]) -> None:
        """See Channel."""
        super().let_go(runs)
        for run in runs:
            self._settled[run.queue] = run.queue.definition.durable


class _Settling(ConfirmBatch):
    """Settlements of these queues that must reach the disk."""

    __slots__ = ()

    def __init__(self, queues: dict[object, bool]) -> None:
        super().__init__()
        self.queues = queues
        self.settles = True


class ForwardedChannelConsumer(ChannelConsumer):
    """A consumer of another node's client.

    Attributes:
        client: the client, None if it is unknown.
        credit: the number of further deliveries that the node takes for it now.
    """

    __slots__ = ("client", "credit")

    def __init__(
        self,
        channel: DeliveryChannel,
        queue: ConsumerSource,
        tag: bytes,
        method: commands.Basic.Consume,
        prefetch: int,
    ) -> None:
        """See ChannelConsumer."""
        arguments: dict[str, Any] = dict(method.arguments or {})
        notify = arguments.pop(forwarding.CLIENT, None)
        method.arguments = arguments
        super().__init__(channel, queue, tag, method, prefetch)
        self.client = _client(notify)
        self.credit = forwarding.CREDIT_FIRST

    def capacity(self) -> int:
        """See ChannelConsumer; limited by the credit."""
        return min(super().capacity(), self.credit)

    def begins_at(self, offset: int) -> None:
        """See StreamConsumer: the client's node has the consumer begin there at the next leader."""
        super().begins_at(offset)
        self.channel.connection.send(forwarding.begins(self.channel.number, self.tag, offset))

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        """See ChannelConsumer."""
        self.credit -= count_of(runs)
        super().deliver(queue, runs, redelivered)


def _notify_active(consumer: AnyConsumer) -> None:
    """Tell the client's node that this is the active consumer."""
    if isinstance(consumer, ForwardedChannelConsumer):
        channel = consumer.channel
        channel.connection.send(forwarding.active(channel.number, consumer.tag))


def _client(notify: object) -> ForwardedConsumer | None:
    match notify:
        case {
            "tag": str(tag),
            "connection": str(name),
            "number": int(number),
            "user": str(user),
            "node": str(node),
        }:
            return ForwardedConsumer(tag, name, number, user, node)
    return None


class _Publisher(Publisher):
    """Publishes on target channels into their queues only; each message has a number, so none is gathered unseen."""

    gathers_at_queues = False

    def resolve(self, channel: ChannelBase, exchange: bytes, routing_key: bytes, header: bytes) -> Resolved:
        """See Publisher; the client's node has checked and routed the message.

        Without a target the channel is for direct replies. One that comes too late for its client goes nowhere.

        Raises:
            LeveretError: the target is gone or led elsewhere.
        """
        queue = channel.target if isinstance(channel, ForwardedChannel) else None
        if queue is None:
            reply = channel.connection.broker.direct_replies.get(routing_key.decode(errors="replace"))
            return Resolved([], header, Counters(), () if reply is None else (reply,), by_headers=())
        if channel.connection.broker.queues.get(queue.key) is not queue:
            raise Fault(
                forwarding.NOT_LED, f"queue '{queue.key[1]}' of epoch {queue.epoch} is not led here any more"
            )
        return Resolved([queue], header, Counters(), (), by_headers=())

    def publish(self, destination: Destination, messages: Messages) -> None:
        """See Publisher; messages that the queue has already are confirmed once more, with all that they wait for."""
        channel = destination.channel
        if not isinstance(channel, ForwardedChannel) or channel.target is None:
            super().publish(destination, messages)
            return
        if not channel.takes_publishes:
            return
        queue, end = channel.target, channel.next_number + len(messages)
        known = min(len(messages), queue.last_sequence(channel.reference) - channel.next_number + 1)
        if known > 0:
            batch = self.batch_of(channel, known, refused=False)
            if batch is not None:
                batch.queues[queue] = queue.definition.durable or batch.queues.get(queue, False)
            self._end_batch(channel)
            channel.next_number += known
            messages = messages.cut(known, len(messages))
        if messages:
            is_again = channel.next_number <= channel.again
            super().publish(destination, messages)
            if is_again:
                queue.gathered_again()
        channel.next_number = end

    def hand_over(
        self,
        destination: Destination,
        queues: list[Queue],
        messages: Messages,
        batch: ConfirmBatch | None,
    ) -> None:
        """See Publisher; keeps the numbers of the messages."""
        super().hand_over(destination, queues, messages, batch)
        channel = destination.channel
        if isinstance(channel, ForwardedChannel):
            channel.next_number += len(messages)
            for queue in queues:
                queue.advance_sequence(channel.reference, channel.next_number - 1, len(messages))
