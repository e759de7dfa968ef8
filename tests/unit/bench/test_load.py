from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from bench.client import LoadError
from bench.load import Confirms, Delivery, percentiles_us
from bench.sink import DELIVER_TAG_AT, delivery


def ack(tag: int, *, multiple: bool) -> bytes:
    return frame.marshal(commands.Basic.Ack(tag, multiple), 1)


def test_a_multiple_ack_confirms_all_before_it() -> None:
    confirms = Confirms()
    confirms.feed(ack(7, multiple=True))
    assert confirms.count == 7


def test_acks_out_of_order_are_each_counted_once() -> None:
    confirms = Confirms()
    confirms.feed(ack(3, multiple=False) + ack(5, multiple=False))
    assert confirms.count == 2
    confirms.feed(ack(4, multiple=True))
    assert confirms.count == 5
    confirms.feed(ack(6, multiple=False))
    assert confirms.count == 6


@given(st.permutations(range(1, 13)), st.integers(0, 12), st.lists(st.integers(1, 60), max_size=30))
def test_every_message_is_confirmed_once_however_acks_and_octets_are_cut(
    order: list[int], through: int, cuts: list[int]
) -> None:
    """Single acks for some, one multiple ack for the first `through`, in any order and any pieces."""
    octets = b"".join(ack(tag, multiple=False) for tag in order if tag > through)
    octets += ack(through, multiple=True) if through else b""
    confirms = Confirms()
    for cut in cuts:
        confirms.feed(octets[:cut])
        octets = octets[cut:]
    confirms.feed(octets)
    assert confirms.count == 12


def test_a_nack_among_the_confirms_ends_the_run() -> None:
    with pytest.raises(LoadError, match=r"Basic\.Nack"):
        Confirms().feed(frame.marshal(commands.Basic.Nack(1, False, False), 1) + b"\0" * 21)


@pytest.mark.parametrize("body_bytes", [1, 16, 1000])
def test_the_first_delivery_teaches_the_size_of_all(body_bytes: int) -> None:
    octets = delivery(bytes(range(1, 2)) * body_bytes)
    learned = Delivery.learn(octets + octets[:20])
    assert learned is not None
    assert learned.stride == len(octets)
    assert octets[learned.body_at : learned.body_at + body_bytes] == b"\x01" * body_bytes
    assert len(learned.head) == DELIVER_TAG_AT


@given(st.integers(0, 200))
def test_half_a_delivery_teaches_nothing(length: int) -> None:
    octets = delivery(bytes(200))
    assert Delivery.learn(octets[:length]) is None


def test_something_else_than_a_delivery_is_reported() -> None:
    close = frame.marshal(commands.Channel.Close(404, "NOT_FOUND", 0, 0), 1)
    with pytest.raises(LoadError, match=r"Channel\.Close NOT_FOUND"):
        Delivery.learn(close + delivery(b"x"))


def test_the_tag_stands_where_the_consumer_looks_for_it() -> None:
    octets = bytearray(delivery(b"x"))
    struct.pack_into(">Q", octets, DELIVER_TAG_AT, 4711)
    method = frame.unmarshal(bytes(octets))[2]
    assert isinstance(method, commands.Basic.Deliver)
    assert method.delivery_tag == 4711


def test_percentiles_are_those_of_the_sorted_ages() -> None:
    ages = [number * 1000 for number in range(1000, 0, -1)]
    assert percentiles_us(ages) == {"p50": 501.0, "p99": 991.0, "p999": 1000.0, "max": 1000.0}
