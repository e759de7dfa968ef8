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
from functools import lru_cache
from typing import Final, NamedTuple

from leveret.model.errors import PeerError
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.amqp10_values import (
    BINARY,
    FIELDS,
    LISTS,
    LONG_STRINGS,
    MAPS,
    NULL,
    SAME,
    SHORT_STRINGS,
    SMALL_BINARY,
    TIME_S_MAX,
    Item,
    boolean,
    end_of,
    from_field,
    is_text,
    items_of,
    named,
    octets_of,
    string,
    symbol,
    text_of,
    to_field,
    uint,
)
from leveret.wire.layouts import LONG, LONG_MIN, SHORT, Conversion, Layouts, Part, Parts, Sized, Slot, fill

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
_SECTION: Final = b"\0\x53%c"
_LIST: Final = b"\xd0"
_MAP: Final = b"\xd1"
_DATA_BEGIN: Final = _SECTION % _DATA
_SMALL_ULONG_OCTET: Final = b"\x53"
_COMPOUND: Final = b"AF"
_PREFIX: Final = b"x-"
_EXCHANGE: Final = symbol(b"x-exchange")
_ROUTING_KEY: Final = symbol(b"x-routing-key")
_TYPE: Final = symbol(b"x-basic-type")
_TEXT: Final = ord("S")
_OCTETS: Final = ord("x")
_TIME: Final = ord("T")
_TIMESTAMP: Final = 0x83
_UBYTE: Final = 0x50
_SIZE_BYTES: Final = {0x45: 0, 0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}
"""By constructor of a list or a map the octets of its size."""
_SHORT_BYTES_MAX: Final = 255
_FLAGS_AT: Final = 12
_U32: Final = struct.Struct(">I")
_SIZE_AND_COUNT: Final = struct.Struct(">II")


class Message091(NamedTuple):
    """An AMQP 1.0 message in terms of AMQP 0-9-1.

    Attributes:
        exchange, routing_key: None if no annotation names them.
        properties: the flags and the properties, as a content header ends with them.
        headers_end: the place in `properties` where the table of headers ends; 0 if there is none.
    """

    exchange: bytes | None
    routing_key: bytes | None
    properties: bytes
    headers_end: int
    body: bytes


# -- written --------------------------------------------------------------------------------------

_WRITTEN: Final = Layouts[tuple[int, ...]]()
"""The layouts of content headers; for each of the sections before the body the number of its items."""
_BEGINS: Final = (
    _SECTION % _HEADER + _LIST,
    _SECTION % _ANNOTATIONS + _MAP,
    _SECTION % _PROPERTIES + _LIST,
    _SECTION % _APPLICATION + _MAP,
)
"""The sections before the body, in their order; there may be no application properties."""


def encode_before_body(exchange: bytes, routing_key: bytes, content_header: bytes, body_bytes: int) -> bytes:
    """The AMQP 1.0 message up to its body; the same octets for every message of one shape.

    Raises:
        PeerError: the content header's properties are malformed, or nested too deeply.
    """
    found = _WRITTEN.read(content_header, _FLAGS_AT)
    if found is not None and found.end == len(content_header):
        items, counts = found.outputs, found.note
    else:
        items, counts = _encode_anew(content_header)
    items[1] = _route(exchange, routing_key) + items[1]
    sections = [
        octets
        for begin, content, count in zip(_BEGINS, items, counts, strict=True)
        if count
        for octets in (begin, _SIZE_AND_COUNT.pack(len(content) + 4, count), content)
    ]
    size = b"\xa0" + bytes((body_bytes,)) if body_bytes < 256 else b"\xb0" + _U32.pack(body_bytes)
    return b"".join((*sections, _DATA_BEGIN, size))


@lru_cache(maxsize=1024)
def _route(exchange: bytes, routing_key: bytes) -> bytes:
    """The first two of the message annotations."""
    return b"".join((_EXCHANGE, string(exchange), _ROUTING_KEY, string(routing_key)))


def _encode_anew(header: bytes) -> tuple[list[bytes], tuple[int, ...]]:
    """The items of the sections before the body, without the route, and their numbers; the layout is learned."""
    places = props.places(header)
    annotations: list[Parts] = []
    application: list[Parts] = []
    if kind := places.get(props.TYPE):
        annotations += ([_TYPE], _string(header, *kind))
    start, end = places.get(props.HEADERS, (0, 0))
    for name, at, stop in _headers(header, start, end):
        if name.startswith(_PREFIX):
            if name != _OFFSET:
                annotations += ([symbol(name)], _value(header, at, stop, 1))
        # Application properties are of simple types; RabbitMQ leaves out lists and tables too.
        elif header[at] not in _COMPOUND:
            application += ([string(name)], _value(header, at, stop))
    sections = (_header_of(header, places), annotations, _properties_of(header, places), application)
    outputs = [[part for item in items for part in item] for items in sections]
    # The route is two more annotations, each with its name.
    counts = (len(sections[0]), len(annotations) + 4, len(sections[2]), len(application))
    sizes = [Sized(start, 4, end)] if end else []
    _WRITTEN.learn(Conversion(header, (_FLAGS_AT, len(header)), outputs, sizes, counts))
    return [fill(parts, header) for parts in outputs], counts


def _headers(header: bytes, start: int, end: int) -> list[tuple[bytes, int, int]]:
    """The entries of the table between two places, each by its name and the place of its value; the last of a name."""
    first = start + 4
    table = header[first:end]
    found = {table[begin + 1 : at]: (first + at, first + stop) for begin, at, stop in tables.entries(table)}
    return [(name, at, stop) for name, (at, stop) in found.items()]


def _header_of(header: bytes, places: dict[int, tuple[int, int]]) -> list[Parts]:
    mode, priority, expiration = (
        places.get(flag) for flag in (props.DELIVERY_MODE, props.PRIORITY, props.EXPIRATION)
    )
    ttl = header[expiration[0] + 1 : expiration[1]] if expiration else b""
    return [
        [boolean(header[mode[0]] == 2) if mode else NULL],
        [b"\x50", Slot(*priority, 1)] if priority else [NULL],
        [uint(int(ttl)) if ttl.isdigit() else NULL],
    ]


def _properties_of(header: bytes, places: dict[int, tuple[int, int]]) -> list[Parts]:
    def text(flag: int, constructor: bytes = b"\xa1") -> Parts:
        place = places.get(flag)
        return _string(header, *place, constructor) if place else [NULL]

    user, time = places.get(props.USER_ID), places.get(props.TIMESTAMP)
    is_time = time is not None and _milliseconds(header[slice(*time)]) is not None
    return [
        text(props.MESSAGE_ID),
        [b"\xa0", Slot(*user, SHORT)] if user else [NULL],
        [NULL],
        [NULL],
        text(props.REPLY_TO),
        text(props.CORRELATION_ID),
        text(props.CONTENT_TYPE, b"\xa3"),
        text(props.CONTENT_ENCODING, b"\xa3"),
        [NULL],
        [b"\x83", Slot(*time, 8, convert=_milliseconds)] if time and is_time else [NULL],
        text(props.APP_ID),
    ]


def _string(header: bytes, start: int, stop: int, constructor: bytes = b"\xa1") -> Parts:
    """A short string as a string or a symbol; octets that are no UTF-8 are replaced."""
    octets = header[start + 1 : stop]
    if is_text(octets):
        return [constructor, Slot(start, stop, SHORT, is_text=True)]
    return [string(octets) if constructor == b"\xa1" else symbol(octets)]


def _value(header: bytes, at: int, stop: int, depth: int = 0) -> Parts:
    """A value of the headers; its octets are a slot if AMQP 1.0 has them as they are."""
    kind, octets = header[at], header[at + 5 : stop]
    if (kind == _TEXT and is_text(octets)) or kind == _OCTETS:
        short, long = (b"\xa1", b"\xb1") if kind == _TEXT else (b"\xa0", b"\xb0")
        if len(octets) < LONG_MIN:
            return [short, Slot(at + 4, stop, SHORT, is_text=kind == _TEXT)]
        return [long, Slot(at + 1, stop, LONG, is_text=kind == _TEXT)]
    if kind in SAME:
        return [SAME[kind], Slot(at + 1, stop, stop - at - 1)]
    if kind == _TIME and _milliseconds(header[at + 1 : stop]) is not None:
        return [b"\x83", Slot(at + 1, stop, 8, convert=_milliseconds)]
    return [from_field(header[at:stop], depth)]


def _milliseconds(time: bytes) -> bytes | None:
    """A time in seconds as one in milliseconds, if that has room for it."""
    time_s = int.from_bytes(time, "big")
    return (time_s * 1000).to_bytes(8, "big") if time_s <= TIME_S_MAX else None


# -- read -----------------------------------------------------------------------------------------


class MessageReader:
    """Reads messages of AMQP 1.0 as messages of AMQP 0-9-1; those of a layout that is known at little cost."""

    def __init__(self, header: tuple[bytes, bytes] | None = None) -> None:
        """With a name and a value, each message gets this header, as its last, in place of its own of that name."""
        self._own = header
        self.layouts = Layouts[_Read]()

    def read(self, octets: bytes) -> Message091:
        """Read a message; octets that are none become the body as they are.

        Publishers of the stream protocol may send any octets: a stream does not parse its messages.
        """
        found = self.layouts.read(octets, 0)
        if found is not None and (body_at := _body_at(octets, found.end)):
            return found.note.message(found.outputs, octets[body_at:])
        try:
            return self._read_anew(octets)
        except PeerError:
            note, outputs = self._outputs(octets, {})
            return note.message([fill(parts, octets) for parts in outputs], octets)

    def _read_anew(self, octets: bytes) -> Message091:
        """Read all sections, and learn the layout if one section of data ends the message."""
        sections: dict[int, int] = {}
        sizes: list[Sized] = []
        body: list[bytes] = []
        others: list[bytes] = []
        position = data_at = 0
        is_learned = True
        while position < len(octets):
            start = position
            descriptor, at = _descriptor(octets, position)
            position = end_of(octets, at)
            data = octets_of(octets, at) if descriptor == _DATA else None
            if data is not None:
                body.append(data)
                data_at = at
            elif descriptor in (_SEQUENCE, _VALUE):
                others.append(octets[start:position])
            elif _HEADER <= descriptor <= _FOOTER:
                is_learned &= octets[at] in _SIZE_BYTES and descriptor not in sections
                sections[descriptor] = at
                if size_bytes := _SIZE_BYTES.get(octets[at]):
                    sizes.append(Sized(at + 1, size_bytes, position))
            else:
                raise PeerError(f"section {descriptor} at byte {start} is unknown")
        if not sections and not body and not others:
            raise PeerError("no section at all")
        note, outputs = self._outputs(octets, sections, is_other=bool(others))
        if is_learned and len(body) == 1 and not others and _body_at(octets, data_at):
            self.layouts.learn(Conversion(octets, (0, data_at), outputs, sizes, note))
        return note.message([fill(parts, octets) for parts in outputs], b"".join(others or body))

    def _outputs(
        self, octets: bytes, sections: dict[int, int], *, is_other: bool = False
    ) -> tuple[_Read, list[Parts]]:
        """The exchange, the routing key, the properties before the headers, the headers, and those after them."""
        annotations, application = (
            {} if at is None else named(items_of(octets, at, MAPS))
            for at in (sections.get(_ANNOTATIONS), sections.get(_APPLICATION))
        )
        durable, priority, ttl, *_ = _list(octets, sections.get(_HEADER), 3)
        fields = _list(octets, sections.get(_PROPERTIES), 11)
        exchange = _short(octets, annotations.pop(b"x-exchange", None))
        key = _short(octets, annotations.pop(b"x-routing-key", None))

        def basic(name: bytes) -> Item | None:
            """An annotation of older brokers, or an application property."""
            return _filled(annotations.pop(name, None)) or _filled(application.pop(name, None))

        mode, old_priority = basic(b"x-basic-delivery-mode"), basic(b"x-basic-priority")
        expiration, kind, app_id = (
            basic(name) for name in (b"x-basic-expiration", b"x-basic-type", b"x-basic-app-id")
        )
        headers = application | annotations
        if self._own:
            headers.pop(self._own[0], None)
        entries = [(name, _field(octets, item)) for name, item in headers.items()]
        if self._own:
            entries.append((self._own[0], [self._own[1]]))
        found = {
            props.CONTENT_TYPE: _short(octets, fields[6]),
            props.CONTENT_ENCODING: _short(octets, fields[7]),
            props.HEADERS: [part for name, field in entries for part in (props.shortstr(name), *field)],
            props.DELIVERY_MODE: _mode(mode, durable),
            props.PRIORITY: _octet(octets, priority or old_priority),
            props.CORRELATION_ID: _short(octets, fields[5]),
            props.REPLY_TO: _short(octets, fields[4]),
            props.EXPIRATION: _short(octets, ttl or expiration),
            props.MESSAGE_ID: _short(octets, fields[0]),
            props.TIMESTAMP: _time(octets, fields[9]),
            props.TYPE: [props.shortstr(b"amqp-1.0")] if is_other else _short(octets, kind),
            props.USER_ID: _short(octets, fields[1]),
            props.APP_ID: _short(octets, fields[10] or app_id),
        }
        flags = sum(flag for flag, parts in found.items() if parts)
        before: list[Part] = [flags.to_bytes(2, "big")]
        after: list[Part] = []
        for flag, parts in found.items():
            if flag != props.HEADERS:
                (before if flag > props.HEADERS else after).extend(parts)
        note = _Read(bool(exchange), bool(key), bool(entries))
        return note, [exchange, key, before, found[props.HEADERS], after]


class Shape10:
    """The common part of neighbouring AMQP 1.0 messages: the octets before their bodies.

    Attributes:
        message: the first of the messages.
        body_bytes: the size of every body.
    """

    def __init__(self, octets: bytes, reader: MessageReader) -> None:
        """Take the shape of one message."""
        self.message = message = reader.read(octets)
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


class _Read(NamedTuple):
    """Which of the outputs of a reader's layout a message has."""

    has_exchange: bool
    has_key: bool
    has_headers: bool

    def message(self, outputs: list[bytes], body: bytes) -> Message091:
        """The message that has these outputs."""
        exchange, key, before, headers, after = outputs
        if self.has_headers:
            before = b"".join((before, _U32.pack(len(headers)), headers))
        return Message091(
            exchange[1:] if self.has_exchange else None,
            key[1:] if self.has_key else None,
            before + after,
            len(before) if self.has_headers else 0,
            body,
        )


def _descriptor(octets: bytes, position: int) -> tuple[int, int]:
    """The number of the section that begins at `position`, 0 for one without a number, and the place of its value."""
    if octets[position] != 0:
        raise PeerError(f"no section begins at byte {position}")
    if octets.startswith(_SMALL_ULONG_OCTET, position + 1) and len(octets) > position + 2:
        return octets[position + 2], position + 3
    value, at = to_field(octets, position + 1)
    return tables.integer_of(value) or 0, at


def _body_at(octets: bytes, position: int) -> int:
    """The begin of the body if the data whose constructor is at `position` go up to the end of the octets; else 0."""
    begin = octets[position : position + 5]
    if begin.startswith(b"\xa0") and len(begin) > 1:
        at = position + 2
        return at if at + begin[1] == len(octets) else 0
    if begin.startswith(b"\xb0") and len(begin) == 5:
        at = position + 5
        return at if at + _U32.unpack_from(begin, 1)[0] == len(octets) else 0
    return 0


def _list(octets: bytes, at: int | None, count: int) -> list[Item | None]:
    """The values of a section that has to be a list; None for null."""
    items = [] if at is None else items_of(octets, at, LISTS)
    return [*(_filled(item) for item in items), *[None] * (count - len(items))]


def _filled(item: Item | None) -> Item | None:
    return None if item is None or item.field == b"V" else item


def _field(octets: bytes, item: Item) -> Parts:
    """A value of the headers; its octets are a slot if a field table has them as they are."""
    kind, constructor = item.field[:1], octets[item.begin]
    behind = item.begin + 1
    if constructor in SHORT_STRINGS or constructor == SMALL_BINARY:
        return [kind + b"\0\0\0", Slot(behind, item.end, SHORT, is_text=constructor != SMALL_BINARY)]
    if len(item.field) >= LONG_MIN + 5 and (constructor in LONG_STRINGS or constructor == BINARY):
        return [kind, Slot(behind, item.end, LONG, is_text=constructor != BINARY)]
    if constructor == _TIMESTAMP and kind == b"T":
        return [kind, Slot(behind, item.end, 8, convert=_seconds)]
    if constructor in FIELDS:
        return [kind, Slot(behind, item.end, item.end - behind)]
    return [item.field]


def _seconds(time: bytes) -> bytes | None:
    """A time in milliseconds as one in seconds, if it is none before 1970."""
    time_ms = int.from_bytes(time, "big", signed=True)
    return (time_ms // 1000).to_bytes(8, "big") if time_ms >= 0 else None


def _time(octets: bytes, item: Item | None) -> Parts:
    return [] if item is None or item.field[:1] != b"T" else _field(octets, item)[1:]


def _short(octets: bytes, item: Item | None) -> Parts:
    """A short string; nothing for a value that does not fit one."""
    if item is not None and octets[item.begin] in SHORT_STRINGS:
        return [Slot(item.begin + 1, item.end, SHORT, is_text=True)]
    text = None if item is None else text_of(item.field)
    return [] if text is None or len(text) > _SHORT_BYTES_MAX else [props.shortstr(text)]


def _mode(mode: Item | None, durable: Item | None) -> Parts:
    if mode is None:
        return [] if durable is None else [b"\2" if durable.field == b"t\1" else b"\1"]
    number = tables.integer_of(mode.field)
    return [bytes((number,))] if number in (1, 2) else []


def _octet(octets: bytes, item: Item | None) -> Parts:
    if item is None:
        return []
    if octets[item.begin] == _UBYTE:
        return [Slot(item.begin + 1, item.end, 1)]
    number = tables.integer_of(item.field)
    return [bytes((number,))] if number is not None and 0 <= number < 256 else []
