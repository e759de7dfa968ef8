"""Exchanges: declaring, declaring again, deleting, and the names that are taken."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.conformance.rawclient import Peer
from tests.conformance.verbs import channel_refuses, connection_refuses, drain, publish, take, wait_ready

PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


def missing(exchange: str) -> str:
    return f"NOT_FOUND - no exchange '{exchange}' in vhost '/'"


def inequivalent(what: str, exchange: str, received: str, current: str) -> str:
    return (
        f"PRECONDITION_FAILED - inequivalent arg '{what}' for exchange '{exchange}' in vhost '/': "
        f"received {received} but current is {current}"
    )


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_an_exchange_can_be_declared_again_alike(channel: Any, name: str, kind: str) -> None:
    for _ in range(2):
        channel.exchange_declare(name, kind, durable=True)
    channel.exchange_declare(name, passive=True)


@pytest.mark.parametrize(("exchange", "kind"), PREDECLARED.items())
def test_every_vhost_has_the_exchanges_of_the_standard(channel: Any, exchange: str, kind: str) -> None:
    channel.exchange_declare(exchange, kind, durable=True)


def test_a_passive_declare_of_nothing_gets_404(channel: Any, name: str) -> None:
    with channel_refuses(404, missing(name)):
        channel.exchange_declare(name, passive=True)


def test_a_passive_declare_does_not_compare(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "topic")
    channel.exchange_declare(name, "fanout", passive=True, durable=True)


@pytest.mark.parametrize(
    ("again", "what", "received", "current"),
    [
        ({"exchange_type": "fanout"}, "type", "'fanout'", "'direct'"),
        ({"durable": True}, "durable", "'true'", "'false'"),
        ({"auto_delete": True}, "auto_delete", "'true'", "'false'"),
        ({"internal": True}, "internal", "'true'", "'false'"),
        (
            {"arguments": {"alternate-exchange": "amq.fanout"}},
            "alternate-exchange",
            "the value 'amq.fanout' of type 'longstr'",
            "none",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_declaring_again_with_another_property_gets_406(
    channel: Any, name: str, again: dict[str, Any], what: str, received: str, current: str
) -> None:
    channel.exchange_declare(name, "direct")
    with channel_refuses(406, inequivalent(what, name, received, current)):
        channel.exchange_declare(name, **({"exchange_type": "direct"} | again))


def test_declaring_again_without_its_alternate_exchange_gets_406(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "direct", arguments={"alternate-exchange": "amq.fanout"})
    text = inequivalent("alternate-exchange", name, "none", "the value 'amq.fanout' of type 'longstr'")
    with channel_refuses(406, text):
        channel.exchange_declare(name, "direct")


@pytest.mark.parametrize("reserved", ["amq.mine", "amq."])
def test_names_that_begin_with_amq_are_reserved(channel: Any, reserved: str) -> None:
    text = f"ACCESS_REFUSED - exchange name '{reserved}' contains reserved prefix 'amq.*'"
    with channel_refuses(403, text):
        channel.exchange_declare(reserved, "direct")


@pytest.mark.parametrize(
    "call",
    [
        lambda channel: channel.exchange_declare("", "direct"),
        lambda channel: channel.exchange_delete(""),
        lambda channel: channel.queue_bind("any", "", "k"),
        lambda channel: channel.queue_unbind("any", "", "k"),
        lambda channel: channel.exchange_bind("amq.direct", "", "k"),
        lambda channel: channel.exchange_bind("", "amq.direct", "k"),
    ],
    ids=["declare", "delete", "bind", "unbind", "exchange bind from", "exchange bind to"],
)
def test_the_default_exchange_cannot_be_changed(channel: Any, call: Any) -> None:
    channel.queue_declare("any", exclusive=True)
    with channel_refuses(403, "ACCESS_REFUSED - operation not permitted on the default exchange"):
        call(channel)


def test_a_predeclared_exchange_cannot_be_deleted(channel: Any) -> None:
    text = "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed"
    with channel_refuses(403, text):
        channel.exchange_delete("amq.direct")


def test_an_unknown_type_gets_503_and_ends_the_connection(channel: Any, name: str) -> None:
    with connection_refuses(503, "COMMAND_INVALID - unknown exchange type 'odd'"):
        channel.exchange_declare(name, "odd")


def test_an_unknown_type_is_the_first_fault_of_a_declare(connect: Any, name: str) -> None:
    connect().channel().exchange_declare(name, "direct")
    for exchange in (name, "", "amq.direct"):
        with connection_refuses(503, "COMMAND_INVALID - unknown exchange type 'odd'"):
            connect().channel().exchange_declare(exchange, "odd")


def test_deleting_nothing_succeeds(channel: Any, name: str) -> None:
    channel.exchange_delete(name)


def test_a_deleted_exchange_is_gone_with_its_bindings(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(queue, name)
    channel.exchange_delete(name)
    channel.exchange_declare(name, "fanout")
    channel.basic_publish(name, "", b"lost")
    publish(channel, queue, b"kept")
    assert take(channel, queue).body == b"kept"


def test_delete_if_unused_spares_an_exchange_with_bindings(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(queue, name)
    with channel_refuses(406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use"):
        channel.exchange_delete(name, if_unused=True)


def test_delete_if_unused_takes_an_exchange_without_bindings(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "fanout")
    channel.exchange_delete(name, if_unused=True)
    with channel_refuses(404, missing(name)):
        channel.exchange_declare(name, passive=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.queue_bind(queue, name, "a")
    channel.queue_bind(queue, name, "b")
    channel.queue_unbind(queue, name, "a")
    channel.exchange_declare(name, passive=True)
    channel.queue_unbind(queue, name, "b")
    with channel_refuses(404, missing(name)):
        channel.exchange_declare(name, passive=True)


def test_an_auto_delete_exchange_that_never_had_a_binding_stays(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.exchange_declare(name, passive=True)


def test_an_internal_exchange_takes_no_publish_from_clients(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "fanout", internal=True)
    with channel_refuses(403, f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'"):
        channel.basic_publish(name, "", b"")
        channel.queue_declare(queue, passive=True)


def test_an_internal_exchange_serves_other_exchanges(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "fanout", internal=True)
    channel.queue_bind(queue, name)
    channel.exchange_bind(name, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"by way of")
    assert take(channel, queue).body == b"by way of"


def test_no_wait_gets_no_answer(peer: Peer, name: str) -> None:
    peer.send(1, commands.Exchange.Declare(exchange=name, exchange_type="direct", nowait=True))
    peer.expect_silence(1)
    peer.call(1, commands.Exchange.Declare(exchange=name, passive=True), commands.Exchange.DeclareOk)
    peer.send(1, commands.Exchange.Delete(exchange=name, nowait=True))
    peer.expect_silence(1)


def test_an_alternate_exchange_takes_what_finds_no_queue(channel: Any, queue: str, name: str) -> None:
    spare, main = f"spare-{name}", f"main-{name}"
    channel.exchange_declare(spare, "fanout")
    channel.exchange_declare(main, "direct", arguments={"alternate-exchange": spare})
    channel.queue_bind(queue, spare)
    elsewhere = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(elsewhere, main, "known")
    channel.basic_publish(main, "known", b"routed")
    channel.basic_publish(main, "unknown", b"spare")
    assert take(channel, queue).body == b"spare"
    assert drain(channel, elsewhere) == [b"routed"]


def test_alternate_exchanges_in_a_circle_end_somewhere(channel: Any, queue: str, name: str) -> None:
    one, two = f"one-{name}", f"two-{name}"
    channel.exchange_declare(one, "direct", arguments={"alternate-exchange": two})
    channel.exchange_declare(two, "direct", arguments={"alternate-exchange": one})
    channel.basic_publish(one, "nowhere", b"lost")
    publish(channel, queue, b"still here")
    wait_ready(channel, queue, 1)
