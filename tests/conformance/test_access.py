"""What a user may configure, write and read, by resource name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import Peer
from tests.conformance.verbs import channel_refuses, publish, take, wait_ready

Call = Callable[[Any], object]


@pytest.fixture
def user(broker: Broker, name: str) -> str:
    """A user who may do all with names that begin with `mine`, and may name no other."""
    broker.add_user(name, "secret")
    broker.set_permissions(name, "/", configure="^mine", write="^mine", read="^mine")
    return name


@pytest.fixture
def limited(connect: Any, user: str) -> Any:
    """A channel of that user."""
    return connect(user, "secret").channel()


@pytest.fixture
def other(channel: Any, name: str) -> Iterator[str]:
    """A queue and an exchange called the same, which the limited user has no part in."""
    other = f"other-{name}"
    channel.queue_declare(other)
    channel.exchange_declare(other, "direct")
    yield other
    channel.queue_delete(other)
    channel.exchange_delete(other)


def refused(kind: str, resource: str, user: str) -> str:
    """The text RabbitMQ refuses access with."""
    return f"ACCESS_REFUSED - access to {kind} '{resource}' in vhost '/' refused for user '{user}'"


QUEUE_CALLS: dict[str, Callable[[Any, str], object]] = {
    "declare": lambda channel, name: channel.queue_declare(name),
    "delete": lambda channel, name: channel.queue_delete(name),
    "purge": lambda channel, name: channel.queue_purge(name),
    "get": lambda channel, name: channel.basic_get(name),
    "consume": lambda channel, name: channel.basic_consume(name, print),
    "bind": lambda channel, name: channel.queue_bind(name, "amq.direct", "k"),
    "unbind": lambda channel, name: channel.queue_unbind(name, "amq.direct", "k"),
}

EXCHANGE_CALLS: dict[str, Callable[[Any, str], object]] = {
    "declare": lambda channel, name: channel.exchange_declare(name, "direct"),
    "delete": lambda channel, name: channel.exchange_delete(name),
    "bind as destination": lambda channel, name: channel.exchange_bind(name, "amq.direct", "k"),
}


@pytest.mark.parametrize("call", QUEUE_CALLS)
def test_a_queue_out_of_reach_is_refused(limited: Any, other: str, user: str, call: str) -> None:
    with channel_refuses(403, refused("queue", other, user)):
        QUEUE_CALLS[call](limited, other)


@pytest.mark.parametrize("call", EXCHANGE_CALLS)
def test_an_exchange_out_of_reach_is_refused(limited: Any, other: str, user: str, call: str) -> None:
    with channel_refuses(403, refused("exchange", other, user)):
        EXCHANGE_CALLS[call](limited, other)


def test_a_passive_declare_needs_no_permission(limited: Any, other: str) -> None:
    limited.queue_declare(other, passive=True)
    limited.exchange_declare(other, passive=True)


def test_binding_needs_read_on_the_source(limited: Any, other: str, user: str) -> None:
    limited.queue_declare("mine", exclusive=True)
    with channel_refuses(403, refused("exchange", other, user)):
        limited.queue_bind("mine", other, "k")


def test_publishing_needs_write_on_the_exchange(limited: Any, other: str, user: str) -> None:
    with channel_refuses(403, refused("exchange", other, user)):
        limited.basic_publish(other, "k", b"")
        limited.queue_declare("mine", exclusive=True)


def test_publishing_to_the_default_exchange_is_access_to_amq_default(limited: Any, user: str) -> None:
    limited.queue_declare("mine", exclusive=True)
    with channel_refuses(403, refused("exchange", "amq.default", user)):
        limited.basic_publish("", "mine", b"")
        limited.queue_declare("mine", passive=True)


def test_a_refused_publish_names_the_method(broker: Broker, user: str, other: str) -> None:
    with broker.peer() as peer:
        peer.login(user, "secret")
        peer.open_channel(1)
        peer.publish(1, b"x", exchange=other)
        closed = peer.expect(1, commands.Channel.Close)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (403, 60, 40)


def test_a_server_named_queue_needs_configure_on_its_new_name(peer: Peer, broker: Broker, user: str) -> None:
    with broker.peer() as limited:
        limited.login(user, "secret")
        limited.open_channel(1)
        limited.send(1, commands.Queue.Declare(queue="", exclusive=True))
        code, text = limited.expect_channel_close(1)
        assert code == 403
        assert text.startswith("ACCESS_REFUSED - access to queue 'amq.gen-")


def test_a_name_that_nobody_may_declare_is_refused_before_permissions_are_looked_at(
    broker: Broker, user: str
) -> None:
    texts = {
        "": "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue",
        "amq.mine": "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
    }
    with broker.peer() as limited:
        limited.login(user, "secret")
        for queue, expected in texts.items():
            limited.open_channel(1)
            quorum = commands.Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": "quorum"})
            limited.send(1, quorum)
            assert limited.expect_channel_close(1)[1] == expected


@pytest.mark.parametrize("missing", ["write", "read"])
def test_a_dead_letter_exchange_must_be_writable_and_the_queue_readable(
    broker: Broker, connect: Any, name: str, missing: str
) -> None:
    broker.add_user(name, "secret")
    broker.set_permissions(name, "/", **{missing: "^nothing$"})
    resource = ("queue", name) if missing == "read" else ("exchange", "amq.fanout")
    with channel_refuses(403, refused(*resource, name)):
        connect(name, "secret").channel().queue_declare(
            name, arguments={"x-dead-letter-exchange": "amq.fanout"}
        )


def test_a_topic_permission_may_name_the_user_and_the_vhost(broker: Broker, connect: Any, name: str) -> None:
    broker.add_vhost(name)
    broker.add_user(name, "secret")
    broker.set_permissions(name, name)
    broker.set_topic_permission(name, name, "amq.topic", write=r"^{username}\.", read=r"^{vhost}\.")
    channel = connect(name, "secret", vhost=name).channel()
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", f"{name}.#")
    channel.basic_publish("amq.topic", f"{name}.x", b"x")
    wait_ready(channel, "q", 1)
    text = f"access to topic 'other.x' in exchange 'amq.topic' in vhost '{name}' refused for user '{name}'"
    with channel_refuses(403, f"ACCESS_REFUSED - {text}"):
        channel.basic_publish("amq.topic", "other.x", b"x")
        channel.queue_declare("q", passive=True)


def test_permitted_names_work_as_ever(limited: Any, user: str) -> None:
    mine = f"mine-{user}"
    limited.queue_declare(mine)
    limited.exchange_declare(mine, "fanout")
    limited.queue_bind(mine, mine, "")
    limited.basic_publish(mine, "", b"hello")
    assert take(limited, mine, auto_ack=True).body == b"hello"
    limited.queue_delete(mine)
    limited.exchange_delete(mine)


def test_changed_permissions_hold_for_new_connections(
    broker: Broker, connect: Any, user: str, other: str
) -> None:
    broker.set_permissions(user, "/")
    channel = connect(user, "secret").channel()
    publish(channel, other, b"now allowed")
    assert take(channel, other, auto_ack=True).body == b"now allowed"
