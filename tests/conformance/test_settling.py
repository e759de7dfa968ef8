"""Ack, nack, reject: what goes for good, what comes back, in which order, marked how."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from leveret.testing.network.ports import wait_until
from tests.conformance.brokers import Broker
from tests.conformance.rawclient import PATIENCE_S, Peer
from tests.conformance.verbs import (
    Consumer,
    Message,
    channel_refuses,
    drain,
    get,
    publish,
    ready_count,
    take,
    wait_ready,
)

BODIES = [b"0", b"1", b"2", b"3", b"4"]


@pytest.fixture
def full(channel: Any, queue: str) -> str:
    """A queue with five messages."""
    publish(channel, queue, *BODIES)
    wait_ready(channel, queue, len(BODIES))
    return queue


def take_all(channel: Any, queue: str) -> list[Message]:
    """Take the five messages without acking them."""
    return [take(channel, queue) for _ in BODIES]


def left(connect: Any, channel: Any, queue: str) -> list[tuple[bytes, bool]]:
    """End the connection of `channel`; return what the queue then has, with redelivered flags."""
    counting = connect().channel()
    channel.connection.close()
    found = []
    while (message := get(counting, queue, auto_ack=True)) is not None:
        found.append((message.body, message.redelivered))
    return found


def test_acked_messages_are_gone(connect: Any, channel: Any, full: str) -> None:
    held = take_all(channel, full)
    for number in (1, 3):
        channel.basic_ack(held[number].delivery_tag)
    assert left(connect, channel, full) == [(b"0", True), (b"2", True), (b"4", True)]


def test_ack_multiple_covers_all_up_to_the_tag(connect: Any, channel: Any, full: str) -> None:
    channel.basic_ack(take_all(channel, full)[2].delivery_tag, multiple=True)
    assert left(connect, channel, full) == [(b"3", True), (b"4", True)]


def test_ack_multiple_of_tag_0_covers_everything(connect: Any, channel: Any, full: str) -> None:
    take_all(channel, full)
    channel.basic_ack(0, multiple=True)
    assert left(connect, channel, full) == []


def test_ack_multiple_of_tag_0_with_nothing_held_succeeds(peer: Peer) -> None:
    peer.send(1, commands.Basic.Ack(0, multiple=True))
    peer.expect_silence(1)


def test_acks_may_come_in_any_order(connect: Any, channel: Any, full: str) -> None:
    held = take_all(channel, full)
    for number in (4, 0, 2):
        channel.basic_ack(held[number].delivery_tag)
    channel.basic_ack(held[3].delivery_tag, multiple=True)
    assert left(connect, channel, full) == []


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
@pytest.mark.parametrize("tag", [0, 2, 2**63])
def test_an_unknown_delivery_tag_gets_406(channel: Any, full: str, verb: str, tag: int) -> None:
    take(channel, full)
    getattr(channel, f"basic_{verb}")(tag)
    with channel_refuses(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        channel.queue_declare(full, passive=True)


def test_acking_twice_gets_406(channel: Any, full: str) -> None:
    tag = take(channel, full).delivery_tag
    channel.basic_ack(tag)
    channel.basic_ack(tag)
    with channel_refuses(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        channel.queue_declare(full, passive=True)


def test_a_tag_of_another_channel_gets_406(connection: Any, channel: Any, full: str) -> None:
    take(channel, full)
    other = connection.channel()
    other.basic_ack(1)
    with channel_refuses(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        other.queue_declare(full, passive=True)


def test_ack_multiple_of_an_unknown_tag_gets_406_and_acks_nothing(
    channel: Any, full: str, connect: Any
) -> None:
    take_all(channel, full)
    channel.basic_ack(9, multiple=True)
    with channel_refuses(406, "PRECONDITION_FAILED - unknown delivery tag 9"):
        channel.queue_declare(full, passive=True)
    wait_ready(connect().channel(), full, len(BODIES))


def test_an_unknown_tag_closes_by_its_method(peer: Peer) -> None:
    peer.send(1, commands.Basic.Nack(7))
    closed = peer.expect(1, commands.Channel.Close)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 60, 120)


# Requeue


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_a_requeued_message_takes_its_place_again_and_is_marked(
    connect: Any, channel: Any, full: str, verb: str
) -> None:
    held = [take(channel, full) for _ in range(3)]
    getattr(channel, f"basic_{verb}")(held[1].delivery_tag, requeue=True)
    again = take(channel, full)
    assert (again.body, again.redelivered) == (b"1", True)
    fresh = take(channel, full)
    assert (fresh.body, fresh.redelivered) == (b"3", False)


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_a_refused_message_is_gone(connect: Any, channel: Any, full: str, verb: str) -> None:
    getattr(channel, f"basic_{verb}")(take(channel, full).delivery_tag, requeue=False)
    assert [body for body, _ in left(connect, channel, full)] == BODIES[1:]


def test_nack_multiple_requeues_in_the_order_of_the_queue(channel: Any, full: str) -> None:
    held = take_all(channel, full)
    channel.basic_nack(held[2].delivery_tag, multiple=True, requeue=True)
    channel.basic_nack(0, multiple=True, requeue=True)
    assert drain(channel, full) == BODIES


def test_messages_requeued_one_by_one_backwards_still_stand_in_order(channel: Any, full: str) -> None:
    for one in reversed(take_all(channel, full)):
        channel.basic_nack(one.delivery_tag, requeue=True)
    assert drain(channel, full) == BODIES


def test_nack_multiple_without_requeue_drops(connect: Any, channel: Any, full: str) -> None:
    held = take_all(channel, full)
    channel.basic_nack(held[3].delivery_tag, multiple=True, requeue=False)
    assert left(connect, channel, full) == [(b"4", True)]


def test_a_message_never_delivered_before_is_not_marked(channel: Any, full: str) -> None:
    assert [take(channel, full).redelivered for _ in BODIES] == [False] * len(BODIES)


def test_a_requeued_message_goes_to_another_consumer(connect: Any, channel: Any, queue: str) -> None:
    channel.basic_qos(prefetch_count=1)
    first = Consumer(channel, queue)
    publish(channel, queue, b"x")
    (held,) = first.wait(1)
    second = Consumer(connect().channel(), queue)
    channel.basic_cancel(first.tag)
    channel.basic_nack(held.delivery_tag, requeue=True)
    (again,) = second.wait(1)
    assert (again.body, again.redelivered) == (b"x", True)


def test_a_lone_consumer_gets_its_requeued_message_again(channel: Any, queue: str) -> None:
    consumer = Consumer(channel, queue)
    publish(channel, queue, b"x")
    for round_ in range(3):
        held = consumer.wait(round_ + 1)[-1]
        assert held.redelivered is (round_ > 0)
        channel.basic_nack(held.delivery_tag, requeue=True)
    consumer.wait(4)


# Recover


def test_recover_requeues_what_the_channel_holds(channel: Any, queue: str) -> None:
    publish(channel, queue, b"1", b"2")
    assert [take(channel, queue).body for _ in range(2)] == [b"1", b"2"]
    channel.basic_recover(requeue=True)
    again = [take(channel, queue) for _ in range(2)]
    assert [(one.body, one.redelivered) for one in again] == [(b"1", True), (b"2", True)]


def test_recover_without_requeue_gets_540(peer: Peer) -> None:
    peer.send(1, commands.Basic.Recover(requeue=False))
    assert peer.expect_connection_close() == (540, "NOT_IMPLEMENTED - requeue=false")


# Ends that return what was not acked


def test_a_closed_channel_returns_what_it_held(connection: Any, channel: Any, full: str) -> None:
    other = connection.channel()
    held = [take(other, full) for _ in range(3)]
    other.basic_ack(held[1].delivery_tag)
    other.close()
    wait_ready(channel, full, 4)
    found = [take(channel, full) for _ in range(4)]
    assert [(one.body, one.redelivered) for one in found] == [
        (b"0", True),
        (b"2", True),
        (b"3", False),
        (b"4", False),
    ]


def test_a_channel_that_fails_returns_what_it_held(connection: Any, channel: Any, full: str) -> None:
    other = connection.channel()
    take_all(other, full)
    other.basic_ack(99)
    wait_ready(channel, full, len(BODIES))
    assert drain(channel, full) == BODIES


def test_a_closed_connection_returns_what_it_held(connect: Any, channel: Any, full: str) -> None:
    other = connect()
    take_all(other.channel(), full)
    assert ready_count(channel, full) == 0
    other.close()
    wait_ready(channel, full, len(BODIES))
    assert drain(channel, full) == BODIES


def test_a_connection_that_breaks_returns_what_it_held(broker: Broker, channel: Any, full: str) -> None:
    with broker.peer() as dying:
        dying.login()
        dying.open_channel(1)
        dying.call(1, commands.Basic.Consume(queue=full), commands.Basic.ConsumeOk)
        for _ in BODIES:
            dying.expect(1, commands.Basic.Deliver)
            dying.expect_content(1)
        assert ready_count(channel, full) == 0
    wait_ready(channel, full, len(BODIES))
    assert [take(channel, full).redelivered for _ in BODIES] == [True] * len(BODIES)


def test_an_acked_message_stays_gone_when_the_connection_breaks_at_once(
    broker: Broker, channel: Any, full: str
) -> None:
    with broker.peer() as dying:
        dying.login()
        dying.open_channel(1)
        dying.call(1, commands.Basic.Consume(queue=full), commands.Basic.ConsumeOk)
        for _ in BODIES:
            dying.expect(1, commands.Basic.Deliver)
            dying.expect_content(1)
        dying.send(1, commands.Basic.Ack(3, multiple=True))
        dying.expect_silence(1)
    wait_ready(channel, full, 2)
    assert drain(channel, full) == BODIES[3:]


def test_the_delivery_tags_of_a_new_channel_begin_at_1(connection: Any, full: str) -> None:
    for _ in range(2):
        channel = connection.channel()
        assert take(channel, full).delivery_tag == 1
        channel.close()


def test_a_queue_deleted_under_unacked_messages_leaves_the_channel_alive(
    connect: Any, channel: Any, full: str
) -> None:
    held = take_all(channel, full)
    connect().channel().queue_delete(full)
    channel.basic_ack(held[0].delivery_tag)
    channel.basic_nack(held[4].delivery_tag, multiple=True, requeue=True)
    channel.queue_declare(full, durable=True)
    wait_until(lambda: ready_count(channel, full) == 0, "the new queue", PATIENCE_S)
    publish(channel, full, b"new")
    assert take(channel, full).body == b"new"
