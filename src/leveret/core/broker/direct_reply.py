"""Clients that take replies without a queue, as publishers need to know them."""

from __future__ import annotations

from typing import Protocol

from leveret.core.queues.head import Head


class DirectReply(Protocol):
    """A client that consumes from `amq.rabbitmq.reply-to`."""

    def take_reply(self, head: Head, bodies: list[bytes]) -> None:
        """Deliver replies to it."""
