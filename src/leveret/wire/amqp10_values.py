"""Values of AMQP 1.0 (spec 1.6) from values of a field table of AMQP 0-9-1, and back, by octets.

    0-9-1                1.0
    b B s u I i l f d    byte, ubyte, short, ushort, int, uint, long, float, double
    L                    long
    t, V                 boolean, null
    S                    string; binary if the octets are no text
    x                    binary
    T                    timestamp; a long, or its digits, if its milliseconds do not fit one
    D                    its digits as a string
    A, F                 list, map

Reading knows every type. A symbol is text; an array is a list; a ulong is an `l`, or its digits if it does not fit one;
a time before 1970 is an `l` of milliseconds; decimals and UUIDs are octets. The descriptor of a value is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator
from decimal import Decimal
from typing import Final, NamedTuple

from leveret.model.errors import PeerError
from leveret.wire import tables

DEPTH_MAX: Final = 32
TIME_S_MAX: Final = ((1 << 63) - 1) // 1000
"""The latest time of AMQP 0-9-1 that a timestamp of AMQP 1.0, which counts milliseconds, can hold."""
NULL: Final = b"\x40"
_TRUE: Final = b"\x41"
_FALSE: Final = b"\x42"
_TIMESTAMP: Final = 0x83
_ULONG: Final = 0x80
_BOOLEAN: Final = 0x56
_EMPTY_LIST: Final = 0x45
LISTS: Final = frozenset({0xC0, 0xD0, _EMPTY_LIST})
MAPS: Final = frozenset({0xC1, 0xD1})
_ARRAYS: Final = frozenset({0xE0, 0xF0})
SMALL_BINARY: Final = 0xA0
BINARY: Final = 0xB0
_BINARIES: Final = frozenset({SMALL_BINARY, BINARY})
SHORT_STRINGS: Final = frozenset({0xA1, 0xA3})
LONG_STRINGS: Final = frozenset({0xB1, 0xB3})
_STRINGS: Final = SHORT_STRINGS | LONG_STRINGS
_SIZED: Final = _BINARIES | _STRINGS | LISTS - {_EMPTY_LIST} | MAPS | _ARRAYS
_NAME_BYTES_MAX: Final = 128
"""The longest name in a field table (spec 4.2.5.5)."""
_NAME_MAX: Final = 5 + _NAME_BYTES_MAX
_TEXT: Final = ord("S")
_INT64_MAX: Final = (1 << 63) - 1
_U32: Final = struct.Struct(">I")
SAME: Final = {
    ord("b"): b"\x51",
    ord("B"): b"\x50",
    ord("s"): b"\x61",
    ord("u"): b"\x60",
    ord("I"): b"\x71",
    ord("i"): b"\x70",
    ord("l"): b"\x81",
    ord("L"): b"\x81",
    ord("f"): b"\x72",
    ord("d"): b"\x82",
}
"""By type of 0-9-1 the constructor of a value that has the same octets."""
FIELDS: Final = frozenset(constructor[0] for constructor in SAME.values())
"""The constructors of values that a field table has with the same octets behind another type."""
_FIXED: Final[dict[int, tuple[int, bytes]]] = {
    0x50: (1, b"B"),
    0x51: (1, b"b"),
    0x52: (1, b"i\0\0\0"),
    0x53: (1, b"l\0\0\0\0\0\0\0"),
    0x54: (1, b"I"),
    0x55: (1, b"l"),
    _BOOLEAN: (1, b"t"),
    0x60: (2, b"u"),
    0x61: (2, b"s"),
    0x70: (4, b"i"),
    0x71: (4, b"I"),
    0x72: (4, b"f"),
    0x73: (4, b"i"),
    0x74: (4, b"x\0\0\0\x04"),
    _ULONG: (8, b"l"),
    0x81: (8, b"l"),
    0x82: (8, b"d"),
    _TIMESTAMP: (8, b"T"),
    0x84: (8, b"x\0\0\0\x08"),
    0x94: (16, b"x\0\0\0\x10"),
    0x98: (16, b"x\0\0\0\x10"),
}
"""By constructor the octets of the value, and what stands before them in a field table, but for some (`_fixed`)."""
_SIGNED: Final = {0x54: 3, 0x55: 7}
"""By constructor the octets that its sign fills in a field table."""
_EMPTY: Final = {
    0x40: b"V",
    0x41: b"t\1",
    0x42: b"t\0",
    0x43: b"i\0\0\0\0",
    0x44: b"l\0\0\0\0\0\0\0\0",
    _EMPTY_LIST: b"A\0\0\0\0",
}


class ValueFault(PeerError):
    """Octets that are no AMQP 1.0 value, or a value that is nested too deeply to be one."""


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueFault(f"AMQP 1.0 values are nested more than {DEPTH_MAX} levels deep")


# -- written --------------------------------------------------------------------------------------


def _sized(short: int, octets: bytes) -> bytes:
    """A constructor with the size in one octet, or else (0x10 higher) in four."""
    if len(octets) < 256:
        return bytes((short, len(octets))) + octets
    return bytes((short + 0x10,)) + _U32.pack(len(octets)) + octets


def string(text: bytes) -> bytes:
    """A string; octets that are no UTF-8 are replaced."""
    return _sized(0xA1, _readable(text))


def symbol(text: bytes) -> bytes:
    """A symbol."""
    return _sized(0xA3, _readable(text))


def binary(octets: bytes) -> bytes:
    """Octets of any kind."""
    return _sized(0xA0, octets)


def boolean(value: bool) -> bytes:
    """True or false."""
    return _TRUE if value else _FALSE


def uint(number: int) -> bytes:
    """A uint."""
    return b"\x70" + _U32.pack(number & 0xFFFF_FFFF)


def timestamp(time_s: int) -> bytes:
    """A timestamp, of seconds since 1970 up to TIME_S_MAX."""
    return b"\x83" + (time_s * 1000).to_bytes(8, "big")


def list_of(values: Iterable[bytes]) -> bytes:
    """A list of encoded values."""
    return _compound(b"\xd0", [*values])


def map_of(items: Iterable[bytes]) -> bytes:
    """A map of encoded keys and values, in turns."""
    return _compound(b"\xd1", [*items])


def _compound(constructor: bytes, items: list[bytes]) -> bytes:
    octets = b"".join(items)
    return b"".join((constructor, _U32.pack(len(octets) + 4), _U32.pack(len(items)), octets))


def from_field(value: bytes, depth: int = 0) -> bytes:
    """A value of a field table, type octet included, as one of AMQP 1.0.

    Raises:
        ValueFault: it is nested more deeply than `to_field` reads, from `depth` on.
        SyntaxFault: a table or an array in it is none.
    """
    kind = value[0]
    same = SAME.get(kind)
    if same is not None:
        return same + value[1:]
    match chr(kind):
        case "S":
            octets = value[5:]
            return _sized(0xA1 if is_text(octets) else 0xA0, octets)
        case "x":
            return binary(value[5:])
        case "t":
            return boolean(value[1] != 0)
        case "T":
            time_s = int.from_bytes(value[1:], "big")
            return timestamp(time_s) if time_s <= TIME_S_MAX else _number(time_s)
        case "D":
            return string(
                str(Decimal(int.from_bytes(value[2:], "big", signed=True)).scaleb(-value[1])).encode()
            )
        case "A":
            _check_depth(depth + 1)
            return list_of(from_field(each, depth + 1) for each in tables.split_array(value))
        case "F":
            _check_depth(depth + 1)
            entries = tables.split(value[5:]).items()
            return map_of(
                item for key, each in entries for item in (string(key), from_field(each, depth + 1))
            )
    return NULL


def _number(number: int) -> bytes:
    """A number of seconds as a long, or as its digits."""
    return b"\x81" + number.to_bytes(8, "big") if number <= _INT64_MAX else string(b"%d" % number)


def is_text(octets: bytes) -> bool:
    """Whether octets are UTF-8."""
    if octets.isascii():
        return True
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


def _readable(text: bytes) -> bytes:
    return text if text.isascii() else text.decode(errors="replace").encode()


# -- read -----------------------------------------------------------------------------------------


def to_field(buffer: bytes, position: int, depth: int = 0) -> tuple[bytes, int]:
    """The value at `position` as one of a field table, type octet included, and the end of the value.

    Raises:
        ValueFault: the octets end within it, or are no value.
    """
    try:
        return _value(buffer, position, depth)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ValueFault(f"AMQP 1.0 value at byte {position} is cut short or malformed") from None


def end_of(buffer: bytes, position: int) -> int:
    """The end of the value at `position`; it is not read further than its size.

    Raises:
        ValueFault: the octets end within it, or it has no known constructor.
    """
    try:
        code, at = _constructor(buffer, position, 0)
        return at if code in _EMPTY else _content(buffer, code, at)[1]
    except (struct.error, IndexError):
        raise ValueFault(f"AMQP 1.0 value at byte {position} is cut short") from None


class Item(NamedTuple):
    """A value of a list or a map as one of a field table, and its place with its constructor."""

    field: bytes
    begin: int
    end: int


def items_of(buffer: bytes, position: int, codes: Container[int]) -> list[Item]:
    """The items of a list or a map, LISTS or MAPS; none of another value.

    Raises:
        ValueFault: the octets end within an item, or an item is no value.
    """
    try:
        code, at = _constructor(buffer, position, 0)
        if code == _EMPTY_LIST or code not in codes:
            return []
        return list(_items(buffer, code, *_content(buffer, code, at), 1))
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ValueFault(f"AMQP 1.0 value at byte {position} is cut short or malformed") from None


def named(items: list[Item]) -> dict[bytes, Item]:
    """The items of a map, keys and values in turns, as entries of a field table; longer names are cut."""
    return {_name_of(key.field): value for key, value in zip(items[::2], items[1::2], strict=False)}


def octets_of(buffer: bytes, position: int) -> bytes | None:
    """The octets of the binary at `position`; None for another value."""
    code, at = _constructor(buffer, position, 0)
    if code not in _BINARIES:
        return None
    begin, end = _content(buffer, code, at)
    return buffer[begin:end]


def _name_of(field: bytes) -> bytes:
    if field[0] == _TEXT and len(field) <= _NAME_MAX:
        return field[5:]
    name = text_of(field) or b""
    if len(name) <= _NAME_BYTES_MAX:
        return name
    return name[:_NAME_BYTES_MAX].decode(errors="ignore").encode()


def text_of(field: bytes) -> bytes | None:
    """A value of a field table as text; None for null, lists and tables."""
    kind = field[:1]
    if kind == b"S":
        return field[5:]
    if kind == b"x":
        return _readable(field[5:])
    if kind == b"t":
        return b"true" if field[1] else b"false"
    if kind in (b"f", b"d"):
        return str(struct.unpack(b">" + kind, field[1:])[0]).encode()
    number = tables.integer_of(b"l" + field[1:] if kind == b"T" else field)
    return None if number is None else b"%d" % number


def _constructor(buffer: bytes, position: int, depth: int) -> tuple[int, int]:
    """The constructor of the value at `position`, and the place behind it; descriptors are passed."""
    while buffer[position] == 0:
        depth += 1
        _check_depth(depth)
        code, at = _constructor(buffer, position + 1, depth)
        position = at if code in _EMPTY else _content(buffer, code, at)[1]
    return buffer[position], position + 1


def _content(buffer: bytes, code: int, at: int) -> tuple[int, int]:
    """The begin and the end of the content of a value that has some."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        begin, end = at, at + fixed[0]
    elif code not in _SIZED:
        raise ValueFault(f"AMQP 1.0 value before byte {at}: constructor 0x{code:02x} is unknown")
    elif code & 0x10:
        begin = at + 4
        end = begin + _U32.unpack_from(buffer, at)[0]
    else:
        begin = at + 1
        end = begin + buffer[at]
    if end > len(buffer):
        raise ValueFault(f"{end - begin} octets announced at byte {at}, {len(buffer) - begin} are left")
    return begin, end


def _value(buffer: bytes, position: int, depth: int) -> tuple[bytes, int]:
    _check_depth(depth)
    code, at = _constructor(buffer, position, depth)
    return _constructed(buffer, code, at, depth)


def _constructed(buffer: bytes, code: int, at: int, depth: int) -> tuple[bytes, int]:
    empty = _EMPTY.get(code)
    if empty is not None:
        return empty, at
    begin, end = _content(buffer, code, at)
    octets = buffer[begin:end]
    if code in _STRINGS:
        if not octets.isascii():
            octets.decode()
        return b"S" + _U32.pack(len(octets)) + octets, end
    if code in _FIXED:
        return _fixed(code, octets), end
    if code in _BINARIES:
        return b"x" + _U32.pack(len(octets)) + octets, end
    return _compound_field(octets, code, depth), end


def _fixed(code: int, octets: bytes) -> bytes:
    before = _FIXED[code][1]
    if code in _SIGNED:
        return before + (b"\xff" if octets[0] & 0x80 else b"\0") * _SIGNED[code] + octets
    if code == _BOOLEAN:
        return before + bytes((octets[0] != 0,))
    if code == _TIMESTAMP:
        time_ms = int.from_bytes(octets, "big", signed=True)
        return tables.timestamp(time_ms // 1000) if time_ms >= 0 else b"l" + octets
    if code == _ULONG and octets[0] & 0x80:
        return tables.long_string(b"%d" % int.from_bytes(octets, "big"))
    return before + octets


def _compound_field(octets: bytes, code: int, depth: int) -> bytes:
    """A list, a map or an array from its content."""
    _check_depth(depth + 1)
    if code in _ARRAYS:
        return tables.array(_elements(octets, code, depth + 1))
    items = list(_items(octets, code, 0, len(octets), depth + 1))
    if code in MAPS:
        return tables.table({name: item.field for name, item in named(items).items()})
    return tables.array([item.field for item in items])


def _items(buffer: bytes, code: int, begin: int, end: int, depth: int) -> Iterator[Item]:
    """The items of a list or a map, whose content is given by its begin and end."""
    position = begin + (4 if code & 0x10 else 1)
    count = int.from_bytes(buffer[begin:position], "big")
    for _ in range(count):
        start = position
        field, position = _value(buffer, position, depth)
        yield Item(field, start, position)
    if position > end:
        raise ValueFault(f"an item before byte {position} ends behind its list or map")


def _elements(octets: bytes, code: int, depth: int) -> list[bytes]:
    """The elements of an array from its content."""
    position = 4 if code & 0x10 else 1
    count, constructor = int.from_bytes(octets[:position], "big"), octets[position]
    # Values of no octets, such as the empty list, would let a few octets become any number of values.
    if constructor in _EMPTY and count > len(octets):
        raise ValueFault(f"array of {count} values without octets")
    position += 1
    fields: list[bytes] = []
    for _ in range(count):
        field, position = _constructed(octets, constructor, position, depth)
        fields.append(field)
    return fields
