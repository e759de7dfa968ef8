"""The columns of the table of messages; docs/standby-tables.md explains them to its users.

An offset names a message within an incarnation of its queue (`wire.incarnation`). A time is in UTC, and to the
millisecond if the archive says it. What is not known, or not set, is null.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_TIME: Final = pa.timestamp("us", tz="UTC")
HEADER: Final = pa.struct(
    [
        pa.field("type", pa.string()),
        pa.field("text", pa.string()),
        pa.field("integer", pa.int64()),
        pa.field("double", pa.float64()),
        pa.field("boolean", pa.bool_()),
        pa.field("timestamp", _TIME),
    ]
)
"""A header's value: RabbitMQ's name of its type, a text for values of any type, and the value itself by its type."""
MESSAGES: Final = pa.schema(
    [
        pa.field("vhost", pa.string()),
        pa.field("queue", pa.string()),
        pa.field("queue_type", pa.string()),
        pa.field("incarnation", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIME),
        pa.field("exchange", pa.string()),
        pa.field("routing_key", pa.string()),
        pa.field("content_type", pa.string()),
        pa.field("content_encoding", pa.string()),
        pa.field("headers", pa.map_(pa.string(), HEADER)),
        pa.field("delivery_mode", pa.int32()),
        pa.field("priority", pa.int32()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("expiration", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("message_timestamp", _TIME),
        pa.field("message_type", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("app_id", pa.string()),
        pa.field("cluster_id", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("body_bytes", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("settled_at", _TIME),
        pa.field("settled_reason", pa.string()),
    ]
)
PENDING: Final = "pending"
SETTLED: Final = "settled"
STATES: Final = (PENDING, SETTLED)
OF_STATE: Final = frozenset({"state", "settled_at", "settled_reason"})
"""The columns that need settlements."""
OF_PROPERTIES: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "message_timestamp",
    "message_type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""The columns that are properties of the message."""


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of these columns, in this order."""
    return pa.schema([MESSAGES.field(name) for name in columns])
