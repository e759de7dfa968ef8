"""What stands for a queue where it was, on a client's channel, when it is led elsewhere, or nobody knows where."""

from __future__ import annotations

from typing import ClassVar

from leveret.core.queues.consumers import Consumers, DeliverySource
from leveret.core.queues.counters import Counters
from leveret.session.amqp091.delivery import ChannelConsumer
from leveret.session.forwarding.remote_channel import Registry


class Detached:
    """What stands for a queue that is led elsewhere now: acknowledgements of what it delivered are forgotten."""

    is_remote: ClassVar[bool] = True

    def __init__(self, source: DeliverySource, registry: Registry) -> None:
        """In place of `source`."""
        self.key = source.key
        self.definition = source.definition
        self.settings = source.settings
        self.counters = Counters()
        self.consumers = Consumers(single_active=source.consumers.single_active)
        self._registry = registry

    def settle(self, first: int, count: int) -> None:
        """Too late."""

    def reject(self, first: int, count: int) -> None:
        """Too late."""

    def requeue(self, first: int, count: int) -> None:
        """They are back already."""

    def why_not_settled(self) -> str:
        """See Source; of a queue that is deleted nothing is left to be settled."""
        if not self._registry.has(self.key, self.definition.epoch):
            return ""
        return (
            f"queue '{self.key[1]}' in vhost '{self.key[0]}' has another leader since it delivered what this "
            "transaction acknowledges, and delivers it again: nothing of the transaction was done"
        )

    def check_refusable(self) -> None:
        """It does not matter any more."""

    def add_consumer(self, consumer: ChannelConsumer) -> None:
        """Never: a consumer is registered where the queue is."""

    def remove_consumer(self, consumer: ChannelConsumer) -> None:
        """It is not to be registered."""
        self._registry.forget(consumer)
