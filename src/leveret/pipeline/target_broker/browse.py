"""Counts a recovery's messages in a queue of another broker, without consuming any.

A queue's message count does not tell the recovery's messages from others. The exchange that they came through does,
and each message is identified by its content. So the queue is read with `basic.get`, which does not count as a
consumer and so does not end an auto-delete queue. When the channel closes, all messages return to their places,
marked as redelivered.

Only a classic queue is read so: a quorum queue counts the returns of each message, and may have a limit for them.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

from leveret.model.errors import AccessRefused, PreconditionFailed
from leveret.pipeline.target_broker.connection import AmqpConnection, Delivery
from leveret.wire.record import StoredMessage

_AT_ONCE_MIN, _AT_ONCE_MAX = 20, 500
_BYTES_AT_ONCE: Final = 4_194_304
_DIGEST_BYTES: Final = 16


class QueueDeclaration(NamedTuple):
    """The declaration of a queue that does not exist yet."""

    arguments: dict[str, Any]
    auto_delete: bool = False


class Found(NamedTuple):
    """A recovery's messages in a queue.

    Attributes:
        messages: their number.
        digests: the digests of those behind the known ones, in order.
    """

    messages: int
    digests: list[bytes]


def digest_of(message: Delivery | StoredMessage) -> bytes:
    """A digest of everything in a message except its exchange."""
    parts = (message.routing_key, message.properties, message.body)
    sizes = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return hashlib.blake2b(sizes + b"".join(parts), digest_size=_DIGEST_BYTES).digest()


def is_classic(connection: AmqpConnection, queue: str, ours: QueueDeclaration | None) -> bool:
    """Whether an existing queue is surely a classic one: a plain declaration, or this node's, succeeds.

    This needs the permission to configure it.
    """
    plain = QueueDeclaration({})
    return any(_declares(connection, queue, shape) for shape in (plain, ours) if shape is not None)


def browse(connection: AmqpConnection, queue: str, exchange: str, count: int, known: int) -> Found | None:
    """Find the messages of an exchange among the first `count` of a queue; `known` of them are known.

    None if they cannot be found: the user may not read it, it has a consumer, or the broker's timeout is too short.
    """
    channel = connection.open_channel()
    name, seen, at_once = exchange.encode(), 0, _AT_ONCE_MIN
    messages, digests = 0, []
    try:
        while seen < count and (some := connection.get(channel, queue, min(at_once, count - seen))):
            seen += len(some)
            at_once = _how_many_at_once(some)
            for each in (each for each in some if each.exchange == name):
                messages += 1
                if messages > known:
                    digests.append(digest_of(each))
        _, consumers = connection.declare_queue(channel, queue)
    except (AccessRefused, PreconditionFailed):
        return None  # The broker closed the channel, so all messages returned.
    connection.close_channel(channel)
    return Found(messages, digests) if seen == count and not consumers else None


def _how_many_at_once(some: list[Delivery]) -> int:
    """A number that makes both round trips and memory small."""
    mean_bytes = 1 + sum(len(each.body) for each in some) // len(some)
    return min(_AT_ONCE_MAX, max(_AT_ONCE_MIN, _BYTES_AT_ONCE // mean_bytes))


def _declares(connection: AmqpConnection, queue: str, shape: QueueDeclaration) -> bool:
    channel = connection.open_channel()
    arguments = {**shape.arguments, "x-queue-type": "classic"}
    try:
        connection.declare_queue(channel, queue, arguments, auto_delete=shape.auto_delete)
    except (AccessRefused, PreconditionFailed):
        return False
    connection.close_channel(channel)
    return True
