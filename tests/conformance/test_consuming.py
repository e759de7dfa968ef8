"""Getting messages: get, consume, cancel, prefetch, several consumers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pamqp import commands, header

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import PATIENCE_S, Peer
from tests.conformance.verbs import (
    Consumer,
    channel_refuses,
    connection_refuses,
    get,
    publish,
    take,
    wait_ready,
)


def missing(queue: str) -> str:
    return f"NOT_FOUND - no queue '{queue}' in vhost '/'"


def declared(peer: Peer, name: str, channel: int = 1) -> None:
    """Declare an exclusive queue on the raw connection."""
    peer.call(channel, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)


# Get


def test_get_ok_tells_where_the_message_came_from_and_what_is_left(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.call(
        1, commands.Queue.Bind(queue=name, exchange="amq.direct", routing_key=name), commands.Queue.BindOk
    )
    for content in (b"1", b"2", b"3"):
        peer.publish(1, content, exchange="amq.direct", routing_key=name)
    found = peer.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)
    assert dict(found) == {
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "amq.direct",
        "routing_key": name,
        "message_count": 2,
    }
    assert peer.expect_content(1) == b"1"


def test_get_on_an_empty_queue_says_so(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.call(1, commands.Basic.Get(queue=name), commands.Basic.GetEmpty)


def test_get_from_nothing_gets_404(channel: Any, name: str) -> None:
    with channel_refuses(404, missing(name)):
        channel.basic_get(name)


def test_a_message_got_without_ack_is_gone(connect: Any, queue: str, channel: Any) -> None:
    publish(channel, queue, b"x")
    other = connect()
    take(other.channel(), queue, auto_ack=True)
    other.close()
    assert get(channel, queue) is None


def test_delivery_tags_count_gets_and_deliveries_of_the_channel(peer: Peer, name: str) -> None:
    declared(peer, name)
    for content in (b"1", b"2", b"3"):
        peer.publish(1, content, routing_key=name)
    assert peer.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk).delivery_tag == 1
    peer.expect_content(1)
    assert peer.call(1, commands.Basic.Get(queue=name, no_ack=True), commands.Basic.GetOk).delivery_tag == 2
    peer.expect_content(1)
    peer.call(1, commands.Basic.Consume(queue=name, consumer_tag="c"), commands.Basic.ConsumeOk)
    assert peer.expect(1, commands.Basic.Deliver).delivery_tag == 3


# Consume


def test_a_delivery_tells_consumer_exchange_and_key(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.call(1, commands.Basic.Consume(queue=name, consumer_tag="mine"), commands.Basic.ConsumeOk)
    peer.publish(1, b"content", routing_key=name)
    assert dict(peer.expect(1, commands.Basic.Deliver)) == {
        "consumer_tag": "mine",
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "",
        "routing_key": name,
    }
    assert peer.expect_content(1) == b"content"


def test_consume_ok_comes_before_the_first_delivery(peer: Peer, name: str) -> None:
    declared(peer, name)
    for _ in range(3):
        peer.publish(1, b"x", routing_key=name)
    peer.send(1, commands.Basic.Consume(queue=name, consumer_tag="c"))
    peer.expect(1, commands.Basic.ConsumeOk)
    for _ in range(3):
        peer.expect(1, commands.Basic.Deliver)
        peer.expect_content(1)


def test_the_broker_makes_up_a_consumer_tag(peer: Peer, name: str) -> None:
    declared(peer, name)
    made = {
        peer.call(1, commands.Basic.Consume(queue=name), commands.Basic.ConsumeOk).consumer_tag for _ in "ab"
    }
    assert len(made) == 2
    assert all(str(one).startswith("amq.ctag-") for one in made), made


def test_consume_with_no_wait_gets_deliveries_without_an_answer(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.publish(1, b"x", routing_key=name)
    peer.send(1, commands.Basic.Consume(queue=name, consumer_tag="c", nowait=True))
    assert peer.expect(1, commands.Basic.Deliver).consumer_tag == "c"


def test_consuming_from_nothing_gets_404(channel: Any, name: str) -> None:
    with channel_refuses(404, missing(name)):
        channel.basic_consume(name, print)


def test_a_consumer_tag_in_use_gets_530(peer: Peer, name: str) -> None:
    declared(peer, name)
    consume = commands.Basic.Consume(queue=name, consumer_tag="twice")
    peer.call(1, consume, commands.Basic.ConsumeOk)
    peer.send(1, consume)
    assert peer.expect_connection_close() == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'twice'")


def test_channels_may_use_the_same_consumer_tag(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.open_channel(2)
    for channel in (1, 2):
        peer.call(channel, commands.Basic.Consume(queue=name, consumer_tag="same"), commands.Basic.ConsumeOk)


def in_exclusive_use(queue: str) -> str:
    return f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"


def test_an_exclusive_consumer_shuts_others_out(connect: Any, channel: Any, queue: str) -> None:
    Consumer(channel, queue, exclusive=True)
    with channel_refuses(403, in_exclusive_use(queue)):
        Consumer(connect().channel(), queue)


def test_exclusive_use_is_refused_while_there_are_others(connect: Any, channel: Any, queue: str) -> None:
    Consumer(channel, queue)
    with channel_refuses(403, in_exclusive_use(queue)):
        Consumer(connect().channel(), queue, exclusive=True)


def test_exclusive_use_ends_with_its_consumer(connect: Any, channel: Any, queue: str) -> None:
    first = Consumer(channel, queue, exclusive=True)
    channel.basic_cancel(first.tag)
    publish(channel, queue, b"for the next")
    assert Consumer(connect().channel(), queue, exclusive=True).bodies(1) == [b"for the next"]


def test_a_no_ack_delivery_cannot_be_acked(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.call(1, commands.Basic.Consume(queue=name, no_ack=True), commands.Basic.ConsumeOk)
    peer.publish(1, b"x", routing_key=name)
    assert peer.expect(1, commands.Basic.Deliver).delivery_tag == 1
    peer.expect_content(1)
    peer.send(1, commands.Basic.Ack(1))
    assert peer.expect_channel_close(1) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")


def test_no_ack_deliveries_do_not_come_back(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, b"1", b"2")
    consuming = connect()
    Consumer(consuming.channel(), queue, auto_ack=True).wait(2)
    consuming.close()
    publish(channel, queue, b"3")
    assert take(channel, queue).body == b"3"


# Cancel


def test_cancel_ok_names_the_consumer(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.call(1, commands.Basic.Consume(queue=name, consumer_tag="c"), commands.Basic.ConsumeOk)
    assert peer.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk).consumer_tag == "c"
    peer.publish(1, b"x", routing_key=name)
    peer.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)


def test_cancelling_nothing_succeeds(peer: Peer) -> None:
    assert peer.call(1, commands.Basic.Cancel("nobody"), commands.Basic.CancelOk).consumer_tag == "nobody"


def test_a_cancelled_consumer_keeps_what_it_has_not_acked(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, b"held")
    consumer = Consumer(channel, queue)
    (held,) = consumer.wait(1)
    channel.basic_cancel(consumer.tag)
    assert get(connect().channel(), queue) is None
    channel.basic_ack(held.delivery_tag)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 0


def test_a_deleted_queue_cancels_its_consumers(peer: Peer, channel: Any, queue: str) -> None:
    peer.call(1, commands.Basic.Consume(queue=queue, consumer_tag="c"), commands.Basic.ConsumeOk)
    channel.queue_delete(queue)
    cancelled = peer.expect(1, commands.Basic.Cancel)
    assert cancelled.consumer_tag == "c"
    peer.expect_silence(1)


def test_who_deletes_the_queue_it_consumes_from_hears_of_it_after_the_reply(peer: Peer, queue: str) -> None:
    peer.call(1, commands.Basic.Consume(queue=queue, consumer_tag="c"), commands.Basic.ConsumeOk)
    peer.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
    assert peer.expect(1, commands.Basic.Cancel).consumer_tag == "c"


# Prefetch


def test_prefetch_bounds_what_a_consumer_holds(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, *(b"%d" % number for number in range(10)))
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=3)
    consumer = Consumer(consuming, queue)
    held = consumer.wait(3)
    wait_ready(channel, queue, 7)
    consuming.basic_ack(held[0].delivery_tag)
    consumer.wait(4)
    wait_ready(channel, queue, 6)
    consuming.basic_ack(held[3].delivery_tag, multiple=True)
    assert consumer.bodies(7) == [b"%d" % number for number in range(7)]
    wait_ready(channel, queue, 3)


def test_prefetch_holds_for_each_consumer_that_follows(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, *(b"%d" % number for number in range(10)))
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=1)
    first = Consumer(consuming, queue)
    consuming.basic_qos(prefetch_count=4)
    second = Consumer(consuming, queue)
    first.wait(1)
    second.wait(4)
    wait_ready(channel, queue, 5)
    assert (len(first.messages), len(second.messages)) == (1, 4)


@pytest.mark.parametrize(
    ("limits", "held"),
    [
        # Prefetch count, and whether it holds for the whole channel; the messages of the two consumers.
        (((2, False), (3, True)), (2, 1)),
        (((5, False), (2, True)), (5, 0)),
        (((4, False), (0, True)), (4, 4)),
        (((0, False), (4, True)), (10, 0)),
    ],
)
def test_limits_of_the_channel_and_of_its_consumers_hold_from_then_on(
    connect: Any,
    channel: Any,
    queue: str,
    limits: tuple[tuple[int, bool], tuple[int, bool]],
    held: tuple[int, int],
) -> None:
    publish(channel, queue, *(b"%d" % number for number in range(10)))
    wait_ready(channel, queue, 10)
    consuming, consumers = connect().channel(), []
    for (count, is_global), number in zip(limits, held, strict=True):
        consuming.basic_qos(prefetch_count=count, global_qos=is_global)
        consumers.append(Consumer(consuming, queue))
        if number:
            consumers[-1].wait(number)
    wait_ready(channel, queue, 10 - sum(held))
    assert tuple(len(each.messages) for each in consumers) == held


@pytest.mark.parametrize("prefetch", [0, 5])
@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_limit_of_the_whole_channel_is_not_for_quorum_queues_and_streams(
    connect: Any, channel: Any, name: str, kind: str, prefetch: int, auto_ack: bool
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    where, consuming = f"queue '{name}' in vhost '/'", connect().channel()
    consuming.basic_qos(prefetch_count=prefetch)
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    refused = connection_refuses(540, f"NOT_IMPLEMENTED - {where} does not support global qos")
    if kind == "stream" and not prefetch:
        text = f"PRECONDITION_FAILED - consumer prefetch count is not set for '{where}'"
        refused = channel_refuses(406, text)
    elif kind == "stream" and auto_ack:
        text = f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {where}"
        refused = connection_refuses(540, text)
    with refused:
        consuming.basic_consume(name, lambda *_: None, auto_ack=auto_ack)
    channel.queue_delete(name)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_quorum_queues_and_streams_have_others_beside_an_exclusive_consumer(
    connect: Any, channel: Any, name: str, kind: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    for exclusive in (True, False, True):
        consuming = connect().channel()
        consuming.basic_qos(prefetch_count=1)
        consuming.basic_consume(name, lambda *_: None, exclusive=exclusive)
    assert channel.queue_declare(name, passive=True).method.consumer_count in (0, 3)
    channel.queue_delete(name)


def test_global_prefetch_holds_for_the_channel(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, *(b"%d" % number for number in range(10)))
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    consumers = [Consumer(consuming, queue) for _ in range(2)]
    wait_until(lambda: held_by(consumers) == 3, "three messages", PATIENCE_S)
    wait_ready(channel, queue, 7)
    consuming.basic_ack(0, multiple=True)
    wait_until(lambda: held_by(consumers) == 6, "three more", PATIENCE_S)
    wait_ready(channel, queue, 4)


def held_by(consumers: list[Consumer]) -> int:
    """How many messages these consumers of one connection have had."""
    consumers[0].channel.connection.process_data_events(0.01)
    return sum(len(one.messages) for one in consumers)


def test_prefetch_does_not_bound_get_or_no_ack(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, *(b"%d" % number for number in range(8)))
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=1)
    for number in range(3):
        assert take(consuming, queue).body == b"%d" % number
    assert len(Consumer(consuming, queue, auto_ack=True).wait(5)) == 5


def test_a_prefetch_size_gets_540(peer: Peer) -> None:
    peer.send(1, commands.Basic.Qos(prefetch_size=1000))
    assert peer.expect_connection_close() == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (1000)")


def test_a_rejected_message_frees_its_place(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, b"1", b"2")
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=1)
    consumer = Consumer(consuming, queue)
    consuming.basic_reject(consumer.wait(1)[0].delivery_tag, requeue=False)
    assert consumer.bodies(2) == [b"1", b"2"]


# Several consumers


def test_consumers_of_a_queue_take_turns(channel: Any, queue: str) -> None:
    consumers = [Consumer(channel, queue) for _ in range(3)]
    publish(channel, queue, *(b"%d" % number for number in range(9)))
    wait_until(lambda: held_by(consumers) == 9, "nine messages", PATIENCE_S)
    assert [[one.body for one in consumer.messages] for consumer in consumers] == [
        [b"0", b"3", b"6"],
        [b"1", b"4", b"7"],
        [b"2", b"5", b"8"],
    ]


def test_a_full_consumer_is_passed_over(connect: Any, channel: Any, queue: str) -> None:
    slow, fast = connect().channel(), connect().channel()
    slow.basic_qos(prefetch_count=1)
    full, eager = Consumer(slow, queue), Consumer(fast, queue)
    publish(channel, queue, *(b"%d" % number for number in range(6)))
    assert len(full.wait(1)) == 1
    eager.wait(5)
    assert sorted(one.body for one in [*full.messages, *eager.messages]) == [
        b"%d" % number for number in range(6)
    ]


def test_consumers_of_several_connections_share_everything_once(
    connect: Any, channel: Any, queue: str
) -> None:
    total, found, lock = 600, [], threading.Lock()
    done = threading.Event()

    def consume() -> None:
        mine = connect().channel()
        mine.basic_qos(prefetch_count=20)
        for method, _, content in mine.consume(queue, inactivity_timeout=0.05):
            if method is None:
                if done.is_set():
                    break
                continue
            with lock:
                found.append(content)
                if len(found) >= total:
                    done.set()
            mine.basic_ack(method.delivery_tag)
        mine.connection.close()

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(3)]
    for one in threads:
        one.start()
    bodies = [b"%d" % number for number in range(total)]
    publish(channel, queue, *bodies)
    assert done.wait(PATIENCE_S), f"{len(found)} of {total} came"
    for one in threads:
        one.join(PATIENCE_S)
    assert sorted(found) == sorted(bodies)
    wait_ready(channel, queue, 0)


def test_get_competes_with_consumers(channel: Any, queue: str) -> None:
    channel.basic_qos(prefetch_count=1)
    consumer = Consumer(channel, queue)
    publish(channel, queue, b"1", b"2")
    assert consumer.bodies(1) == [b"1"]
    assert take(channel, queue).body == b"2"


def test_a_consumer_that_came_first_gets_what_is_published_later(
    connect: Any, channel: Any, queue: str
) -> None:
    consumer = Consumer(connect().channel(), queue)
    publish(channel, queue, b"1", b"2", b"3")
    assert consumer.bodies(3) == [b"1", b"2", b"3"]


def test_an_empty_body_is_delivered_as_a_header_alone(peer: Peer, name: str) -> None:
    declared(peer, name)
    peer.call(1, commands.Basic.Consume(queue=name), commands.Basic.ConsumeOk)
    peer.publish(1, b"", routing_key=name)
    peer.publish(1, b"", routing_key=name)
    for _ in range(2):
        peer.expect(1, commands.Basic.Deliver)
        assert peer.expect(1, header.ContentHeader).body_size == 0


@pytest.mark.parametrize("tag", ["", "c" * 255])
def test_pika_consumes_with_any_tag(channel: Any, queue: str, tag: str) -> None:
    consumer = Consumer(channel, queue, consumer_tag=tag)
    publish(channel, queue, b"x")
    assert consumer.bodies(1) == [b"x"]
