"""wire.field_values: tables and arrays have the values that pamqp writes, and are read in linear time."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from leveret.wire import field_values, tables

field_values.use()

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=9),
    st.binary(max_size=9).map(bytearray),
    st.integers(0, 2**31).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.decimals(0, 1000, places=2),
    st.floats(width=32, allow_nan=False),
)
TABLES = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=9,
    ),
    max_size=4,
)


@given(TABLES)
def test_a_table_has_the_values_that_were_written(table: dict[str, Any]) -> None:
    octets = encode.field_table(table)
    assert decode.METHODS["table"](octets) == (len(octets), table)


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xff", -1),
        (b"u\xff\xff", 65535),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f\x3f\x80\0\0", 1.0),
        (b"t\x02", True),
        (b"\0", None),
        (b"D\x02\0\0\0\x96", Decimal("1.50")),
        (b"S\0\0\0\x02\xff\xfe", b"\xff\xfe"),
    ],
)
def test_each_type_is_read(octets: bytes, value: object) -> None:
    _, read = decode.METHODS["array"](tables.array([octets])[1:])
    assert read == [value]


@given(st.binary(max_size=40))
def test_garbage_is_read_or_refused(octets: bytes) -> None:
    sized = len(octets).to_bytes(4, "big") + octets
    for kind in ("table", "array"):
        with suppress(ValueError, IndexError, struct.error):
            assert decode.METHODS[kind](sized)[0] == len(sized)


@pytest.mark.parametrize(
    "octets", [b"S\0\0\0\x02a", b"I\0\0\0", b"D\0\0\0\0", b"T\0\0\0", b"F\0\0\0\x01", b"?"]
)
def test_a_value_that_is_cut_short_or_of_no_type_is_refused(octets: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        decode.METHODS["array"](tables.array([octets])[1:])


def test_nesting_has_a_bound_of_its_own() -> None:
    table = b""
    for _ in range(field_values.LEVELS_MAX - 1):
        table = b"\x01a" + tables.table_value(table)
    assert decode.METHODS["table"](tables.table_value(table)[1:])
    with pytest.raises(ValueError, match="levels deep"):
        decode.METHODS["table"](tables.table_value(b"\x01a" + tables.table_value(table))[1:])


@given(TABLES, st.integers(0, 20))
def test_a_table_of_too_many_values_is_refused(table: dict[str, Any], values_max: int) -> None:
    octets = encode.field_table(table)
    if _count(table) <= values_max:
        assert field_values.limited_table(octets, values_max) == (len(octets), table)
    else:
        with pytest.raises(ValueError, match=f"more than {values_max} values"):
            field_values.limited_table(octets, values_max)


def _count(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return len(inner) + sum(map(_count, inner))


def test_a_table_of_eight_times_as_many_values_takes_some_eight_times_as_long() -> None:
    """With a copy of the rest for each value it was more than thirty times."""

    def seconds(values: int) -> float:
        octets = tables.array([b"V"] * values)[1:]
        begin = time.process_time()
        decode.METHODS["array"](octets)
        return time.process_time() - begin

    few, many = (min(seconds(values) for _ in range(4)) for values in (30_000, 240_000))
    assert many < 18 * few
