"""Clients that consume replies without a queue (direct reply-to), as publishers address them."""

from __future__ import annotations

from typing import Protocol

from leveret.core.queues.messages import Messages


class DirectReply(Protocol):
    """A client that consumes from `amq.rabbitmq.reply-to`."""

    def take_reply(self, messages: Messages) -> None:
        """Deliver replies to it."""
