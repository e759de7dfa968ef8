"""The interfaces of queues that other nodes lead; session.forwarding implements them."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from leveret.core.broker.direct_reply import DirectReply
from leveret.core.queues.messages import Run
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model.definitions import QueueKey
from leveret.session.amqp091.delivery import ChannelConsumer, ConsumerSource, DeliveryChannel
from leveret.session.host import SessionHost

Got = Callable[[Run | None, bool, int], None]
"""(message or None, whether it is redelivered, the number of ready messages behind it)."""


class QueueAtLeader(ConsumerSource, Protocol):
    """A queue at its leader, for one channel. The leader's answer comes as a call of `then`."""

    def consume(self, consumer: ChannelConsumer, then: Callable[[], None]) -> None:
        """Register a consumer."""

    def cancel(self, consumer: ChannelConsumer, then: Callable[[], None]) -> None:
        """Cancel a consumer."""

    def get(self, then: Got, *, no_ack: bool) -> None:
        """Get one message."""

    def declare(self, then: Callable[[int, int], None]) -> None:
        """Get the number of ready messages, and of consumers."""

    def purge(self, then: Callable[[int], None]) -> None:
        """Purge the queue; the answer is the number of purged messages."""

    def delete(self, then: Callable[[int], None], *, if_unused: bool, if_empty: bool) -> None:
        """Delete the queue; the answer is the number of its ready messages."""


class Leaders(Protocol):
    """The other nodes, as leaders of queues."""

    def queue_at_leader(self, channel: DeliveryChannel, queue: RemoteQueue) -> QueueAtLeader:
        """The object on a channel for a queue that another node leads.

        Raises:
            Postponed: the leader cannot be reached yet.
        """

    def direct_reply(self, vhost: str, name: str) -> DirectReply | None:
        """The client of another node that takes direct replies under this name; None if no other node has it."""

    def first_unconfirmed(self, keys: Container[QueueKey]) -> QueueKey | None:
        """One of these queues whose leader has not confirmed a message of this node; None if there is none."""

    def registered_with(self, channel: DeliveryChannel, consumer: ChannelConsumer) -> QueueAtLeader | None:
        """The object for the queue with which the consumer is registered; None if it is not registered at a leader."""


class ConnectionHost(SessionHost, Protocol):
    """The node, as a connection uses it."""

    leaders: Leaders | None
    """None on a single node."""
