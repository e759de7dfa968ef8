"""The properties of a content header, decoded one by one when they are needed.

A content header payload is class, weight and body size (12 octets), the property flags, and the properties whose flag
is set, in the order of `_WIDTHS` (spec 4.2.6.1, 1.8). `split` and `join` take it apart and put it together by octets,
so a publisher's properties stay as they were, except the changed ones.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pamqp import commands, exceptions, header

from leveret.model.errors import PeerError
from leveret.wire import field_values

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004
TERMS: Final = EXPIRATION | PRIORITY
"""The properties that decide the lifetime and the order of a message."""

field_values.use()

UNREADABLE: Final = (
    struct.error,
    ValueError,
    IndexError,
    OverflowError,
    OSError,
    RecursionError,
    exceptions.UnmarshalingException,
)
"""The exceptions of pamqp for octets that are no fields, such as too deep tables and impossible dates."""

_SHORT: Final = 0
_TABLE: Final = -1
_WIDTHS: Final = {
    CONTENT_TYPE: _SHORT,
    CONTENT_ENCODING: _SHORT,
    HEADERS: _TABLE,
    DELIVERY_MODE: 1,
    PRIORITY: 1,
    CORRELATION_ID: _SHORT,
    REPLY_TO: _SHORT,
    EXPIRATION: _SHORT,
    MESSAGE_ID: _SHORT,
    TIMESTAMP: 8,
    TYPE: _SHORT,
    USER_ID: _SHORT,
    APP_ID: _SHORT,
    CLUSTER_ID: _SHORT,
}
"""The octets of each property; those of a short string and of a table follow from a length before them."""
_LENGTH_BYTES: Final = {_SHORT: 1, _TABLE: 4}
FLAGS_AT: Final = 4 + 12
"""The place of the flags in a whole header behind its length; the first octet has those up to the expiration's."""
_PROPERTIES_AT: Final = 4 + 14
_pack_size = struct.Struct(">I").pack


class SyntaxFault(PeerError):
    """A frame holds fields that do not parse (reply code 501, as RabbitMQ has it)."""


def shortstr(text: bytes) -> bytes:
    """A short string of at most 255 octets."""
    return bytes((len(text),)) + text


def body_bytes_of(header_payload: bytes) -> int:
    """Body size announced by a content header payload.

    Raises:
        SyntaxFault: the payload is cut short.
    """
    if len(header_payload) < 14:
        raise SyntaxFault("content header shorter than its fixed part")
    return int.from_bytes(header_payload[4:12], "big")


def property_flags(header_payload: bytes) -> int:
    """The flags of the properties in a content header payload (spec 4.2.6.1)."""
    return int.from_bytes(header_payload[12:14], "big")


def is_persistent(header_payload: bytes) -> bool:
    """Whether the delivery mode is 2; reads no further into the properties than necessary."""
    flags = property_flags(header_payload)
    if not flags & DELIVERY_MODE:
        return False
    position = 14
    try:
        for flag in (CONTENT_TYPE, CONTENT_ENCODING):
            if flags & flag:
                position += 1 + header_payload[position]
        if flags & HEADERS:
            position += 4 + int.from_bytes(header_payload[position : position + 4], "big")
        return header_payload[position] == 2
    except IndexError:
        raise SyntaxFault("content header ends inside its properties") from None


def split(header: bytes) -> dict[int, bytes]:
    """The properties that are set, by flag; strings and tables without their length.

    Raises:
        SyntaxFault: the header ends inside its properties.
    """
    return _split(header)[0]


def places(header: bytes) -> dict[int, tuple[int, int]]:
    """By flag the begin and the end of each property that is set, with the length of a string or a table.

    Raises:
        SyntaxFault: the header ends inside its properties.
    """
    found: dict[int, tuple[int, int]] = {}
    position = 14
    try:
        for flag, width in _widths(property_flags(header)):
            start, position = position, _behind(header, position, width)
            found[flag] = (start, position)
    except IndexError:
        position = len(header) + 1
    if position > len(header):
        raise SyntaxFault("content header ends inside its properties")
    return found


def terms(header: bytes) -> tuple[bytes | None, int]:
    """The expiration, None for none, and the priority: as `split` gives them, at a third of the cost.

    Raises:
        SyntaxFault: the header ends inside its properties.
    """
    expiration: bytes | None = None
    priority, position = 0, 14
    try:
        for flag, width in _widths(property_flags(header)):
            start, position = position, _behind(header, position, width)
            if flag == PRIORITY:
                priority = header[start]
            elif flag == EXPIRATION:
                expiration = header[start + 1 : position]
    except IndexError:
        position = len(header) + 1
    if position > len(header):
        raise SyntaxFault("content header ends inside its properties")
    return expiration, priority


def with_text(header: bytes, of: int, old: bytes, new: bytes) -> bytes:
    """A whole header with another value of the short string `of`, if that is `old`; else the header as it is."""
    start, stop = place_of(header, of)
    if start == stop or header[start + 1 : stop] != old:
        return header
    return header[:start] + shortstr(new) + header[stop:]


def with_headers(header: bytes, place: tuple[int, int], table: bytes) -> bytes:
    """A whole header with these headers in place of its own, if it has any; `place` is theirs (`place_of`)."""
    start, stop = place
    flags = property_flags(header) | HEADERS
    size = len(table).to_bytes(4, "big")
    return b"".join((header[:12], flags.to_bytes(2, "big"), header[14:start], size, table, header[stop:]))


def sized(header: bytes) -> bytes:
    """A whole header behind its length."""
    return _pack_size(len(header)) + header


def with_more_headers(header: bytes, entries: bytes) -> bytes:
    """A whole header behind its length, with further entries at the end of its headers, which stay as they are.

    The code is written out, for speed: it runs for each message that dies, or that a quorum queue delivers.
    """
    flags, at = header[FLAGS_AT] << 8, _PROPERTIES_AT
    if flags & CONTENT_TYPE:
        at += 1 + header[at]
    if flags & CONTENT_ENCODING:
        at += 1 + header[at]
    more = len(entries)
    if flags & HEADERS:
        start = at + 4
        size = int.from_bytes(header[at:start], "big")
        end = start + size
        parts = (header[4:at], _pack_size(size + more), header[start:end], entries, header[end:])
    else:
        begin = header[4:FLAGS_AT] + bytes(((flags | HEADERS) >> 8,)) + header[FLAGS_AT + 1 : at]
        parts = (begin, _pack_size(more), b"", entries, header[at:])
        more += 4
    return b"".join((_pack_size(len(header) - 4 + more), *parts))


def without(header: bytes, flag: int) -> bytes:
    """A whole header without one of its properties, if that is set."""
    start, stop = place_of(header, flag)
    flags = property_flags(header) & ~flag
    return b"".join((header[:12], flags.to_bytes(2, "big"), header[14:start], header[stop:]))


def place_of(header: bytes, of: int) -> tuple[int, int]:
    """The begin and the end of a property with its length in a whole header; both the same where it is not set."""
    before, is_set = _widths_before(of, int.from_bytes(header[12:14], "big") & -of)
    position = 14
    for width in before:
        position = _behind(header, position, width) if width else position + 1 + header[position]
    return position, _behind(header, position, _WIDTHS[of]) if is_set else position


@cache
def _widths_before(of: int, flags: int) -> tuple[list[int], bool]:
    """The widths of the properties that are set before one, and whether that is set; `flags` has none behind it."""
    return [width for flag, width in _widths(flags) if flag > of], bool(flags & of)


def _behind(header: bytes, position: int, width: int) -> int:
    """The position behind a property that begins at `position`; `width` as in `_WIDTHS`."""
    if width > 0:
        return position + width
    if width == _SHORT:
        return position + 1 + header[position]
    return position + 4 + int.from_bytes(header[position : position + 4], "big")


@cache
def _widths(flags: int) -> tuple[tuple[int, int], ...]:
    """The properties that are set, each with its width."""
    return tuple((flag, width) for flag, width in _WIDTHS.items() if flags & flag)


def split_whole(header: bytes) -> dict[int, bytes]:
    """As `split`, of a header that has to end where its properties do.

    Raises:
        SyntaxFault: the header ends inside its properties, or goes on after them.
    """
    found, end = _split(header)
    if end != len(header):
        raise SyntaxFault(f"content header goes on for {len(header) - end} octets after its properties")
    return found


def _split(header: bytes) -> tuple[dict[int, bytes], int]:
    """The properties, and the position where they end."""
    at = places(header)
    found = {
        flag: header[start + _LENGTH_BYTES.get(_WIDTHS[flag], 0) : stop] for flag, (start, stop) in at.items()
    }
    return found, max((stop for _, stop in at.values()), default=14)


def join(properties: Mapping[int, bytes], body_bytes: int) -> bytes:
    """A content header payload of these properties, in the form of `split`."""
    flags = 0
    parts: list[bytes] = []
    for flag in sorted(properties, reverse=True):
        value, width = properties[flag], _WIDTHS[flag]
        flags |= flag
        if width == _SHORT:
            parts.append(shortstr(value))
        else:
            parts += (len(value).to_bytes(4, "big"), value) if width == _TABLE else (value,)
    return b"".join([b"\x00\x3c\x00\x00", body_bytes.to_bytes(8, "big"), flags.to_bytes(2, "big"), *parts])


def decode(properties: Mapping[int, bytes]) -> commands.Basic.Properties:
    """The values of properties in the form of `split`, without the timestamp.

    The decoder takes large timestamps for milliseconds, and refuses larger ones with all other properties.

    Raises:
        SyntaxFault: they do not parse.
    """
    timeless = {flag: value for flag, value in properties.items() if flag != TIMESTAMP}
    content = header.ContentHeader()
    try:
        content.unmarshal(join(timeless, 0))
    except UNREADABLE as error:
        raise SyntaxFault(f"cannot decode content header: {error}") from error
    return content.properties


def headers_of(header_payload: bytes) -> dict[str, Any]:
    """The header table, decoded alone.

    Raises:
        SyntaxFault: it does not parse, or the content header ends inside its properties.
    """
    table = split(header_payload).get(HEADERS)
    return {} if table is None else decode({HEADERS: table}).headers or {}
