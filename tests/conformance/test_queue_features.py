"""What queues do by themselves: expire, overflow, rank messages and consumers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pika
import pytest
from pamqp import commands, header
from pamqp.body import ContentBody

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import PATIENCE_S, Peer
from tests.conformance.verbs import channel_refuses, drain, publish, take, wait_ready


def test_a_message_expires_by_its_queue(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 50})
    channel.confirm_delivery()
    publish(channel, name, b"short-lived")
    wait_ready(channel, name, 0)


def test_a_message_expires_by_its_own_expiration(channel: Any, queue: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"short-lived", pika.BasicProperties(expiration="50"))
    publish(channel, queue, b"stays")
    wait_ready(channel, queue, 1, timeout_s=2.0)
    assert drain(channel, queue) == [b"stays"]


def test_a_full_queue_drops_its_oldest(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    publish(channel, name, b"1", b"2", b"3")
    assert drain(channel, name) == [b"2", b"3"]


def test_a_full_queue_may_refuse_its_newest(channel: Any, name: str) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, name, b"1")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, name, b"2")
    assert drain(channel, name) == [b"1"]


def test_an_unused_queue_expires(connect: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name, arguments={"x-expires": 100})

    def is_gone() -> bool:
        leader_client = connect().channel()
        try:
            leader_client.queue_declare("", exclusive=True)
            leader_client.queue_bind(name, "amq.fanout")
        except pika.exceptions.ChannelClosedByBroker as refused:
            return bool(refused.reply_code == 404)
        finally:
            leader_client.connection.close()
        return False

    wait_until(is_gone, f"the end of {name}", PATIENCE_S, interval_s=0.1)


def test_higher_priorities_overtake(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    for priority in (1, 5, 3, 5):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    assert drain(channel, name) == [b"5", b"5", b"3", b"1"]


def test_consumers_of_higher_priority_come_first(channel: Any, queue: str) -> None:
    found: list[str] = []

    def into(who: str) -> Any:
        return lambda _channel, _method, _properties, _body: found.append(who)

    channel.basic_consume(queue, into("low"), arguments={"x-priority": 1})
    channel.basic_consume(queue, into("high"), arguments={"x-priority": 9})
    publish(channel, queue, b"1", b"2", b"3")

    def all_here() -> bool:
        channel.connection.process_data_events(0.01)
        return len(found) == 3

    wait_until(all_here, "three messages", PATIENCE_S)
    assert found == ["high"] * 3


def test_the_shorter_time_to_live_counts(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 60_000})
    channel.basic_publish("", name, b"short", pika.BasicProperties(expiration="20"))
    wait_ready(channel, name, 0)
    channel.queue_declare(f"o-{name}", exclusive=True, arguments={"x-message-ttl": 20})
    channel.basic_publish("", f"o-{name}", b"short", pika.BasicProperties(expiration="60000"))
    wait_ready(channel, f"o-{name}", 0)


def test_a_message_expires_only_at_the_head_of_its_queue(channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"long", pika.BasicProperties(expiration="60000"))
    channel.basic_publish("", queue, b"short", pika.BasicProperties(expiration="1"))
    wait_ready(channel, queue, 2)
    got = take(channel, queue)
    assert got.body == b"long"
    wait_ready(channel, queue, 0)
    channel.basic_nack(got.delivery_tag, requeue=True)
    assert drain(channel, queue) == [b"long"]


def test_a_time_to_live_of_nothing_means_now_or_never(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 0})
    channel.confirm_delivery()
    publish(channel, name, b"never")
    wait_ready(channel, name, 0)
    got: list[bytes] = []
    channel.basic_consume(name, lambda _c, _m, _p, body: got.append(body), auto_ack=True)
    publish(channel, name, b"now")

    def arrived() -> bool:
        channel.connection.process_data_events(0.01)
        return bool(got)

    wait_until(arrived, "the message", PATIENCE_S)
    assert got == [b"now"]


@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("foo", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1x", '{leftover_string,"x"}'),
        ("", "no_integer"),
        (" 1", "no_integer"),
    ],
)
def test_an_expiration_that_is_no_number_gets_406(
    channel: Any, queue: str, expiration: str, why: str
) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration=expiration))
    with channel_refuses(406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}"):
        channel.queue_declare(queue, passive=True)


@pytest.mark.parametrize("mode", [0, 3, 255])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("key", ["queue", "none"])
def test_a_delivery_mode_that_is_none_gets_406(
    channel: Any, queue: str, mode: int, known: bool, key: str
) -> None:
    """Also behind others on the same route, and without a queue that would get the message."""
    target = queue if key == "queue" else f"{queue}-none"
    for number in range(3 if known else 0):
        channel.basic_publish("", target, b"%d" % number, pika.BasicProperties(delivery_mode=1))
    channel.basic_publish("", target, b"x", pika.BasicProperties(delivery_mode=mode))
    with channel_refuses(406, f"PRECONDITION_FAILED - invalid message: {{delivery_mode_unknown,{mode}}}"):
        channel.queue_declare(queue, passive=True)


def test_an_invalid_copy_is_refused_before_an_unknown_delivery_mode(channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=3, headers={"CC": "a"}))
    with channel_refuses(
        406, 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'
    ):
        channel.queue_declare(queue, passive=True)


def test_the_octets_of_a_full_queue_count_without_what_is_unacked(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length-bytes": 10})
    publish(channel, name, b"12345678")
    wait_ready(channel, name, 1)
    held = take(channel, name)
    publish(channel, name, b"abcd", b"efgh", b"ijkl")
    wait_ready(channel, name, 2)
    assert drain(channel, name) == [b"efgh", b"ijkl"]
    channel.basic_nack(held.delivery_tag, requeue=True)
    assert drain(channel, name) == [b"12345678"]


def test_a_queue_that_refuses_takes_again_when_there_is_room(channel: Any, name: str) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, name, b"1", b"2")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, name, b"3")
    assert take(channel, name, auto_ack=True).body == b"1"
    publish(channel, name, b"4")
    assert drain(channel, name) == [b"2", b"4"]


@pytest.mark.parametrize(("kind", "left"), [("classic", [b"1"]), ("quorum", [b"2"])])
def test_a_quorum_queue_drops_its_oldest_messages_where_refused_ones_were_to_be_dead_lettered(
    channel: Any, name: str, kind: str, left: list[bytes]
) -> None:
    arguments = {"x-queue-type": kind, "x-max-length": 1, "x-overflow": "reject-publish-dlx"}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    with suppress(pika.exceptions.NackError):
        publish(channel, name, b"1", b"2")
    assert drain(channel, name) == left
    channel.queue_delete(name)


def confirms_of(peer: Peer, queue: str, *bodies: bytes) -> dict[int, str]:
    """Publish in one write; return how each publish was confirmed, whatever else comes in between."""
    frames = [
        each
        for one in bodies
        for each in (
            commands.Basic.Publish(routing_key=queue),
            header.ContentHeader(body_size=len(one), properties=commands.Basic.Properties()),
            ContentBody(one),
        )
    ]
    peer.send(1, *frames)
    found: dict[int, str] = {}
    while len(found) < len(bodies):
        answer = peer.receive()[1]
        if isinstance(answer, commands.Basic.Ack | commands.Basic.Nack):
            first = (
                min(set(range(1, len(bodies) + 1)) - found.keys()) if answer.multiple else answer.delivery_tag
            )
            found |= {
                tag: type(answer).__name__
                for tag in range(first, answer.delivery_tag + 1)
                if tag not in found
            }
    return found


@pytest.mark.parametrize("limit", [{"x-max-length": 0}, {"x-max-length-bytes": 3}])
def test_a_queue_that_refuses_what_never_fits_refuses_it_also_if_a_consumer_waits(
    peer: Peer, name: str, limit: dict[str, int]
) -> None:
    arguments: Any = {"x-overflow": "reject-publish", **limit}
    declare = commands.Queue.Declare(queue=name, exclusive=True, arguments=arguments)
    peer.call(1, declare, commands.Queue.DeclareOk)
    peer.call(1, commands.Basic.Consume(queue=name), commands.Basic.ConsumeOk)
    peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    assert confirms_of(peer, name, b"long") == {1: "Nack"}


def test_a_queue_that_refuses_counts_nothing_that_goes_straight_to_a_consumer(peer: Peer, name: str) -> None:
    arguments: Any = {"x-overflow": "reject-publish", "x-max-length": 1}
    declare = commands.Queue.Declare(queue=name, exclusive=True, arguments=arguments)
    peer.call(1, declare, commands.Queue.DeclareOk)
    peer.call(1, commands.Basic.Qos(prefetch_count=2), commands.Basic.QosOk)
    peer.call(1, commands.Basic.Consume(queue=name), commands.Basic.ConsumeOk)
    peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    confirmed = {1: "Ack", 2: "Ack", 3: "Ack", 4: "Nack"}
    assert confirms_of(peer, name, b"1", b"2", b"3", b"4") == confirmed


def test_a_priority_beyond_the_highest_counts_as_the_highest(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 2})
    for body, priority in ((b"none", None), (b"two", 2), (b"nine", 9)):
        channel.basic_publish("", name, body, pika.BasicProperties(priority=priority))
    assert drain(channel, name) == [b"two", b"nine", b"none"]


def test_what_came_back_keeps_its_priority(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 2})
    for priority in (0, 1, 2, 1):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    wait_ready(channel, name, 4)
    held = [take(channel, name) for _ in range(3)]
    assert [one.body for one in held] == [b"2", b"1", b"1"]
    channel.basic_nack(held[-1].delivery_tag, multiple=True, requeue=True)
    wait_ready(channel, name, 4)
    assert drain(channel, name) == [b"2", b"1", b"1", b"0"]


def test_a_single_active_consumer_is_followed_by_the_next(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-single-active-consumer": True})
    found: list[str] = []

    def into(who: str) -> Any:
        return lambda _channel, _method, _properties, _body: found.append(who)

    first = channel.basic_consume(name, into("first"), auto_ack=True)
    channel.basic_consume(name, into("second"), auto_ack=True)

    def arrived(count: int) -> bool:
        channel.connection.process_data_events(0.01)
        return len(found) == count

    publish(channel, name, b"1", b"2")
    wait_until(lambda: arrived(2), "two messages", PATIENCE_S)
    channel.basic_cancel(first)
    publish(channel, name, b"3")
    wait_until(lambda: arrived(3), "three messages", PATIENCE_S)
    assert found == ["first", "first", "second"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_message_is_got_beside_a_single_active_consumer_of_classic_queues_only(
    channel: Any, name: str, kind: str
) -> None:
    arguments = {"x-single-active-consumer": True, "x-queue-type": kind}
    channel.queue_declare(name, durable=True, arguments=arguments)
    publish(channel, name, b"1")
    if kind == "classic":
        assert drain(channel, name) == [b"1"]
        channel.queue_delete(name)
        return
    text = (
        f"RESOURCE_LOCKED - cannot obtain access to locked queue '{name}' in vhost '/'. basic.get operations are not "
        "supported by quorum queues with single active consumer"
    )
    with channel_refuses(405, text):
        channel.basic_get(name)


def test_a_queue_with_a_single_active_consumer_has_no_exclusive_one(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-single-active-consumer": True})
    with channel_refuses(403, f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use"):
        channel.basic_consume(name, lambda *_: None, exclusive=True)


@pytest.mark.parametrize(("priority", "kind"), [("high", "longstr"), (True, "bool")])
def test_a_consumer_priority_that_is_no_number_gets_406(
    channel: Any, queue: str, priority: Any, kind: str
) -> None:
    text = f"invalid arg 'x-priority' for queue '{queue}' in vhost '/': \"expected integer, got {kind}\""
    with channel_refuses(406, f"PRECONDITION_FAILED - {text}"):
        channel.basic_consume(queue, lambda *_: None, arguments={"x-priority": priority})


def test_a_queue_in_use_does_not_expire(channel: Any, connect: Any, name: str) -> None:
    channel.queue_declare(name, arguments={"x-expires": 300})
    tag = channel.basic_consume(name, lambda *_: None)
    idle = connect().channel()
    idle.queue_declare(f"o-{name}", exclusive=True, arguments={"x-expires": 300})
    wait_until(lambda: _is_gone(connect, f"o-{name}"), "the unused queue's end", PATIENCE_S, interval_s=0.1)
    assert not _is_gone(connect, name)
    channel.basic_cancel(tag)
    wait_until(lambda: _is_gone(connect, name), "the queue's end", PATIENCE_S, interval_s=0.1)


def _is_gone(connect: Any, name: str) -> bool:
    """Whether there is no such queue, asked in a way that does not use it."""
    leader_client = connect().channel()
    try:
        leader_client.queue_bind(name, "amq.fanout")
    except pika.exceptions.ChannelClosedByBroker as refused:
        return bool(refused.reply_code == 404)
    finally:
        leader_client.connection.close()
    return False
