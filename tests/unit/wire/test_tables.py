"""wire.tables: entries of a field table change, the others keep their octets."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from leveret.wire import tables
from leveret.wire.properties import SyntaxFault

KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=20)
    | st.sampled_from([Decimal("1.25"), datetime(2026, 11, 21, tzinfo=UTC), bytearray(b"octets")])
)
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=6
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=6)


def octets_of(table: dict[str, Any]) -> bytes:
    """A table's octets as pamqp writes them, without its length."""
    return bytes(encode.field_table(table))[4:]


def value_of(octets: bytes) -> Any:
    """A table as pamqp reads it."""
    return decode.field_table(len(octets).to_bytes(4, "big") + octets)[1]


@given(table=TABLES)
def test_what_is_joined_is_what_was_split(table: dict[str, Any]) -> None:
    octets = octets_of(table)
    entries = tables.split(octets)
    assert [key.decode() for key in entries] == list(value_of(octets))
    assert tables.join(entries) == octets


@given(table=TABLES, data=st.data())
def test_some_entries_are_taken_out_and_all_others_keep_their_octets(
    table: dict[str, Any], data: st.DataObject
) -> None:
    entries = tables.split(octets_of(table))
    keys = data.draw(st.sets(st.sampled_from([b"other", *entries])))
    rest, found = tables.without(octets_of(table), keys)
    assert found == {key: value for key, value in entries.items() if key in keys}
    assert rest == tables.join({key: value for key, value in entries.items() if key not in keys})


@given(table=TABLES, text=st.binary(max_size=30), number=st.integers(-(2**63), 2**63 - 1))
def test_what_is_added_reads_back_and_all_else_stays(table: dict[str, Any], text: bytes, number: int) -> None:
    entries = tables.split(octets_of(table))
    before = dict(entries)
    entries[b" text"] = tables.long_string(text)
    entries[b" number"] = tables.long_integer(number)
    entries[b" all"] = tables.array([tables.table({b"in": tables.long_string(text)}), tables.timestamp(7)])
    read = tables.split(tables.join(entries))
    assert {key: read[key] for key in before} == before
    assert tables.text_of(read[b" text"]) == text
    assert tables.integer_of(read[b" number"]) == number
    inner, stamp = tables.split_array(read[b" all"])
    assert tables.split(tables.table_of(inner) or b"") == {b"in": tables.long_string(text)}
    assert value_of(b"\x01t" + stamp) == {"t": datetime.fromtimestamp(7, UTC)}


@given(octets=st.binary(max_size=60))
def test_garbage_is_a_table_or_a_syntax_fault(octets: bytes) -> None:
    try:
        entries = tables.split(octets)
    except SyntaxFault:
        return
    assert all(value for value in entries.values())


@pytest.mark.parametrize("value", [b"", b"t\x01", b"S\x00\x00\x00\x01a"])
def test_a_value_of_another_type_is_none(value: bytes) -> None:
    assert tables.table_of(value) is None
    assert tables.integer_of(value) is None
    assert tables.split_array(value) == []
