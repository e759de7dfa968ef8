"""Messages in JSON: properties and payload, in and out."""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
from pamqp import encode

from leveret.model.errors import InvalidCommand
from leveret.session.ingest import Fetched
from leveret.wire import properties as props
from leveret.wire.properties import decode

_TEXTS: Final = {
    "content_type": props.CONTENT_TYPE,
    "content_encoding": props.CONTENT_ENCODING,
    "correlation_id": props.CORRELATION_ID,
    "reply_to": props.REPLY_TO,
    "expiration": props.EXPIRATION,
    "message_id": props.MESSAGE_ID,
    "type": props.TYPE,
    "user_id": props.USER_ID,
    "app_id": props.APP_ID,
    "cluster_id": props.CLUSTER_ID,
}
_NUMBERS: Final = {
    "delivery_mode": (props.DELIVERY_MODE, 1),
    "priority": (props.PRIORITY, 1),
    "timestamp": (props.TIMESTAMP, 8),
}
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
KEY_BYTES_MAX: Final = 128
"""Of a header's name, by the specification (4.2.5.5)."""
_PAMQP: Final = {"type": "message_type"}
"""Names that pamqp changed."""


class Properties(msgspec.Struct):
    """The properties of a message that is to be published."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def header_of(properties: Properties, body_bytes: int) -> bytes:
    """The content header of a message.

    Raises:
        InvalidCommand: AMQP cannot hold a value; names the property.
    """
    found: dict[int, bytes] = {}
    for name, flag in _TEXTS.items():
        text = getattr(properties, name)
        if text is not None:
            found[flag] = text.encode()
            if len(found[flag]) > 255:
                raise InvalidCommand(f"properties.{name} should be at most 255 bytes")
    for name, (flag, size) in _NUMBERS.items():
        number = getattr(properties, name)
        if number is not None:
            if not 0 <= number < 1 << 8 * size:
                raise InvalidCommand(f"properties.{name} should be from 0 to {(1 << 8 * size) - 1}")
            found[flag] = number.to_bytes(size, "big")
    if properties.headers is not None:
        found[props.HEADERS] = _table(properties.headers)
    return props.join(found, body_bytes)


def message_json(fetched: Fetched, encoding: str, truncate: int | None) -> dict[str, Any]:
    """A message as RabbitMQ shows it; its payload as text if it is one and nobody wants base64."""
    head = fetched.head
    shown = fetched.body if truncate is None else fetched.body[: max(0, truncate)]
    payload, used = _payload(shown, encoding)
    return {
        "payload_bytes": len(fetched.body),
        "redelivered": fetched.redelivered,
        "exchange": head.exchange.decode("utf-8", "replace"),
        "routing_key": head.routing_key.decode("utf-8", "replace"),
        "message_count": fetched.left,
        "properties": properties_json(head.header),
        "payload": payload,
        "payload_encoding": used,
    }


def properties_json(header: bytes) -> dict[str, Any] | list[Any]:
    """The properties that are set; an empty list if none is, as in RabbitMQ."""
    try:
        properties = decode(header)
    except props.SyntaxFault:
        return []
    held = {name: getattr(properties, _PAMQP.get(name, name)) for name in _SHOWN}
    return {name: _plain(value) for name, value in held.items() if value not in (None, "")} or []


def _payload(body: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


def _table(headers: dict[str, Any]) -> bytes:
    try:
        _check_keys(headers)
        return encode.field_table(headers)[4:]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidCommand(f"properties.headers: {error}") from None


def _check_keys(value: Any) -> None:
    """Refuse keys that would be cut."""
    if isinstance(value, dict):
        for key, each in value.items():
            if len(key.encode()) > KEY_BYTES_MAX:
                raise ValueError(f"a key is longer than {KEY_BYTES_MAX} bytes: '{key[:20]}...'")
            _check_keys(each)
    elif isinstance(value, list):
        for each in value:
            _check_keys(each)


def _plain(value: Any) -> Any:
    """A field's value as JSON has it: times in seconds, octets as text."""
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
