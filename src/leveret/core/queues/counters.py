"""Counters of messages; counters only rise, and rates are sampled from them.

The names are those of RabbitMQ's `message_stats`. A queue counts messages in and out, a channel counts the operations
of its client, an exchange counts published and routed messages, the broker counts all of these.
"""

from __future__ import annotations


class RemoteConfirms:
    """Messages whose confirms wait for downstreams (`remote-dc-confirm`), or were answered without them.

    Attributes:
        waiting: confirms are held for these now.
        confirmed_locally: confirmed by this site alone, as the policy says.
        refused: nacked, as the policy says.
    """

    __slots__ = ("confirmed_locally", "refused", "waiting")

    def __init__(self) -> None:
        """All zero."""
        self.waiting = self.confirmed_locally = self.refused = 0


class Counters:
    """Counts of the events of messages.

    Attributes:
        publish: published (channel, queue, broker).
        publish_confirm: published with confirms (broker).
        publish_in: arrived at an exchange.
        publish_out: copies put into queues (exchange, broker).
        confirm: confirmed to publishers, nacked ones too.
        return_unroutable: mandatory messages returned.
        drop_unroutable: other messages that went to no queue.
        deliver: delivered to consumers that acknowledge.
        deliver_no_ack: delivered to consumers that do not.
        get: fetched with basic.get, with acknowledgement.
        get_no_ack: fetched with basic.get, without acknowledgement.
        get_empty: basic.get on an empty queue.
        redeliver: deliveries and gets that were not the message's first.
        ack: acknowledged.
    """

    __slots__ = (
        "ack",
        "confirm",
        "deliver",
        "deliver_no_ack",
        "drop_unroutable",
        "get",
        "get_empty",
        "get_no_ack",
        "publish",
        "publish_confirm",
        "publish_in",
        "publish_out",
        "redeliver",
        "return_unroutable",
    )

    def __init__(self) -> None:
        """All zero."""
        self.publish = self.publish_confirm = self.publish_in = self.publish_out = self.confirm = 0
        self.return_unroutable = self.drop_unroutable = 0
        self.deliver = self.deliver_no_ack = self.redeliver = 0
        self.get = self.get_no_ack = self.get_empty = 0
        self.ack = 0

    @property
    def deliver_get(self) -> int:
        """All deliveries and gets."""
        return self.deliver + self.deliver_no_ack + self.get + self.get_no_ack

    def add(self, other: Counters) -> None:
        """Add the counts of an object that is gone."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
