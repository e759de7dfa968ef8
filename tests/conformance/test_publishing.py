"""Publishing: what is refused, what comes back, what is confirmed and when."""

from __future__ import annotations

import struct
from typing import Any

import pika
import pytest
from pamqp import body, commands, frame, header

from tests.conformance.rawclient import FRAME_METHOD, Peer, raw_frame
from tests.conformance.verbs import channel_refuses, drain, publish, take


def confirms(peer: Peer) -> None:
    """Put channel 1 into confirm mode."""
    peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)


def acked_tags(peer: Peer, last: int) -> list[int]:
    """Read acks on channel 1 until tag `last` is covered; return the tags in the order confirmed."""
    tags: list[int] = []
    while last not in tags:
        ack = peer.expect(1, commands.Basic.Ack)
        lowest = 1 if ack.multiple else ack.delivery_tag
        tags += [tag for tag in range(lowest, ack.delivery_tag + 1) if tag not in tags]
    return tags


def test_publishing_to_a_missing_exchange_gets_404(peer: Peer, name: str) -> None:
    peer.publish(1, b"x", exchange=name)
    closed = peer.expect(1, commands.Channel.Close)
    assert (closed.reply_code, closed.reply_text) == (404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")
    assert (closed.class_id, closed.method_id) == (60, 40)


def test_pika_learns_of_it_with_the_next_answer(channel: Any, name: str) -> None:
    channel.basic_publish(name, "k", b"x")
    with channel_refuses(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.queue_declare("", exclusive=True)


def test_immediate_gets_540(peer: Peer) -> None:
    publish = raw_frame(FRAME_METHOD, 1, struct.pack(">HHH", 60, 40, 0) + b"\x00\x01q\x02")
    peer.send_octets(publish + frame.marshal(header.ContentHeader(), 1))
    closed = peer.expect(0, commands.Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")
    assert (closed.class_id, closed.method_id) == (60, 40)


def test_what_no_queue_takes_is_dropped(channel: Any, name: str) -> None:
    publish(channel, name, b"to nobody")
    assert channel.queue_declare(name, exclusive=True).method.message_count == 0


# Mandatory


def test_a_mandatory_message_that_no_queue_takes_comes_back(peer: Peer, name: str) -> None:
    properties = commands.Basic.Properties(message_id="m-1", headers={"kept": 1})
    peer.publish(
        1, b"content", exchange="amq.direct", routing_key=name, mandatory=True, properties=properties
    )
    returned = peer.expect(1, commands.Basic.Return)
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("amq.direct", name)
    came_back = peer.expect(1, header.ContentHeader)
    assert (came_back.properties.message_id, came_back.properties.headers) == ("m-1", {"kept": 1})
    assert peer.expect(1, body.ContentBody).value == b"content"


def test_a_mandatory_message_that_a_queue_takes_does_not_come_back(peer: Peer, name: str) -> None:
    peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
    peer.publish(1, b"content", routing_key=name, mandatory=True)
    peer.expect_silence(1)


def test_a_mandatory_message_counts_as_routed_by_the_alternate_exchange(
    peer: Peer, channel: Any, queue: str, name: str
) -> None:
    exchange = f"main-{name}"
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": "amq.fanout"})
    channel.queue_bind(queue, "amq.fanout")
    peer.publish(1, b"spare", exchange=exchange, routing_key="k", mandatory=True)
    peer.expect_silence(1)
    assert drain(channel, queue)[-1:] == [b"spare"]
    channel.queue_unbind(queue, "amq.fanout")


def test_a_return_comes_before_its_confirm(peer: Peer, name: str) -> None:
    confirms(peer)
    peer.publish(1, b"", routing_key=name, mandatory=True)
    peer.expect(1, commands.Basic.Return)
    peer.expect(1, header.ContentHeader)
    assert peer.expect(1, commands.Basic.Ack).delivery_tag == 1


def test_pika_raises_what_came_back(channel: Any, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", name, b"x", mandatory=True)
    assert [one.body for one in caught.value.messages] == [b"x"]


# Confirms


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_every_publish_is_confirmed_exactly_once(peer: Peer, name: str, delivery_mode: int) -> None:
    peer.call(1, commands.Queue.Declare(queue=name, durable=True), commands.Queue.DeclareOk)
    confirms(peer)
    properties = commands.Basic.Properties(delivery_mode=delivery_mode)
    for _ in range(100):
        peer.publish(1, b"x", routing_key=name, properties=properties)
    assert sorted(acked_tags(peer, 100)) == list(range(1, 101))
    peer.expect_silence(1)
    assert peer.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk).message_count == 100


def test_an_unroutable_message_is_confirmed_at_once(peer: Peer, name: str) -> None:
    confirms(peer)
    peer.publish(1, b"x", routing_key=name)
    assert dict(peer.expect(1, commands.Basic.Ack)) == {"delivery_tag": 1, "multiple": False}


def test_tags_count_from_the_select_and_per_channel(peer: Peer, name: str) -> None:
    peer.open_channel(2)
    peer.publish(1, b"before", routing_key=name)
    for channel in (1, 2):
        peer.call(channel, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for channel in (1, 2):
        peer.publish(channel, b"x", routing_key=name)
        assert peer.expect(channel, commands.Basic.Ack).delivery_tag == 1


def test_selecting_confirms_twice_changes_nothing(peer: Peer, name: str) -> None:
    confirms(peer)
    peer.publish(1, b"x", routing_key=name)
    assert peer.expect(1, commands.Basic.Ack).delivery_tag == 1
    confirms(peer)
    peer.publish(1, b"x", routing_key=name)
    assert peer.expect(1, commands.Basic.Ack).delivery_tag == 2


def test_select_with_no_wait_gets_no_answer(peer: Peer, name: str) -> None:
    peer.send(1, commands.Confirm.Select(nowait=True))
    peer.publish(1, b"x", routing_key=name)
    assert peer.expect(1, commands.Basic.Ack).delivery_tag == 1


def test_a_message_to_several_queues_gets_one_confirm(peer: Peer, name: str) -> None:
    exchange = f"all-{name}"
    declare = commands.Exchange.Declare(exchange=exchange, exchange_type="fanout", auto_delete=True)
    peer.call(1, declare, commands.Exchange.DeclareOk)
    queues = [f"{name}-{number}" for number in range(3)]
    for queue in queues:
        peer.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
        peer.call(
            1, commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=""), commands.Queue.BindOk
        )
    confirms(peer)
    peer.publish(1, b"x", exchange=exchange, properties=commands.Basic.Properties(delivery_mode=2))
    assert acked_tags(peer, 1) == [1]
    peer.expect_silence(1)
    for queue in queues:
        assert peer.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk).message_count == 1


def test_what_was_confirmed_can_be_taken_by_others(connect: Any, channel: Any, queue: str) -> None:
    channel.confirm_delivery()
    other = connect().channel()
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
        assert take(other, queue, auto_ack=True).body == b"%d" % number


def test_messages_of_one_channel_stay_in_order(channel: Any, queue: str) -> None:
    bodies = [b"%d" % number for number in range(500)]
    publish(channel, queue, *bodies)
    assert drain(channel, queue) == bodies


def test_a_get_finds_what_its_own_channel_published_before(channel: Any, queue: str) -> None:
    for number in range(50):
        publish(channel, queue, b"%d" % number)
        assert take(channel, queue, auto_ack=True).body == b"%d" % number


# User id


def test_a_message_may_carry_the_own_user_id(channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(user_id="guest"))
    assert take(channel, queue).properties.user_id == "guest"


def test_a_message_with_the_id_of_another_user_gets_406(channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(user_id="somebody"))
    text = "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"
    with channel_refuses(406, text):
        channel.queue_declare(queue, passive=True)
