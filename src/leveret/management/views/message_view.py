"""Messages in JSON: properties and payload, in and out."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

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
    """The properties of a message to publish; null is no value of any. `header_of` checks numbers and headers.

    An empty list stands for no headers: so PHP writes an empty object.
    """

    content_type: str | UnsetType = UNSET
    content_encoding: str | UnsetType = UNSET
    headers: dict[str, Any] | list[Any] | UnsetType = UNSET
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


def _table(headers: dict[str, Any] | list[Any]) -> bytes:
    try:
        if not isinstance(headers, list):
            return _entries(headers)
        if headers:
            raise ValueError("they should be an object")
        return b""
    except ValueError as error:
        raise InvalidCommand(f"properties.headers: {error}") from None


def _entries(table: Mapping[str, Any]) -> bytes:
    pieces: list[bytes] = []
    for key, value in table.items():
        name = key.encode()
        if len(name) > KEY_BYTES_MAX:
            raise ValueError(f"a key is longer than {KEY_BYTES_MAX} bytes: '{key[:20]}...'")
        pieces += (props.shortstr(name), _field(value))
    return b"".join(pieces)


def _field(value: Any) -> bytes:
    """A value with its type, as RabbitMQ encodes JSON: numbers have 64 bits."""
    match value:
        case bool():
            return b"t" + bytes((value,))
        case int():
            if not -1 << 63 <= value < 1 << 63:
                raise ValueError(f"{value} has more than 64 bits")
            return b"l" + value.to_bytes(8, "big", signed=True)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + _long(value.encode())
        case list():
            return b"A" + _long(b"".join(map(_field, value)))
        case dict():
            return b"F" + _long(_entries(value))
    raise ValueError("null_not_allowed")


def _long(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "big") + octets
