"""Octets that break the protocol: the connection ends, the reason is told, the broker stays."""

from __future__ import annotations

import contextlib
import struct

import pytest
from pamqp import body, commands, header

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    Closed,
    Peer,
    raw_frame,
)

UNEXPECTED_CONTENT = (505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead")
HEADER_EXPECTED = (
    505,
    "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
)
BODY_EXPECTED = (505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead")
CONTENT_HEADER = header.ContentHeader(body_size=3)
QOS = commands.Basic.Qos()


def assert_still_serves(broker: Broker) -> None:
    with broker.peer() as another:
        another.login()
        another.open_channel(1)


def test_a_wrong_frame_end_gets_501(broker: Broker, peer: Peer) -> None:
    peer.send_octets(raw_frame(FRAME_METHOD, 1, b"\x00\x14\x00\x0a\x00", end=0))
    closed = peer.expect(0, commands.Connection.Close)
    text = "FRAME_ERROR - type 1, all octets = <<0,20,0,10,0>>: {invalid_frame_end_marker,0}"
    assert (closed.reply_code, closed.reply_text) == (501, text)
    assert_still_serves(broker)


def test_an_unknown_frame_type_gets_501(broker: Broker, peer: Peer) -> None:
    peer.send_octets(raw_frame(7, 1, b"abc"))
    text = 'FRAME_ERROR - type 7, all octets = <<"abc">>: unknown_frame'
    assert peer.expect_connection_close() == (501, text)
    assert_still_serves(broker)


def test_a_payload_as_long_as_frame_max_is_let_be(peer: Peer) -> None:
    payload = bytes(131_072)
    peer.call(1, commands.Queue.Declare(queue="", exclusive=True), commands.Queue.DeclareOk)
    peer.send(1, commands.Basic.Publish(routing_key=""), header.ContentHeader(body_size=len(payload)))
    peer.send_octets(raw_frame(FRAME_BODY, 1, payload))
    peer.call(1, QOS, commands.Basic.QosOk)


@pytest.mark.parametrize("announced", [131073, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_frame_that_announces_more_than_frame_max_gets_501_at_once(
    broker: Broker, peer: Peer, announced: int
) -> None:
    peer.send_octets(struct.pack(">BHI", FRAME_BODY, 1, announced) + b"a few octets")
    closed = peer.expect(0, commands.Connection.Close)
    text = f"FRAME_ERROR - type 3, all octets = <<>>: {{frame_too_large,{announced},131064}}"
    assert (closed.reply_code, closed.reply_text) == (501, text)
    assert_still_serves(broker)


def test_frame_max_is_the_negotiated_one(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login(frame_max=4096)
        peer.open_channel(1)
        peer.send_octets(struct.pack(">BHI", FRAME_METHOD, 1, 0x7FFFFFFF))
        code, text = (closed := peer.expect(0, commands.Connection.Close)).reply_code, closed.reply_text
        assert (code, text) == (
            501,
            "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,2147483647,4088}",
        )


def test_a_frame_of_exactly_frame_max_passes(broker: Broker, name: str) -> None:
    content = b"x" * (4096 - 8)
    with broker.peer() as peer:
        peer.login(frame_max=4096)
        peer.open_channel(1)
        peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
        peer.publish(1, content, routing_key=name)
        peer.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)
        assert peer.expect_content(1) == content


def test_the_broker_sends_no_frame_above_the_negotiated_size(broker: Broker, name: str) -> None:
    content = b"y" * 10_000
    with broker.peer() as sender, broker.peer() as receiver:
        sender.login()
        sender.open_channel(1)
        sender.call(1, commands.Queue.Declare(queue=name, auto_delete=True), commands.Queue.DeclareOk)
        sender.publish(1, content, routing_key=name)
        sender.expect_silence(1)
        receiver.login(frame_max=4096)
        receiver.open_channel(1)
        receiver.call(1, commands.Basic.Consume(queue=name), commands.Basic.ConsumeOk)
        sizes = [len(receiver.receive_frame()[2]) for _ in range(2 + 3)]
        assert max(sizes) == 4096
        assert sum(sizes[2:]) - 3 * 8 == len(content)


def test_a_method_that_cannot_be_decoded_gets_501(broker: Broker, peer: Peer) -> None:
    peer.send_octets(raw_frame(FRAME_METHOD, 1, b"\x00\x32\x00\x0a\x00\x00\xff"))
    closed = peer.expect(0, commands.Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (501, "FRAME_ERROR - cannot decode <<0,0,255>>")
    assert (closed.class_id, closed.method_id) == (50, 10)
    assert_still_serves(broker)


def test_a_method_frame_without_a_method_gets_501(peer: Peer) -> None:
    peer.send_octets(raw_frame(FRAME_METHOD, 1, b"\x00\x14"))
    text = "FRAME_ERROR - type 1, all octets = <<0,20>>: unknown_frame"
    assert peer.expect_connection_close() == (501, text)


@pytest.mark.parametrize("method", [(77, 10), (60, 199), (0, 0)])
def test_an_unknown_method_ends_the_connection_only(
    broker: Broker, peer: Peer, method: tuple[int, int]
) -> None:
    """RabbitMQ's reader fails on it without a word; saying 540 or 503 first is no worse."""
    peer.send_octets(raw_frame(FRAME_METHOD, 1, struct.pack(">HH", *method)))
    with contextlib.suppress(Closed, ConnectionError):
        assert peer.expect_connection_close()[0] in (503, 540)
    assert_still_serves(broker)


@pytest.mark.parametrize("content", [CONTENT_HEADER, body.ContentBody(b"abc")], ids=["header", "body"])
def test_content_that_no_publish_announced_gets_505(
    peer: Peer, content: header.ContentHeader | body.ContentBody
) -> None:
    peer.send(1, content)
    assert peer.expect_connection_close() == UNEXPECTED_CONTENT


@pytest.mark.parametrize("instead", [QOS, body.ContentBody(b"abc")], ids=["method", "body"])
def test_anything_but_a_header_after_a_publish_gets_505(
    peer: Peer, instead: commands.Basic.Qos | body.ContentBody
) -> None:
    peer.send(1, commands.Basic.Publish(), instead)
    assert peer.expect_connection_close() == HEADER_EXPECTED


def test_a_header_of_another_class_gets_505(peer: Peer) -> None:
    peer.send(1, commands.Basic.Publish())
    peer.send_octets(raw_frame(FRAME_HEADER, 1, struct.pack(">HHQH", 50, 0, 3, 0)))
    text = "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead"
    assert peer.expect_connection_close() == (505, text)


def test_a_method_where_the_body_should_be_gets_505(peer: Peer) -> None:
    peer.send(1, commands.Basic.Publish(), CONTENT_HEADER, QOS)
    assert peer.expect_connection_close() == BODY_EXPECTED


def test_contents_of_two_channels_may_interleave(peer: Peer, name: str) -> None:
    peer.open_channel(2)
    peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
    for channel in (1, 2):
        peer.send(channel, commands.Basic.Publish(routing_key=name))
    for channel in (1, 2):
        peer.send(channel, CONTENT_HEADER)
    for channel, half in ((1, b"on"), (2, b"tw"), (1, b"e"), (2, b"o")):
        peer.send(channel, body.ContentBody(half))
    peer.expect_silence(1)
    peer.expect_silence(2)
    found = set()
    for _ in range(2):
        peer.call(1, commands.Basic.Get(queue=name, no_ack=True), commands.Basic.GetOk)
        found.add(peer.expect_content(1))
    assert found == {b"one", b"two"}


def test_a_heartbeat_on_a_channel_gets_505(peer: Peer) -> None:
    peer.send_octets(raw_frame(FRAME_HEARTBEAT, 1, b""))
    assert peer.expect_connection_close() == (505, "UNEXPECTED_FRAME - type 8, all octets = <<>>")


def test_octets_may_arrive_one_at_a_time(peer: Peer) -> None:
    for octet in raw_frame(FRAME_METHOD, 2, b"\x00\x14\x00\x0a\x00"):
        peer.send_octets(bytes([octet]))
    peer.expect(2, commands.Channel.OpenOk)


def test_a_client_that_dies_in_the_middle_of_a_frame_hurts_nobody(broker: Broker) -> None:
    with broker.peer() as dying:
        dying.login()
        dying.open_channel(1)
        dying.send_octets(raw_frame(FRAME_METHOD, 1, b"\x00\x14\x00\x14\x01")[:-3])
    assert_still_serves(broker)
