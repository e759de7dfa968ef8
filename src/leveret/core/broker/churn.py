"""Counters of opened and closed connections, channels and queues; they only rise, and rates are sampled from them."""

from __future__ import annotations


class Churn:
    """Counts since the node started, by RabbitMQ's names.

    Attributes:
        connection_created: connections whose virtual host was opened.
        connection_closed: such connections that ended, for any reason.
        channel_created: channels opened.
        channel_closed: channels ended, those of ended connections too.
        queue_declared: successful declarations by clients, of existing queues too.
        queue_created: queues made.
        queue_deleted: queues deleted, for any reason.
    """

    __slots__ = (
        "channel_closed",
        "channel_created",
        "connection_closed",
        "connection_created",
        "queue_created",
        "queue_declared",
        "queue_deleted",
    )

    def __init__(self) -> None:
        """All zero."""
        self.connection_created = self.connection_closed = 0
        self.channel_created = self.channel_closed = 0
        self.queue_declared = self.queue_created = self.queue_deleted = 0
