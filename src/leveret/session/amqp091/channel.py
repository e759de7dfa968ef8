"""One channel: its frames, and the methods on consumers, deliveries, confirms and transactions.

Frames of a message come in three kinds (method, header, bodies); `incoming` is the message that they build. A closing
channel drops everything but close and close-ok (spec 1.5.2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Final

from pamqp import base, commands

from leveret.core.broker.deferred_work import ENOUGH
from leveret.core.queues.confirms import ConfirmBatch, ConfirmParts, Confirms
from leveret.core.queues.messages import Messages
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model.errors import AccessRefused, LeveretError, PreconditionFailed
from leveret.session.amqp091 import remote_methods
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.delivery import FEW, Unacked
from leveret.session.amqp091.destinations import FEW_QUEUES
from leveret.session.amqp091.direct_reply import REPLY_TO, ReplyConsumer
from leveret.session.amqp091.incoming import IncomingMessage
from leveret.session.amqp091.publishing import QUEUES_A_TURN, Publisher
from leveret.session.amqp091.remote_queues import Leaders
from leveret.session.amqp091.replies import Fault
from leveret.session.amqp091.settling import Settle, answered_at_end, begin, in_parts, in_parts_back, leave
from leveret.session.amqp091.topology import TOPOLOGY
from leveret.session.amqp091.transactions import ChannelTransaction, CommittedPublish, Settlements
from leveret.wire import amqp091 as wire

ACKED_AT_ONCE: Final = 1_000
"""The most runs of deliveries acknowledged in one step; then other connections have their turn."""


class Channel(ChannelBase):
    """A channel of a client's connection; see the module.

    Attributes:
        lifts_limit: whether a prefetch of later consumers ends the limit for all consumers together, as in RabbitMQ.
    """

    lifts_limit: ClassVar[bool] = True

    def __init__(
        self, connection: ConnectionBase, number: int, publisher: Publisher, leaders: Leaders | None
    ) -> None:
        """Open the channel; `publisher` takes its publishes."""
        super().__init__(connection, number, leaders)
        self.publisher = publisher

    # -- frames -------------------------------------------------------------------------------

    def frame(self, kind: int, payload: bytes) -> None:
        """Take one frame of this channel.

        Raises:
            LeveretError: the error's code says whether the channel or the connection is closed.
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
        if kind == wire.FRAME_BODY:
            self.take_body(payload)
        elif incoming.take_header(payload):
            self._finish(incoming)

    @property
    def awaits_body(self) -> bool:
        """Whether the next frame is a body of the incoming message."""
        return self.incoming is not None and self.incoming.header is not None and not self.is_closing

    def take_body(self, octets: bytes | memoryview) -> None:
        """Take a body frame of the incoming message, for which the channel waits; no view of it is kept.

        Raises:
            LeveretError: see `frame`.
        """
        incoming = self.incoming
        if incoming is not None and incoming.take_body(octets):
            self._finish(incoming)

    def _finish(self, incoming: IncomingMessage) -> None:
        self.incoming = None
        self.publisher.finish(self, incoming)

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
        self.end()
        leave(self.connection.broker, [self])

    def end(self) -> None:
        """Do everything at the channel's end except the steps of `settling.leave`."""
        self.is_closing = True
        self.incoming = None
        for remote_channel in list(self.remote_channels.values()):
            remote_channel.close()
        if self.reply_consumer is not None:
            self._forget_replies(self.reply_consumer)
        if self.transaction is not None:
            self.transaction.take_publishes()
            self._put_back(self.transaction.take_all_settlements())
        self.connection.confirming.pop(self, None)

    # -- consuming ----------------------------------------------------------------------------

    def _qos(self, method: commands.Basic.Qos) -> None:
        if method.prefetch_size:
            raise Fault(540, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self._set_global_prefetch(method.prefetch_count)
        else:
            self.prefetch = method.prefetch_count
            if self.lifts_limit and self.global_prefetch:
                self._set_global_prefetch(0)
        self.reply(commands.Basic.QosOk())

    def _set_global_prefetch(self, prefetch: int) -> None:
        """Limit all consumers of the channel together; 0 for no limit."""
        self.global_prefetch = prefetch
        for remote_channel in list(self.remote_channels.values()):
            remote_channel.limit()
        self.wake_consumers()

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
            remote_methods.consume(self, queue, tag, method)
            return
        consumer = self.make_consumer(queue, tag, method)
        if queue.consumers.refuses(exclusive=consumer.exclusive):
            raise AccessRefused(f"queue '{name}' in vhost '{vhost}' in exclusive use")
        queue.add_consumer(consumer)
        self.consumers[tag] = consumer
        if not method.nowait:
            self.connection.send(wire.named_reply(self.number, 60, 21, tag))
        self.mark(queue)

    def _consume_replies(self, method: commands.Basic.Consume, tag: bytes) -> None:
        """Consume from `amq.rabbitmq.reply-to`: replies come to this channel without a queue."""
        if self.reply_consumer is not None:
            raise PreconditionFailed("reply consumer already set")
        if not method.no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        self.reply_consumer = ReplyConsumer(self, tag)
        if not method.nowait:
            self.connection.send(wire.named_reply(self.number, 60, 21, tag))

    def _forget_replies(self, consumer: ReplyConsumer) -> None:
        consumer.close()
        self.reply_consumer = None

    def _cancel(self, method: commands.Basic.Cancel) -> None:
        tag = (method.consumer_tag or "").encode()
        consumer = self.consumers.get(tag)
        if consumer is not None:
            if consumer.queue.is_remote and remote_methods.cancel(self, consumer, method):
                return
            if isinstance(consumer.queue, Queue):
                self.catch_up(consumer.queue)
            self.remove_consumer(tag)
        elif self.reply_consumer is not None and self.reply_consumer.tag == tag:
            self._forget_replies(self.reply_consumer)
        if not method.nowait:
            self.connection.send(wire.named_reply(self.number, 60, 31, tag))

    def remove_consumer(self, tag: bytes) -> None:
        """Remove a consumer from its queue, which may be deleted with its last one."""
        consumer = self.consumers.pop(tag)
        queue = consumer.queue
        queue.remove_consumer(consumer)
        existing = self.connection.broker.queues.get(queue.key)
        if (
            existing is not None
            and existing is queue
            and existing.definition.auto_delete
            and not existing.consumers
        ):
            self.connection.broker.deletions.delete_when_writable([existing])
        else:
            self.mark(queue)

    def _get(self, method: commands.Basic.Get) -> None:
        queue = self.readable_queue(method.queue)
        if isinstance(queue, RemoteQueue):
            remote_methods.get(self, queue, method.no_ack)
            return
        runs, redelivered = self.take_one(queue)
        self.mark(queue)
        self.got(queue, runs[0] if runs else None, redelivered, queue.ready_count, no_ack=method.no_ack)
        if runs and method.no_ack:
            queue.settle(runs[0].first, 1)

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
            Fault: 406, no unacked delivery has the tag.
        """
        self._settle_runs(self._acknowledge, self.take(tag, multiple))

    def ack_each(self, first: int, last: int) -> int:
        """Ack the deliveries from one tag to another, in order; return the tag behind the settled ones.

        At most ACKED_AT_ONCE runs are settled, because one read may hold ten thousand acknowledgements.

        Raises:
            Fault: 406, one of the tags is of no unacked delivery; those before it are settled.
        """
        tag = first
        for _ in range(ACKED_AT_ONCE):
            if tag > last:
                break
            run = self.unacked.take_from(tag, last)
            if run is None:
                self.ack(tag, multiple=False)
                tag += 1
            else:
                self._settle_runs(self._acknowledge, [run])
                tag += run.count
        return tag

    def _refuse(self, tag: int, *, multiple: bool, requeue: bool) -> None:
        runs = self.take(tag, multiple)
        try:
            for queue in {run.queue: None for run in runs}:
                queue.check_refusable()
        except LeveretError:
            # The connection ends, and returns all deliveries, also those of other queues.
            self.unacked.put_back(runs)
            raise
        self._settle_runs(self.requeue if requeue else self._reject, runs)

    def take(self, tag: int, multiple: bool) -> Collection[Unacked]:
        """Remove and return deliveries.

        Raises:
            Fault: 406, no unacked delivery has the tag.
        """
        if multiple:
            if tag and tag not in self.unacked:
                raise Fault(406, f"unknown delivery tag {tag}")
            return self.unacked.take_up_to(tag)
        run = self.unacked.take_one(tag)
        if run is None:
            raise Fault(406, f"unknown delivery tag {tag}")
        return [run]

    def _settle_runs(self, settle: Settle, runs: Collection[Unacked]) -> None:
        """Settle runs now, in several steps if they are many, or with the transaction's commit."""
        if self.transaction is not None:
            self.transaction.settlements.append((settle, runs))
        elif len(runs) <= FEW:
            settle(runs)
        else:
            with answered_at_end(self.connection) as done:
                begin(self.connection.broker, self._in_turns(settle, runs, done), len(runs))

    def _in_turns(
        self, settle: Settle, runs: Collection[Unacked], *then: Callable[[], None]
    ) -> Iterator[object]:
        if settle == self.requeue:
            yield from in_parts_back(self.connection.broker, settle, runs)
        else:
            yield from in_parts(settle, runs)
        for step in then:
            step()

    def _acknowledge(self, runs: Collection[Unacked]) -> None:
        for run in runs:
            run.queue.settle(run.offset, run.count)
            for counters in (run.queue.counters, self.counters, self.connection.counters):
                counters.ack += run.count
        self.let_go(runs)

    def _reject(self, runs: Collection[Unacked]) -> None:
        for run in runs:
            run.queue.reject(run.offset, run.count)
        self.let_go(runs)

    def tick(self, now_ms: int) -> None:
        """Check the consumer timeout of the oldest unacked delivery, of a consumer or a get.

        Raises:
            PreconditionFailed: it is exceeded; in RabbitMQ's words.
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

    def _recover(self, method: commands.Basic.Recover | commands.Basic.RecoverAsync) -> None:
        if not method.requeue:
            raise Fault(540, "requeue=false")

        def recovered() -> None:
            if isinstance(method, commands.Basic.Recover):
                self.reply(commands.Basic.RecoverOk())

        runs = self.unacked.take_up_to(0)
        with answered_at_end(self.connection) as done:
            begin(self.connection.broker, self._in_turns(self.requeue, runs, recovered, done), len(runs))

    # -- publishing ---------------------------------------------------------------------------

    def _confirm_select(self, method: commands.Confirm.Select) -> None:
        if self.transaction is not None:
            raise PreconditionFailed("cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = Confirms()
            self.publisher.forget()
        if not method.nowait:
            self.reply(commands.Confirm.SelectOk())

    def _tx_select(self, method: commands.Tx.Select) -> None:
        if self.confirms is not None:
            raise PreconditionFailed("cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = ChannelTransaction()
            self.publisher.forget()
        self.reply(commands.Tx.SelectOk())

    def _transaction(self) -> ChannelTransaction:
        if self.transaction is None:
            raise PreconditionFailed("channel is not transactional")
        return self.transaction

    def _tx_commit(self, method: commands.Tx.Commit) -> None:
        """Commit the transaction; commit-ok follows when it is safe (`confirm`)."""
        transaction = self._transaction()
        self._check_settlements(transaction)
        is_long = transaction.reached > FEW_QUEUES
        publishes, settlements = transaction.take_publishes(), transaction.take_settlements()
        if is_long or sum(len(runs) for _, runs in settlements) > FEW:
            self._commit_in_turns(transaction, publishes, settlements)
            return
        batch = transaction.committing = ConfirmBatch()
        for publish, messages in publishes:
            for _ in publish(messages, None):
                pass
        transaction.committing = None
        if publishes and settlements and self.connection.host.waits_for_nodes(batch.queues):
            parts = self._parts_before(transaction, settlements)
            parts.add(batch)
            parts.end()
            return
        for settle, runs in settlements:
            settle(runs)
            _add_queues(batch, runs)
        transaction.batches.append(batch)
        self.connection.confirming[self] = None

    def _commit_in_turns(
        self,
        transaction: ChannelTransaction,
        publishes: list[tuple[CommittedPublish, Messages]],
        settlements: Settlements,
    ) -> None:
        """Publish, then settle, in several steps.

        A loss of the node in between doubles messages, and loses none.
        """
        broker = self.connection.broker

        def work() -> Iterator[object]:
            if publishes and settlements:
                parts = self._parts_before(transaction, settlements)
                yield from self._publish_in_turns(transaction, publishes, parts)
                parts.end()
            else:
                parts = ConfirmParts(broker.confirming, self.confirm)
                yield from self._publish_in_turns(transaction, publishes, parts)
                yield from self._settle_in_turns(settlements, parts)
            done()

        with answered_at_end(self.connection) as done:
            broker.deferred_work.begin(work())

    def _parts_before(self, transaction: ChannelTransaction, settlements: Settlements) -> ConfirmParts:
        """The publishes of a commit that settles once they are safe: it fails, or settles, when they are decided."""

        def published(batch: ConfirmBatch, ok: bool) -> None:
            # After the channel's end the deliveries are back in their queues.
            behind = transaction.behind.pop(parts, [])
            if ok and not self.is_closing:
                then = ConfirmParts(broker.confirming, self.confirm)
                begin(broker, self._settle_in_turns(behind, then), sum(len(runs) for _, runs in behind))
            elif not self.is_closing:
                self._put_back(behind)
                self.confirm(batch, ok=False)

        broker = self.connection.broker
        parts = ConfirmParts(broker.confirming, published)
        transaction.behind[parts] = settlements
        return parts

    def _settle_in_turns(self, settlements: Settlements, parts: ConfirmParts) -> Iterator[object]:
        """Settle, as the last part of a commit."""
        settled = ConfirmBatch()
        for settle, runs in settlements:
            _add_queues(settled, runs)
            if settle != self.requeue and (why := next(filter(None, map(_why_not_settled, runs)), "")):
                settled.doubt = f"{why}: what the transaction published was published"
            yield from self._in_turns(settle, runs)
        # The log of a new leader may lack settlements that the previous one took.
        settled.refused = bool(settled.doubt) or any(map(self._is_led_elsewhere, settled.queues))
        parts.add(settled)
        parts.end()

    def _publish_in_turns(
        self,
        transaction: ChannelTransaction,
        publishes: list[tuple[CommittedPublish, Messages]],
        parts: ConfirmParts,
    ) -> Iterator[object]:
        """Publish the transaction's messages in order, to some queues with each flush."""
        broker = self.connection.broker
        flushed, before = broker.dirty, len(broker.dirty)
        for publish, messages in publishes:
            if broker.dirty is not flushed:
                flushed, before = broker.dirty, len(broker.dirty)
            transaction.committing = parts.batch()
            yield from publish(messages, parts)
            transaction.committing = None
            yield ENOUGH if len(broker.dirty) - before >= QUEUES_A_TURN else None

    def _is_led_elsewhere(self, queue: object) -> bool:
        """Whether a queue was settled here but has another leader by now, and is not deleted."""
        if not isinstance(queue, Queue):
            return False
        existing = self.connection.broker.queues.get(queue.key)
        return existing is not None and existing is not queue and existing.epoch == queue.epoch

    def _check_settlements(self, transaction: ChannelTransaction) -> None:
        """Check that a commit can settle all its deliveries; otherwise it has no effect at all.

        Raises:
            PreconditionFailed: a queue takes no settlement any more.
        """
        for settle, runs in transaction.settlements:
            for run in runs if settle != self.requeue else ():
                why = run.queue.why_not_settled()
                if why:
                    raise PreconditionFailed(f"{why}: nothing of the transaction was done")

    def _tx_rollback(self, method: commands.Tx.Rollback) -> None:
        transaction = self._transaction()
        transaction.take_publishes()
        self._put_back(transaction.take_settlements())
        self.reply(commands.Tx.RollbackOk())

    def _put_back(self, settlements: Settlements) -> None:
        self.unacked.put_back([run for _, runs in settlements for run in runs])


def _why_not_settled(run: Unacked) -> str:
    return run.queue.why_not_settled()


def _add_queues(batch: ConfirmBatch, runs: Collection[Unacked]) -> None:
    """Make the batch wait for the settlements of these runs."""
    batch.settles = True
    for queue in {run.queue: None for run in runs}:
        batch.queues[queue] = queue.definition.durable or batch.queues.get(queue, False)


_METHODS: Final[dict[type[base.Frame], Callable[[Channel, Any], None]]] = {
    commands.Channel.Open: Channel._open_again,
    commands.Channel.Close: Channel._close,
    commands.Channel.Flow: Channel._flow,
    commands.Basic.Qos: Channel._qos,
    commands.Basic.Consume: Channel._consume,
    commands.Basic.Cancel: Channel._cancel,
    commands.Basic.Get: Channel._get,
    commands.Basic.Recover: Channel._recover,
    commands.Basic.RecoverAsync: Channel._recover,
    commands.Confirm.Select: Channel._confirm_select,
    commands.Tx.Select: Channel._tx_select,
    commands.Tx.Commit: Channel._tx_commit,
    commands.Tx.Rollback: Channel._tx_rollback,
}
