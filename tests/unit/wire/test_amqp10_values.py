"""wire.amqp10_values: values of a field table as values of AMQP 1.0, and back."""

from __future__ import annotations

import struct
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire import amqp10_values as values
from leveret.wire import tables
from leveret.wire.amqp10_values import (
    DEPTH_MAX,
    LISTS,
    MAPS,
    TIME_S_MAX,
    Item,
    ValueFault,
    end_of,
    from_field,
    items_of,
    named,
    to_field,
)


def fixed(kind: str, size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size).map(lambda octets: kind.encode() + octets)


NAMES = st.text(max_size=5).map(str.encode)
SCALARS = st.one_of(
    *(fixed(kind, 1) for kind in "bB"),
    *(fixed(kind, 2) for kind in "su"),
    *(fixed(kind, 4) for kind in "Ii"),
    fixed("l", 8),
    st.floats(allow_nan=False).map(lambda value: struct.pack(">cd", b"d", value)),
    st.floats(allow_nan=False, width=32).map(lambda value: struct.pack(">cf", b"f", value)),
    st.sampled_from([b"t\0", b"t\1", b"V"]),
    st.text(max_size=300).map(lambda text: tables.long_string(text.encode())),
    st.binary(max_size=300).map(lambda octets: b"x" + len(octets).to_bytes(4, "big") + octets),
    st.integers(0, TIME_S_MAX).map(tables.timestamp),
)
FIELDS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4).map(tables.array)
        | st.dictionaries(NAMES, inner, max_size=4).map(tables.table)
    ),
    max_leaves=12,
)


@given(FIELDS)
def test_a_value_comes_back_as_it_was(field: bytes) -> None:
    octets = from_field(field)
    assert to_field(octets, 0) == (field, len(octets))
    assert end_of(octets, 0) == len(octets)


@given(FIELDS)
def test_proton_reads_all_that_is_written(field: bytes) -> None:
    data = proton.Data()
    octets = from_field(field)
    while octets:
        octets = octets[data.decode(octets) :]
    data.rewind()
    assert data.next() is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"b\xff", proton.byte(-1)),
        (b"u\1\2", proton.ushort(258)),
        (b"I\xff\xff\xff\xfe", proton.int32(-2)),
        (b"l" + bytes(7) + b"\7", 7),
        (b"t\1", True),
        (tables.long_string(b"hi"), "hi"),
        (tables.long_string(b"\xff"), b"\xff"),
        (tables.timestamp(7), proton.timestamp(7000)),
        (tables.timestamp(TIME_S_MAX + 1), TIME_S_MAX + 1),
        (tables.timestamp((1 << 64) - 1), str((1 << 64) - 1)),
        (b"D\2\0\0\0\x7b", "1.23"),
        (b"L" + bytes(7) + b"\7", 7),
        (b"V", None),
        (tables.array([b"t\0", b"b\1"]), [False, proton.byte(1)]),
        (tables.table({b"k": tables.long_string(b"v")}), {"k": "v"}),
    ],
)
def test_each_type_of_a_field_table_is_one_of_amqp_10(field: bytes, value: Any) -> None:
    data = proton.Data()
    data.decode(from_field(field))
    data.rewind()
    data.next()
    found = data.get_object()
    assert (bytes(found) if isinstance(found, memoryview) else found) == value


@pytest.mark.parametrize(
    ("octets", "field"),
    [
        ("40", b"V"),
        ("50 07", b"B\7"),
        ("51 ff", b"b\xff"),
        ("52 ff", b"i\0\0\0\xff"),
        ("53 ff", b"l" + bytes(7) + b"\xff"),
        ("54 fe", b"I\xff\xff\xff\xfe"),
        ("54 07", b"I\0\0\0\7"),
        ("55 fe", b"l" + b"\xff" * 7 + b"\xfe"),
        ("56 01", b"t\1"),
        ("43", b"i\0\0\0\0"),
        ("44", b"l" + bytes(8)),
        ("60 0102", b"u\1\2"),
        ("73 00000041", b"i\0\0\0A"),
        ("80 0000000000000001", b"l" + bytes(7) + b"\1"),
        ("80 ffffffffffffffff", tables.long_string(b"18446744073709551615")),
        ("98 000102030405060708090a0b0c0d0e0f", b"x\0\0\0\x10" + bytes(range(16))),
        ("a3 02 6869", tables.long_string(b"hi")),
        ("b1 00000002 6869", tables.long_string(b"hi")),
        ("00 53 75 a0 01 78", b"x\0\0\0\1x"),
        ("45", tables.array([])),
        ("c0 03 02 41 42", tables.array([b"t\1", b"t\0"])),
        ("e0 04 02 50 01 02", tables.array([b"B\1", b"B\2"])),
        ("c1 05 02 a1 01 6b 41", tables.table({b"k": b"t\1"})),
        ("c1 04 02 54 05 41", tables.table({b"5": b"t\1"})),
        ("83 0000000000000000", tables.timestamp(0)),
        ("83 ffffffffffffffff", b"l" + b"\xff" * 8),
    ],
)
def test_each_type_of_amqp_10_is_read(octets: str, field: bytes) -> None:
    encoded = bytes.fromhex(octets)
    assert to_field(encoded, 0) == (field, len(encoded))
    assert end_of(encoded, 0) == len(encoded)


@given(st.binary(max_size=60))
def test_garbage_is_a_value_or_a_fault(octets: bytes) -> None:
    for read in (end_of, lambda buffer, position: to_field(buffer, position)[1]):
        try:
            end = read(octets, 0)
        except ValueFault:
            continue
        assert 0 < end <= len(octets)
    for codes in (LISTS, MAPS):
        try:
            named(items_of(octets, 0, codes))
        except ValueFault:
            continue


@pytest.mark.parametrize(
    "octets",
    [
        "",
        "a1 05 61",
        "3f",
        "81 00",
        "a1 01 ff",
        "f0 00000005 7fffffff 40",
        "00" * 40,
        "c0 02 02 41",
        "c0 02 01 a1 03 616161",
        "46",
        "c0 03 01 3f 00",
    ],
)
def test_octets_that_are_no_value_are_a_fault(octets: str) -> None:
    with pytest.raises(ValueFault):
        to_field(bytes.fromhex(octets), 0)


def test_nesting_is_limited_both_ways() -> None:
    octets, field = b"\x40", b"V"
    for _ in range(DEPTH_MAX + 1):
        octets = b"\xd0" + struct.pack(">II", len(octets) + 4, 1) + octets
        field = tables.array([field])
    for read in (lambda: to_field(octets, 0), lambda: from_field(field)):
        with pytest.raises(ValueFault, match="nested"):
            read()
    assert to_field(from_field(tables.split_array(field)[0]), 0)[0] == tables.split_array(field)[0]


def test_text_and_symbols_are_text_whatever_a_client_wrote() -> None:
    assert values.string(b"\xff") == b"\xa1\x03\xef\xbf\xbd"
    assert values.symbol(b"x-" + b"a" * 300)[:5] == b"\xb3\0\0\x01\x2e"


def test_names_are_cut_where_a_field_table_ends_them() -> None:
    long = ("é" * 100).encode()
    null = Item(b"V", 0, 0)
    found = named([Item(tables.long_string(long), 0, 0), null, Item(b"B\7", 0, 0), null])
    assert found == {long[:128]: null, b"7": null}
