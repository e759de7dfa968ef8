"""Field tables by octets: change, add or remove an entry while all others stay as they were.

A table's octets (without its length) are pairs of a short string and a value; a value is an octet that
names its type and the octets of it (spec 4.2.5.5, with RabbitMQ's types).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from leveret.wire.field_values import FIXED_BYTES, SIZED
from leveret.wire.properties import SyntaxFault, shortstr

_SIZES: Final = [0 if kind in SIZED else 1 + FIXED_BYTES.get(kind, -2) for kind in range(256)]
"""By type: the octets of a value with its type, 0 if it begins with its own size, -1 if there is no such type."""
_TABLE: Final = ord("F")
_TEXT: Final = ord("S")
_NESTED: Final = frozenset(b"AF")
_U32: Final = struct.Struct(">I")


def split(table: bytes) -> dict[bytes, bytes]:
    """Key to value (type octet included), in the table's order; for a repeated key, the last value.

    Raises:
        SyntaxFault: not a table.
    """
    return {table[start + 1 : at]: table[at:stop] for start, at, stop in entries(table)}


def without(table: bytes, keys: Container[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """A table's octets without the entries of some keys, and these entries as from `split`.

    Raises:
        SyntaxFault: not a table.
    """
    found: dict[bytes, bytes] = {}
    kept: list[bytes] = []
    position = 0
    for start, at, stop in named(table, keys):
        found[table[start + 1 : at]] = table[at:stop]
        kept.append(table[position:start])
        position = stop
    return b"".join([*kept, table[position:]]), found


def only(table: bytes, keys: Container[bytes]) -> bytes:
    """A table's octets with the entries of some keys alone.

    Raises:
        SyntaxFault: not a table.
    """
    return b"".join([table[start:stop] for start, _, stop in named(table, keys)])


def named(table: bytes, keys: Container[bytes]) -> list[tuple[int, int, int]]:
    """The entries that have one of some keys, each by its begin, the begin of its value, and its end.

    The walk is written out, for speed: it runs for each message that dies or is routed by its headers.

    Raises:
        SyntaxFault: not a table.
    """
    found: list[tuple[int, int, int]] = []
    position, end, sizes, size_at = 0, len(table), _SIZES, _U32.unpack_from
    try:
        while position < end:
            at = position + 1 + table[position]
            size = sizes[table[at]] or 5 + size_at(table, at + 1)[0]
            if size < 0:
                raise SyntaxFault(f"field table holds a value of unknown type {table[at]} at octet {at}")
            if table[position + 1 : at] in keys:
                found.append((position, at, at + size))
            position = at + size
    except (IndexError, struct.error):
        position = end + 1
    if position > end:
        raise SyntaxFault("field table ends inside a value")
    return found


def entries(table: bytes) -> Iterator[tuple[int, int, int]]:
    """The entries of a table, each by its begin, the begin of its value, and its end.

    Raises:
        SyntaxFault: not a table.
    """
    position, sizes, size_at = 0, _SIZES, _U32.unpack_from
    try:
        while position < len(table):
            start, at = position, position + 1 + table[position]
            size = sizes[table[at]]
            if size < 0:
                raise SyntaxFault(f"field table holds a value of unknown type {table[at]} at octet {at}")
            position = at + (size or 5 + size_at(table, at + 1)[0])
            if position > len(table):
                break
            yield start, at, position
    except (IndexError, struct.error):
        position = len(table) + 1
    if position > len(table):
        raise SyntaxFault("field table ends inside a value")


def check(table: bytes) -> None:
    """Read a table with all its values, however deep.

    Raises:
        SyntaxFault: the octets are no table, or a value at some depth does not match its type.
    """
    check_within(table, 0, len(table))


def check_within(octets: bytes, position: int, end: int) -> None:
    """Read the table between two positions with all its values; runs for each publish with headers.

    Raises:
        SyntaxFault: see `check`.
    """
    nested: list[tuple[int, int, bool]] = []
    is_table = True
    sizes, size_at = _SIZES, _U32.unpack_from
    try:
        while True:
            while position < end:
                if is_table:
                    position += 1 + octets[position]
                kind = octets[position]
                size = sizes[kind]
                if size > 0:
                    position += size
                elif size == 0:
                    start = position + 5
                    position = start + size_at(octets, position + 1)[0]
                    if kind in _NESTED:
                        nested.append((start, position, kind == _TABLE))
                else:
                    raise SyntaxFault(f"field table holds a value of unknown type {kind} at octet {position}")
            if position != end:
                raise SyntaxFault("field table ends inside a value")
            if not nested:
                return
            position, end, is_table = nested.pop()
    except (IndexError, struct.error):
        raise SyntaxFault("field table ends inside a value") from None


def places(octets: bytes, position: int, end: int) -> Iterator[int]:
    """The positions of lengths and types in a checked table between two positions, its inner tables' too."""
    waiting = [(position, end, True)]
    while waiting:
        position, end, is_table = waiting.pop()
        while position < end:
            if is_table:
                yield position
                position += 1 + octets[position]
            kind = octets[position]
            yield position
            size = _SIZES[kind]
            if not size:
                yield from range(position + 1, position + 5)
                start = position + 5
                size = 5 + _U32.unpack_from(octets, position + 1)[0]
                if kind in _NESTED:
                    waiting.append((start, position + size, kind == _TABLE))
            position += size


def join(entries: Mapping[bytes, bytes]) -> bytes:
    """A table's octets from what `split` gave."""
    return b"".join([shortstr(key) + value for key, value in entries.items()])


def split_array(value: bytes) -> list[bytes]:
    """The values of an array value, none if it is of another type.

    Raises:
        SyntaxFault: the array is cut short.
    """
    if value[:1] != b"A":
        return []
    values: list[bytes] = []
    position, stop, size_at = 5, len(value), _U32.unpack_from
    while position < stop:
        # The header CC may have 20,000 texts.
        is_text = value[position] == _TEXT and position + 5 <= stop
        end = position + 5 + size_at(value, position + 1)[0] if is_text else _value_end(value, position)
        if end > stop:
            raise SyntaxFault("field table ends inside a value")
        values.append(value[position:end])
        position = end
    return values


def _value_end(octets: bytes, position: int) -> int:
    """The end of the value at `position`."""
    kind = octets[position] if position < len(octets) else -1
    if kind in SIZED:
        end = position + 5 + int.from_bytes(octets[position + 1 : position + 5], "big")
    elif kind in FIXED_BYTES:
        end = position + 1 + FIXED_BYTES[kind]
    else:
        raise SyntaxFault(f"field table holds a value of unknown type {kind} at octet {position}")
    if end > len(octets):
        raise SyntaxFault("field table ends inside a value")
    return end


def text_of(value: bytes) -> bytes | None:
    """The octets of a long string value, None for any other type."""
    return value[5:] if value[:1] == b"S" else None


def texts_of(values: Iterable[bytes]) -> list[bytes]:
    """The octets of those values that are long strings, in order."""
    return [text for text in map(text_of, values) if text is not None]


def table_of(value: bytes) -> bytes | None:
    """The octets of a table value, None for any other type."""
    return value[5:] if value[:1] == b"F" else None


def integer_of(value: bytes) -> int | None:
    """An integer of any width, None for any other type."""
    return int.from_bytes(value[1:], "big", signed=value[0] in b"bsIl") if value[:1] in _INTEGERS else None


INTEGER_NAMES: Final = {
    b"b": "byte",
    b"B": "unsignedbyte",
    b"s": "short",
    b"u": "unsignedshort",
    b"I": "signedint",
    b"i": "unsignedint",
    b"l": "long",
}
"""RabbitMQ's names of the types of integers, without `L`, which is not read alike everywhere."""
_INTEGERS: Final = frozenset({*INTEGER_NAMES, b"L"})


def long_string(octets: bytes) -> bytes:
    """A long string value."""
    return b"S" + len(octets).to_bytes(4, "big") + octets


def integer(number: int) -> bytes:
    """A signed integer value, of 32 bits if it fits into them, else of 64."""
    if -(2**31) <= number < 2**31:
        return b"I" + number.to_bytes(4, "big", signed=True)
    return long_integer(number)


def long_integer(number: int) -> bytes:
    """A 64-bit signed integer value."""
    return b"l" + number.to_bytes(8, "big", signed=True)


def timestamp(seconds: int) -> bytes:
    """A timestamp value."""
    return b"T" + seconds.to_bytes(8, "big")


def array(values: Iterable[bytes]) -> bytes:
    """An array value."""
    octets = b"".join(values)
    return b"A" + len(octets).to_bytes(4, "big") + octets


def table(entries: Mapping[bytes, bytes]) -> bytes:
    """A table value."""
    return table_value(join(entries))


def table_value(octets: bytes) -> bytes:
    """A table value of a table's octets."""
    return b"F" + len(octets).to_bytes(4, "big") + octets
