"""One channel: its consumers, its unacked deliveries, its confirms; a method each.

Frames of a message come in three kinds (method, header, bodies); `incoming` is the message they
build. A closing channel drops everything but close and close-ok (spec 1.5.2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pamqp import base, commands

from leveret.core.queues.confirms import ConfirmBatch, Confirms
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.counters import Counters
from leveret.core.queues.head import Head, Run
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model.errors import AccessRefused, PreconditionFailed
from leveret.session.amqp091 import remote_methods as passing
from leveret.session.amqp091.delivery import ChannelConsumer, ConsumerSource, Unacked, UnackedRuns, content
from leveret.session.amqp091.direct_reply import REPLY_TO, ReplyConsumer
from leveret.session.amqp091.publishing import IncomingMessage
from leveret.session.amqp091.replies import Fault
from leveret.session.amqp091.topology import TOPOLOGY
from leveret.session.amqp091.tracing import trace_delivered
from leveret.session.amqp091.transactions import ChannelTransaction
from leveret.wire import amqp091 as wire

if TYPE_CHECKING:
    from leveret.session.amqp091.connection import ClientConnection
    from leveret.session.forwarding.remote_channel import RemoteChannel


class Channel:
    """See the module."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        """Open, without consumers, neither in confirm nor in tx mode."""
        self.connection = connection
        self.number = number
        self.consumers: dict[bytes, ChannelConsumer] = {}
        self.reply_consumer: ReplyConsumer | None = None
        self.counters = Counters()
        self.unacked = UnackedRuns()
        self.next_tag = 1
        self.prefetch = 0
        self.global_prefetch = 0
        self.confirms: Confirms | None = None
        self.transaction: ChannelTransaction | None = None
        self.incoming: IncomingMessage | None = None
        self.last_queue = ""
        self.is_closed = False
        self.is_closing = False
        self.held_notices: list[bytes] | None = None
        self.shadows: dict[str, RemoteChannel] = {}

    # -- frames -------------------------------------------------------------------------------

    def frame(self, kind: int, payload: bytes) -> None:
        """Take one frame of this channel.

        Raises:
            LeveretError: closes the channel or the connection, by its code.
        """
        if self.is_closing:
            self._closing_frame(kind, payload)
        elif kind == wire.FRAME_METHOD:
            if self.incoming:
                raise self.incoming.unexpected()
            if payload[:4] == wire.BASIC_PUBLISH:
                self.incoming = IncomingMessage(payload, self.connection.host.limits.message_bytes_max)
            elif payload[:4] in wire.SETTLING and len(payload) == 13:
                self._settle(payload)
            else:
                self._method(wire.decode_method(payload))
        else:
            self._content(kind, payload)

    def _closing_frame(self, kind: int, payload: bytes) -> None:
        if kind == wire.FRAME_METHOD and payload[:4] == wire.CHANNEL_CLOSE_OK:
            self.is_closed = True
        elif kind == wire.FRAME_METHOD and payload[:4] == wire.CHANNEL_CLOSE:
            self.reply(commands.Channel.CloseOk())

    def _content(self, kind: int, payload: bytes) -> None:
        incoming = self.incoming
        if incoming is None:
            raise Fault(505, "expected method frame, got non method frame instead")
        if (kind == wire.FRAME_HEADER) != (incoming.header is None):
            raise incoming.unexpected()
        whole = incoming.take_header(payload) if kind == wire.FRAME_HEADER else incoming.take_body(payload)
        if whole:
            self.incoming = None
            self.connection.publisher.finish(self, incoming)

    def reply(self, method: base.Frame) -> None:
        """Send a method on this channel."""
        self.connection.send(wire.marshal(method, self.number))

    def _method(self, method: base.Frame) -> None:
        handler = _METHODS.get(type(method)) or TOPOLOGY.get(type(method))
        if handler is None:
            raise Fault(503, "unimplemented method")
        handler(self, method)

    # -- channel ------------------------------------------------------------------------------

    def _open_again(self, method: base.Frame) -> None:
        raise Fault(504, "second 'channel.open' seen")

    def _close(self, method: base.Frame) -> None:
        self.abandon()
        self.is_closed = True
        self.connection.channel_closes(self.number)
        self.reply(commands.Channel.CloseOk())

    def _flow(self, method: commands.Channel.Flow) -> None:
        if not method.active:
            raise Fault(540, "active=false")
        self.connection.send(wire.frame(wire.FRAME_METHOD, self.number, wire.CHANNEL_FLOW_OK + b"\x01"))

    def abandon(self) -> None:
        """End: consumers go, unacked deliveries return, later frames are dropped until close-ok."""
        self.is_closing = True
        self.incoming = None
        for shadow in list(self.shadows.values()):
            shadow.close()
        for tag in list(self.consumers):
            self._remove_consumer(tag)
        if self.reply_consumer is not None:
            self.reply_consumer.close()
        if self.transaction is not None:
            self._forget_transaction(self.transaction)
        self.requeue(self.unacked.take_up_to(0))
        self.connection.confirming.pop(self, None)

    # -- queues -------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """The queue named, or the last one declared when the name is empty; its lock is checked.

        Raises:
            NotFound: there is none. ResourceLocked: it is another connection's.
        """
        if not name:
            if not self.last_queue:
                raise Fault(404, "no previously declared queue")
            name = self.last_queue
        queue = self.connection.broker.queue(self.connection.vhost or "", name)
        self.connection.actor.check_lock(queue)
        if queue.gathered:
            # Published before this method, perhaps in the same read: it must be seen by it.
            self.connection.host.append_now(queue)
            if not bool(queue.consumers.willing()):
                queue.give_way()
        return queue

    def readable_queue(self, name: str) -> Queue:
        """The same, for who reads from it: the permission is asked first, as it tells less.

        Raises:
            AccessRefused: the user may not. NotFound, ResourceLocked: see `queue`.
        """
        if name or self.last_queue:
            self.connection.actor.require("read", "queue", name or self.last_queue)
        return self.queue(name)

    def mark(self, queue: DeliverySource) -> None:
        """The queue has something to log or to hand out at the next flush."""
        held = self.connection.broker.queues.get(queue.key)
        if held is not None and held is queue:
            self.connection.broker.dirty[held] = None

    # -- consuming ----------------------------------------------------------------------------

    def _qos(self, method: commands.Basic.Qos) -> None:
        if method.prefetch_size:
            raise Fault(540, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.global_prefetch = method.prefetch_count
            for shadow in list(self.shadows.values()):
                shadow.limit()
            self.wake_consumers()
        else:
            self.prefetch = method.prefetch_count
        self.reply(commands.Basic.QosOk())

    def _consume(self, method: commands.Basic.Consume) -> None:
        tag = (method.consumer_tag or f"amq.ctag-{self.connection.host.unique_id()}").encode()
        if tag in self.consumers:
            raise Fault(530, f"attempt to reuse consumer tag '{tag.decode()}'")
        limit = self.connection.host.limits.consumer_max_per_channel
        if limit is not None and len(self.consumers) >= limit:
            raise Fault(530, f"reached maximum ({limit}) of consumers per channel")
        if method.queue == REPLY_TO:
            self._consume_replies(method, tag)
            return
        queue = self.readable_queue(method.queue)
        vhost, name = queue.key
        if isinstance(queue, RemoteQueue):
            passing.consume(self, queue, tag, method)
            return
        if any(other.exclusive for other in queue.consumers) or (
            method.exclusive and (queue.consumers or queue.consumers.single_active)
        ):
            raise AccessRefused(f"queue '{name}' in vhost '{vhost}' in exclusive use")
        consumer = self.make_consumer(queue, tag, method)
        queue.add_consumer(consumer)
        self.consumers[tag] = consumer
        if not method.nowait:
            self.connection.send(wire.named_reply(self.number, 60, 21, tag))
        self.mark(queue)

    def make_consumer(
        self, queue: ConsumerSource, tag: bytes, method: commands.Basic.Consume
    ) -> ChannelConsumer:
        """A consumer, not registered yet.

        Raises:
            PreconditionFailed: an argument is not valid.
        """
        return ChannelConsumer(self, queue, tag, method, self.prefetch)

    def _consume_replies(self, method: commands.Basic.Consume, tag: bytes) -> None:
        """`amq.rabbitmq.reply-to`: replies come to this channel without a queue."""
        if self.reply_consumer is not None:
            raise PreconditionFailed("reply consumer already set")
        if not method.no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        self.reply_consumer = ReplyConsumer(self, tag)
        if not method.nowait:
            self.connection.send(wire.named_reply(self.number, 60, 21, tag))

    def _cancel(self, method: commands.Basic.Cancel) -> None:
        tag = (method.consumer_tag or "").encode()
        consumer = self.consumers.get(tag)
        if consumer is not None:
            if consumer.queue.is_remote and passing.cancel(self, consumer, method):
                return
            self._remove_consumer(tag)
        elif self.reply_consumer is not None and self.reply_consumer.tag == tag:
            self.reply_consumer.close()
        if not method.nowait:
            self.connection.send(wire.named_reply(self.number, 60, 31, tag))

    def _remove_consumer(self, tag: bytes) -> None:
        consumer = self.consumers.pop(tag)
        queue = consumer.queue
        queue.remove_consumer(consumer)
        held = self.connection.broker.queues.get(queue.key)
        if held is not None and held is queue and held.definition.auto_delete and not held.consumers:
            self.connection.broker.delete_when_writable(held)
        else:
            self.mark(queue)

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """A consumer's queue is gone; the client is told if it can hear it."""
        self.consumers.pop(consumer.tag, None)
        if not self.is_closing and self.connection.client_can("consumer_cancel_notify"):
            notice = wire.named_reply(self.number, 60, 30, consumer.tag, b"\x01")
            if self.held_notices is None:
                self.connection.send(notice)
            else:
                self.held_notices.append(notice)

    def wake_consumers(self) -> None:
        """Something changed about how much this channel takes."""
        for consumer in self.consumers.values():
            self.mark(consumer.queue)
        for shadow in self.shadows.values():
            shadow.wake()

    def _get(self, method: commands.Basic.Get) -> None:
        queue = self.readable_queue(method.queue)
        if isinstance(queue, RemoteQueue):
            passing.get(self, queue, method.no_ack)
            return
        runs, redelivered = queue.take_one(self.connection.now_ms)
        self.mark(queue)
        self.got(queue, runs[0] if runs else None, redelivered, queue.ready_count, no_ack=method.no_ack)
        if runs and method.no_ack:
            queue.settle(runs[0].first, 1)

    def got(
        self, queue: DeliverySource, run: Run | None, redelivered: bool, ready_count: int, *, no_ack: bool
    ) -> None:
        """Answer a basic.get: with a message, behind which so many are ready, or with none."""
        if run is None:
            self._count(queue, "get_empty", 1)
            self.connection.send(wire.named_reply(self.number, 60, 72, b""))
            return
        self._count(queue, "get_no_ack" if no_ack else "get", 1)
        if redelivered:
            self._count(queue, "redeliver", 1)
        if self.connection.broker.traced_vhosts:
            trace_delivered(self, queue, run.head, run.bodies, redelivered)
        tag = self.next_tag
        self.next_tag += 1
        message = content(self, run.head, run.bodies[0], redelivered)
        # A get-ok has the count between routing key and frame end; its content is a delivery's.
        after_route = message[1 + len(run.head.route) + 1 :]
        ok = wire.get_ok(self.number, tag, redelivered, run.head.route, ready_count)
        self.connection.send(ok + after_route)
        if not no_ack:
            self.unacked.add(Unacked(tag, run.first, 1, queue, None, self.connection.now_ms))

    # -- settling -----------------------------------------------------------------------------

    def _settle(self, payload: bytes) -> None:
        """basic.ack, nack or reject, undecoded: tag u64 and one octet of bits."""
        tag, bits = int.from_bytes(payload[4:12], "big"), payload[12]
        if payload[:4] == wire.BASIC_ACK:
            self.ack(tag, multiple=bool(bits & 1))
        elif payload[:4] == wire.BASIC_NACK:
            self._refuse(tag, multiple=bool(bits & 1), requeue=bool(bits & 2))
        else:
            self._refuse(tag, multiple=False, requeue=bool(bits & 1))

    def ack(self, tag: int, *, multiple: bool) -> None:
        """Settle deliveries for good.

        Raises:
            Fault: 406, the tag is not unacked.
        """
        self._settle_runs(self._acknowledge, self.take(tag, multiple))

    def _refuse(self, tag: int, *, multiple: bool, requeue: bool) -> None:
        runs = self.take(tag, multiple)
        for run in runs:
            run.queue.check_refusable()
        self._settle_runs(self.requeue if requeue else self._reject, runs)

    def take(self, tag: int, multiple: bool) -> list[Unacked]:
        """Remove and return deliveries.

        Raises:
            Fault: 406, the tag is not unacked.
        """
        if multiple:
            if tag and tag not in self.unacked:
                raise Fault(406, f"unknown delivery tag {tag}")
            return self.unacked.take_up_to(tag)
        run = self.unacked.take_one(tag)
        if run is None:
            raise Fault(406, f"unknown delivery tag {tag}")
        return [run]

    def deliveries(self) -> Iterator[Unacked]:
        """All that is not settled yet, also what a transaction is to settle."""
        yield from self.unacked
        if self.transaction is not None:
            for _, runs in self.transaction.settlements:
                yield from runs

    def _settle_runs(self, settle: Callable[[list[Unacked]], None], runs: list[Unacked]) -> None:
        """Settle now, or with the transaction's commit."""
        if self.transaction is not None:
            self.transaction.settlements.append((settle, runs))
        else:
            settle(runs)

    def _acknowledge(self, runs: list[Unacked]) -> None:
        for run in runs:
            run.queue.settle(run.offset, run.count)
            self._count(run.queue, "ack", run.count)
        self.let_go(runs)

    def _reject(self, runs: list[Unacked]) -> None:
        for run in runs:
            run.queue.reject(run.offset, run.count)
        self.let_go(runs)

    def requeue(self, runs: list[Unacked]) -> None:
        """Give deliveries back to their queues, in their old places."""
        for run in runs:
            run.queue.requeue(run.offset, run.count)
        self.let_go(runs)

    def let_go(self, runs: list[Unacked]) -> None:
        """These deliveries no longer count against anybody's prefetch."""
        for run in runs:
            if run.consumer is not None:
                run.consumer.unacked_count -= run.count
            self.mark(run.queue)
        if self.global_prefetch:
            for shadow in list(self.shadows.values()):
                shadow.made_room()
            self.wake_consumers()

    def _count(self, queue: DeliverySource, what: str, count: int) -> None:
        """Count up for the queue, the channel and the node."""
        for counters in (queue.counters, self.counters, self.connection.counters):
            setattr(counters, what, getattr(counters, what) + count)

    def tick(self, now_ms: int) -> None:
        """Look whether the oldest delivery, of a consumer or a get, waits for its acknowledgement for too long.

        Raises:
            PreconditionFailed: it does; in RabbitMQ's words.
        """
        run = self.unacked.oldest
        if run is None:
            return
        own_ms = run.queue.settings.consumer_timeout_ms
        timeout_ms = self.connection.host.limits.consumer_timeout_ms if own_ms is None else own_ms
        if now_ms - run.delivered_at_ms > timeout_ms:
            raise PreconditionFailed(
                f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: {timeout_ms} ms. "
                "This timeout value can be configured, see consumers doc guide to learn more"
            )

    def _recover(self, method: commands.Basic.Recover) -> None:
        self._recover_async(method)
        self.reply(commands.Basic.RecoverOk())

    def _recover_async(self, method: commands.Basic.Recover | commands.Basic.RecoverAsync) -> None:
        if not method.requeue:
            raise Fault(540, "requeue=false")
        self.requeue(self.unacked.take_up_to(0))

    # -- publishing ---------------------------------------------------------------------------

    def _confirm_select(self, method: commands.Confirm.Select) -> None:
        if self.transaction is not None:
            raise PreconditionFailed("cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = Confirms()
        if not method.nowait:
            self.reply(commands.Confirm.SelectOk())

    def _tx_select(self, method: commands.Tx.Select) -> None:
        if self.confirms is not None:
            raise PreconditionFailed("cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = ChannelTransaction()
        self.reply(commands.Tx.SelectOk())

    def _transaction(self) -> ChannelTransaction:
        if self.transaction is None:
            raise PreconditionFailed("channel is not transactional")
        return self.transaction

    def _tx_commit(self, method: commands.Tx.Commit) -> None:
        """Hand everything over; commit-ok follows when it is safe (`confirm`)."""
        transaction = self._transaction()
        self._check_settlements(transaction)
        batch = transaction.committing = ConfirmBatch()
        for shape, bodies in transaction.take_publishes():
            self.connection.publisher.publish(shape.at_commit(), bodies)
        for settle, runs in transaction.take_settlements():
            settle(runs)
            for run in runs:
                batch.queues[run.queue] = run.queue.definition.durable or batch.queues.get(run.queue, False)
        transaction.committing = None
        transaction.batches.append(batch)
        self.connection.confirming[self] = None

    def _check_settlements(self, transaction: ChannelTransaction) -> None:
        """A commit that could not settle what it is asked to settle does nothing at all.

        Raises:
            PreconditionFailed: that is so.
        """
        for settle, runs in transaction.settlements:
            for run in runs if settle != self.requeue else ():
                why = run.queue.why_not_settled()
                if why:
                    raise PreconditionFailed(why)

    def _tx_rollback(self, method: commands.Tx.Rollback) -> None:
        self._forget_transaction(self._transaction())
        self.reply(commands.Tx.RollbackOk())

    def _forget_transaction(self, transaction: ChannelTransaction) -> None:
        transaction.take_publishes()
        for _, runs in transaction.take_settlements():
            self.unacked.put_back(runs)

    def close_batches(self) -> list[ConfirmBatch]:
        """What was published or committed in this flush, and waits to be confirmed."""
        if self.confirms is not None:
            return self.confirms.close_batches()
        return self.transaction.close_batches() if self.transaction is not None else []

    def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
        """A batch of publishes, or a commit, is safe or is not; tell the publisher."""
        if self.is_closing:
            return
        if self.confirms is None:
            self._committed(batch, ok)
            return
        before = self.confirms.confirmed
        for tag, multiple, positive in self.confirms.settled(batch, ok):
            encode = wire.ack if positive else wire.nack
            self.connection.send(encode(self.number, tag, multiple))
        count = self.confirms.confirmed - before
        self.counters.confirm += count
        self.connection.counters.confirm += count

    def _committed(self, batch: ConfirmBatch, ok: bool) -> None:
        if ok:
            self.reply(commands.Tx.CommitOk())
        elif batch.refused:
            error = PreconditionFailed(batch.doubt or "partial tx completion")
            self.connection.fail(error, self.number, 0x005A0014)
        else:
            fault = Fault(506, "the disk refused the transaction; see the node's log")
            self.connection.fail(fault, self.number, 0x005A0014)

    def return_unroutable(self, head: Head, body: bytes) -> None:
        """A mandatory message went to no queue: basic.return, 312."""
        message = content(self, head, body, False)[1 + len(head.route) + 1 :]
        self.connection.send(wire.basic_return(self.number, 312, b"NO_ROUTE", head.route) + message)


_METHODS: Final[dict[type[base.Frame], Callable[[Channel, Any], None]]] = {
    commands.Channel.Open: Channel._open_again,
    commands.Channel.Close: Channel._close,
    commands.Channel.Flow: Channel._flow,
    commands.Basic.Qos: Channel._qos,
    commands.Basic.Consume: Channel._consume,
    commands.Basic.Cancel: Channel._cancel,
    commands.Basic.Get: Channel._get,
    commands.Basic.Recover: Channel._recover,
    commands.Basic.RecoverAsync: Channel._recover_async,
    commands.Confirm.Select: Channel._confirm_select,
    commands.Tx.Select: Channel._tx_select,
    commands.Tx.Commit: Channel._tx_commit,
    commands.Tx.Rollback: Channel._tx_rollback,
}
