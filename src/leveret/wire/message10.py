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

from typing import Final, NamedTuple

from leveret.model.errors import PeerError
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.amqp10_values import (
    LISTS,
    MAPS,
    NULL,
    TIME_S_MAX,
    binary,
    boolean,
    end_of,
    fields_of,
    from_field,
    list_of,
    map_of,
    named,
    octets_of,
    string,
    symbol,
    text_of,
    timestamp,
    to_field,
    uint,
)

OFFSET_HEADER: Final = "x-stream-offset"
_OFFSET: Final = OFFSET_HEADER.encode()
_HEADER: Final = 0x70
_ANNOTATIONS: Final = 0x72
_PROPERTIES: Final = 0x73
_APPLICATION: Final = 0x74
_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
_VALUE: Final = 0x77
_FOOTER: Final = 0x78
_SMALL_ULONG: Final = 0x53
_SMALL_ULONG_OCTET: Final = bytes((_SMALL_ULONG,))
_COMPOUND: Final = b"AF"
_PREFIX: Final = b"x-"
_EXCHANGE: Final = symbol(b"x-exchange")
_ROUTING_KEY: Final = symbol(b"x-routing-key")
_TYPE: Final = symbol(b"x-basic-type")
_SHORT_BYTES_MAX: Final = 255


class Message091(NamedTuple):
    """An AMQP 1.0 message in terms of AMQP 0-9-1.

    Attributes:
        exchange, routing_key: None if no annotation names them.
        properties: by flag, as from properties.split.
    """

    exchange: bytes | None
    routing_key: bytes | None
    properties: dict[int, bytes]
    body: bytes


def _section(descriptor: int, value: bytes) -> bytes:
    return bytes((0, _SMALL_ULONG, descriptor)) + value


def encode_before_body(exchange: bytes, routing_key: bytes, content_header: bytes, body_bytes: int) -> bytes:
    """The AMQP 1.0 message up to its body; the same octets for every message of one shape.

    Raises:
        PeerError: the content header's properties are malformed, or nested too deeply.
    """
    found = props.split(content_header)
    annotations = [_EXCHANGE, string(exchange), _ROUTING_KEY, string(routing_key)]
    if kind := found.get(props.TYPE):
        annotations += (_TYPE, string(kind))
    application: list[bytes] = []
    for key, value in tables.split(found.get(props.HEADERS, b"")).items():
        if key.startswith(_PREFIX):
            if key != _OFFSET:
                annotations += (symbol(key), from_field(value, 1))
        # Application properties are of simple types; RabbitMQ leaves out lists and tables too.
        elif value[0] not in _COMPOUND:
            application += (string(key), from_field(value))
    sections = [
        _section(_HEADER, _header_of(found)),
        _section(_ANNOTATIONS, map_of(annotations)),
        _section(_PROPERTIES, _properties_of(found)),
    ]
    if application:
        sections.append(_section(_APPLICATION, map_of(application)))
    size = bytes((0xA0, body_bytes)) if body_bytes < 256 else b"\xb0" + body_bytes.to_bytes(4, "big")
    return b"".join((*sections, _section(_DATA, size)))


def _header_of(found: dict[int, bytes]) -> bytes:
    mode, priority = found.get(props.DELIVERY_MODE), found.get(props.PRIORITY)
    expiration = found.get(props.EXPIRATION, b"")
    return list_of(
        (
            NULL if mode is None else boolean(mode == b"\2"),
            NULL if priority is None else b"\x50" + priority,
            uint(int(expiration)) if expiration.isdigit() else NULL,
        )
    )


def _properties_of(found: dict[int, bytes]) -> bytes:
    def text(flag: int) -> bytes:
        octets = found.get(flag)
        return string(octets) if octets else NULL

    def named(flag: int) -> bytes:
        octets = found.get(flag)
        return symbol(octets) if octets else NULL

    user, time_s = found.get(props.USER_ID), int.from_bytes(found.get(props.TIMESTAMP, b"\xff" * 8), "big")
    return list_of(
        (
            text(props.MESSAGE_ID),
            binary(user) if user else NULL,
            NULL,
            NULL,
            text(props.REPLY_TO),
            text(props.CORRELATION_ID),
            named(props.CONTENT_TYPE),
            named(props.CONTENT_ENCODING),
            NULL,
            timestamp(time_s) if time_s <= TIME_S_MAX else NULL,
            text(props.APP_ID),
        )
    )


def decode_message10(octets: bytes) -> Message091:
    """Read a message of AMQP 1.0; octets that are none become the body as they are.

    Publishers of the stream protocol may send any octets: a stream does not parse its messages.
    """
    try:
        return _decode(octets)
    except PeerError:
        return Message091(None, None, {}, octets)


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
    sections: dict[int, int] = {}
    body: list[bytes] = []
    others: list[bytes] = []
    position = 0
    while position < len(octets):
        start = position
        descriptor, at = _descriptor(octets, position)
        position = end_of(octets, at)
        data = octets_of(octets, at) if descriptor == _DATA else None
        if data is not None:
            body.append(data)
        elif descriptor in (_SEQUENCE, _VALUE):
            others.append(octets[start:position])
        elif _HEADER <= descriptor <= _FOOTER:
            sections[descriptor] = at
        else:
            raise PeerError(f"section {descriptor} at byte {start} is unknown")
    if not sections and not body and not others:
        raise PeerError("no section at all")
    message = _message(octets, sections, b"".join(body))
    if others:
        message.properties[props.TYPE] = b"amqp-1.0"
        return message._replace(body=b"".join(others))
    return message


def _descriptor(octets: bytes, position: int) -> tuple[int, int]:
    """The number of the section that begins at `position`, 0 for one without a number, and the place of its value."""
    if octets[position] != 0:
        raise PeerError(f"no section begins at byte {position}")
    if octets.startswith(_SMALL_ULONG_OCTET, position + 1) and len(octets) > position + 2:
        return octets[position + 2], position + 3
    value, at = to_field(octets, position + 1)
    return tables.integer_of(value) or 0, at


def _message(octets: bytes, sections: dict[int, int], body: bytes) -> Message091:
    annotations, application = (
        {} if at is None else named(fields_of(octets, at, MAPS))
        for at in (sections.get(_ANNOTATIONS), sections.get(_APPLICATION))
    )
    durable, priority, ttl, *_ = _list(octets, sections.get(_HEADER), 3)
    fields = _list(octets, sections.get(_PROPERTIES), 11)
    exchange, key = annotations.pop(b"x-exchange", None), annotations.pop(b"x-routing-key", None)

    def basic(name: bytes) -> bytes | None:
        value = annotations.pop(name, b"V")
        if value == b"V":
            value = application.pop(name, b"V")
        return None if value == b"V" else value

    mode, old_priority = basic(b"x-basic-delivery-mode"), basic(b"x-basic-priority")
    expiration, kind, app_id = basic(b"x-basic-expiration"), basic(b"x-basic-type"), basic(b"x-basic-app-id")
    time = fields[9]
    found = {
        props.CONTENT_TYPE: _short(fields[6]),
        props.CONTENT_ENCODING: _short(fields[7]),
        props.HEADERS: tables.join(application | annotations) or None,
        props.DELIVERY_MODE: _mode(mode, durable),
        props.PRIORITY: _octet(old_priority if priority is None else priority),
        props.CORRELATION_ID: _short(fields[5]),
        props.REPLY_TO: _short(fields[4]),
        props.EXPIRATION: _short(expiration if ttl is None else ttl),
        props.MESSAGE_ID: _short(fields[0]),
        props.TIMESTAMP: time[1:] if time is not None and time[:1] == b"T" else None,
        props.TYPE: _short(kind),
        props.USER_ID: _short(fields[1]),
        props.APP_ID: _short(app_id if fields[10] is None else fields[10]),
    }
    properties = {flag: value for flag, value in found.items() if value is not None}
    return Message091(_short(exchange), _short(key), properties, body)


def _list(octets: bytes, at: int | None, count: int) -> list[bytes | None]:
    """The values of a section that has to be a list, as a field table has them; None for null."""
    fields = [] if at is None else fields_of(octets, at, LISTS)
    return [*(None if field == b"V" else field for field in fields), *[None] * (count - len(fields))]


def _short(field: bytes | None) -> bytes | None:
    """A short string, None for what does not fit one."""
    text = None if field is None else text_of(field)
    return text if text is not None and len(text) <= _SHORT_BYTES_MAX else None


def _mode(mode: bytes | None, durable: bytes | None) -> bytes | None:
    if mode is None and durable is not None:
        return b"\2" if durable == b"t\1" else b"\1"
    number = None if mode is None else tables.integer_of(mode)
    return bytes((number,)) if number in (1, 2) else None


def _octet(field: bytes | None) -> bytes | None:
    number = None if field is None else tables.integer_of(field)
    return bytes((number,)) if number is not None and 0 <= number < 256 else None
