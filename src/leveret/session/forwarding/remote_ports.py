"""The object for a queue that another node leads, on a client's channel that uses it.

A channel has a channel of its own at each leader that it uses, its remote channel (remote_channel). The client's
methods for queues led there go over it, in order, and their deliveries come over it. `RemotePorts` stands for one of
these queues: an `Unacked` has it as its queue, and the remote channel's tags as offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.counters import Counters
from leveret.core.rules.validation import STREAM, queue_type
from leveret.model.errors import Unsupported
from leveret.session.amqp091.delivery import ChannelConsumer
from leveret.session.amqp091.remote_queues import Got
from leveret.session.forwarding.remote_channel import ACK, REJECT, REQUEUE, RemoteChannel
from leveret.wire import forwarding
from leveret.wire.amqp091 import BASIC_CANCEL_OK, QUEUE_DECLARE_OK, QUEUE_DELETE_OK, QUEUE_PURGE_OK


class RemotePorts:
    """One queue at its leader, for one channel; the methods are those of core.queues.queue.Queue."""

    is_remote: ClassVar[bool] = True

    def __init__(self, queue: DeliverySource, channel: RemoteChannel) -> None:
        """Begin without requests."""
        self.key = queue.key
        self.definition = queue.definition
        self.settings = queue.settings
        self.consumers = queue.consumers
        self.counters = Counters()
        self.channel = channel
        self._name = self.definition.name.encode()

    # -- settling -----------------------------------------------------------------------------

    def settle(self, first: int, count: int) -> None:
        """Acknowledge deliveries with tags from `first` on."""
        self.channel.settle(ACK, first, first + count)

    def reject(self, first: int, count: int) -> None:
        """Reject deliveries for good."""
        self.channel.settle(REJECT, first, first + count)

    def requeue(self, first: int, count: int) -> None:
        """Return deliveries."""
        self.channel.settle(REQUEUE, first, first + count)

    def why_not_settled(self) -> str:
        """See DeliverySource: settling is possible, or the commit gets the leader's failure."""
        return ""

    def check_refusable(self) -> None:
        """See Queue."""
        if queue_type(self.definition.arguments) == STREAM:
            vhost, name = self.key
            raise Unsupported(
                f"basic.nack and basic.reject not supported by stream queues queue '{name}' in vhost '{vhost}'"
            )

    def when_settled(self, notify: Callable[[bool], None]) -> None:
        """Call back when all of the channel's settlements so far are on the leader's disk; False if that is unknown."""
        self.channel.when_settled(self.key, notify)

    # -- asking -------------------------------------------------------------------------------

    def add_consumer(self, consumer: ChannelConsumer) -> None:
        """Register a consumer that was registered elsewhere before."""
        self.channel.register(consumer, self.key, None)

    def remove_consumer(self, consumer: ChannelConsumer) -> None:
        """Forget a consumer, because its channel ends, and its remote channel with it."""
        self.channel.forget(consumer)

    def consume(self, consumer: ChannelConsumer, then: Callable[[], None]) -> None:
        """Register a consumer."""
        self.channel.register(consumer, self.key, then)

    def cancel(self, consumer: ChannelConsumer, then: Callable[[], None]) -> None:
        """Cancel a consumer."""
        tag = self.channel.tag_of(consumer)

        def cancelled(_: bytes) -> None:
            self.channel.forget(consumer)
            then()

        self.channel.ask(self.key, forwarding.cancel(self.channel.number, tag), (BASIC_CANCEL_OK,), cancelled)

    def get(self, then: Got, *, no_ack: bool) -> None:
        """Get one message."""
        self.channel.get(self.key, then, no_ack=no_ack)

    def declare(self, then: Callable[[int, int], None]) -> None:
        """Get the number of ready messages, and of consumers."""

        def declared(payload: bytes) -> None:
            then(int.from_bytes(payload[-8:-4], "big"), int.from_bytes(payload[-4:], "big"))

        octets = forwarding.declare(self.channel.number, self._name)
        self.channel.ask(self.key, octets, (QUEUE_DECLARE_OK,), declared)

    def purge(self, then: Callable[[int], None]) -> None:
        """Purge the queue."""
        octets = forwarding.purge(self.channel.number, self._name)
        self.channel.ask(self.key, octets, (QUEUE_PURGE_OK,), _counted(then))

    def delete(self, then: Callable[[int], None], *, if_unused: bool, if_empty: bool) -> None:
        """Delete the queue."""
        octets = forwarding.delete(self.channel.number, self._name, if_unused=if_unused, if_empty=if_empty)
        self.channel.ask(self.key, octets, (QUEUE_DELETE_OK,), _counted(then))


def queue_at_leader(channel: RemoteChannel, queue: DeliverySource) -> RemotePorts:
    """The object for a queue on a remote channel; the same one while the queue is the same."""
    found = channel.ports.get(queue.key)
    if not isinstance(found, RemotePorts) or found.definition is not queue.definition:
        found = channel.ports[queue.key] = RemotePorts(queue, channel)
    return found


def _counted(then: Callable[[int], None]) -> Callable[[bytes], None]:
    return lambda payload: then(int.from_bytes(payload[4:8], "big"))
