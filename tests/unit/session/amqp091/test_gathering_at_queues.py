"""Messages to one queue are gathered at the queue, for all publishers until the flush; nobody sees a difference."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from leveret.core.queues.queue import Queue
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.publishing import Publisher
from tests.unit.session.amqp091.fakes import FakeNode, by_channel, connect, frame, publish, take

Kept = tuple[int, int, int, bool, dict[str, bool]]
"""A batch of confirms: its channel, last number, count, whether it was refused, and for each queue whether it syncs."""
Seen = tuple[dict[str, list[Any]], list[Kept], list[dict[int, bytes]]]

TARGETS = [("q", ""), ("r", ""), ("full", ""), ("transient", ""), ("k", "amq.fanout"), ("none", "")]
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3]),
        st.sampled_from(TARGETS),
        st.sampled_from(
            [{}, {"delivery_mode": 1}, {"priority": 3, "delivery_mode": 2}, {"expiration": "9000"}]
        ),
        st.integers(1, 3),
    ),
    max_size=8,
)
STEPS = st.lists(
    st.tuples(st.integers(0, 1), MESSAGES)
    | st.sampled_from(["flush", "count", "select", "transact", "trace", "refuse durable", "close"]),
    max_size=10,
)


def node_of_two() -> tuple[FakeNode, list[ClientConnection]]:
    """Queues q and r bound to amq.fanout, one of two messages, one that is not durable; channel 1 confirms."""
    node = FakeNode()
    sessions = [connect(node, 1, 2, 3) for _ in range(2)]
    limits: dict[str, Any] = {"x-max-length": 2, "x-overflow": "reject-publish"}
    setup = [commands.Queue.Declare(queue=name, durable=True) for name in ("q", "r")]
    setup += [
        commands.Queue.Declare(queue="full", durable=True, arguments=limits),
        commands.Queue.Declare(queue="transient"),
    ]
    binds = [commands.Queue.Bind(queue=name, exchange="amq.fanout", routing_key="") for name in ("q", "r")]
    sessions[0].receive(b"".join(map(frame, [*setup, *binds])), 0)
    for session in sessions:
        session.receive(frame(commands.Confirm.Select()), 0)
        take(session)
    return node, sessions


def kept(session: ClientConnection) -> list[Kept]:
    """The batches of a flush, of which channels notice nothing."""
    found: list[Kept] = []
    for channel in list(session.confirming):
        assert isinstance(channel, ChannelBase)
        if channel.confirms is None:
            continue
        channel.confirms.end_batch()
        for batch in channel.confirms._closed:
            queues = {
                queue.key[1]: syncs for queue, syncs in batch.queues.items() if isinstance(queue, Queue)
            }
            found.append((channel.number, batch.last, batch.count, batch.refused, queues))
    return sorted(found)


def seen(steps: list[Any]) -> Seen:
    """The messages of all queues, the batches of each flush, and the octets that clients got."""
    node, sessions = node_of_two()
    batches: list[Kept] = []
    told: list[dict[int, bytes]] = []
    number = 0
    for step in [*steps, "flush"]:
        if isinstance(step, tuple):
            place, messages = step
            read = b""
            for channel, (key, exchange), properties, count in messages:
                for _ in range(count):
                    number += 1
                    octets = b"%06d" % number
                    read += b"".join(publish(octets, key, exchange, channel, mandatory=True, **properties))
            sessions[place].receive(read, 0)
        elif step == "flush":
            for session in sessions:
                batches += kept(session)
            node.flush(*sessions)
            told += [by_channel(b"".join(session.take_output())) for session in sessions]
        elif step == "count":
            sessions[0].receive(frame(commands.Queue.Declare(queue="q", passive=True)), 0)
        elif step == "select":
            sessions[0].receive(frame(commands.Confirm.Select(), 2), 0)
        elif step == "transact":
            sessions[0].receive(frame(commands.Tx.Select(), 3), 0)
        elif step == "trace":
            node.broker.traced_vhosts ^= {"/"}
        elif step == "refuse durable":
            node.broker.refuses_durable = not node.broker.refuses_durable
        elif 2 in sessions[1].channels:
            sessions[1].receive(frame(commands.Channel.Close(0, "", 0, 0), 2), 0)
    counts = [
        {
            name: exchange.counters.publish_in
            for name, exchange in node.broker.topologies["/"].exchanges.items()
        },
        *(session.counters.publish_out for session in sessions),
    ]
    return {"counts": counts, **node.messages()}, batches, told


@given(STEPS)
@example([(0, [(1, ("q", ""), {}, 1)]), (1, [(1, ("q", ""), {}, 1)]), (0, [(1, ("q", ""), {}, 1)])])
@example([(0, [(1, ("q", ""), {}, 1), (1, ("k", "amq.fanout"), {}, 1), (1, ("q", ""), {}, 1)])])
@example([(0, [(1, ("q", ""), {"delivery_mode": 1}, 1), (1, ("full", ""), {}, 3), (1, ("q", ""), {}, 1)])])
@example([(0, [(2, ("q", ""), {}, 1)]), "select", (0, [(2, ("q", ""), {}, 1)])])
@example([(0, [(3, ("q", ""), {}, 1)]), "transact", (0, [(3, ("q", ""), {}, 1)])])
def test_messages_confirms_and_counts_are_those_of_each_publisher_by_itself(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Publisher, "gathers_at_queues", False)
        apart = seen(steps)
    assert seen(steps) == apart


def test_two_publishers_of_a_queue_fill_one_set_of_columns() -> None:
    node, sessions = node_of_two()
    for number in range(6):
        sessions[number % 2].receive(b"".join(publish(b"%d" % number, message_id=str(number))), 0)
    [gathered] = node.queue("q").gathered.take()
    assert gathered.bodies == [b"%d" % number for number in range(6)]
    assert gathered.body_bytes == 6


def test_a_message_after_a_flush_goes_into_new_columns_and_a_new_batch() -> None:
    node, sessions = node_of_two()
    for number in range(2):
        sessions[0].receive(b"".join(publish(b"%d" % number)), 0)
        assert kept(sessions[0]) == [(1, number + 1, 1, False, {"q": True})]
        node.flush(*sessions)
    assert [body for _, _, body in node.messages()["q"]] == [b"0", b"1"]


def test_a_batch_that_ends_before_the_flush_leaves_the_later_one_waiting_for_the_disk() -> None:
    """Otherwise the confirm of the message behind a refused one would come before its fdatasync."""
    _, sessions = node_of_two()
    read = [publish(b"1"), *[publish(b"%d" % number, "full") for number in range(3)], publish(b"2")]
    sessions[0].receive(b"".join(chain.from_iterable(read)), 0)
    assert kept(sessions[0]) == [
        (1, 3, 3, False, {"q": True, "full": True}),
        (1, 4, 1, True, {}),
        (1, 5, 1, False, {"q": True}),
    ]


def test_what_a_queue_has_gathered_counts_before_the_flush() -> None:
    node, sessions = node_of_two()
    sessions[0].receive(b"".join(chain(publish(b"12"), publish(b"345", message_id="x"))), 0)
    queue = node.queue("q")
    assert (len(queue.gathered), queue.gathered.body_bytes, queue.may_hold_messages) == (2, 5, True)
    queue.gathered.close()
    assert (len(queue.gathered), queue.gathered.body_bytes) == (2, 5)


def test_columns_have_one_time_to_live_and_one_priority() -> None:
    node, sessions = node_of_two()
    wanted: list[tuple[dict[str, Any], int]] = [
        ({"priority": 3}, 0), ({"priority": 3}, 1), ({"priority": 4}, 0), ({"expiration": "50"}, 1), ({}, 0),
    ]  # fmt: skip
    for number, (properties, place) in enumerate(wanted):
        sessions[place].receive(b"".join(publish(b"%d" % number, **properties)), 0)
    gathered = [(each.priority, each.expiration_ms, each.bodies) for each in node.queue("q").gathered.take()]
    assert gathered == [(3, None, [b"0", b"1"]), (4, None, [b"2"]), (0, 50, [b"3"]), (0, None, [b"4"])]


@pytest.mark.parametrize("modes", [(1, 1), (1, 2), (2, 1)], ids=str)
def test_columns_are_persistent_if_any_message_is(modes: tuple[int, int]) -> None:
    node, sessions = node_of_two()
    for session, mode in zip(sessions, modes, strict=True):
        session.receive(b"".join(publish(b"1", delivery_mode=mode)), 0)
    [gathered] = node.queue("q").gathered.take()
    assert gathered.is_persistent is (2 in modes)
