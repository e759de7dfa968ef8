"""Queues that other nodes lead, as channels use them; session.forwarding is what stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from leveret.core.queues.messages import Run
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.session.amqp091.delivery import ChannelConsumer, ConsumerSource, DeliveryChannel
from leveret.session.host import SessionHost

Got = Callable[[Run | None, bool, int], None]
"""(message or None, whether it is redelivered, how many are ready behind it)."""


class QueueAtLeader(ConsumerSource, Protocol):
    """A queue at its leader, for one channel. What is asked there is answered by a call of `then`."""

    def consume(self, consumer: ChannelConsumer, then: Callable[[], None]) -> None:
        """Register a consumer."""

    def cancel(self, consumer: ChannelConsumer, then: Callable[[], None]) -> None:
        """Have a consumer forgotten."""

    def get(self, then: Got, *, no_ack: bool) -> None:
        """Get one message."""

    def declare(self, then: Callable[[int, int], None]) -> None:
        """Ask how many messages are ready, and how many consumers there are."""

    def purge(self, then: Callable[[int], None]) -> None:
        """Drop what is ready; told is how many messages that were."""

    def delete(self, then: Callable[[int], None], *, if_unused: bool, if_empty: bool) -> None:
        """Delete the queue; told is how many messages were ready."""


class Leaders(Protocol):
    """The other nodes, as far as they lead queues."""

    def remote_channel(self, channel: DeliveryChannel, queue: RemoteQueue) -> QueueAtLeader:
        """What stands on a channel for a queue that another node leads.

        Raises:
            Postponed: it cannot be asked yet.
        """

    def remote_channel_with(
        self, channel: DeliveryChannel, consumer: ChannelConsumer
    ) -> QueueAtLeader | None:
        """The one where the consumer is registered; None if it is nowhere."""


class ConnectionHost(SessionHost, Protocol):
    """The node, as a connection sees it."""

    leaders: Leaders | None
    """None for a node alone."""
