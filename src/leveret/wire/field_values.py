"""The values of field tables and arrays, decoded in a time that grows with their octets, or with a limit of values.

pamqp copies the rest of a table for each value of it. A client may write 131,000 values into one frame, whose decoding
took 0.8 s of the event loop. Here each value gets its own octets, which takes 70 ms for as many. `use` has pamqp decode
tables and arrays so; `limited_table` refuses a table with too many values.
"""

from __future__ import annotations

from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final

from pamqp import decode

SECONDS_MAX: Final = 253_402_300_799
"""The end of the year 9999; no datetime is later."""
LEVELS_MAX: Final = 400
"""How deep tables and arrays may lie in each other, whatever the interpreter's limit is."""
_NUMBERS: Final = {
    ord("t"): Struct("?"),
    ord("b"): Struct("b"),
    ord("B"): Struct("B"),
    ord("s"): Struct(">h"),
    ord("u"): Struct(">H"),
    ord("I"): Struct(">i"),
    ord("i"): Struct(">I"),
    ord("l"): Struct(">q"),
    ord("L"): Struct(">q"),
    ord("f"): Struct(">f"),
    ord("d"): Struct(">d"),
}
_VOIDS: Final = frozenset(b"V\0")
FIXED_BYTES: Final = {kind: number.size for kind, number in _NUMBERS.items()} | {
    ord("D"): 5,
    ord("T"): 8,
    ord("V"): 0,
}
"""By type, the octets of a value without a size of its own."""
SIZED: Final = frozenset(b"SAFx")
"""Types whose value begins with its own size, four octets of it."""
_TABLE: Final = ord("F")
_ARRAY: Final = ord("A")
_SIZE: Final = Struct(">I")


def limited_table(octets: bytes, values_max: int) -> tuple[int, dict[str, Any]]:
    """As `_table`.

    Raises:
        ValueError: the octets are no table, or one of more values, in inner tables and arrays, too.
    """
    end = _end_of(octets, 0)
    waiting, count = [(_SIZE.size, end, True)], 0
    while waiting and count <= values_max:
        position, stop, is_table = waiting.pop()
        while position < stop and count <= values_max:
            count += 1
            position += 1 + octets[position] if is_table else 0
            kind, begin = octets[position], position + 1
            position = _behind(octets, kind, begin)
            if kind in (_TABLE, _ARRAY):
                waiting.append((begin + _SIZE.size, position, kind == _TABLE))
    if count > values_max:
        raise ValueError(f"a table of more than {values_max} values")
    return _table(octets)


def _table(octets: bytes) -> tuple[int, dict[str, Any]]:
    """A table with its size before it: the octets that it takes, and its values."""
    end = _end_of(octets, 0)
    return end, _values_of_table(octets[_SIZE.size : end], 1)


def _array(octets: bytes) -> tuple[int, list[Any]]:
    """An array with its size before it, as `_table`."""
    end = _end_of(octets, 0)
    return end, _values_of_array(octets[_SIZE.size : end], 1)


def _values_of_table(octets: bytes, level: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    position = 0
    while position < len(octets):
        at = position + 1 + octets[position]
        name = octets[position + 1 : at].decode()
        values[name], position = _value(octets, at, level)
    return values


def _values_of_array(octets: bytes, level: int) -> list[Any]:
    values: list[Any] = []
    position = 0
    while position < len(octets):
        value, position = _value(octets, position, level)
        values.append(value)
    return values


def _value(octets: bytes, position: int, level: int) -> tuple[Any, int]:
    """The value at `position`, and the position behind it."""
    kind = octets[position]
    begin = position + 1
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(octets, begin)[0], begin + number.size
    if kind in _VOIDS:
        return None, begin
    end = _behind(octets, kind, begin)
    if kind not in (_TABLE, _ARRAY):
        return decode.TABLE_MAPPING[octets[position:begin]](octets[begin:end])[1], end
    if level == LEVELS_MAX:
        raise ValueError(f"nested more than {LEVELS_MAX} levels deep")
    inner = _values_of_table if kind == _TABLE else _values_of_array
    return inner(octets[begin + _SIZE.size : end], level + 1), end


def _behind(octets: bytes, kind: int, begin: int) -> int:
    """The position behind a value of this type that begins here."""
    if kind in SIZED:
        return _end_of(octets, begin)
    size = 0 if kind in _VOIDS else FIXED_BYTES.get(kind)
    if size is None:
        raise ValueError(f"unknown type {kind}")
    return begin + size


def _end_of(octets: bytes, begin: int) -> int:
    """The end of a value that begins with its own size."""
    end = begin + _SIZE.size + int(_SIZE.unpack_from(octets, begin)[0])
    if end > len(octets):
        raise ValueError("a value is cut short")
    return end


def _time(octets: bytes) -> tuple[int, datetime | int]:
    """Decode a timestamp in a table: its size, and the time, as a number if no datetime can hold it.

    pamqp takes a time after the year 2106 for milliseconds, and for one that is no year even so refuses the table.
    """
    if len(octets) < 8:
        raise ValueError("a timestamp is cut short")
    seconds = int.from_bytes(octets[:8], "big")
    return 8, datetime.fromtimestamp(seconds, UTC) if seconds <= SECONDS_MAX else seconds


def use() -> None:
    """Have pamqp use these decoders for all that it decodes."""
    decode.METHODS["table"] = decode.TABLE_MAPPING[b"F"] = _table
    decode.METHODS["array"] = decode.TABLE_MAPPING[b"A"] = _array
    decode.TABLE_MAPPING[b"T"] = _time
