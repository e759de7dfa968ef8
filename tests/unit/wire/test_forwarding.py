"""Octets of the relay's own methods, and of AMQP's that are encoded for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from leveret.wire import amqp091 as wire
from leveret.wire import forwarding as forwarding
from leveret.wire.properties import SyntaxFault

SHORT = st.binary(max_size=255)
U64 = st.integers(0, 2**64 - 1)


def payload(frame: bytes) -> bytes:
    kind, channel, size = wire.FRAME_HEAD.unpack_from(frame)
    assert (kind, channel, size + 8, frame[-1]) == (1, 7, len(frame), wire.FRAME_END)
    return frame[7:-1]


def decoded(frame: bytes) -> Any:
    return wire.decode_method(payload(frame))


@given(st.text(max_size=60), U64, SHORT, st.integers(0, 2**32 - 1))
def test_its_own_methods_come_back_as_they_were(name: str, number: int, octets: bytes, count: int) -> None:
    target = payload(forwarding.target(7, name.encode(), number, octets))
    assert forwarding.decode_target(target) == (name, number, octets)
    assert forwarding.decode_number(payload(forwarding.target_ok(7, number))) == number
    assert forwarding.decode_numbers(payload(forwarding.numbers(7, number, 5))) == (number, 5)
    assert forwarding.decode_credit(payload(forwarding.credit(7, octets, count))) == (octets, count)
    assert forwarding.decode_tag(payload(forwarding.moved(7, octets))) == octets
    assert forwarding.decode_tag(payload(forwarding.active(7, octets))) == octets
    assert forwarding.decode_refused(payload(forwarding.refused(7, count, 399, name))) == (count, 399, name)


@pytest.mark.parametrize(
    ("decode", "begin"),
    [
        (forwarding.decode_target, forwarding.TARGET),
        (forwarding.decode_number, forwarding.TARGET_OK),
        (forwarding.decode_numbers, forwarding.NUMBERS),
        (forwarding.decode_credit, forwarding.CREDIT),
        (forwarding.decode_tag, forwarding.MOVED),
        (forwarding.decode_tag, forwarding.ACTIVE),
    ],
)
@given(rest=st.binary(max_size=40))
def test_what_is_no_method_is_refused_and_nothing_else_happens(
    decode: Callable[[bytes], object], begin: bytes, rest: bytes
) -> None:
    try:
        decode(begin + rest)
    except SyntaxFault:
        return
    with pytest.raises(SyntaxFault):
        decode(begin + rest + b"\0")


@pytest.mark.parametrize("size", range(6))
def test_a_refusal_has_a_method_and_a_code(size: int) -> None:
    with pytest.raises(SyntaxFault):
        forwarding.decode_refused(forwarding.REFUSED + bytes(size))


def test_methods_of_amqps_are_what_every_client_would_send() -> None:
    name = 'any name, ünd "this"?'
    octets = name.encode()
    assert decoded(forwarding.qos(7, 9, for_channel=True)).global_
    assert decoded(forwarding.get(7, octets, no_ack=True)).queue == name
    assert decoded(forwarding.purge(7, octets)).queue == name
    delete = decoded(forwarding.delete(7, octets, if_unused=False, if_empty=True))
    assert (delete.queue, delete.if_unused, delete.if_empty, delete.nowait) == (name, False, True, False)
    declare = decoded(forwarding.declare(7, octets))
    assert (declare.queue, declare.passive, declare.nowait) == (name, True, False)
    nack = decoded(forwarding.nack(7, 5, multiple=True, requeue=False))
    assert (nack.delivery_tag, nack.multiple, nack.requeue) == (5, True, False)
    assert isinstance(decoded(forwarding.channel_open(7)), commands.Channel.Open)
    assert decoded(forwarding.channel_close(7)).reply_code == 200
    assert isinstance(decoded(forwarding.channel_close_ok(7)), commands.Channel.CloseOk)


def test_a_consumer_has_its_arguments_whatever_they_are() -> None:
    arguments = {
        "x-priority": -3,
        "big": 2**40,
        "huge": 2**70,
        "yes": True,
        "none": None,
        "half": 0.5,
        "price": Decimal("1.5"),
        "list": ["a", 1, {"b": [True]}],
        "raw": b"\xff",
        "at": datetime(2026, 1, 2, tzinfo=UTC),
    }
    found = decoded(forwarding.consume(7, b"q", b"c", no_ack=True, exclusive=False, arguments=arguments))
    assert (found.queue, found.consumer_tag, found.no_ack, found.exclusive) == ("q", "c", True, False)
    changed = {"huge": str(2**70), "price": "1.5", "raw": found.arguments["raw"]}
    assert found.arguments == arguments | changed


@given(st.integers(0, 40), st.integers(1, 5))
def test_publishes_of_one_head_are_frames_as_any_client_sends_them(size: int, count: int) -> None:
    header = b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\x10\0\2"
    bodies = [bytes([number]) * size for number in range(count)]
    octets = forwarding.publishes(forwarding.publish_head(7, b"\1e\1k", header, size), bodies, size)
    position = 0
    for body in bodies:
        for kind, expected in ((1, None), (2, header), *([(3, body)] if size else [])):
            found, channel, length = wire.FRAME_HEAD.unpack_from(octets, position)
            content = octets[position + 7 : position + 7 + length]
            assert (found, channel, octets[position + 7 + length]) == (kind, 7, wire.FRAME_END)
            assert content == expected or (
                expected is None and wire.split_publish(content) == (b"e", b"k", 0)
            )
            position += length + 8
    assert position == len(octets)


def test_arguments_nested_beyond_reason_are_an_error_of_their_own() -> None:
    nested: dict[str, Any] = {}
    for _ in range(2000):
        nested = {"k": nested}
    with pytest.raises(SyntaxFault, match="too deeply"):
        forwarding.consume(7, b"q", b"c", no_ack=True, exclusive=False, arguments=nested)
