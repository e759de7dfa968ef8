"""session.forwarding.deliveries: what is gathered at once is what was delivered, whatever it looks like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import alike
from leveret.session.amqp091.delivery import DeliverHeads, delivery_frames
from leveret.session.forwarding.deliveries import Deliveries
from leveret.wire.record import content_header

CHANNEL = cast(Any, SimpleNamespace(number=3, connection=SimpleNamespace(frame_max_bytes=1 << 32)))
Shown = tuple[bytes, int, bool, bytes, bytes, bytes]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"c", b"dd"]),
            st.integers(0, 2),
            st.booleans(),
            st.sampled_from([b"", b"key"]),
            st.sampled_from([b"\0\0", b"\x10\x00\x02", b"\x00\x80\x02id"]),
            st.binary(min_size=1, max_size=5),
            st.integers(1, 9),
        ),
        max_size=8,
    ),
    st.integers(0, 60),
)
def test_deliveries_are_taken_in_their_order_and_each_as_it_came(
    wanted: list[tuple[bytes, int, bool, bytes, bytes, bytes, int]], cut: int
) -> None:
    octets, tag, sent = b"", 1, []
    for consumer, skipped, redelivered, key, properties, body, count in wanted:
        head = make_head(b"e", key, content_header(properties, len(body)))
        heads = DeliverHeads(3, consumer)
        tag += skipped
        for _ in range(count):
            octets += b"".join(delivery_frames(CHANNEL, heads, alike(head, [body]), tag, redelivered))
            sent.append((consumer, tag, redelivered, head.route, head.header, body))
            tag += 1
    octets = octets[: max(0, len(octets) - cut)]
    deliveries, position, found = Deliveries(), 0, []
    while (taken := deliveries.take(octets, position)) is not None:
        assert taken.channel == 3
        for at, body in enumerate(taken.messages.bodies):
            head = taken.messages.head_at(at)
            shown = (
                taken.consumer_tag,
                taken.first_tag + at,
                taken.redelivered,
                head.route,
                head.header,
                body,
            )
            found.append(shown)
        position = taken.end
    assert found == sent[: len(found)]
    whole = sum(1 for _ in found)
    left = octets[position:]
    if len(left) and whole < len(sent):
        frames = delivery_frames(
            CHANNEL,
            DeliverHeads(3, sent[whole][0]),
            alike(_head(sent[whole]), [sent[whole][5]]),
            sent[whole][1],
            sent[whole][2],
        )
        assert len(left) < sum(map(len, frames)), "a whole one is not left"


def _head(shown: Shown) -> Head:
    route, header = shown[3], shown[4]
    return make_head(route[1 : 1 + route[0]], route[2 + route[0] :], header)


def test_many_that_differ_come_at_once() -> None:
    heads = DeliverHeads(3, b"c")
    octets = b""
    for number in range(50):
        properties = b"\x00\x80" + bytes((4,)) + b"%04d" % number
        head = make_head(b"e", b"k%d" % (number % 3), content_header(properties, 5 + number))
        octets += b"".join(
            delivery_frames(CHANNEL, heads, alike(head, [b"x" * (5 + number)]), 1 + number, False)
        )
    taken = Deliveries().take(octets, 0)
    assert taken is not None
    assert (taken.first_tag, len(taken.messages), taken.end) == (1, 50, len(octets))
