"""How connections and channels end while their client still has frames on the way."""

from __future__ import annotations

from pamqp import base, body, commands, frame, header

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import Peer
from tests.conformance.secured import Secured

RUNS = 40
BEHIND = 20
CONNECTION_CLOSE = commands.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)
CHANNEL_CLOSE = commands.Channel.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0)


def message(size: int = 512) -> bytes:
    """A publish on channel 1."""
    frames = (
        commands.Basic.Publish(routing_key="nowhere"),
        header.ContentHeader(body_size=size, properties=commands.Basic.Properties()),
        body.ContentBody(b"x" * size),
    )
    return b"".join(frame.marshal(one, 1) for one in frames)


def goodbye(peer: Peer, channel: int, close: base.Frame, answer: type[base.Frame]) -> None:
    """Close, publish on before the answer was read, then read it."""
    peer.login(channel_max=7)
    peer.open_channel(1)
    peer.send(channel, close)
    for _ in range(BEHIND):
        peer.send_octets(message())
    peer.expect(channel, answer)


def test_a_client_reads_close_ok_whatever_it_sent_behind_its_close(broker: Broker) -> None:
    for _ in range(RUNS):
        with broker.peer() as peer:
            goodbye(peer, 0, CONNECTION_CLOSE, commands.Connection.CloseOk)


def test_so_does_one_that_uses_tls(secured: Secured) -> None:
    for _ in range(RUNS):
        with secured.peer() as peer:
            goodbye(peer, 0, CONNECTION_CLOSE, commands.Connection.CloseOk)


def test_what_comes_in_the_same_write_behind_a_close_is_not_looked_at(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login()
        peer.open_channel(1)
        peer.send_octets(frame.marshal(CONNECTION_CLOSE, 0) + message() * BEHIND)
        peer.expect(0, commands.Connection.CloseOk)
        peer.send_octets(message())


def test_a_channel_s_last_frames_do_not_end_the_connection(broker: Broker) -> None:
    for _ in range(RUNS):
        with broker.peer() as peer:
            peer.login()
            peer.open_channel(1)
            peer.send_octets(frame.marshal(CHANNEL_CLOSE, 1) + message() * BEHIND)
            peer.expect(1, commands.Channel.CloseOk)
            peer.open_channel(1)


def test_the_broker_waits_for_close_ok_while_frames_of_the_channel_still_come(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login()
        peer.open_channel(1)
        peer.send(1, commands.Queue.Declare(queue="nowhere", passive=True))
        for _ in range(BEHIND):
            peer.send_octets(message())
        assert peer.expect(1, commands.Channel.Close).reply_code == 404
        peer.send_octets(message())
        peer.send(1, commands.Channel.CloseOk())
        peer.open_channel(1)


def test_the_broker_waits_for_close_ok_while_frames_of_the_connection_still_come(broker: Broker) -> None:
    for _ in range(RUNS):
        with broker.peer() as peer:
            peer.login()
            peer.open_channel(1)
            peer.send(2, commands.Basic.Qos())
            for _ in range(BEHIND):
                peer.send_octets(message())
            assert peer.expect(0, commands.Connection.Close).reply_code == 504
            for _ in range(BEHIND):
                peer.send_octets(message())
            peer.send(0, commands.Connection.CloseOk())
            peer.expect_end()
