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
from leveret.wire import relay
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
    target = payload(relay.target(7, name.encode(), number, octets))
    assert relay.decode_target(target) == (name, number, octets)
    assert relay.decode_number(payload(relay.target_ok(7, number))) == number
    assert relay.decode_numbers(payload(relay.numbers(7, number, 5))) == (number, 5)
    assert relay.decode_credit(payload(relay.credit(7, octets, count))) == (octets, count)
    assert relay.decode_tag(payload(relay.moved(7, octets))) == octets
    assert relay.decode_tag(payload(relay.active(7, octets))) == octets


@pytest.mark.parametrize(
    ("decode", "begin"),
    [
        (relay.decode_target, relay.TARGET),
        (relay.decode_number, relay.TARGET_OK),
        (relay.decode_numbers, relay.NUMBERS),
        (relay.decode_credit, relay.CREDIT),
        (relay.decode_tag, relay.MOVED),
        (relay.decode_tag, relay.ACTIVE),
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


def test_methods_of_amqps_are_what_every_client_would_send() -> None:
    name = 'any name, ünd "this"?'
    octets = name.encode()
    assert decoded(relay.qos(7, 9, for_channel=True)).global_
    assert decoded(relay.get(7, octets, no_ack=True)).queue == name
    assert decoded(relay.purge(7, octets)).queue == name
    delete = decoded(relay.delete(7, octets, if_unused=False, if_empty=True))
    assert (delete.queue, delete.if_unused, delete.if_empty, delete.nowait) == (name, False, True, False)
    declare = decoded(relay.declare(7, octets))
    assert (declare.queue, declare.passive, declare.nowait) == (name, True, False)
    nack = decoded(relay.nack(7, 5, multiple=True, requeue=False))
    assert (nack.delivery_tag, nack.multiple, nack.requeue) == (5, True, False)
    assert isinstance(decoded(relay.channel_open(7)), commands.Channel.Open)
    assert decoded(relay.channel_close(7)).reply_code == 200
    assert isinstance(decoded(relay.channel_close_ok(7)), commands.Channel.CloseOk)


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
    found = decoded(relay.consume(7, b"q", b"c", no_ack=True, exclusive=False, arguments=arguments))
    assert (found.queue, found.consumer_tag, found.no_ack, found.exclusive) == ("q", "c", True, False)
    changed = {"huge": str(2**70), "price": "1.5", "raw": found.arguments["raw"]}
    assert found.arguments == arguments | changed


@given(st.integers(0, 40), st.integers(1, 5))
def test_publishes_of_one_head_are_frames_as_any_client_sends_them(size: int, count: int) -> None:
    header = b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\x10\0\2"
    bodies = [bytes([number]) * size for number in range(count)]
    octets = relay.publishes(relay.publish_head(7, b"\1e\1k", header, size), bodies, size)
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
