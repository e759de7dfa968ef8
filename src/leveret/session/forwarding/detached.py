"""Replaces a queue's object on a client's channel when the queue gets another leader, or none."""

from __future__ import annotations

from typing import ClassVar

from leveret.core.queues.consumers import Consumers, DeliverySource
from leveret.core.queues.counters import Counters
from leveret.session.amqp091.delivery import ChannelConsumer
from leveret.session.forwarding.remote_channel import Registry


class Detached:
    """A queue whose leader changed: acknowledgements of its earlier deliveries are ignored."""

    is_remote: ClassVar[bool] = True

    def __init__(self, source: DeliverySource, registry: Registry) -> None:
        """Replace `source`."""
        self.key = source.key
        self.definition = source.definition
        self.settings = source.settings
        self.counters = Counters()
        self.consumers = Consumers(single_active=source.consumers.single_active)
        self._registry = registry

    def settle(self, first: int, count: int) -> None:
        """Ignore a late settlement."""

    def reject(self, first: int, count: int) -> None:
        """Ignore a late rejection."""

    def requeue(self, first: int, count: int) -> None:
        """Ignore a return: the messages are back already."""

    def why_not_settled(self) -> str:
        """See DeliverySource; a deleted queue has nothing to settle."""
        if not self._registry.has(self.key, self.definition.epoch):
            return ""
        return (
            f"queue '{self.key[1]}' in vhost '{self.key[0]}' has another leader since it delivered what this "
            "transaction acknowledges, and delivers it again"
        )

    def check_refusable(self) -> None:
        """Accept: the outcome is ignored."""

    def add_consumer(self, consumer: ChannelConsumer) -> None:
        """Never called: consumers are registered at the queue's leader."""

    def remove_consumer(self, consumer: ChannelConsumer) -> None:
        """Cancel the pending registration of a consumer."""
        self._registry.forget(consumer)
