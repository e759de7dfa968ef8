from __future__ import annotations

import socket
import threading

import pytest
from pamqp import body, commands, frame, header

from bench.client import CHANNEL, Connection, LoadError, Message, describe, ring
from bench.load import PublishJob
from bench.selftest import SinkNode
from bench.workers import Worker
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process

MESSAGE = Message("logs", "eu.1", 100, True)


def test_a_message_is_three_frames_with_the_body_where_it_says() -> None:
    octets = MESSAGE.encode(b"x" * 100)
    assert len(octets) == MESSAGE.stride
    assert octets[MESSAGE.body_at : MESSAGE.body_at + 100] == b"x" * 100
    size, channel, publish = frame.unmarshal(octets)
    assert isinstance(publish, commands.Basic.Publish)
    assert (channel, publish.exchange, publish.routing_key) == (CHANNEL, "logs", "eu.1")
    more, _, head = frame.unmarshal(octets[size:])
    assert isinstance(head, header.ContentHeader)
    assert (head.body_size, head.properties.delivery_mode) == (100, 2)
    assert isinstance(frame.unmarshal(octets[size + more :])[2], body.ContentBody)


@pytest.mark.parametrize(("persistent", "mode"), [(True, 2), (False, 1)])
def test_persistence_is_the_delivery_mode(persistent: bool, mode: int) -> None:
    octets = Message("", "q", 1, persistent).encode(b"x")
    size = frame.unmarshal(octets)[0]
    head = frame.unmarshal(octets[size:])[2]
    assert isinstance(head, header.ContentHeader)
    assert head.properties.delivery_mode == mode


def test_a_run_of_the_ring_is_whole_wherever_it_begins() -> None:
    octets = ring(MESSAGE, 10, 4)
    assert len(octets) == 14 * MESSAGE.stride
    assert octets[10 * MESSAGE.stride :] == octets[: 4 * MESSAGE.stride]


def test_the_bodies_of_a_ring_differ() -> None:
    octets, stride = ring(MESSAGE, 50, 0), MESSAGE.stride
    assert len({bytes(octets[at : at + stride]) for at in range(0, len(octets), stride)}) == 50


def test_what_a_broker_sent_is_described_by_its_name_and_reason() -> None:
    close = frame.marshal(commands.Channel.Close(404, "NOT_FOUND - no queue 'q'", 50, 10), 1)
    assert describe(close) == "Channel.Close NOT_FOUND - no queue 'q'"
    assert "no frame" in describe(b"HTTP/1.1 400")


def test_a_broker_that_hangs_up_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(8)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(LoadError, match="closed the connection"):
            Connection(server.getsockname()[1])
        thread.join()


def test_a_connection_declares_and_asks() -> None:
    with SinkNode() as sink:
        connection = Connection(sink.amqp_port)
        connection.declare_queue("q")
        connection.confirm_select()
        assert connection.ready_messages("q") == 0
        connection.close()


def test_to_peek_at_a_queue_leaves_its_first_message_there(leveret: LeveretProcess) -> None:
    with Worker(PublishJob(leveret.amqp_port, "peeked", count=3)) as publisher:
        leader_client = Connection(leveret.amqp_port)
        leader_client.declare_queue("peeked")
        publisher.ready().go()
        publisher.result()
    assert len(leader_client.peek("peeked")) == PublishJob.body_bytes
    assert leader_client.ready_messages("peeked") == 2
    leader_client.close()
    again = Connection(leveret.amqp_port)
    wait_until(lambda: again.ready_messages("peeked") == 3, "the message to be back", 60)
    again.delete_queue("peeked")
    again.close()
