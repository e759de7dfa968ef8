"""Queues: declaring, declaring again, owning, purging, deleting."""

from __future__ import annotations

import re
from typing import Any

import pika
import pytest
from pamqp import commands

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import PATIENCE_S, Peer
from tests.conformance.verbs import Consumer, channel_refuses, drain, get, publish, take, wait_ready


def missing(queue: str) -> str:
    return f"NOT_FOUND - no queue '{queue}' in vhost '/'"


def inequivalent(what: str, queue: str, received: str, current: str) -> str:
    return (
        f"PRECONDITION_FAILED - inequivalent arg '{what}' for queue '{queue}' in vhost '/': "
        f"received {received} but current is {current}"
    )


def locked(queue: str) -> str:
    return (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration."
    )


def exists(connect: Any, queue: str) -> bool:
    """Ask on a connection of its own, so that a refusal disturbs nothing."""
    channel = connect().channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as refused:
        if refused.reply_code != 404:
            raise
        return False
    finally:
        channel.connection.close()
    return True


def test_declare_ok_tells_name_messages_and_consumers(connect: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, b"1", b"2", b"3")
    wait_ready(channel, queue, 3)
    other = connect().channel()
    other.basic_qos(prefetch_count=1)
    Consumer(other, queue).wait(1)
    declared = channel.queue_declare(queue, durable=True).method
    assert (declared.queue, declared.message_count, declared.consumer_count) == (queue, 2, 1)


def test_a_server_named_queue_gets_a_new_name_each_time(channel: Any) -> None:
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"amq\.gen-[\w-]{22}", one) for one in names), names


def test_an_empty_name_means_the_queue_last_declared_on_the_channel(peer: Peer) -> None:
    declared = peer.call(1, commands.Queue.Declare(queue="", exclusive=True), commands.Queue.DeclareOk)
    bind = commands.Queue.Bind(queue="", exchange="amq.direct", routing_key=str(declared.queue))
    peer.call(1, bind, commands.Queue.BindOk)
    peer.publish(1, b"here", exchange="amq.direct", routing_key=str(declared.queue))
    peer.call(1, commands.Basic.Get(queue=""), commands.Basic.GetOk)
    assert peer.expect_content(1) == b"here"


def test_an_empty_name_without_any_queue_declared_gets_404(peer: Peer) -> None:
    peer.send(1, commands.Basic.Get(queue=""))
    assert peer.expect_channel_close(1) == (404, "NOT_FOUND - no previously declared queue")


def test_an_empty_name_means_no_queue_in_a_passive_declare(channel: Any, queue: str) -> None:
    with channel_refuses(404, missing("")):
        channel.queue_declare("", passive=True)


def test_an_empty_routing_key_goes_with_an_empty_queue_name(peer: Peer, name: str) -> None:
    peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
    peer.call(1, commands.Queue.Bind(queue="", exchange="amq.direct", routing_key=""), commands.Queue.BindOk)
    peer.publish(1, b"here", exchange="amq.direct", routing_key=name)
    peer.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)


def test_a_queue_can_be_declared_again_alike(channel: Any, name: str) -> None:
    for _ in range(2):
        channel.queue_declare(name, durable=True, arguments={"x-custom": "kept"})


def test_a_passive_declare_of_nothing_gets_404(channel: Any, name: str) -> None:
    with channel_refuses(404, missing(name)):
        channel.queue_declare(name, passive=True)


def test_a_passive_declare_does_not_compare(channel: Any, queue: str) -> None:
    channel.queue_declare(queue, passive=True, durable=False, auto_delete=True)


@pytest.mark.parametrize("what", ["durable", "auto_delete"])
def test_declaring_again_with_another_property_gets_406(channel: Any, name: str, what: str) -> None:
    channel.queue_declare(name)
    with channel_refuses(406, inequivalent(what, name, "'true'", "'false'")):
        channel.queue_declare(name, **{what: True})


@pytest.mark.parametrize(
    ("argument", "value", "kind"),
    [("x-message-ttl", 1000, "signedint"), ("x-dead-letter-exchange", "amq.fanout", "longstr")],
)
def test_declaring_again_with_another_argument_gets_406(
    channel: Any, name: str, argument: str, value: Any, kind: str
) -> None:
    channel.queue_declare(name)
    text = inequivalent(argument, name, f"the value '{value}' of type '{kind}'", "none")
    with channel_refuses(406, text):
        channel.queue_declare(name, arguments={argument: value})


def test_declaring_again_with_another_value_of_an_argument_gets_406(channel: Any, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 5})
    text = inequivalent("x-max-length", name, "'6'", "'5'")
    with channel_refuses(406, text):
        channel.queue_declare(name, arguments={"x-max-length": 6})


def test_numbers_in_arguments_are_compared_by_value_not_by_width(channel: Any, peer: Peer, name: str) -> None:
    """Clients differ in the width they send a number with: here four octets, then one."""
    channel.queue_declare(name, auto_delete=True, arguments={"x-max-length": 5})
    declare = commands.Queue.Declare(queue=name, auto_delete=True, arguments={"x-max-length": 5})
    assert b"b\x05" in declare.marshal()
    peer.call(1, declare, commands.Queue.DeclareOk)


@pytest.mark.parametrize(
    ("argument", "value", "why"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", "soon", '"expected integer, got longstr"'),
        ("x-expires", 0, "{value_zero,0}"),
    ],
)
def test_a_senseless_argument_gets_406(channel: Any, name: str, argument: str, value: Any, why: str) -> None:
    text = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/': {why}"
    with channel_refuses(406, text):
        channel.queue_declare(name, arguments={argument: value})


def test_names_that_begin_with_amq_are_reserved(channel: Any) -> None:
    with channel_refuses(403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"):
        channel.queue_declare("amq.mine")


def test_a_server_named_queue_is_declared_again_by_nobody(channel: Any) -> None:
    name = channel.queue_declare("").method.queue
    channel.queue_declare(name, passive=True)
    with channel_refuses(403, f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'"):
        channel.queue_declare(name)


def test_a_name_may_have_255_octets_of_utf8(channel: Any) -> None:
    name = "ü" * 127 + "x"
    assert channel.queue_declare(name, exclusive=True).method.queue == name
    publish(channel, name, b"long")
    assert take(channel, name).body == b"long"


EXCLUSIVE_CALLS: dict[str, Any] = {
    "passive declare": lambda channel, name: channel.queue_declare(name, passive=True),
    "declare": lambda channel, name: channel.queue_declare(name, exclusive=True),
    "get": lambda channel, name: channel.basic_get(name),
    "consume": lambda channel, name: channel.basic_consume(name, print),
    "bind": lambda channel, name: channel.queue_bind(name, "amq.fanout"),
    "unbind": lambda channel, name: channel.queue_unbind(name, "amq.fanout"),
    "purge": lambda channel, name: channel.queue_purge(name),
    "delete": lambda channel, name: channel.queue_delete(name),
}


@pytest.mark.parametrize("call", EXCLUSIVE_CALLS)
def test_an_exclusive_queue_is_locked_for_other_connections(
    connect: Any, channel: Any, name: str, call: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, "amq.fanout")
    with channel_refuses(405, locked(name)):
        EXCLUSIVE_CALLS[call](connect().channel(), name)


def test_anyone_may_remove_a_binding_that_a_locked_queue_lacks(connect: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, "amq.direct", "there")
    other = connect().channel()
    other.queue_unbind(name, "amq.direct", "not there")
    with channel_refuses(405, locked(name)):
        other.queue_unbind(name, "amq.direct", "there")


def test_declaring_an_own_queue_exclusive_afterwards_gets_405(channel: Any, queue: str) -> None:
    with channel_refuses(405, locked(queue)):
        channel.queue_declare(queue, durable=True, exclusive=True)


def test_an_exclusive_queue_is_never_durable(channel: Any, name: str) -> None:
    for durable in (True, False):
        channel.queue_declare(name, exclusive=True, durable=durable)


def test_anyone_may_publish_to_an_exclusive_queue(connect: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(connect().channel(), name, b"from outside")
    wait_ready(channel, name, 1)


def test_an_exclusive_queue_serves_every_channel_of_its_connection(connection: Any, name: str) -> None:
    connection.channel().queue_declare(name, exclusive=True)
    other = connection.channel()
    publish(other, name, b"x")
    assert take(other, name).body == b"x"


def test_an_exclusive_queue_goes_with_its_connection(connect: Any, name: str) -> None:
    owner = connect()
    owner.channel().queue_declare(name, exclusive=True, durable=True)
    owner.close()
    wait_until(lambda: not exists(connect, name), f"the end of {name}", PATIENCE_S)


def test_an_auto_delete_queue_goes_with_its_last_consumer(connect: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name, auto_delete=True)
    first, second = Consumer(channel, name), Consumer(channel, name)
    channel.basic_cancel(first.tag)
    assert exists(connect, name)
    channel.basic_cancel(second.tag)
    wait_until(lambda: not exists(connect, name), f"the end of {name}", PATIENCE_S)


def test_an_auto_delete_queue_goes_when_the_connection_of_its_consumer_dies(connect: Any, name: str) -> None:
    consuming = connect()
    channel = consuming.channel()
    channel.queue_declare(name, auto_delete=True)
    Consumer(channel, name)
    consuming.close()
    wait_until(lambda: not exists(connect, name), f"the end of {name}", PATIENCE_S)


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(connect: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name, auto_delete=True)
    publish(channel, name, b"x")
    take(channel, name, auto_ack=True)
    assert exists(connect, name)


def test_purge_counts_what_was_ready(channel: Any, queue: str) -> None:
    publish(channel, queue, b"1", b"2", b"3", b"4")
    held = take(channel, queue)
    assert channel.queue_purge(queue).method.message_count == 3
    assert get(channel, queue) is None
    channel.basic_nack(held.delivery_tag, requeue=True)
    assert drain(channel, queue) == [b"1"]


def test_delete_counts_what_was_ready(channel: Any, queue: str) -> None:
    publish(channel, queue, b"1", b"2")
    wait_ready(channel, queue, 2)
    assert channel.queue_delete(queue).method.message_count == 2
    with channel_refuses(404, missing(queue)):
        channel.queue_declare(queue, passive=True)


def test_deleting_nothing_succeeds(channel: Any, name: str) -> None:
    assert channel.queue_delete(name).method.message_count == 0


def test_purging_nothing_gets_404(channel: Any, name: str) -> None:
    with channel_refuses(404, missing(name)):
        channel.queue_purge(name)


def test_delete_if_empty_spares_a_queue_with_messages(channel: Any, queue: str) -> None:
    publish(channel, queue, b"x")
    wait_ready(channel, queue, 1)
    with channel_refuses(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)


def test_delete_if_unused_spares_a_queue_with_consumers(channel: Any, queue: str) -> None:
    Consumer(channel, queue)
    with channel_refuses(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"):
        channel.queue_delete(queue, if_unused=True)


def test_delete_if_empty_and_unused_takes_an_idle_queue(channel: Any, queue: str) -> None:
    channel.queue_delete(queue, if_empty=True, if_unused=True)
    with channel_refuses(404, missing(queue)):
        channel.queue_declare(queue, passive=True)


def test_a_queue_declared_again_after_its_deletion_is_empty_and_unbound(channel: Any, queue: str) -> None:
    channel.queue_bind(queue, "amq.direct", queue)
    publish(channel, queue, b"old")
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("amq.direct", queue, b"unbound")
    publish(channel, queue, b"new")
    assert take(channel, queue).body == b"new"


def test_no_wait_gets_no_answer(peer: Peer, name: str) -> None:
    peer.send(1, commands.Queue.Declare(queue=name, exclusive=True, nowait=True))
    peer.send(1, commands.Queue.Bind(queue=name, exchange="amq.fanout", routing_key="", nowait=True))
    peer.send(1, commands.Queue.Purge(queue=name, nowait=True))
    peer.expect_silence(1)
    peer.call(1, commands.Queue.Declare(queue=name, passive=True), commands.Queue.DeclareOk)
    peer.send(1, commands.Queue.Delete(queue=name, nowait=True))
    peer.expect_silence(1)


def test_an_unknown_queue_type_gets_406(channel: Any, name: str) -> None:
    text = f"PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue '{name}' in vhost '/': "
    with channel_refuses(406, text + "\"unsupported queue type 'odd'\""):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "odd"})
