"""Properties and bodies of messages in JSON, as RabbitMQ's management API shows them."""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from leveret.wire.properties import SyntaxFault, decode

_SHOWN: Final = (
    "type",
    "message_id",
    "app_id",
    "user_id",
    "timestamp",
    "expiration",
    "reply_to",
    "correlation_id",
    "priority",
    "delivery_mode",
    "headers",
    "content_encoding",
    "content_type",
    "cluster_id",
)
_PAMQP: Final = {"type": "message_type"}
"""The names that pamqp changed."""


def properties_json(header: bytes) -> dict[str, Any] | list[Any]:
    """The properties that are set; an empty list if none is, as in RabbitMQ."""
    try:
        properties = decode(header)
    except SyntaxFault:
        return []
    shown = {name: getattr(properties, _PAMQP.get(name, name)) for name in _SHOWN}
    return {name: _plain(value) for name, value in shown.items() if value not in (None, "")} or []


def payload_json(body: bytes, encoding: str = "auto") -> tuple[str, str]:
    """A body and its encoding: `string` for text unless base64 is asked for, else `base64`."""
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


def _plain(value: Any) -> Any:
    """A field's value in JSON: times in seconds, octets as text."""
    match value:
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
        case bytes() | bytearray():
            return value.decode("utf-8", "replace")
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value
