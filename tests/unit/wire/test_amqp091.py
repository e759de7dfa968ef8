"""wire.amqp091: our own codec of the hot methods agrees with pamqp, and refuses what is cut short."""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, header

from leveret.wire import amqp091 as wire
from leveret.wire import properties as props
from leveret.wire import tables

NAME = st.text("abc.-", max_size=20)
SET = NAME.filter(bool)
"""pamqp leaves out properties that are empty."""
CHANNEL = st.integers(1, 65535)
TAG = st.integers(1, 2**63 - 1)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SET,
        "content_encoding": SET,
        "headers": st.dictionaries(SET, st.one_of(st.integers(0, 9), NAME), min_size=1, max_size=3),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": SET,
        "reply_to": SET,
        "expiration": SET,
        "message_id": SET,
        "timestamp": st.integers(0, 2**31).map(lambda s: datetime.datetime.fromtimestamp(s, datetime.UTC)),
        "message_type": SET,
        "user_id": SET,
        "app_id": SET,
    },
)


def header_payload(properties: dict[str, Any], size: int) -> bytes:
    content = header.ContentHeader(0, size, commands.Basic.Properties(**properties))
    return bytes(pamqp.frame.marshal(content, 1)[7:-1])


def decoded(payload: bytes) -> commands.Basic.Properties:
    return props.decode(props.split(payload))


def decode_all(octets: bytes) -> list[tuple[int, Any]]:
    """(channel, frame) of every frame, decoded by pamqp alone."""
    frames = []
    while octets:
        size, channel, value = pamqp.frame.unmarshal(octets)
        frames.append((channel, value))
        octets = octets[size:]
    return frames


@given(NAME, NAME, st.booleans(), st.booleans())
def test_the_publish_method_is_split_as_pamqp_encodes_it(
    exchange: str, key: str, mandatory: bool, immediate: bool
) -> None:
    method = commands.Basic.Publish(0, exchange, key, mandatory, immediate)
    payload = wire.marshal(method, 1)[7:-1]
    assert payload.startswith(wire.BASIC_PUBLISH)
    assert wire.split_publish(payload) == (exchange.encode(), key.encode(), mandatory | immediate << 1)
    for size in range(4, len(payload)):
        with pytest.raises(props.SyntaxFault):
            wire.split_publish(payload[:size])


@given(PROPERTIES, st.integers(0, 2**40))
def test_content_headers_tell_size_persistence_and_properties(properties: dict[str, Any], size: int) -> None:
    payload = header_payload(properties, size)
    assert props.body_bytes_of(payload) == size
    assert props.is_persistent(payload) == (properties.get("delivery_mode") == 2)
    read = decoded(payload)
    timeless = {name: value for name, value in properties.items() if name != "timestamp"}
    assert {name: getattr(read, name) for name in timeless} == timeless


@given(PROPERTIES, st.data())
def test_a_content_header_that_is_cut_short_is_refused_or_says_no_more_than_it_holds(
    properties: dict[str, Any], data: st.DataObject
) -> None:
    payload = header_payload(properties, 3)
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    for read in (props.body_bytes_of, props.is_persistent, decoded):
        with suppress(props.SyntaxFault):
            read(cut)
    with pytest.raises(props.SyntaxFault):
        props.body_bytes_of(payload[:13])


@given(
    channel=CHANNEL,
    ctag=NAME,
    route=st.tuples(NAME, NAME),
    tag=TAG,
    redelivered=st.booleans(),
    content=st.binary(max_size=40),
)
def test_a_delivery_put_together_from_its_parts_is_what_pamqp_reads(
    channel: int, ctag: str, route: tuple[str, str], tag: int, redelivered: bool, content: bytes
) -> None:
    names = b"".join(props.shortstr(name.encode()) for name in route)
    payload = header_payload({"delivery_mode": 2}, len(content))
    octets = (
        wire.deliver_head(channel, ctag.encode(), len(names))
        + tag.to_bytes(8, "big")
        + wire.content_head(channel, redelivered, names, payload, len(content))
        + content
        + wire.FRAME_END_OCTET
    )
    frames = decode_all(octets)
    assert [number for number, _ in frames] == [channel] * len(frames)
    deliver, head, *bodies = [value for _, value in frames]
    assert isinstance(deliver, commands.Basic.Deliver)
    assert (deliver.consumer_tag, deliver.delivery_tag, deliver.redelivered) == (ctag, tag, redelivered)
    assert (deliver.exchange, deliver.routing_key) == route
    assert isinstance(head, header.ContentHeader)
    assert head.body_size == len(content)
    assert [one.value for one in bodies if isinstance(one, body.ContentBody)] == [content] * bool(content)


@given(st.binary(max_size=100), st.integers(9, 40))
def test_a_body_is_cut_into_frames_no_larger_than_frame_max(content: bytes, frame_max: int) -> None:
    octets = wire.body_frames(3, content, frame_max)
    sizes, values = [], []
    while octets:
        size, channel, value = pamqp.frame.unmarshal(octets)
        assert isinstance(value, body.ContentBody)
        assert channel == 3
        sizes.append(size)
        values.append(value.value)
        octets = octets[size:]
    assert b"".join(values) == content
    assert all(size <= frame_max for size in sizes)
    assert all(values)
    assert sizes[:-1] == [frame_max] * len(sizes[:-1])


@given(CHANNEL, TAG, st.booleans(), NAME, NAME, st.integers(0, 2**32 - 1))
def test_our_other_replies_are_what_pamqp_reads(
    channel: int, tag: int, flag: bool, exchange: str, key: str, count: int
) -> None:
    route = props.shortstr(exchange.encode()) + props.shortstr(key.encode())
    octets = (
        wire.ack(channel, tag, flag)
        + wire.nack(channel, tag, flag)
        + wire.get_ok(channel, tag, flag, route, count)
        + wire.basic_return(channel, 312, b"NO_ROUTE", route)
        + wire.declare_ok(channel, key.encode(), count, 7)
        + wire.named_reply(channel, 60, 21, key.encode())
    )
    (ack, nack, ok, returned, declared, consuming) = [value for _, value in decode_all(octets)]
    assert isinstance(ack, commands.Basic.Ack)
    assert isinstance(nack, commands.Basic.Nack)
    assert (ack.delivery_tag, ack.multiple) == (nack.delivery_tag, nack.multiple) == (tag, flag)
    assert isinstance(ok, commands.Basic.GetOk)
    assert (ok.delivery_tag, ok.redelivered, ok.exchange, ok.routing_key, ok.message_count) == (
        tag, flag, exchange, key, count,
    )  # fmt: skip
    assert isinstance(returned, commands.Basic.Return)
    assert (returned.reply_code, returned.reply_text, returned.exchange) == (312, "NO_ROUTE", exchange)
    assert isinstance(declared, commands.Queue.DeclareOk)
    assert (declared.queue, declared.message_count, declared.consumer_count) == (key, count, 7)
    assert isinstance(consuming, commands.Basic.ConsumeOk)
    assert consuming.consumer_tag == key


@pytest.mark.parametrize(("channel", "kind"), [(0, commands.Connection.Close), (5, commands.Channel.Close)])
@pytest.mark.parametrize(
    "text", ["NOT_FOUND - x", "é" * 300, "x" * 254 + "é"], ids=["short", "long", "torn letter"]
)
def test_a_close_names_its_cause_in_at_most_255_octets(channel: int, kind: type, text: str) -> None:
    ((number, close),) = decode_all(wire.close_method(channel, 404, text, 50, 10))
    assert isinstance(close, commands.Connection.Close | commands.Channel.Close)
    assert type(close) is kind
    assert number == channel
    assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
    assert text.startswith(close.reply_text)
    assert 254 <= len(close.reply_text.encode()) <= 255 or close.reply_text == text


@given(st.binary(max_size=64))
def test_garbage_as_a_method_is_refused_and_nothing_worse_happens(payload: bytes) -> None:
    with suppress(props.SyntaxFault, wire.UnknownMethod):
        assert wire.decode_method(payload).name


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@given(st.sampled_from(sorted(commands.INDEX_MAPPING)), st.binary(max_size=64))
def test_a_known_method_with_garbage_for_arguments_is_refused_or_read(index: int, arguments: bytes) -> None:
    payload = index.to_bytes(4, "big") + arguments
    with suppress(props.SyntaxFault):
        assert isinstance(wire.decode_method(payload), commands.INDEX_MAPPING[index])


@given(st.binary(min_size=14, max_size=80))
def test_garbage_as_a_content_header_is_refused_or_read(payload: bytes) -> None:
    with suppress(props.SyntaxFault):
        assert props.is_persistent(payload) in (True, False)
    with suppress(props.SyntaxFault):
        assert isinstance(decoded(payload), commands.Basic.Properties)


def test_an_unknown_method_is_named_by_its_numbers() -> None:
    with pytest.raises(wire.UnknownMethod, match=r"60\.255"):
        wire.decode_method(b"\x00\x3c\x00\xff")


def test_a_method_with_too_many_arguments_is_refused() -> None:
    for count in (wire.VALUES_MAX - 1, wire.VALUES_MAX):
        table = tables.join({b"a": tables.array([b"V"] * count)})
        payload = b"\x00\x32\x00\x0a\x00\x00\x01q\x02" + tables.table_value(table)[1:]
        if count < wire.VALUES_MAX:
            method = wire.decode_method(payload)
            assert isinstance(method, commands.Queue.Declare)
            assert (method.durable, method.exclusive, method.arguments) == (
                True,
                False,
                {"a": [None] * count},
            )
        else:
            with pytest.raises(props.SyntaxFault) as refused:
                wire.decode_method(payload)
            assert len(str(refused.value)) < 5 * wire.QUOTED_BYTES_MAX, "it is written to the log"


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@given(st.sampled_from(sorted(commands.INDEX_MAPPING)), st.binary(max_size=64))
def test_a_method_is_what_pamqp_reads(index: int, arguments: bytes) -> None:
    read, expected = commands.INDEX_MAPPING[index](), commands.INDEX_MAPPING[index]()
    with suppress(*props.UNREADABLE):
        expected.unmarshal(arguments)
        read = wire.decode_method(index.to_bytes(4, "big") + arguments)
        assert dict(read) == dict(expected)


@pytest.mark.parametrize("depth", [900, 10_000])
def test_tables_nested_beyond_reason_are_refused_like_any_broken_field(depth: int) -> None:
    table = b""
    for _ in range(depth):
        table = b"\x01aF" + len(table).to_bytes(4, "big") + table
    table = len(table).to_bytes(4, "big") + table
    with pytest.raises(props.SyntaxFault):
        wire.decode_method(b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + table)
    with pytest.raises(props.SyntaxFault):
        props.decode({props.HEADERS: table[4:]})


def test_a_close_takes_a_text_of_any_length_and_cuts_it_between_characters() -> None:
    """Were it cut character by character, this would take hours: a text may quote a whole frame."""
    ((_, close),) = decode_all(wire.close_method(0, 501, "a" + "ü" * 2_000_000, 0, 0))
    assert close.reply_text == "a" + "ü" * 127
