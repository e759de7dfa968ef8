from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from pamqp import body, commands, frame, header

from bench.client import LoadError
from bench.many import ManyJob, Publishing, expect_tag, queue_name
from bench.selftest import SinkNode
from bench.workers import Worker, measured

pytestmark = pytest.mark.process

DELIVERY = frame.marshal(commands.Basic.Deliver("007", 4711, False, "", "many-001-007"), 1)


@pytest.fixture(scope="module")
def sink() -> Iterator[SinkNode]:
    with SinkNode() as node:
        yield node


def test_the_names_of_all_queues_have_one_length() -> None:
    assert len({len(queue_name(place, number)) for place in (0, 9, 42) for number in (0, 10, 999)}) == 1


def test_a_connection_goes_through_its_queues_with_every_message(sink: SinkNode) -> None:
    publishing = Publishing(ManyJob("publish", sink.amqp_port, queues=3, body_bytes=20, window=10), 4)
    publishing.connection.close()
    octets, queues = bytes(publishing.view[: 7 * publishing.stride]), []
    while octets:
        size, _, unmarshalled = frame.unmarshal(octets)
        octets = octets[size:]
        if isinstance(unmarshalled, commands.Basic.Publish):
            queues.append(unmarshalled.routing_key)
        else:
            assert isinstance(unmarshalled, header.ContentHeader | body.ContentBody)
    assert queues == [queue_name(4, number) for number in (0, 1, 2, 0, 1, 2, 0)]


@pytest.mark.parametrize(("queues", "window"), [(1, 1), (3, 10), (10, 1000)])
def test_a_window_can_begin_at_any_message_of_the_ring(queues: int, window: int, sink: SinkNode) -> None:
    job = ManyJob("publish", sink.amqp_port, queues=queues, body_bytes=20, window=window)
    publishing = Publishing(job, 0)
    publishing.connection.close()
    assert publishing.turn_bytes % (queues * publishing.stride) == 0
    last = publishing.turn_bytes - publishing.stride
    assert len(publishing.view) >= last + window * publishing.stride


def test_a_delivery_with_the_tag_that_the_count_says_is_taken() -> None:
    expect_tag(bytearray(b"before" + DELIVERY), 6, len(DELIVERY), 4711)


def test_a_delivery_with_another_tag_ends_the_run() -> None:
    with pytest.raises(LoadError, match=r"tag 4712 here, found Basic\.Deliver"):
        expect_tag(bytearray(DELIVERY), 0, len(DELIVERY), 4712)


def test_a_delivery_that_ends_elsewhere_ends_the_run() -> None:
    with pytest.raises(LoadError, match="tag 4711 here"):
        expect_tag(bytearray(DELIVERY + bytes(10)), 0, len(DELIVERY) + 10, 4711)


def test_what_is_published_is_delivered(sink: SinkNode) -> None:
    job = ManyJob("publish", sink.amqp_port, connections=1, queues=1, seconds=0.4)
    consumer = Worker(dataclasses.replace(job, role="consume"), "bench.many")
    with consumer, Worker(job, "bench.many") as publisher:
        run = measured(sink, publisher, consumer, 0.1, 0.3)
    assert run.rate > 0
    assert run.published >= 0.9 * run.rate * 0.3
