"""Properties and bodies of messages in JSON, as RabbitMQ's management API shows them."""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from leveret.wire import properties as props

_SHOWN: Final = {
    "type": props.TYPE,
    "message_id": props.MESSAGE_ID,
    "app_id": props.APP_ID,
    "user_id": props.USER_ID,
    "timestamp": props.TIMESTAMP,
    "expiration": props.EXPIRATION,
    "reply_to": props.REPLY_TO,
    "correlation_id": props.CORRELATION_ID,
    "priority": props.PRIORITY,
    "delivery_mode": props.DELIVERY_MODE,
    "headers": props.HEADERS,
    "content_encoding": props.CONTENT_ENCODING,
    "content_type": props.CONTENT_TYPE,
    "cluster_id": props.CLUSTER_ID,
}
_PAMQP: Final = {"type": "message_type"}
"""The names that pamqp changed."""


def properties_json(header: bytes) -> dict[str, Any] | list[Any]:
    """The properties that are set; an empty list if none is, as in RabbitMQ."""
    try:
        found = props.split(header)
        properties = props.decode(found)
    except props.SyntaxFault:
        return []
    shown: dict[str, Any] = {}
    for name, flag in _SHOWN.items():
        if flag == props.TIMESTAMP and flag in found:
            shown[name] = int.from_bytes(found[flag])
        elif flag in found:
            shown[name] = _plain(getattr(properties, _PAMQP.get(name, name)))
    return shown or []


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
