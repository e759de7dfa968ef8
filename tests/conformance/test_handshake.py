"""How a connection begins: start, tune, open, and their refusals.

RabbitMQ says nothing while a connection is not open yet: it waits three seconds and ends the TCP
connection. A broker that says why first is no worse, so both pass here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pika
import pytest
from pamqp import commands

from leveret.testing.network.ports import AMQP_HEADER
from tests.conformance.brokers import Broker
from tests.conformance.rawclient import Closed, Peer

CAPABILITIES = {
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "consumer_priorities",
    "direct_reply_to",
    "exchange_exchange_bindings",
    "per_consumer_qos",
    "publisher_confirms",
}
NEEDED = CAPABILITIES - {"connection.blocked", "consumer_priorities", "direct_reply_to"}
LOGIN_REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
    "For details see the broker logfile."
)


def expect_refusal_before_open(peer: Peer) -> None:
    """Check that no open-ok comes, but the end, and before it at most a connection.close."""
    try:
        _, received = peer.receive()
    except (Closed, ConnectionError):
        return
    assert isinstance(received, commands.Connection.Close), received
    peer.send(0, commands.Connection.CloseOk())
    peer.expect_end()


def test_start_offers_version_mechanism_and_locale(broker: Broker) -> None:
    with broker.peer() as peer:
        start = peer.start()
        assert (start.version_major, start.version_minor) == (0, 9)
        assert "PLAIN" in start.mechanisms.split()
        assert "en_US" in start.locales.split()


def test_start_announces_the_capabilities_clients_decide_by(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.start()
        announced = {name for name, has in peer.server_properties["capabilities"].items() if has}
        assert NEEDED <= announced <= CAPABILITIES


def test_start_announces_exactly_the_capabilities_of_rabbitmq(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.start()
        assert peer.server_properties["capabilities"] == dict.fromkeys(CAPABILITIES, True)


def test_start_says_who_answers(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.start()
        for key in ("product", "version", "platform", "cluster_name"):
            assert isinstance(peer.server_properties[key], str), key
            assert peer.server_properties[key], key


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x05\x00\x00\x00", b"AMQP\x00\x00\x09\x07"]
)
def test_an_unknown_protocol_header_is_answered_with_the_right_one(broker: Broker, greeting: bytes) -> None:
    with broker.peer() as peer:
        peer.send_octets(greeting)
        assert peer.read_octets(len(AMQP_HEADER)) == AMQP_HEADER
        peer.expect_end()


def test_the_header_of_amqp_0_9_begins_a_connection_of_0_9_1(broker: Broker) -> None:
    """The Perl clients on Net::AMQP send it."""
    with broker.peer() as peer:
        peer.send_octets(b"AMQP\x01\x01\x00\x09")
        start = peer.expect(0, commands.Connection.Start)
        assert (start.version_major, start.version_minor) == (0, 9)


def test_tune_proposes_what_rabbitmq_proposes(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.authenticate()
        proposed = peer.tune()
        assert dict(proposed) == {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60}


def test_a_client_may_tune_down_to_the_smallest_frame(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login(channel_max=1, frame_max=4096)
        peer.open_channel(1)


def test_tune_values_out_of_bounds_and_methods_out_of_turn_end_the_connection(broker: Broker) -> None:
    """One test, because RabbitMQ takes three seconds for each and they can pass at once."""
    open_ = commands.Connection.Open()
    wrong: list[dict[str, int]] = [
        {"channel_max": 0},
        {"channel_max": 4000},
        {"frame_max": 0},
        {"frame_max": 4095},
        {"frame_max": 131073},
    ]
    with ExitStack() as held:
        peers = [held.enter_context(broker.peer()) for _ in wrong]
        for values, peer in zip(wrong, peers, strict=True):
            peer.authenticate()
            peer.tune(**values)
            peer.send(0, open_)
        out_of_turn = held.enter_context(broker.peer())
        out_of_turn.start()
        out_of_turn.send(0, open_)
        too_early = held.enter_context(broker.peer())
        too_early.start()
        too_early.send(1, commands.Channel.Open())
        odd = held.enter_context(broker.peer())
        odd.authenticate(mechanism="ODD")
        for peer in (*peers, out_of_turn, too_early, odd):
            expect_refusal_before_open(peer)


def test_right_password_opens_the_vhost(connect: Callable[..., pika.BlockingConnection]) -> None:
    assert connect().channel().is_open


@pytest.mark.parametrize(("username", "password"), [("guest", "wrong"), ("nobody", "guest"), ("guest", "")])
def test_wrong_credentials_get_403_if_the_client_can_take_it(
    broker: Broker, username: str, password: str
) -> None:
    with broker.peer() as peer:
        peer.authenticate(username, password)
        closed = peer.expect(0, commands.Connection.Close)
        assert (closed.reply_code, closed.reply_text) == (403, LOGIN_REFUSED)
        assert (closed.class_id, closed.method_id) == (0, 0)
        peer.send(0, commands.Connection.CloseOk())
        peer.expect_end()


def test_wrong_credentials_end_the_connection_without_a_word_otherwise(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.authenticate("guest", "wrong", capabilities={})
        peer.expect_end()


def test_pika_calls_a_wrong_password_an_authentication_error(broker: Broker) -> None:
    with pytest.raises(
        pika.exceptions.ProbableAuthenticationError, match=r"ACCESS_REFUSED - Login was refused"
    ):
        broker.connect(password="wrong")


def open_refused(
    broker: Broker, vhost: str, username: str = "guest", password: str = "guest"
) -> commands.Connection.Close:
    """Try to open `vhost`; return the connection.close that comes instead of open-ok."""
    with broker.peer() as peer:
        peer.authenticate(username, password)
        peer.tune()
        peer.send(0, commands.Connection.Open(virtual_host=vhost))
        closed = peer.expect(0, commands.Connection.Close)
        peer.send(0, commands.Connection.CloseOk())
        peer.expect_end()
    return closed


def test_an_unknown_vhost_gets_530(broker: Broker) -> None:
    closed = open_refused(broker, "nowhere")
    assert (closed.reply_code, closed.reply_text) == (530, "NOT_ALLOWED - vhost nowhere not found")
    assert (closed.class_id, closed.method_id) == (10, 40)


def test_a_vhost_without_permission_gets_530(broker: Broker, name: str) -> None:
    broker.add_user(name, "secret")
    closed = open_refused(broker, "/", username=name, password="secret")
    text = f"NOT_ALLOWED - access to vhost '/' refused for user '{name}'"
    assert (closed.reply_code, closed.reply_text) == (530, text)
    assert (closed.class_id, closed.method_id) == (10, 40)


def test_queues_of_different_vhosts_are_different(
    broker: Broker, connect: Any, channel: Any, name: str
) -> None:
    broker.add_vhost(name)
    there = connect(vhost=name).channel()
    there.queue_declare(name)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
        channel.queue_declare(name, passive=True)


def test_a_client_close_is_confirmed(peer: Peer, name: str) -> None:
    peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
    peer.publish(1, b"last words", routing_key=name)
    peer.call(0, commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk)
