from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.message10 import TIME_S_MAX, content_header_of, decode_message10, encode_before_body
from leveret.wire.properties import decode, split

Properties = commands.Basic.Properties
short = st.text(max_size=40).filter(bool) | st.none()
header_values = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(max_size=20)
    | st.floats(allow_nan=False)
    | st.none()
)
keys = st.text("abc-", min_size=1, max_size=8)
properties = st.builds(
    Properties,
    content_type=short,
    content_encoding=short,
    headers=st.dictionaries(keys, header_values, max_size=4),
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=short,
    reply_to=short,
    expiration=st.none() | st.integers(0, (1 << 32) - 1).map(str),
    message_id=short,
    timestamp=st.none() | st.integers(0, 4_000_000_000).map(lambda each: datetime.fromtimestamp(each, UTC)),
    message_type=short,
    user_id=short,
    app_id=short,
)


def encode(
    given_properties: Properties, body: bytes = b"body", exchange: str = "ex", key: str = "key"
) -> bytes:
    header = content_header_of(given_properties, len(body))
    return encode_before_body(exchange, key, header, len(body)) + body


@given(properties, st.binary(max_size=300), st.text(max_size=20), st.text(max_size=20))
def test_a_message_comes_back_as_it_was(
    given_properties: Properties, body: bytes, exchange: str, key: str
) -> None:
    message = decode_message10(encode(given_properties, body, exchange, key))
    assert (message.exchange, message.routing_key, message.body) == (exchange, key, body)
    expected = {name: getattr(given_properties, name) for name in given_properties.__slots__}
    got = {name: getattr(message.properties, name) for name in message.properties.__slots__}
    assert got == expected


@pytest.mark.parametrize(
    "seconds", [0, 1, 4_000_000_000, 1 << 32, 253_402_300_799, 253_402_300_800, 1_700_000_000_000, TIME_S_MAX]
)
def test_a_time_comes_back_as_it_was_also_one_that_a_publisher_wrote_in_milliseconds(seconds: int) -> None:
    time = seconds.to_bytes(8, "big")
    header = props.join({props.TIMESTAMP: time}, 4)
    message = decode_message10(encode_before_body("ex", "key", header, 4) + b"body")
    assert props.split(content_header_of(message.properties, 4))[props.TIMESTAMP] == time


@pytest.mark.parametrize("name", ["when", "x-when"])
@pytest.mark.parametrize(
    "seconds", [0, 4_000_000_000, 1 << 32, 253_402_300_799, 253_402_300_800, 1_700_000_000_000, TIME_S_MAX]
)
def test_a_time_among_the_headers_comes_back_as_it_was(name: str, seconds: int) -> None:
    """One in milliseconds came back as seconds, and one in microseconds took all other properties with it."""
    table = tables.join({name.encode(): tables.timestamp(seconds), b"n": tables.integer(5)})
    header = props.join({props.HEADERS: table, props.PRIORITY: b"\x05"}, 4)
    message = decode_message10(encode_before_body("ex", "key", header, 4) + b"body")
    found = props.split(content_header_of(message.properties, 4))
    assert tables.split(found[props.HEADERS])[name.encode()] == tables.timestamp(seconds)
    assert (message.properties.headers or {}).keys() == {name, "n"}
    assert found[props.PRIORITY] == b"\x05"


def test_a_time_among_the_headers_that_amqp_10_cannot_hold_becomes_a_number() -> None:
    table = tables.join({b"when": tables.timestamp(TIME_S_MAX + 1)})
    message = decode_message10(encode_before_body("", "q", props.join({props.HEADERS: table}, 0), 0))
    assert message.properties.headers == {"when": TIME_S_MAX + 1}


def test_a_header_of_proton_that_is_a_time_is_one_by_amqp_091() -> None:
    given = proton.Message(body=b"body", properties={"when": proton.timestamp(1_700_000_000_123)})
    found = props.split(content_header_of(decode_message10(given.encode()).properties, 4))
    assert tables.split(found[props.HEADERS]) == {b"when": tables.timestamp(1_700_000_000)}


def test_a_time_that_amqp_10_cannot_hold_is_left_out() -> None:
    header = props.join({props.TIMESTAMP: (TIME_S_MAX + 1).to_bytes(8, "big"), props.PRIORITY: b"\x05"}, 4)
    properties = decode_message10(encode_before_body("ex", "key", header, 4) + b"body").properties
    assert (properties.timestamp, properties.priority) == (None, 5)


def test_proton_reads_what_is_written() -> None:
    given_properties = Properties(
        content_type="text/plain",
        headers={"colour": "red", "x-own": 1},
        delivery_mode=2,
        priority=3,
        expiration="60000",
        message_id="id",
        timestamp=datetime(2020, 1, 1, tzinfo=UTC),
        app_id="app",
        message_type="type",
    )
    message: Any = proton.Message()
    message.decode(encode(given_properties))
    assert (message.durable, message.priority, message.ttl) == (True, 3, 60.0)
    assert (message.id, message.content_type, message.group_id) == ("id", "text/plain", "app")
    assert message.properties == {"colour": "red"}
    assert message.annotations == {
        "x-exchange": "ex",
        "x-routing-key": "key",
        "x-basic-type": "type",
        "x-own": 1,
    }
    assert bytes(message.body) == b"body"
    assert message.creation_time == 1_577_836_800.0


def test_what_proton_writes_is_read() -> None:
    message = proton.Message(
        id=proton.ulong(7), correlation_id="c", properties={"n": 5, "s": "v"}, body=b"bytes", durable=True
    )
    message.inferred = True
    got = decode_message10(bytes(message.encode()))
    assert (got.exchange, got.routing_key, got.body) == (None, None, b"bytes")
    assert (got.properties.message_id, got.properties.correlation_id) == ("7", "c")
    assert (got.properties.headers, got.properties.delivery_mode) == ({"n": 5, "s": "v"}, 2)


@pytest.mark.parametrize("body", ["text", ["a", 1], {"k": 1}])
def test_a_body_that_is_no_data_comes_as_its_section(body: Any) -> None:
    got = decode_message10(bytes(proton.Message(body=body).encode()))
    assert got.properties.message_type == "amqp-1.0"
    assert got.body[:3] in (b"\0\x53\x77", b"\0\x80\0", b"\0\x53\x76")
    again = proton.Message()
    again.decode(got.body)
    assert again.body == body


def test_names_that_are_too_long_for_a_table_are_cut_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    long = "é" * 100
    message = proton.Message(properties={long: 1, "map": {long: 2}}, body=b"x")
    message.inferred = True
    got = decode_message10(bytes(message.encode()))
    header = content_header_of(got.properties, 1)
    assert decode(split(header)).headers == {long[:64]: 1, "map": {long[:64]: 2}}
    assert not caplog.records


def test_the_annotations_of_older_brokers_are_properties() -> None:
    message = proton.Message(
        body=b"x",
        annotations={
            proton.symbol("x-basic-delivery-mode"): proton.ubyte(2),
            proton.symbol("x-basic-priority"): proton.ubyte(4),
            proton.symbol("x-basic-expiration"): "1000",
        },
        properties={"x-basic-type": "type", "x-basic-app-id": "app", "kept": "v"},
    )
    message.inferred = True
    got = decode_message10(bytes(message.encode())).properties
    assert (got.delivery_mode, got.priority, got.expiration) == (2, 4, "1000")
    assert (got.message_type, got.app_id, got.headers) == ("type", "app", {"kept": "v"})


@given(st.binary(max_size=80))
def test_what_is_no_message_becomes_a_body(octets: bytes) -> None:
    message = decode_message10(octets)
    assert isinstance(message.body, bytes)
    content_header_of(message.properties, len(message.body))


def test_headers_that_amqp_10_has_no_simple_type_for_are_left_out() -> None:
    got = decode_message10(
        encode(Properties(headers={"list": [1], "table": {"a": 1}, "x-list": [1], "n": 1}))
    )
    assert got.properties.headers == {"x-list": [1], "n": 1}
