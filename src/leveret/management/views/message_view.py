"""Messages in JSON: properties and payload, in and out."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from pamqp import encode

from leveret.model.errors import InvalidCommand
from leveret.session.ingest import Fetched
from leveret.session.message_json import payload_json, properties_json
from leveret.wire import properties as props

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
KEY_BYTES_MAX: Final = 128
"""The largest length of a header's name, by the specification (4.2.5.5)."""


class Properties(msgspec.Struct):
    """The properties of a message to publish; null is no value of any. `header_of` checks the numbers."""

    content_type: str | UnsetType = UNSET
    content_encoding: str | UnsetType = UNSET
    headers: dict[str, Any] | UnsetType = UNSET
    delivery_mode: Any = UNSET
    priority: Any = UNSET
    correlation_id: str | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET
    expiration: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    timestamp: Any = UNSET
    type: str | UnsetType = UNSET
    user_id: str | UnsetType = UNSET
    app_id: str | UnsetType = UNSET
    cluster_id: str | UnsetType = UNSET


def header_of(properties: Properties, body_bytes: int) -> bytes:
    """The content header of a message.

    Raises:
        InvalidCommand: AMQP cannot hold the value of a property, which the text names.
    """
    found: dict[int, bytes] = {}
    for name, flag in _TEXTS.items():
        text = getattr(properties, name)
        if text is not UNSET:
            found[flag] = text.encode()
            if len(found[flag]) > 255:
                raise InvalidCommand(f"properties.{name} should be at most 255 bytes")
    for name, (flag, size) in _NUMBERS.items():
        number = getattr(properties, name)
        if number is not UNSET:
            if not isinstance(number, int) or isinstance(number, bool):
                raise InvalidCommand(f"not_int: {name}")
            if not 0 <= number < 1 << 8 * size:
                raise InvalidCommand(f"properties.{name} should be from 0 to {(1 << 8 * size) - 1}")
            found[flag] = number.to_bytes(size, "big")
    if properties.headers is not UNSET:
        found[props.HEADERS] = _table(properties.headers)
    return props.join(found, body_bytes)


def message_json(fetched: Fetched, encoding: str, truncate: int | None) -> dict[str, Any]:
    """A message as RabbitMQ shows it; its payload as text if possible, unless base64 is asked for."""
    head = fetched.head
    shown = fetched.body if truncate is None else fetched.body[: max(0, truncate)]
    payload, used = payload_json(shown, encoding)
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


def _table(headers: dict[str, Any]) -> bytes:
    try:
        _check_keys(headers)
        return encode.field_table(headers)[4:]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidCommand(f"properties.headers: {error}") from None


def _check_keys(value: Any) -> None:
    """Refuse keys that are too long."""
    if isinstance(value, dict):
        for key, each in value.items():
            if len(key.encode()) > KEY_BYTES_MAX:
                raise ValueError(f"a key is longer than {KEY_BYTES_MAX} bytes: '{key[:20]}...'")
            _check_keys(each)
    elif isinstance(value, list):
        for each in value:
            _check_keys(each)
