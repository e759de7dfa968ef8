"""The type system of AMQP 1.0: values to octets and back (spec 1.6), as far as messages need it.

Python's types stand for AMQP's: None, bool, int, float, str, bytes, datetime (UTC) or FarTime, list, dict. An int is
written as a long; functions write the other types by name (`symbol`, `ubyte`, `uint`). Reading accepts every type, and
keeps as much of it as the Python type shows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from leveret.model.errors import PeerError

DEPTH_MAX: Final = 32
_U32: Final = struct.Struct(">I")
_FIXED: Final[dict[int, struct.Struct]] = {
    0x50: struct.Struct(">B"),
    0x51: struct.Struct(">b"),
    0x52: struct.Struct(">B"),
    0x53: struct.Struct(">B"),
    0x54: struct.Struct(">b"),
    0x55: struct.Struct(">b"),
    0x56: struct.Struct(">?"),
    0x60: struct.Struct(">H"),
    0x61: struct.Struct(">h"),
    0x70: struct.Struct(">I"),
    0x71: struct.Struct(">i"),
    0x72: struct.Struct(">f"),
    0x73: struct.Struct(">I"),
    0x80: struct.Struct(">Q"),
    0x81: struct.Struct(">q"),
    0x82: struct.Struct(">d"),
    0x83: struct.Struct(">q"),
}
_EMPTY: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_TIMESTAMP: Final = 0x83
_SECONDS_MAX: Final = 253_402_300_799
"""The end of year 9999; no datetime is later."""


class FarTime(int):
    """The seconds since 1970 of a timestamp that no datetime can hold, as of publishers that write milliseconds."""


class ValueFault(PeerError):
    """Octets that are no AMQP 1.0 value, or a value that is nested too deeply to be one."""


def _sized(short: int, octets: bytes) -> bytes:
    """A constructor with the size in one octet, or else (0x10 higher) in four."""
    if len(octets) < 256:
        return bytes((short, len(octets))) + octets
    return bytes((short + 0x10,)) + _U32.pack(len(octets)) + octets


def symbol(text: str) -> bytes:
    """A symbol."""
    return _sized(0xA3, text.encode())


def ubyte(number: int) -> bytes:
    """A ubyte."""
    return bytes((0x50, number & 0xFF))


def uint(number: int) -> bytes:
    """A uint."""
    return b"\x70" + _U32.pack(number & 0xFFFF_FFFF)


def timestamp(time_ms: int) -> bytes:
    """A timestamp, ms since 1970."""
    return b"\x83" + _FIXED[_TIMESTAMP].pack(time_ms)


def list_of(values: Iterable[bytes]) -> bytes:
    """A list of encoded values."""
    items = list(values)
    octets = _U32.pack(len(items)) + b"".join(items)
    return b"\xd0" + _U32.pack(len(octets)) + octets


def map_of(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A map of encoded keys and values."""
    items = [item for pair in pairs for item in pair]
    octets = _U32.pack(len(items)) + b"".join(items)
    return b"\xd1" + _U32.pack(len(octets)) + octets


def encode_value(value: Any, depth: int = 0) -> bytes:
    """Any value, by its Python type; a value without a type in AMQP 1.0 is written as its text.

    Raises:
        ValueFault: it is nested more deeply than `decode_value` reads, from `depth` on.
    """
    _check_depth(depth)
    match value:
        case None:
            return b"\x40"
        case bool():
            return b"\x41" if value else b"\x42"
        case FarTime():
            return timestamp(value * 1000)
        case int() if -(1 << 63) <= value < 1 << 63:
            return b"\x81" + _FIXED[0x81].pack(value)
        case float():
            return b"\x82" + _FIXED[0x82].pack(value)
        case str():
            return _sized(0xA1, value.encode())
        case bytes() | bytearray():
            return _sized(0xA0, bytes(value))
        case datetime():
            return timestamp(int(value.timestamp() * 1000))
        case list():
            return list_of([encode_value(item, depth + 1) for item in value])
        case dict():
            return map_of(
                [(encode_value(str(key)), encode_value(item, depth + 1)) for key, item in value.items()]
            )
    return encode_value(str(value))


def decode_value(buffer: bytes, position: int, depth: int = 0) -> tuple[Any, int]:
    """The value at `position`, and where the next one begins.

    The descriptor of a value is ignored; an array is read as a list.

    Raises:
        ValueFault: the octets end within it, or are no value.
    """
    try:
        return _value(buffer, position, depth)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ValueFault(f"AMQP 1.0 value at byte {position} is cut short or malformed") from None


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueFault(f"AMQP 1.0 values are nested more than {DEPTH_MAX} levels deep")


def _value(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    _check_depth(depth)
    code = buffer[position]
    position += 1
    if code == 0:
        _, position = _value(buffer, position, depth + 1)
        return _value(buffer, position, depth + 1)
    return _constructed(buffer, code, position, depth)


def _constructed(buffer: bytes, code: int, position: int, depth: int) -> tuple[Any, int]:
    if code in _EMPTY:
        return _EMPTY[code], position
    if code == 0x45:
        return [], position
    if code in _FIXED:
        (number,) = _FIXED[code].unpack_from(buffer, position)
        return (_time(number) if code == _TIMESTAMP else number), position + _FIXED[code].size
    if code in (0x74, 0x84, 0x94, 0x98):
        size = {0x7: 4, 0x8: 8, 0x9: 16}[code >> 4]
        return _octets(buffer, position, size), position + size
    width = 1 if code >> 4 in (0xA, 0xC, 0xE) else 4
    if code >> 4 < 0xA:
        raise ValueFault(f"AMQP 1.0 value before byte {position}: constructor 0x{code:02x} is unknown")
    size = int.from_bytes(_octets(buffer, position, width), "big")
    position += width
    octets = _octets(buffer, position, size)
    if code >> 4 in (0xA, 0xB):
        return (octets if code & 0xF == 0 else octets.decode()), position + size
    return _compound(octets, code, width, depth), position + size


def _compound(octets: bytes, code: int, width: int, depth: int) -> Any:
    _check_depth(depth)
    count = int.from_bytes(_octets(octets, 0, width), "big")
    position = width
    values: list[Any] = []
    if code >> 4 in (0xE, 0xF):
        constructor = octets[position]
        position += 1
        # Values of no octets, such as the empty list (0x45), would let a few octets become any number of values.
        if (constructor in _EMPTY or constructor == 0x45) and count > len(octets):
            raise ValueFault(f"array of {count} values without octets")
        for _ in range(count):
            value, position = _constructed(octets, constructor, position, depth + 1)
            values.append(value)
        return values
    for _ in range(count):
        value, position = _value(octets, position, depth + 1)
        values.append(value)
    if code & 0xF == 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        return {key if isinstance(key, str) else str(key): value for key, value in pairs}
    return values


def _octets(buffer: bytes, position: int, size: int) -> bytes:
    if position + size > len(buffer):
        raise ValueFault(f"{size} octets announced at byte {position}, {len(buffer) - position} are left")
    return buffer[position : position + size]


def _time(time_ms: int) -> datetime | int:
    """A datetime; where none can hold the time, a FarTime, and of a time before 1970 the milliseconds themselves."""
    if 0 <= time_ms // 1000 <= _SECONDS_MAX:
        return datetime.fromtimestamp(time_ms // 1000, UTC)
    return FarTime(time_ms // 1000) if time_ms > 0 else time_ms
