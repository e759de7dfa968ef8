"""Methods on queues that another node leads: they are forwarded to it, and the connection waits for the answer."""

from __future__ import annotations

from pamqp import commands

from leveret.core.queues.messages import Run
from leveret.core.queues.remote_queue import RemoteQueue, leader_is_down
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.delivery import ChannelConsumer
from leveret.session.amqp091.remote_queues import QueueAtLeader
from leveret.wire import amqp091 as wire


def queue_at_leader(channel: ChannelBase, queue: RemoteQueue) -> QueueAtLeader:
    """The object for the queue at its leader, on this channel.

    Raises:
        NotFound: the queue has no leader. Postponed: its leader cannot be reached yet.
    """
    leaders = channel.leaders
    if leaders is None or queue.is_down:
        raise leader_is_down(queue, queue.leader)
    return leaders.queue_at_leader(channel, queue)


def consume(channel: ChannelBase, queue: RemoteQueue, tag: bytes, method: commands.Basic.Consume) -> None:
    """Register a consumer at the leader."""
    at_leader = queue_at_leader(channel, queue)
    consumer = channel.make_consumer(at_leader, tag, method)

    def registered() -> None:
        channel.consumers[tag] = consumer
        if not method.nowait:
            channel.connection.send(wire.named_reply(channel.number, 60, 21, tag))

    at_leader.consume(consumer, registered)


def cancel(channel: ChannelBase, consumer: ChannelConsumer, method: commands.Basic.Cancel) -> bool:
    """Cancel a consumer at the leader; False if the leader has done so already, or is gone."""
    leaders = channel.leaders
    at_leader = leaders.registered_with(channel, consumer) if leaders is not None else None
    if at_leader is None:
        return False

    def cancelled() -> None:
        channel.consumers.pop(consumer.tag, None)
        if not method.nowait:
            channel.connection.send(wire.named_reply(channel.number, 60, 31, consumer.tag))

    at_leader.cancel(consumer, cancelled)
    return True


def get(channel: ChannelBase, queue: RemoteQueue, no_ack: bool) -> None:
    """Get a message from the leader."""
    at_leader = queue_at_leader(channel, queue)

    def got(run: Run | None, redelivered: bool, ready_count: int) -> None:
        channel.got(at_leader, run, redelivered, ready_count, no_ack=no_ack)

    at_leader.get(got, no_ack=no_ack)


def declare(channel: ChannelBase, queue: RemoteQueue, *, nowait: bool) -> None:
    """Answer the declaration of an existing queue with the leader's counts."""

    def declared(message_count: int, consumer_count: int) -> None:
        if not nowait:
            octets = wire.declare_ok(channel.number, queue.name_octets, message_count, consumer_count)
            channel.connection.send(octets)

    queue_at_leader(channel, queue).declare(declared)


def purge(channel: ChannelBase, queue: RemoteQueue, *, nowait: bool) -> None:
    """Purge a queue at its leader."""

    def purged(count: int) -> None:
        if not nowait:
            channel.reply(commands.Queue.PurgeOk(count))

    queue_at_leader(channel, queue).purge(purged)


def delete(channel: ChannelBase, queue: RemoteQueue, method: commands.Queue.Delete) -> None:
    """Delete a queue at its leader, under the method's conditions."""

    def deleted(count: int) -> None:
        if not method.nowait:
            channel.reply(commands.Queue.DeleteOk(count))

    at_leader = queue_at_leader(channel, queue)
    at_leader.delete(deleted, if_unused=method.if_unused, if_empty=method.if_empty)
