"""wire.properties: a content header taken apart and put together again is what pamqp makes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.properties import SyntaxFault

SHORT = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)
HELD = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT,
        "content_encoding": SHORT,
        "headers": st.dictionaries(SHORT, st.integers(0, 2**31 - 1), min_size=1, max_size=4),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": SHORT,
        "reply_to": SHORT,
        "expiration": SHORT,
        "message_id": SHORT,
        "timestamp": st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
        "message_type": SHORT,
        "user_id": SHORT,
        "app_id": SHORT,
    },
)


def payload(**values: Any) -> bytes:
    """A content header as pamqp writes it."""
    return bytes(header.ContentHeader(0, 5, commands.Basic.Properties(**values)).marshal())


@given(values=HELD)
def test_what_is_joined_is_what_was_split(values: dict[str, Any]) -> None:
    octets = payload(**values)
    found = props.split(octets)
    assert len(found) == len(values)
    assert props.join(found, 5) == octets


@given(values=HELD, cut=st.integers(1, 200))
def test_a_header_that_ends_early_is_refused(values: dict[str, Any], cut: int) -> None:
    octets = payload(**values)
    if values and cut < len(octets) - 14:
        for read in (props.split, props.terms):
            with pytest.raises(SyntaxFault):
                read(octets[:-cut])


@given(values=HELD)
def test_expiration_and_priority_are_what_is_split(values: dict[str, Any]) -> None:
    octets = payload(**values)
    found = props.split(octets)
    assert props.terms(octets) == (found.get(props.EXPIRATION), found.get(props.PRIORITY, b"\0")[0])


@given(values=HELD, of=st.sampled_from([props.REPLY_TO, props.CORRELATION_ID, props.APP_ID]), new=SHORT)
def test_one_text_is_replaced_where_it_is_the_old_one(values: dict[str, Any], of: int, new: str) -> None:
    octets = payload(**values)
    found = props.split(octets)
    assert props.with_text(octets, of, b"another", new.encode()) == octets
    replaced = props.with_text(octets, of, found.get(of, b""), new.encode())
    wanted = found | {of: new.encode()} if of in found else found
    assert replaced == props.join(wanted, 5)


@given(values=HELD, of=st.sampled_from([props.HEADERS, props.EXPIRATION, props.TIMESTAMP]))
def test_a_property_is_where_its_octets_are_or_would_be(values: dict[str, Any], of: int) -> None:
    octets = payload(**values)
    found = props.split(octets)
    start, stop = props.place_of(octets, of)
    assert (start != stop) == (of in found)
    if of in found:
        assert octets[start:stop].endswith(found[of])
    before = props.join({flag: each for flag, each in found.items() if flag > of}, 5)
    assert octets[14:start] == before[14:]


@given(values=HELD, of=st.sampled_from([props.EXPIRATION, props.TIMESTAMP]), table=st.binary(max_size=9))
def test_a_property_is_taken_out_and_headers_are_replaced(
    values: dict[str, Any], of: int, table: bytes
) -> None:
    octets = payload(**values)
    found = props.split(octets)
    assert props.without(octets, of) == props.join({flag: found[flag] for flag in found if flag != of}, 5)
    place = props.place_of(octets, props.HEADERS)
    assert props.with_headers(octets, place, table) == props.join(found | {props.HEADERS: table}, 5)


def test_values_come_without_their_lengths() -> None:
    found = props.split(payload(expiration="60", priority=7, user_id="guest"))
    assert found == {props.PRIORITY: b"\x07", props.EXPIRATION: b"60", props.USER_ID: b"guest"}


@pytest.mark.parametrize("seconds", [1_700_000_000_000_000, (1 << 64) - 1])
def test_headers_are_readable_beside_a_time_that_no_date_can_hold(seconds: int) -> None:
    table = props.split(payload(headers={"a": 1}))[props.HEADERS]
    time = seconds.to_bytes(8, "big")
    assert props.headers_of(props.join({props.HEADERS: table, props.TIMESTAMP: time}, 0)) == {"a": 1}
    assert props.headers_of(props.join({props.TIMESTAMP: time}, 0)) == {}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1_700_000_000, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (1 << 32, datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC)),
        (1_700_000_000_000, 1_700_000_000_000),
        ((1 << 64) - 1, (1 << 64) - 1),
    ],
)
def test_a_time_among_the_headers_is_read_as_it_was_written(seconds: int, shown: object) -> None:
    """The decoder took it for milliseconds after the year 2106, and refused all headers beside one in microseconds."""
    nested = tables.table({b"t": tables.timestamp(seconds)})
    table = tables.join({b"t": tables.timestamp(seconds), b"n": nested})
    assert props.headers_of(props.join({props.HEADERS: table}, 0)) == {"t": shown, "n": {"t": shown}}
