"""The queues that other nodes lead, for this node's clients: finds their leaders, and handles changes of leaders.

Published messages are kept until the leader confirms them, and are sent to the next leader if it does not. Consumers
of a queue without a leader wait for one. A method that cannot be forwarded now is processed again after a change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from functools import partial
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.core.broker.direct_reply import DirectReply
from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import OFFSET_ARGUMENT
from leveret.model.definitions import QueueKey
from leveret.model.errors import LeveretError
from leveret.session.amqp091.blocked import BlockedReason, Postponed
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.delivery import ChannelConsumer, ConsumerSource, DeliveryChannel
from leveret.session.forwarding.detached import Detached
from leveret.session.forwarding.leader_client import LeaderClient, Outlet
from leveret.session.forwarding.leader_server import (
    ForwardedChannel,
    ForwardedChannelConsumer,
    ForwardedConnection,
)
from leveret.session.forwarding.publication import Publication, RetransmitBuffer
from leveret.session.forwarding.remote_channel import RemoteChannel
from leveret.session.forwarding.remote_ports import RemotePorts, queue_at_leader
from leveret.session.forwarding.remote_replies import RemoteReplies
from leveret.session.forwarding.stream_outlets import StreamOutlets
from leveret.session.forwarding.unconfirmed import Notify
from leveret.session.host import Sender
from leveret.session.stream.messages import last_offset_of

CANCEL_ON_FAILOVER: Final = "x-cancel-on-ha-failover"
IDLE_MS: Final = 60_000
"""An outlet is closed after this time without publishes."""


class RemoteLeaders:
    """See the module.

    Attributes:
        reference: the name of this node's run in the logs of the queues that it publishes to.
        askings: the connections to leaders, by name and vhost.
        serving: connections that other nodes made to this one, as a leader.
        kept: the unconfirmed published messages.
        streams: the publishes of the stream protocol.
        replies: the direct replies to clients of other nodes.
        has_waiting: whether a request waits because its node does not lead; then call `tick` soon.
    """

    def __init__(
        self,
        me: str,
        broker: Broker,
        outbox: list[Sender],
        reference: bytes,
        dial: Callable[[LeaderClient], None],
    ) -> None:
        """`dial` asks for a connection, and `connected` is the answer; one to this node itself is `up` at once."""
        self.reference = reference
        self.askings: dict[tuple[str, str], LeaderClient] = {}
        self.kept = RetransmitBuffer()
        self.streams = StreamOutlets(self._up, self._detached)
        self.replies = RemoteReplies(self.leader_client)
        self.has_waiting = False
        self.serving: dict[ForwardedConnection, None] = {}
        self._me = me
        self._broker = broker
        self._outbox = outbox
        self._dial = dial
        self._now_ms = 0
        self._publications: dict[tuple[QueueKey, int], Publication] = {}
        self._blocked: dict[QueueKey, dict[ConnectionBase, None]] = {}
        self._to_ask_again: dict[DeliveryChannel, None] = {}
        self._to_reregister: dict[QueueKey, dict[ChannelConsumer, None]] = {}
        self._remote_channels: dict[QueueKey, dict[RemoteChannel, None]] = {}

    # -- connections --------------------------------------------------------------------------

    def leader_client(self, leader: str, vhost: str) -> LeaderClient:
        """The connection to a leader; a new one is dialled."""
        found = self.askings.get((leader, vhost))
        if found is None:
            found = self.askings[leader, vhost] = LeaderClient(leader, vhost, self._outbox)
            self._dial(found)
        return found

    def connected(self, leader_client: LeaderClient) -> None:
        """Continue everything that waited for this connection."""
        leader_client.up()
        self._go_on()

    def lost(self, leader_client: LeaderClient) -> None:
        """Note that a connection is gone; `wants` is whether it should be made again."""
        leader_client.lost()
        self._go_on()

    def wants(self, leader_client: LeaderClient) -> bool:
        """Whether a connection is used, or should be; otherwise it may be closed and forgotten."""
        if leader_client.channels or self.replies.waits_for(leader_client):
            return True
        return any(
            self._place_of(key) == (leader_client.leader, leader_client.vhost) for key in self._waiting_keys()
        )

    def forget(self, consumer: ChannelConsumer) -> None:
        """See Registry."""
        key = consumer.queue.key
        waiting = self._to_reregister.get(key, {})
        waiting.pop(consumer, None)
        if not waiting:
            self._to_reregister.pop(key, None)

    def discard(self, leader_client: LeaderClient) -> None:
        """Forget a closed connection that is not needed."""
        if self.askings.get((leader_client.leader, leader_client.vhost)) is leader_client:
            del self.askings[leader_client.leader, leader_client.vhost]

    def _waiting_keys(self) -> Iterator[QueueKey]:
        for publication in self._publications.values():
            if len(publication.unconfirmed):
                yield publication.queue.key
        yield from self._to_reregister
        yield from self.streams.waiting()
        yield from (
            key
            for key, connections in self._blocked.items()
            if any(each.blocked_reason is BlockedReason.REMOTE for each in connections)
        )

    def _place_of(self, key: QueueKey) -> tuple[str, str] | None:
        """The leader and vhost for a queue's requests, None if it has no leader, or is led here."""
        queue = self._broker.queues.get(key)
        if not isinstance(queue, RemoteQueue) or queue.is_down or queue.leader == self._me:
            return None
        return queue.leader, key[0]

    def _up(self, key: QueueKey) -> LeaderClient | None:
        place = self._place_of(key)
        leader_client = self.leader_client(*place) if place is not None else None
        return leader_client if leader_client is not None and leader_client.is_up else None

    # -- publishing ---------------------------------------------------------------------------

    def append_messages(self, queue: RemoteQueue) -> None:
        """Send a queue's gathered messages to its leader, or keep them until there is one."""
        if queue.gathered:
            publication = self._publication(queue)
            if queue.is_down and self.kept.is_full:
                # These messages waited already: publishers of later ones could not be notified yet.
                publication.refuse_all()
            self._keep(publication)
            if publication.outlet is None:
                self._attach(publication)

    def _keep(self, publication: Publication) -> None:
        publication.used_at_ms = self._now_ms
        publication.publish()

    def _publication(self, queue: RemoteQueue) -> Publication:
        key = (queue.key, queue.epoch)
        found = self._publications.get(key)
        if found is None:
            found = self._publications[key] = Publication(queue, self.kept, self._detached)
        if found.queue is not queue:
            found.queue = queue
            queue.ahead = found.unconfirmed.last - queue.published_total
        return found

    def _attach(self, publication: Publication) -> None:
        """Send waiting messages, if the leader can take them."""
        queue = publication.queue
        leader_client = self._up(queue.key) if queue.is_remote else self.leader_client(self._me, queue.key[0])
        if leader_client is None or not leader_client.is_up:
            return
        if leader_client.is_crowded:
            self._detached()
            return
        publication.outlet = Outlet(
            leader_client, publication, queue.name_octets, queue.epoch, self.reference
        )
        if not queue.is_remote:
            leader_client.push()

    def when_confirmed(self, queue: RemoteQueue, notify: Notify, place: int | None = None) -> None:
        """Call back when the leader has confirmed everything published so far, or refused some of it (False).

        With a `place` (RemoteQueue.place), the outcome is that of this message alone.
        """
        publication = self._publications.get((queue.key, queue.epoch))
        if publication is None:
            # It was deleted before any message could be sent.
            notify(False)
            return
        number = publication.unconfirmed.last if place is None else place + queue.ahead
        publication.unconfirmed.when_known(notify, number, alone=place is not None)

    def when_decided(
        self,
        queue: RemoteQueue,
        since: int,
        place: int,
        then: Callable[[list[tuple[int, int]]], None],
        *,
        until_taken: bool = False,
    ) -> None:
        """See ports.ReplicationPort; `since` and `place` are places of messages of this flush."""
        publication, ahead = self._publications.get((queue.key, queue.epoch)), queue.ahead
        if publication is None:
            then([(since, place)])
            return
        publication.unconfirmed.when_decided(
            lambda ranges: then([(first - ahead, last - ahead) for first, last in ranges]),
            since + ahead,
            place + ahead,
            until_taken=until_taken,
        )

    def when_batch_confirmed(self, batch: ConfirmBatch, notify: Notify) -> bool:
        """Call back when the leaders of all queues of a batch have their part; return False if all are led here.

        Call it after the flush has appended the gathered messages. If a leader refuses some, the batch is `refused`;
        if a leader did not answer settlements, it is in `doubt`.
        """
        elsewhere = [each for each in batch.queues if isinstance(each, RemoteQueue | RemotePorts)]
        if not elsewhere:
            return False
        left, all_ok = len(elsewhere), True

        def one_settled(ok: bool) -> None:
            nonlocal left, all_ok
            left -= 1
            all_ok = all_ok and ok
            if not left:
                batch.refused |= not all_ok
                notify(all_ok)

        def settled(remote_channel: RemotePorts, ok: bool) -> None:
            if not ok:
                batch.doubt = (
                    f"the leader of queue '{remote_channel.key[1]}' in vhost '{remote_channel.key[0]}' was lost before "
                    "it answered tx.commit: whether what was acknowledged there is settled is not known"
                )
            one_settled(ok)

        for each in elsewhere:
            if isinstance(each, RemotePorts):
                each.when_settled(partial(settled, each))
            else:
                self.when_confirmed(each, one_settled, batch.places.get(each))
        return True

    def _detached(self) -> None:
        self.has_waiting = True

    # -- what clients ask ---------------------------------------------------------------------

    def queue_at_leader(self, channel: DeliveryChannel, queue: RemoteQueue) -> RemotePorts:
        """See session.amqp091.remote_queues.Leaders."""
        found = self._queue_at_leader(channel, queue)
        if found is None:
            self._blocked.setdefault(queue.key, {})[channel.connection] = None
            raise Postponed(BlockedReason.REMOTE)
        return found

    def _queue_at_leader(self, channel: DeliveryChannel, queue: RemoteQueue) -> RemotePorts | None:
        leader_client = self._up(queue.key)
        if leader_client is None:
            return None
        found = channel.remote_channels.get(leader_client.leader)
        if not isinstance(found, RemoteChannel):
            number = leader_client.number()
            found = RemoteChannel(channel, leader_client, number, self)
            leader_client.channels[number] = found
        self._remote_channels.setdefault(queue.key, {})[found] = None
        return queue_at_leader(found, queue)

    def ended(self, remote_channel: RemoteChannel) -> None:
        """See Registry."""
        for key in remote_channel.ports:
            self.left(key, remote_channel)

    def left(self, key: QueueKey, remote_channel: RemoteChannel) -> None:
        """See Registry."""
        remote_channels = self._remote_channels.get(key, {})
        remote_channels.pop(remote_channel, None)
        if not remote_channels:
            self._remote_channels.pop(key, None)

    def direct_reply(self, vhost: str, name: str) -> DirectReply | None:
        """See session.amqp091.remote_queues.Leaders."""
        return self.replies.find(vhost, name)

    def registered_with(self, channel: DeliveryChannel, consumer: ChannelConsumer) -> RemotePorts | None:
        """See session.amqp091.remote_queues.Leaders."""
        source = consumer.queue
        return source if isinstance(source, RemotePorts) else None

    def ask_again(self, channel: DeliveryChannel) -> None:
        """See Registry."""
        self._to_ask_again[channel] = None
        self.has_waiting = True

    def has(self, key: QueueKey, epoch: int) -> bool:
        """See Registry."""
        queue = self._broker.queues.get(key)
        return queue is not None and queue.epoch == epoch

    def detach(self, sources: Collection[DeliverySource], channel: DeliveryChannel) -> None:
        """See Registry; all of them in one pass, because one channel may consume from thousands of queues."""
        found = set(sources)
        self._detach(found, channel, [each for each in channel.consumers.values() if each.queue in found])

    def _detach(
        self,
        sources: Collection[DeliverySource],
        channel: DeliveryChannel,
        consumers: Iterable[ChannelConsumer],
    ) -> None:
        """The same; `consumers` are all that the channel has of them."""
        stands = {source: Detached(source, self) for source in sources}
        for run in channel.deliveries():
            source = run.queue
            if source in stands:
                run.queue, run.consumer = stands[source], None
                if isinstance(source, RemotePorts):
                    source.channel.dropped(run.offset, run.count)
                else:
                    source.requeue(run.offset, run.count)
        ports = [source for source in stands if isinstance(source, RemotePorts)]
        for remote_channel in {each.channel: None for each in ports}:
            remote_channel.drop(stands)
        for each in ports:
            self.left(each.key, each.channel)
        for consumer in consumers:
            source = consumer.queue
            consumer.queue, consumer.unacked_count = stands[source], 0
            _begin_behind_last(consumer)
            if channel.is_closing:
                # It ends (settling.leave).
                channel.consumers.pop(consumer.tag)
            elif consumer.arguments.get(CANCEL_ON_FAILOVER) is True and channel.connection.client_can(
                "consumer_cancel_notify"
            ):
                channel.consumer_cancelled(consumer)
            else:
                self._to_reregister.setdefault(source.key, {})[consumer] = None
                self.has_waiting = True

    def _go_on(self) -> None:
        """Publish, register and ask again everything that waits for a leader, after a change."""
        self.has_waiting = False
        for publication in self._publications.values():
            self._send(publication)
        self.streams.go_on()
        self.replies.go_on()
        for key in list(self._to_reregister):
            self._reregister_all(key)
        to_ask_again, self._to_ask_again = self._to_ask_again, {}
        for channel in to_ask_again:
            if not channel.is_closing:
                channel.connection.repeat()
        blocked, self._blocked = self._blocked, {}
        for connections in blocked.values():
            _wake(connections)

    def _go_on_with(self, queue: Queue) -> None:
        """The same for one queue, because thousands may get another leader at once."""
        publication = self._publications.get((queue.key, queue.epoch))
        if publication is not None:
            self._send(publication)
        self._reregister_all(queue.key)
        _wake(self._blocked.pop(queue.key, ()))

    def _send(self, publication: Publication) -> None:
        if publication.outlet is None and len(publication.unconfirmed):
            self._attach(publication)

    def _reregister_all(self, key: QueueKey) -> None:
        for consumer in self._to_reregister.pop(key, {}):
            self._reregister(consumer)

    def _reregister(self, consumer: ChannelConsumer) -> None:
        """Register a consumer at the queue's present leader; one that is refused there is cancelled, as in RabbitMQ."""
        channel = consumer.channel
        queue = self._broker.queues.get(consumer.queue.key)
        if queue is None or queue.epoch != consumer.queue.definition.epoch or queue.damage is not None:
            channel.consumer_cancelled(consumer)
            return
        try:
            source: ConsumerSource | None = queue
            if isinstance(queue, RemoteQueue):
                if queue.is_down:
                    channel.consumer_cancelled(consumer)
                    return
                source = self._queue_at_leader(channel, queue)
            elif queue.consumers.refuses(exclusive=consumer.exclusive):
                channel.consumer_cancelled(consumer)
                return
            if source is None:
                self._to_reregister.setdefault(queue.key, {})[consumer] = None
                return
            consumer.queue = source
            source.add_consumer(consumer)
            channel.mark(source)
        except LeveretError:
            channel.consumer_cancelled(consumer)

    # -- who leads ----------------------------------------------------------------------------

    def led_by(self, queue: RemoteQueue, leader: str) -> None:
        """Note that another node leads the queue now."""
        self._leave(queue)
        queue.leader, queue.is_down = leader, False
        self._kept_for(queue, down=False)
        self.streams.led_by(queue)
        self._go_on_with(queue)

    def down(self, queue: RemoteQueue) -> None:
        """Note that the queue has no leader: published messages wait, consumers are cancelled.

        Beyond a limit of waiting messages, publishes are refused (`RetransmitBuffer.is_full`).
        """
        self._leave(queue)
        queue.is_down = True
        self._kept_for(queue, down=True)
        self.streams.left(queue)
        self._go_on_with(queue)

    def led_here(self, before: Queue, queue: Queue) -> None:
        """Note that this node leads it: `queue` replaces `before` in the broker."""
        self._leave(before)
        if isinstance(before, RemoteQueue) and before.gathered:
            self._keep(self._publication(before))
        publication = self._publications.get((queue.key, queue.epoch))
        if publication is not None:
            publication.queue = queue
        self._kept_for(queue, down=False)
        self.streams.left(queue)
        self._go_on_with(queue)

    def waits(self, before: Queue, stands: RemoteQueue) -> None:
        """Note that this node no longer leads `before`: `stands` replaces it, without a leader for now."""
        stands.leader = self._me
        self._leave_local(before)
        publication = self._publications.get((before.key, before.epoch))
        if publication is not None:
            publication.close()
            self._publication(stands)

    def ceased(self, queue: Queue) -> None:
        """Note that the queue is deleted: messages that its leader had not confirmed never are."""
        publication = self._publications.pop((queue.key, queue.epoch), None)
        if publication is not None:
            publication.close()
            publication.refuse_all()
            self.kept.is_for(publication, down=False)
        self.streams.left(queue)
        # Its leader, if there is one, cancels the consumers and answers requests.
        for remote_channel in list(self._remote_channels.get(queue.key, ())):
            remote_channel.drop_deleted(queue.key, queue.epoch)
        self._go_on_with(queue)

    def _leave(self, queue: Queue) -> None:
        """End all requests to the queue's leader so far."""
        publication = self._publications.get((queue.key, queue.epoch))
        if publication is not None:
            publication.close()
        self._leave_channels(queue.key)

    def _kept_for(self, queue: Queue, *, down: bool) -> None:
        publication = self._publications.get((queue.key, queue.epoch))
        if publication is not None:
            self.kept.is_for(publication, down=down)

    def _leave_channels(self, key: QueueKey) -> None:
        for channel in self._remote_channels.pop(key, {}):
            source = channel.ports.get(key)
            if source is not None:
                channel.leave(source)

    def _leave_local(self, queue: Queue) -> None:
        """Take a queue away from its users; unacknowledged messages return to it."""
        for consumer in list(queue.consumers):
            if isinstance(consumer, ForwardedChannelConsumer) and isinstance(
                consumer.channel, ForwardedChannel
            ):
                consumer.channel.moved(consumer)
        consumers: dict[DeliveryChannel, list[ChannelConsumer]] = {}
        for consumer in queue.consumers:
            if isinstance(consumer, ChannelConsumer) and consumer.tag in consumer.channel.consumers:
                consumers.setdefault(consumer.channel, []).append(consumer)
        for channel, of_channel in consumers.items():
            self._take_from(channel, queue, of_channel)
        if queue.unacked_count:
            # Messages that were fetched, or that cancelled consumers have.
            for channel in [*_channels(self.serving), *_channels(self._broker.connections)]:
                if any([run.queue is queue for run in channel.deliveries()]):
                    self._take_from(channel, queue, ())
        queue.consumers.clear()

    def _take_from(
        self, channel: DeliveryChannel, queue: Queue, consumers: Iterable[ChannelConsumer]
    ) -> None:
        if isinstance(channel, ForwardedChannel):
            taken = channel.unacked.take_of(queue)
            for run in taken:
                queue.requeue(run.offset, run.count)
            if taken:
                channel.taken_back()
        else:
            self._detach((queue,), channel, consumers)

    def first_unconfirmed(self, keys: Container[QueueKey]) -> QueueKey | None:
        """See Leaders."""
        unconfirmed = (key for (key, _), each in self._publications.items() if len(each.unconfirmed))
        return next((key for key in unconfirmed if key in keys), None)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> bool:
        """Ask unanswered requests again, and close unused outlets; return whether there may be octets to send."""
        self._now_ms = now_ms
        self.replies.go_on()
        is_due = self.streams.tick(now_ms) or self.has_waiting or bool(self._to_reregister)
        if is_due:
            self._go_on()
        idle_ms = 0 if any(each.is_crowded for each in self.askings.values()) else IDLE_MS
        for key, publication in list(self._publications.items()):
            if len(publication.unconfirmed) or now_ms - publication.used_at_ms < idle_ms:
                continue
            if publication.outlet is not None:
                publication.close()
                is_due = True
            queue = self._broker.queues.get(key[0])
            if queue is None or queue.epoch != key[1]:
                del self._publications[key]
                self.kept.is_for(publication, down=False)
        return is_due


def _begin_behind_last(consumer: ChannelConsumer) -> None:
    """Have a stream's consumer begin behind its last delivery, or as before, wherever it is registered next."""
    last = consumer.last_of_stream
    offset = last_offset_of(last) if last is not None else None
    begin = consumer.stream_begin if offset is None else offset + 1
    if begin is not None:
        consumer.arguments = consumer.arguments | {OFFSET_ARGUMENT: begin}


def _wake(connections: Iterable[ConnectionBase]) -> None:
    for connection in connections:
        connection.wake()


def _channels(connections: Iterable[object]) -> Iterator[DeliveryChannel]:
    for connection in connections:
        if isinstance(connection, ClientConnection):
            yield from connection.channels.values()
