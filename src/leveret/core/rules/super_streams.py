"""What makes an exchange a super stream, for the broker, for the stream protocol and for leveretctl alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

SUPER_STREAM: Final = "x-super-stream"
"""The argument of an exchange that was made as a super stream; it is True."""
PARTITION_ORDER: Final = "x-stream-partition-order"
"""The argument of a binding to a partition: its place among the partitions, from 0."""


def is_super_stream(
    arguments: Mapping[str, Any], ends: Collection[tuple[str, str]], streams: Collection[str]
) -> bool:
    """Whether an exchange was made as a super stream, or leads to nothing but streams, as one that was made by hand.

    Args:
        arguments: those of the exchange.
        ends: kind ("queue" or "exchange") and name of the destination of each of its bindings.
        streams: the streams among these queues.
    """
    if arguments.get(SUPER_STREAM) is True:
        return True
    return bool(ends) and all(kind == "queue" and name in streams for kind, name in ends)
