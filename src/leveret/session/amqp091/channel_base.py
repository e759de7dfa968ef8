"""The shared base of a channel's methods: queues, replies, and publishes in confirm or tx mode.

This is the lower half of `channel.Channel`, which takes the frames. Publishing and the methods in modules of their
own use this half.
"""

from __future__ import annotations

from collections.abc import Iterator

from pamqp import base, commands

from leveret.core.queues.confirms import Confirm, ConfirmBatch, Confirms
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.head import Head
from leveret.core.queues.messages import Run
from leveret.core.queues.queue import Queue
from leveret.core.rules.validation import CLASSIC, QUORUM, STREAM, queue_type
from leveret.model.errors import NotFound, PreconditionFailed, ResourceLocked, Unsupported
from leveret.session.amqp091.blocked import BlockedReason, Postponed
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.delivery import (
    ChannelConsumer,
    ConsumerSource,
    DeliveryChannel,
    Unacked,
    content,
)
from leveret.session.amqp091.direct_reply import ReplyConsumer
from leveret.session.amqp091.incoming import IncomingMessage
from leveret.session.amqp091.remote_queues import Leaders
from leveret.session.amqp091.replies import Fault
from leveret.session.amqp091.tracing import trace_delivered
from leveret.session.amqp091.transactions import ChannelTransaction
from leveret.wire import amqp091 as wire


class ChannelBase(DeliveryChannel):
    """See the module.

    Attributes:
        leaders: the other nodes as leaders of queues; None on a single node.
        reply_consumer: the consumer of direct replies, None for none.
        confirms: set in confirm mode.
        transaction: set in tx mode.
        incoming: the message whose frames are arriving.
        last_queue: the last declared queue, which an empty name stands for.
    """

    def __init__(self, connection: ConnectionBase, number: int, leaders: Leaders | None) -> None:
        """Begin neither in confirm nor in tx mode."""
        super().__init__(connection, number)
        self.leaders = leaders
        self.reply_consumer: ReplyConsumer | None = None
        self.confirms: Confirms | None = None
        self.transaction: ChannelTransaction | None = None
        self.incoming: IncomingMessage | None = None
        self.last_queue = ""
        self.is_closed = False

    def reply(self, method: base.Frame) -> None:
        """Send a method on this channel."""
        self.connection.send(wire.marshal(method, self.number))

    # -- queues -------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """The named queue, or the last declared one if the name is empty; checks its lock.

        Raises:
            NotFound: there is no such queue. ResourceLocked: it is another connection's exclusive queue.
        """
        if not name:
            if not self.last_queue:
                raise Fault(404, "no previously declared queue")
            name = self.last_queue
        queue = self.connection.broker.queue(self.connection.vhost or "", name)
        self.connection.actor.check_lock(queue)
        self.await_returns(name)
        self.catch_up(queue)
        return queue

    def catch_up(self, queue: Queue) -> None:
        """Let a queue do what its flush would do before this method, which perhaps came in the same read.

        Messages published before the method are in the queue, and consumers that want messages have them.
        """
        had_gathered = bool(queue.gathered)
        if had_gathered:
            self.connection.host.append_now(queue)
        if queue.consumers.has_willing:
            if self.connection.broker.may_deliver():
                queue.offer(self.connection.host.clock_ms())
        elif had_gathered and queue.prepare():
            queue.give_way()

    def await_returns(self, name: str) -> None:
        """Wait until unfinished returns to a queue, and removals of its consumers, are done.

        Raises:
            Postponed: some are unfinished.
        """
        connection = self.connection
        queue = connection.broker.queues.get((connection.vhost or "", name))
        if queue is not None and queue.pending_returns:
            connection.ask()
            queue.pending_returns.when_over(connection.answered)
            raise Postponed(BlockedReason.REMOTE)

    def readable_queue(self, name: str) -> Queue:
        """The same queue for reading; the permission is checked first, so that an error reveals less.

        Raises:
            AccessRefused: the user has no permission. NotFound, ResourceLocked: see `queue`.
        """
        if name or self.last_queue:
            self.connection.actor.require("read", "queue", name or self.last_queue)
        return self.queue(name)

    def take_one(self, queue: Queue) -> tuple[list[Run], bool]:
        """Take a message of a queue for a get: (runs, whether it is redelivered); no run from an empty queue.

        Raises:
            NotFound: another node may lead the queue by now, and settle the message.
            ResourceLocked: it is a quorum queue with a single active consumer.
            Postponed: what came back to the queue is not sorted and measured yet.
        """
        connection, (vhost, name) = self.connection, queue.key
        if queue.consumers.single_active and queue_type(queue.definition.arguments) == QUORUM:
            raise ResourceLocked(
                f"cannot obtain access to locked queue '{name}' in vhost '{vhost}'. basic.get operations are not "
                "supported by quorum queues with single active consumer"
            )
        if not connection.broker.may_deliver():
            raise NotFound(f"queue '{name}' in vhost '{vhost}': another node may lead it by now")
        if not queue.prepare():
            connection.wake()
            raise Postponed(BlockedReason.TURN)
        return queue.take_one(connection.host.clock_ms())

    def make_consumer(
        self, queue: ConsumerSource, tag: bytes, method: commands.Basic.Consume
    ) -> ChannelConsumer:
        """Make a consumer, without registering it.

        Raises:
            PreconditionFailed: an argument is invalid. Unsupported: the channel limits all its consumers together, and
                only classic queues can be consumed from so.
        """
        kind = queue_type(queue.definition.arguments)
        # A stream refuses others for reasons of its own, which come first.
        goes_to_stream = kind == STREAM and (not self.prefetch or method.no_ack)
        if self.global_prefetch and kind != CLASSIC and not goes_to_stream:
            vhost, name = queue.key
            raise Unsupported(f"queue '{name}' in vhost '{vhost}' does not support global qos")
        return ChannelConsumer(self, queue, tag, method, self.prefetch)

    def got(
        self, queue: DeliverySource, run: Run | None, redelivered: bool, ready_count: int, *, no_ack: bool
    ) -> None:
        """Answer a basic.get with a message and the number of ready messages behind it, or with get-empty."""
        all_counters = queue.counters, self.counters, self.connection.counters
        if run is None:
            for counters in all_counters:
                counters.get_empty += 1
            self.connection.send(wire.named_reply(self.number, 60, 72, b""))
            return
        for counters in all_counters:
            if no_ack:
                counters.get_no_ack += 1
            else:
                counters.get += 1
            if redelivered:
                counters.redeliver += 1
        if self.connection.broker.traced_vhosts:
            trace_delivered(self.connection, self.number, queue, run.taken(), redelivered)
        tag = self.next_tag
        self.next_tag += 1
        route, header = run.messages.prelude_at(run.start)
        ok = wire.get_ok(self.number, tag, redelivered, route, ready_count)
        self.connection.send_pieces((ok, *content(self, header, run.messages.bodies[run.start])))
        if not no_ack:
            self.has_got = True
            self.unacked.add(Unacked(tag, run.first, 1, queue, None, self.connection.now_ms))

    @property
    def unfinished_bytes(self) -> int:
        """The octets of the message whose frames are arriving, and of the messages of an uncommitted transaction."""
        arriving = 0 if self.incoming is None else self.incoming.body.tell()
        publishes = () if self.transaction is None else self.transaction.publishes
        return arriving + sum(len(body) for _, messages in publishes for body in messages.bodies)

    def deliveries(self) -> Iterator[Unacked]:
        """All unsettled deliveries, also those that a transaction will settle."""
        yield from self.unacked
        if self.transaction is not None:
            yield from self.transaction.deliveries()

    def return_unroutable(self, head: Head, body: bytes) -> None:
        """Return a mandatory message that was routed to no queue: basic.return, 312."""
        method = wire.basic_return(self.number, 312, b"NO_ROUTE", head.route)
        self.connection.send_pieces((method, *content(self, head.sized_header, body)))

    # -- confirms -----------------------------------------------------------------------------

    def close_batches(self) -> list[ConfirmBatch]:
        """The publishes and commits of this flush that wait for a confirm."""
        if self.confirms is not None:
            return self.confirms.close_batches()
        return self.transaction.close_batches() if self.transaction is not None else []

    def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
        """Tell the client whether a batch of publishes, or a commit, is safe."""
        if self.is_closing:
            return
        if self.confirms is None:
            self._committed(batch, ok)
            return
        count, last = 0, self.confirms.confirmed
        for confirm in self.confirms.decided(batch, ok):
            self.connection.send(self.encode_confirm(confirm))
            if confirm.positive:
                count += confirm.tag - last
            last = confirm.tag
        self.counters.confirm += count
        self.connection.counters.confirm += count

    def encode_confirm(self, confirm: Confirm) -> bytes:
        """The frame of a confirm."""
        encode = wire.ack if confirm.positive else wire.nack
        return encode(self.number, confirm.tag, confirm.multiple)

    def _committed(self, batch: ConfirmBatch, ok: bool) -> None:
        if ok:
            self.reply(commands.Tx.CommitOk())
        elif batch.refused:
            error = PreconditionFailed(batch.doubt or "partial tx completion")
            self.connection.fail(error, self.number, 0x005A0014)
        else:
            at_leader = "the disk refused the transaction, or the leader of a queue did; see the nodes' logs"
            fault = Fault(506, batch.unmet or at_leader)
            self.connection.fail(fault, self.number, 0x005A0014)
