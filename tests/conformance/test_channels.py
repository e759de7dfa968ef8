"""The life of a channel: open, close, use again; and what belongs on channel 0."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import FRAME_METHOD, Peer, raw_frame
from tests.conformance.verbs import channel_refuses, publish, take, wait_ready

OUT_OF_TURN = (504, "CHANNEL_ERROR - unexpected method in connection state running")


def test_opening_an_open_channel_gets_504(peer: Peer) -> None:
    peer.send(1, commands.Channel.Open())
    closed = peer.expect(0, commands.Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (504, "CHANNEL_ERROR - second 'channel.open' seen")
    assert (closed.class_id, closed.method_id) == (20, 10)


def test_using_a_channel_that_is_not_open_gets_504(peer: Peer) -> None:
    peer.send(2, commands.Basic.Qos())
    closed = peer.expect(0, commands.Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (504, "CHANNEL_ERROR - expected 'channel.open'")
    assert (closed.class_id, closed.method_id) == (60, 10)


def test_more_channels_than_negotiated_get_530(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login(channel_max=2)
        peer.open_channel(1)
        peer.open_channel(2)
        peer.send(3, commands.Channel.Open())
        text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
        assert peer.expect_connection_close() == (530, text)


def test_closing_a_channel_makes_room_for_another(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login(channel_max=1)
        for _ in range(3):
            peer.open_channel(1)
            peer.call(1, commands.Channel.Close(200, "bye", 0, 0), commands.Channel.CloseOk)


@pytest.mark.parametrize(
    "method",
    [commands.Channel.Open(), commands.Connection.Open(), commands.Basic.Qos()],
    ids=lambda one: one.name,
)
def test_a_method_out_of_turn_on_channel_0_gets_504(peer: Peer, method: Any) -> None:
    peer.send(0, method)
    assert peer.expect_connection_close() == OUT_OF_TURN


@pytest.mark.parametrize(
    "method", [commands.Connection.Open(), commands.Queue.DeclareOk("q", 0, 0)], ids=lambda one: one.name
)
def test_a_method_that_no_client_sends_on_a_channel_gets_503(peer: Peer, method: Any) -> None:
    peer.send(1, method)
    assert peer.expect_connection_close() == (503, "COMMAND_INVALID - unimplemented method")


def test_a_channel_number_can_be_used_again_after_the_client_closed_it(peer: Peer) -> None:
    peer.call(1, commands.Channel.Close(200, "bye", 0, 0), commands.Channel.CloseOk)
    peer.open_channel(1)
    peer.expect_silence(1)


def test_a_channel_number_can_be_used_again_after_the_broker_closed_it(peer: Peer, name: str) -> None:
    peer.send(1, commands.Queue.Declare(queue=name, passive=True))
    assert peer.expect_channel_close(1)[0] == 404
    peer.open_channel(1)
    peer.expect_silence(1)


def test_frames_behind_a_failing_method_are_dropped_until_close_ok(peer: Peer, name: str) -> None:
    peer.send(
        1,
        commands.Queue.Declare(queue=name, passive=True),
        commands.Queue.Declare(queue=name),
        commands.Basic.Qos(),
    )
    assert peer.expect_channel_close(1)[0] == 404
    peer.open_channel(1)
    peer.send(1, commands.Queue.Declare(queue=name, passive=True))
    assert peer.expect_channel_close(1)[0] == 404


def test_a_channel_error_leaves_the_other_channels_alone(peer: Peer, name: str) -> None:
    peer.open_channel(2)
    peer.send(1, commands.Queue.Declare(queue=name, passive=True))
    assert peer.expect_channel_close(1)[0] == 404
    peer.expect_silence(2)


def test_both_sides_may_close_at_once(peer: Peer, name: str) -> None:
    close = commands.Channel.Close(200, "bye", 0, 0)
    peer.send(1, commands.Queue.Declare(queue=name, passive=True), close)
    peer.expect(1, commands.Channel.Close)
    peer.expect(1, commands.Channel.CloseOk)
    peer.send(1, commands.Channel.CloseOk())
    peer.open_channel(1)


def test_flow_on_is_confirmed(peer: Peer) -> None:
    peer.send_octets(raw_frame(FRAME_METHOD, 1, b"\x00\x14\x00\x14\x01"))
    assert peer.expect(1, commands.Channel.FlowOk).active is True


def test_flow_off_gets_540(peer: Peer) -> None:
    peer.send_octets(raw_frame(FRAME_METHOD, 1, b"\x00\x14\x00\x14\x00"))
    assert peer.expect_connection_close() == (540, "NOT_IMPLEMENTED - active=false")


def test_pika_goes_on_with_a_new_channel_after_an_error(connection: Any, name: str) -> None:
    with channel_refuses(404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        connection.channel().queue_declare(name, passive=True)
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, b"on we go")
    assert take(channel, name).body == b"on we go"


def test_many_channels_work_side_by_side(connection: Any, name: str) -> None:
    channels = [connection.channel() for _ in range(50)]
    channels[0].queue_declare(name, exclusive=True)
    for one in channels:
        publish(one, name, b"x")
        one.basic_qos()
    wait_ready(channels[0], name, len(channels))
