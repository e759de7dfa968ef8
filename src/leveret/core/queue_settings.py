"""What a queue does by itself, worked out from its arguments and policies.

A queue's effective settings come from three places: the arguments of its declaration, the policy that
applies to it and the operator policy that applies to it. For numbers the smallest wins, for anything
else the argument wins over the policy, the operator policy over both (RabbitMQ's rules).
"""

from __future__ import annotations

import msgspec

from leveret.model.definitions import Arguments

DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Effective settings of one queue; None means no such limit.

    Attributes:
        message_ttl_ms: a message's life in the queue; 0 means it lives only for a consumer that waits.
        expires_ms: the queue goes when it was not used for so long.
        max_length: ready messages at most.
        max_length_bytes: octets of their bodies at most.
        overflow: what gives way when the queue is full.
        dead_letter_exchange: where expired, dropped and rejected messages go; "" is the default exchange.
        dead_letter_routing_key: with this key instead of their own.
        delivery_limit: returns of a message before it is dropped or dead-lettered.
        max_age_ms: of a stream: how old a segment may grow.
        segment_bytes_max: of a stream: how large one may grow.
    """

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    delivery_limit: int | None = None
    max_age_ms: int | None = None
    segment_bytes_max: int | None = None


_KEYS = {
    "message_ttl_ms": "message-ttl",
    "expires_ms": "expires",
    "max_length": "max-length",
    "max_length_bytes": "max-length-bytes",
    "overflow": "overflow",
    "dead_letter_exchange": "dead-letter-exchange",
    "dead_letter_routing_key": "dead-letter-routing-key",
    "delivery_limit": "delivery-limit",
    "segment_bytes_max": "stream-max-segment-size-bytes",
}


def queue_settings(arguments: Arguments, policy: Arguments, operator_policy: Arguments) -> QueueSettings:
    """The effective settings of a queue from its declaration's arguments and its two policies' definitions."""
    values = {}
    for field, key in _KEYS.items():
        given = [
            source[name]
            for source, name in ((operator_policy, key), (arguments, f"x-{key}"), (policy, key))
            if name in source
        ]
        if given:
            values[field] = min(given) if isinstance(given[0], int) else given[0]
    return QueueSettings(**values)
