"""A message of AMQP 0-9-1 as one of AMQP 1.0, which is what streams hold, and back.

    0-9-1                                                 1.0
    delivery-mode 2, priority, expiration                 header: durable, priority, ttl
    exchange, routing key                                 message annotations x-exchange, x-routing-key
    type                                                  message annotation x-basic-type
    headers beginning with x-                             message annotations
    other headers                                         application properties
    message-id, user-id, reply-to, correlation-id,        properties, of the same names
      content-type, content-encoding
    timestamp                                             properties: creation-time
    app-id                                                properties: group-id
    body                                                  data

RabbitMQ 3.13 converts in this way. Reading also knows the annotations of older versions (x-basic-delivery-mode,
x-basic-priority, x-basic-expiration, x-basic-app-id, and x-basic-type among the application properties). A body that
is not data (a value, a sequence) becomes its encoded sections, with type `amqp-1.0`.
"""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from pamqp import commands, header

from leveret.model.errors import PeerError
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.amqp10_values import (
    FarTime,
    decode_value,
    encode_value,
    list_of,
    map_of,
    symbol,
    timestamp,
    ubyte,
    uint,
)

OFFSET_HEADER: Final = "x-stream-offset"
_HEADER: Final = 0x70
_ANNOTATIONS: Final = 0x72
_PROPERTIES: Final = 0x73
_APPLICATION: Final = 0x74
_DATA: Final = 0x75
_FOOTER: Final = 0x78
_NULL: Final = b"\x40"
_NAME_BYTES_MAX: Final = 128
"""The longest name in a field table (spec 4.2.5.5)."""
_DOUBLE: Final = struct.Struct(">d")
TIME_S_MAX: Final = ((1 << 63) - 1) // 1000
"""The latest timestamp of AMQP 0-9-1 that one of AMQP 1.0, which counts milliseconds, can hold."""


class Message091(NamedTuple):
    """An AMQP 1.0 message in terms of AMQP 0-9-1; `exchange` is None if no annotation names it."""

    exchange: str | None
    routing_key: str | None
    properties: commands.Basic.Properties
    body: bytes


def _section(descriptor: int, value: bytes) -> bytes:
    return bytes((0, 0x53, descriptor)) + value


def _optional(value: Any) -> bytes:
    return encode_value(value) if value else _NULL


def encode_before_body(exchange: str, routing_key: str, content_header: bytes, body_bytes: int) -> bytes:
    """The AMQP 1.0 message up to its body; the same octets for every message of one shape.

    Raises:
        PeerError: the content header's properties are malformed, or nested too deeply.
    """
    found = props.split(content_header)
    given = props.decode(found)
    headers: dict[str, Any] = dict(given.headers or {})
    annotations = [
        (symbol("x-exchange"), encode_value(exchange)),
        (symbol("x-routing-key"), encode_value(routing_key)),
    ]
    if given.message_type:
        annotations.append((symbol("x-basic-type"), encode_value(given.message_type)))
    times = _times(found.get(props.HEADERS, b""))
    for key in _annotating(headers):
        value = headers.pop(key)
        annotations.append((symbol(key), times.get(key) or encode_value(value, 1)))
    sections = [
        _section(_HEADER, _header_of(given)),
        _section(_ANNOTATIONS, map_of(annotations)),
        _section(_PROPERTIES, _properties_of(given, found.get(props.TIMESTAMP))),
    ]
    # Application properties are of simple types; RabbitMQ leaves out lists and tables too.
    simple = {key: value for key, value in headers.items() if not isinstance(value, list | dict)}
    if simple:
        pairs = [(encode_value(key), times.get(key) or encode_value(value)) for key, value in simple.items()]
        sections.append(_section(_APPLICATION, map_of(pairs)))
    size = bytes((0xA0, body_bytes)) if body_bytes < 256 else b"\xb0" + body_bytes.to_bytes(4, "big")
    return b"".join(sections) + _section(_DATA, size)


def _times(table: bytes) -> dict[str, bytes]:
    """The timestamps among the headers, encoded; a number cannot tell whether it was one that no datetime can hold."""
    if b"T" not in table:
        return {}
    return {
        key.decode(): timestamp(int.from_bytes(value[1:], "big") * 1000)
        for key, value in tables.split(table).items()
        if value[:1] == b"T" and int.from_bytes(value[1:], "big") <= TIME_S_MAX
    }


def _annotating(headers: dict[str, Any]) -> list[str]:
    return [key for key in headers if key.startswith("x-") and key != OFFSET_HEADER]


def _header_of(given: commands.Basic.Properties) -> bytes:
    expiration = str(given.expiration or "")
    return list_of(
        (
            _NULL if given.delivery_mode is None else encode_value(given.delivery_mode == 2),
            _NULL if given.priority is None else ubyte(given.priority),
            uint(int(expiration)) if expiration.isdecimal() else _NULL,
        )
    )


def _properties_of(given: commands.Basic.Properties, time: bytes | None) -> bytes:
    """The properties' section; `time` has the octets of the timestamp."""
    time_s = TIME_S_MAX + 1 if time is None else int.from_bytes(time, "big")
    return list_of(
        (
            _optional(given.message_id),
            _optional((given.user_id or "").encode()),
            _NULL,
            _NULL,
            _optional(given.reply_to),
            _optional(given.correlation_id),
            symbol(given.content_type) if given.content_type else _NULL,
            symbol(given.content_encoding) if given.content_encoding else _NULL,
            _NULL,
            timestamp(time_s * 1000) if time_s <= TIME_S_MAX else _NULL,
            _optional(given.app_id),
        )
    )


def decode_message10(octets: bytes) -> Message091:
    """Read a message of AMQP 1.0; octets that are none become the body as they are.

    Publishers of the stream protocol may send any octets: a stream does not parse its messages.
    """
    try:
        return _decode(octets)
    except PeerError:
        return Message091(None, None, commands.Basic.Properties(), octets)


class Shape10:
    """The common part of neighbouring AMQP 1.0 messages: the octets before their bodies.

    Attributes:
        message: the first of the messages.
        body_bytes: the size of every body.
    """

    def __init__(self, octets: bytes) -> None:
        """Take the shape of one message."""
        self.message = message = decode_message10(octets)
        self.body_bytes = len(message.body)
        self._size = len(octets)
        self._before = octets[: len(octets) - len(message.body)]
        self._own_body = None if octets.endswith(message.body) else message.body

    def fits(self, octets: bytes) -> bool:
        """Whether another message differs in its body alone."""
        return len(octets) == self._size and self._own_body is None and octets.startswith(self._before)

    def body_of(self, octets: bytes) -> bytes:
        """The body of a message of this shape."""
        return octets[len(self._before) :] if self._own_body is None else self._own_body


def _decode(octets: bytes) -> Message091:
    sections: dict[int, Any] = {}
    body: list[bytes] = []
    others: list[bytes] = []
    position = 0
    while position < len(octets):
        start = position
        if octets[position] != 0:
            raise PeerError(f"no section begins at byte {position}")
        descriptor, position = decode_value(octets, position + 1)
        value, position = decode_value(octets, position)
        if descriptor == _DATA and isinstance(value, bytes):
            body.append(value)
        elif descriptor in (0x76, 0x77):
            others.append(octets[start:position])
        elif isinstance(descriptor, int) and _HEADER <= descriptor <= _FOOTER:
            sections[descriptor] = value
        else:
            raise PeerError(f"section {descriptor!r} at byte {start} is unknown")
    if not sections and not body and not others:
        raise PeerError("no section at all")
    message = _message(sections, b"".join(body))
    if others:
        message.properties.message_type = "amqp-1.0"
        return message._replace(body=b"".join(others))
    return message


def _message(sections: dict[int, Any], body: bytes) -> Message091:
    annotations, application = _map(sections.get(_ANNOTATIONS)), _map(sections.get(_APPLICATION))
    exchange, key = annotations.pop("x-exchange", None), annotations.pop("x-routing-key", None)
    fields = _fields(sections.get(_PROPERTIES), 13)
    durable, priority, ttl = _fields(sections.get(_HEADER), 3)

    def basic(name: str) -> Any:
        value = annotations.pop(f"x-basic-{name}", None)
        return application.pop(f"x-basic-{name}", None) if value is None else value

    mode, old_priority, expiration = basic("delivery-mode"), basic("priority"), basic("expiration")
    kind, app_id = basic("type"), basic("app-id")
    if mode is None and durable is not None:
        mode = 2 if durable else 1
    properties = commands.Basic.Properties(
        content_type=_short(fields[6]),
        content_encoding=_short(fields[7]),
        headers=_table({**application, **annotations}),
        delivery_mode=mode if isinstance(mode, int) and mode in (1, 2) else None,
        priority=_octet(old_priority if priority is None else priority),
        correlation_id=_short(fields[5]),
        reply_to=_short(fields[4]),
        expiration=_short(expiration if ttl is None else ttl),
        message_id=_short(fields[0]),
        timestamp=_time(fields[9]),
        message_type=_short(kind),
        user_id=_short(fields[1]),
        app_id=_short(app_id if fields[10] is None else fields[10]),
    )
    return Message091(_short(exchange), _short(key), properties, body)


def _map(section: Any) -> dict[str, Any]:
    """A section that has to be a map; empty if it is none."""
    return dict(section) if isinstance(section, dict) else {}


def _fields(section: Any, count: int) -> list[Any]:
    """The fields of a list section; those left out at its end are None."""
    given = list(section) if isinstance(section, list) else []
    return (given + [None] * count)[:count]


def _short(value: Any) -> str | None:
    """A short string, None for what does not fit one."""
    if value is None:
        return None
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text.encode()) < 256 else None


def _time(value: Any) -> Any:
    """A datetime, or the seconds where no datetime can hold them, as of publishers that write milliseconds."""
    if isinstance(value, datetime):
        return value
    return int(value) if isinstance(value, FarTime) else None


def _octet(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 256 else None


def _plain(value: Any) -> Any:
    """A value that a field table of 0-9-1 can hold."""
    if isinstance(value, bytes):
        return bytearray(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 63:
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _table(value) if isinstance(value, dict) else value


def _table(entries: dict[str, Any]) -> dict[str, Any]:
    """A table with names of at most the length that 0-9-1 allows: its encoder logs each longer one, whole."""
    return {_name(key): _plain(value) for key, value in entries.items()}


def _name(key: str) -> str:
    return key if len(key) * 4 <= _NAME_BYTES_MAX else key.encode()[:_NAME_BYTES_MAX].decode(errors="ignore")


def content_header_of(properties: commands.Basic.Properties, body_bytes: int) -> bytes:
    """A content header payload of AMQP 0-9-1."""
    headers, time = properties.headers, cast(datetime | int | None, properties.timestamp)
    values: dict[str, Any] = headers or {}
    others = {key: value for key, value in values.items() if isinstance(value, float | FarTime)}
    if not others and not isinstance(time, int):
        return header.ContentHeader(0, body_bytes, properties).marshal()
    if others:
        # The encoder would write floats as four octets, which not all of them fit, and such times as numbers.
        properties.headers = {**values, **dict.fromkeys(others, False)}
    if isinstance(time, int):
        properties.timestamp = None
    found = props.split(header.ContentHeader(0, body_bytes, properties).marshal())
    properties.headers, properties.timestamp = headers, cast(datetime | None, time)
    if others:
        table = tables.split(found[props.HEADERS])
        for key, value in others.items():
            double = b"d" + _DOUBLE.pack(value)
            table[key.encode()] = tables.timestamp(value) if isinstance(value, FarTime) else double
        found[props.HEADERS] = tables.join(table)
    if isinstance(time, int):
        found[props.TIMESTAMP] = time.to_bytes(8, "big")
    return props.join(found, body_bytes)


def content_header_within(
    properties: commands.Basic.Properties, body_bytes: int, least: dict[str, Any]
) -> bytes:
    """As `content_header_of`; if AMQP 0-9-1 cannot encode some of the headers, with the headers `least` alone."""
    try:
        return content_header_of(properties, body_bytes)
    except (TypeError, ValueError, OverflowError, struct.error):
        # Names or numbers that AMQP 1.0 can have and 0-9-1 cannot.
        properties.headers = least
        return content_header_of(properties, body_bytes)
