"""session.amqp091.destinations.Shape: many messages at once are what one by one would have given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.counters import Counters
from leveret.core.queues.head import make_head
from leveret.session.amqp091.destinations import Destination, Shape
from leveret.wire.record import content_header
from tests.unit.session.amqp091.fakes import publish

SIZES = (1, 7, 120)


def shape_of(size: int) -> Shape:
    frames = b"".join(publish(b"x" * size, "q", "", 1))
    head = make_head(b"", b"q", content_header(b"\0\0", size))
    channel = cast(Any, SimpleNamespace())
    return Shape(frames[: -size - 1], head, Destination(channel, [], Counters()))


SHAPES = {size: shape_of(size) for size in SIZES}


@given(
    st.lists(st.tuples(st.sampled_from(SIZES), st.integers(1, 150)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.binary(max_size=9),
    st.booleans(),
)
def test_what_is_found_at_once_is_a_part_of_what_is_found_one_by_one(
    parts: list[tuple[int, int]], cut: int, before: bytes, looks_alike: bool
) -> None:
    data = before
    for size, count in parts:
        shape = SHAPES[size]
        body = (shape.before * size)[:size] if looks_alike else b"b" * size
        data += (shape.before + body + b"\xce") * count
    end = len(data) - cut
    shape = SHAPES[parts[0][0]]
    if end < len(before):
        return
    one_by_one = shape.bodies_first(data, len(before), end)
    at_once = shape.bodies(data, len(before), end)
    assert at_once == one_by_one[: len(at_once)]
    if len(one_by_one) >= 16:
        assert at_once
