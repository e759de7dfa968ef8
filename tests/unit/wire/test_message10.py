"""wire.message10: a message of AMQP 0-9-1 in the form that streams hold, and back."""

from __future__ import annotations

from typing import Any
from unittest import mock

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import PeerError
from leveret.wire import message10, tables
from leveret.wire import properties as props
from leveret.wire.amqp10_values import TIME_S_MAX
from leveret.wire.layouts import Layouts
from leveret.wire.message10 import Message091, MessageReader, encode_before_body
from leveret.wire.record import content_header

TEXT = st.text(max_size=40).map(str.encode)
NAMES = st.text("abc-", min_size=1, max_size=8).map(str.encode)
VALUES = st.one_of(
    st.sampled_from([b"t\0", b"t\1", b"V"]),
    st.integers(-(1 << 63), (1 << 63) - 1).map(tables.long_integer),
    st.text(max_size=20).map(lambda text: tables.long_string(text.encode())),
    st.binary(min_size=8, max_size=8).map(lambda octets: b"d" + octets),
    st.integers(0, TIME_S_MAX).map(tables.timestamp),
)
HEADERS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4).map(tables.join)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        props.CONTENT_TYPE: TEXT,
        props.CONTENT_ENCODING: TEXT,
        props.HEADERS: HEADERS,
        props.DELIVERY_MODE: st.sampled_from([b"\1", b"\2"]),
        props.PRIORITY: st.binary(min_size=1, max_size=1),
        props.CORRELATION_ID: TEXT,
        props.REPLY_TO: TEXT,
        props.EXPIRATION: st.integers(0, (1 << 32) - 1).map(lambda number: b"%d" % number),
        props.MESSAGE_ID: TEXT,
        props.TIMESTAMP: st.integers(0, TIME_S_MAX).map(lambda seconds: seconds.to_bytes(8, "big")),
        props.TYPE: TEXT,
        props.USER_ID: TEXT,
        props.APP_ID: TEXT,
    },
)


def there_and_back(properties: dict[int, bytes], body: bytes = b"body") -> Message091:
    before = encode_before_body(b"ex", b"key", props.join(properties, len(body)), len(body))
    return MessageReader().read(before + body)


def properties_of(message: Message091) -> dict[int, bytes]:
    return props.split_whole(content_header(message.properties, len(message.body)))


def headers_of(message: Message091) -> dict[bytes, bytes]:
    return tables.split(properties_of(message).get(props.HEADERS, b""))


@given(PROPERTIES, st.binary(max_size=300))
def test_a_message_comes_back_as_it_was(properties: dict[int, bytes], body: bytes) -> None:
    message = there_and_back(properties, body)
    assert (message.exchange, message.routing_key, message.body) == (b"ex", b"key", body)
    headers = tables.split(properties.get(props.HEADERS, b""))
    assert headers_of(message) == headers
    others = {flag: value for flag, value in properties.items() if flag != props.HEADERS}
    assert {flag: value for flag, value in properties_of(message).items() if flag != props.HEADERS} == others


@pytest.mark.parametrize("name", [b"when", b"x-when"])
def test_a_time_among_the_headers_that_amqp_10_cannot_hold_becomes_a_number(name: bytes) -> None:
    table = tables.join({name: tables.timestamp(TIME_S_MAX + 1)})
    assert headers_of(there_and_back({props.HEADERS: table})) == {name: tables.long_integer(TIME_S_MAX + 1)}


def test_a_time_that_amqp_10_cannot_hold_is_left_out() -> None:
    message = there_and_back({props.TIMESTAMP: (TIME_S_MAX + 1).to_bytes(8, "big"), props.PRIORITY: b"\5"})
    assert properties_of(message) == {props.PRIORITY: b"\5"}


def test_proton_reads_all_that_is_written() -> None:
    header = props.join(
        {
            props.CONTENT_TYPE: b"text/plain",
            props.HEADERS: tables.join({b"colour": tables.long_string(b"red"), b"x-own": b"b\1"}),
            props.DELIVERY_MODE: b"\2",
            props.PRIORITY: b"\3",
            props.EXPIRATION: b"60000",
            props.MESSAGE_ID: b"id",
            props.TIMESTAMP: (1_577_836_800).to_bytes(8, "big"),
            props.APP_ID: b"app",
            props.TYPE: b"type",
        },
        4,
    )
    message: Any = proton.Message()
    message.decode(encode_before_body(b"ex", b"key", header, 4) + b"body")
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


def test_a_message_of_proton_is_read() -> None:
    given = proton.Message(
        id=proton.ulong(7),
        correlation_id="c",
        properties={"n": 5, "s": "v", "when": proton.timestamp(1_700_000_000_123)},
        body=b"bytes",
        durable=True,
    )
    given.inferred = True
    message = MessageReader().read(bytes(given.encode()))
    assert (message.exchange, message.routing_key, message.body) == (None, None, b"bytes")
    found = {flag: properties_of(message)[flag] for flag in (props.MESSAGE_ID, props.CORRELATION_ID)}
    assert found == {props.MESSAGE_ID: b"7", props.CORRELATION_ID: b"c"}
    assert properties_of(message)[props.DELIVERY_MODE] == b"\2"
    assert headers_of(message) == {
        b"n": tables.long_integer(5),
        b"s": tables.long_string(b"v"),
        b"when": tables.timestamp(1_700_000_000),
    }


@pytest.mark.parametrize("body", ["text", ["a", 1], {"k": 1}])
def test_a_body_that_is_no_data_comes_as_its_section(body: Any) -> None:
    message = MessageReader().read(bytes(proton.Message(body=body).encode()))
    assert properties_of(message)[props.TYPE] == b"amqp-1.0"
    assert message.body[:3] in (b"\0\x53\x77", b"\0\x80\0", b"\0\x53\x76")
    again = proton.Message()
    again.decode(message.body)
    assert again.body == body


def test_names_that_are_too_long_for_a_table_are_cut() -> None:
    long = "é" * 100
    given = proton.Message(properties={long: 1, "map": {long: 2}}, body=b"x")
    given.inferred = True
    found = headers_of(MessageReader().read(bytes(given.encode())))
    name = long[:64].encode()
    assert found == {
        name: tables.long_integer(1),
        b"map": tables.table({name: tables.long_integer(2)}),
    }


def test_the_annotations_of_older_brokers_are_properties() -> None:
    given = proton.Message(
        body=b"x",
        annotations={
            proton.symbol("x-basic-delivery-mode"): proton.ubyte(2),
            proton.symbol("x-basic-priority"): proton.ubyte(4),
            proton.symbol("x-basic-expiration"): "1000",
        },
        properties={"x-basic-type": "type", "x-basic-app-id": "app", "kept": "v"},
    )
    given.inferred = True
    message = MessageReader().read(bytes(given.encode()))
    assert {flag: value for flag, value in properties_of(message).items() if flag != props.HEADERS} == {
        props.DELIVERY_MODE: b"\2",
        props.PRIORITY: b"\4",
        props.EXPIRATION: b"1000",
        props.TYPE: b"type",
        props.APP_ID: b"app",
    }
    assert headers_of(message) == {b"kept": tables.long_string(b"v")}


@given(st.binary(max_size=80))
def test_octets_that_are_no_message_become_a_body(octets: bytes) -> None:
    message = MessageReader().read(octets)
    assert isinstance(message.body, bytes)
    assert props.join(properties_of(message), 0) == content_header(message.properties, 0)


def test_headers_that_amqp_10_has_no_simple_type_for_are_left_out() -> None:
    headers = {
        b"list": tables.array([b"b\1"]),
        b"table": tables.table({b"a": b"b\1"}),
        b"x-list": tables.array([b"b\1"]),
        b"n": b"b\1",
    }
    found = headers_of(there_and_back({props.HEADERS: tables.join(headers)}))
    assert found == {b"n": b"b\1", b"x-list": headers[b"x-list"]}


def test_texts_that_are_no_utf_8_are_readable_in_a_stream() -> None:
    message = there_and_back({props.MESSAGE_ID: b"\xff", props.HEADERS: tables.join({b"\xff": b"b\1"})})
    assert properties_of(message)[props.MESSAGE_ID] == "\ufffd".encode()
    assert headers_of(message) == {"\ufffd".encode(): b"b\1"}


OF_EACH: dict[int, st.SearchStrategy[bytes]] = {
    props.CONTENT_TYPE: st.sampled_from([b"text/plain", b"", b"a/b", b"\xff"]),
    props.CONTENT_ENCODING: TEXT,
    props.DELIVERY_MODE: st.sampled_from([b"\1", b"\2"]),
    props.PRIORITY: st.binary(min_size=1, max_size=1),
    props.CORRELATION_ID: st.binary(max_size=255),
    props.REPLY_TO: TEXT,
    props.EXPIRATION: st.sampled_from([b"", b"1000", b"60000", b"soon"]),
    props.MESSAGE_ID: st.one_of(TEXT, st.binary(max_size=4)),
    props.TIMESTAMP: st.one_of(
        st.binary(min_size=8, max_size=8), st.integers(0, 1 << 40).map(lambda time: time.to_bytes(8, "big"))
    ),
    props.TYPE: TEXT,
    props.USER_ID: st.one_of(TEXT, st.binary(max_size=4)),
    props.APP_ID: TEXT,
}
OF_HEADERS: dict[bytes, st.SearchStrategy[bytes]] = {
    b"text": st.one_of(st.text(max_size=300).map(str.encode), st.binary(max_size=4)).map(tables.long_string),
    b"x-text": st.text(max_size=300).map(lambda text: tables.long_string(text.encode())),
    b"octets": st.binary(max_size=300).map(lambda octets: b"x" + len(octets).to_bytes(4, "big") + octets),
    b"when": st.integers(0, (1 << 64) - 1).map(tables.timestamp),
    b"x-when": st.integers(0, TIME_S_MAX).map(tables.timestamp),
    b"number": VALUES,
    b"x-small": st.binary(min_size=1, max_size=1).map(lambda octets: b"B" + octets),
    b"table": TEXT.map(lambda text: tables.table({b"a": tables.long_string(text)})),
    b"x-table": TEXT.map(lambda text: tables.table({b"a": tables.long_string(text)})),
    b"x-stream-offset": st.just(tables.long_integer(7)),
}


@st.composite
def headers_of_one_form(draw: st.DrawFn) -> list[bytes]:
    """Content headers with the same properties and headers; some have an octet that was changed."""
    names = st.sets(st.sampled_from(sorted(OF_HEADERS))).flatmap(lambda found: st.permutations(sorted(found)))
    flags, table = draw(st.sets(st.sampled_from(sorted(OF_EACH)))), draw(names)
    found: list[bytes] = []
    for _ in range(draw(st.integers(2, 6))):
        values = {flag: draw(OF_EACH[flag]) for flag in flags}
        if table:
            values[props.HEADERS] = tables.join({name: draw(OF_HEADERS[name]) for name in table})
        header = bytearray(props.join(values, 4))
        if draw(st.integers(0, 3)) == 0:
            header[draw(st.integers(12, len(header) - 1))] = draw(st.integers(0, 255))
        found.append(bytes(header) + draw(st.sampled_from([b""] * 7 + [b"\0"])))
    return found


def written(header: bytes) -> bytes | None:
    try:
        return encode_before_body(b"ex", b"key", header, 4) + b"body"
    except PeerError:
        return None


@settings(max_examples=150)
@given(headers_of_one_form(), st.data())
def test_a_layout_gives_the_octets_that_a_look_at_all_values_gives(
    headers: list[bytes], data: st.DataObject
) -> None:
    with mock.patch.object(message10, "_WRITTEN", Layouts()):
        messages = [written(header) for header in headers]
    for header, message in zip(headers, messages, strict=True):
        with mock.patch.object(message10, "_WRITTEN", Layouts()):
            assert written(header) == message
    own = data.draw(st.sampled_from([None, (b"x-stream-offset", tables.long_integer(0))]))
    reader = MessageReader(own)
    for message in messages:
        if message is not None:
            octets = bytearray(message)
            if data.draw(st.integers(0, 3)) == 0:
                octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
            assert reader.read(bytes(octets)) == MessageReader(own).read(bytes(octets))


def test_messages_of_one_form_are_read_by_their_layout() -> None:
    """The test before proves something only if layouts fit."""
    reader = MessageReader()
    layouts: Layouts[tuple[int, ...]] = Layouts()
    with mock.patch.object(message10, "_WRITTEN", layouts):
        for number in range(20):
            text = b"id" * (number + 1)
            header = props.join(
                {
                    props.MESSAGE_ID: text,
                    props.TIMESTAMP: number.to_bytes(8, "big"),
                    props.HEADERS: tables.join(
                        {b"trace": tables.long_string(text), b"x-n": tables.integer(number)}
                    ),
                },
                4,
            )
            message = reader.read(encode_before_body(b"ex", text, header, 4) + b"body")
            assert properties_of(message)[props.MESSAGE_ID] == message.routing_key == text
    assert layouts.learned == reader.layouts.learned == 1


def test_messages_of_data_alone_have_a_layout_that_hides_no_other() -> None:
    reader = MessageReader()
    whole = encode_before_body(b"ex", b"key", props.join({props.PRIORITY: b"\5"}, 4), 4) + b"body"
    for number in range(3):
        body = b"b" * (number * 200)
        message = reader.read(b"\0\x53\x75\xb0" + len(body).to_bytes(4, "big") + body)
        assert (message.exchange, message.routing_key, message.body) == (None, None, body)
        assert properties_of(reader.read(whole)) == {props.PRIORITY: b"\5"}
    assert reader.layouts.learned == 2
