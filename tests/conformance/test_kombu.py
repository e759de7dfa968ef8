"""kombu (and so Celery) out of the box, over py-amqp."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.brokers import Broker
from tests.conformance.rawclient import PATIENCE_S

# Neither has types, and kombu claims it has.
amqp, kombu = import_module("amqp"), import_module("kombu")


@pytest.fixture
def kombu_connection(broker: Broker) -> Iterator[Any]:
    options = {"confirm_publish": True}
    with kombu.Connection(broker.url, transport_options=options, connect_timeout=PATIENCE_S) as one:
        yield one


@pytest.fixture
def simple(kombu_connection: Any, name: str) -> Iterator[Any]:
    """kombu's simplest queue: durable, bound to a direct exchange of its own."""
    with kombu_connection.SimpleQueue(name) as queue:
        yield queue


def test_a_simple_queue_puts_gets_acks_and_requeues(simple: Any) -> None:
    simple.put({"flight": "UA1545", "delays": [2, None, -1.5]})
    simple.put("second")
    first = simple.get(timeout=PATIENCE_S)
    assert first.payload == {"flight": "UA1545", "delays": [2, None, -1.5]}
    first.requeue()
    again = simple.get(timeout=PATIENCE_S)
    second = simple.get(timeout=PATIENCE_S)
    assert {str(one.payload) for one in (again, second)} == {str(first.payload), "second"}
    again.ack()
    second.ack()
    with pytest.raises(simple.Empty):
        simple.get(block=False)


def test_a_simple_queue_knows_its_size(simple: Any) -> None:
    for number in range(5):
        simple.put(number)
    wait_until(lambda: simple.qsize() == 5, "five messages", PATIENCE_S)
    assert simple.clear() == 5


def test_a_producer_declares_what_it_needs_and_a_consumer_gets_it(kombu_connection: Any, name: str) -> None:
    exchange = kombu.Exchange(name, "topic", durable=True)
    queue = kombu.Queue(name, exchange, routing_key="JFK.#", durable=True)
    with kombu_connection.Producer(serializer="json") as producer:
        for key in ("JFK.UA", "LGA.UA", "JFK.AA"):
            producer.publish(
                {"key": key}, exchange=exchange, routing_key=key, declare=[queue], compression="zlib"
            )
    found: list[tuple[str, str]] = []

    def on_message(body: dict[str, str], message: Any) -> None:
        found.append((body["key"], message.delivery_info["routing_key"]))
        message.ack()

    with kombu_connection.Consumer([queue], callbacks=[on_message], prefetch_count=1):
        while len(found) < 2:
            kombu_connection.drain_events(timeout=PATIENCE_S)
        with pytest.raises(socket.timeout):
            kombu_connection.drain_events(timeout=0.05)
    assert found == [("JFK.UA", "JFK.UA"), ("JFK.AA", "JFK.AA")]
    queue(kombu_connection.default_channel).delete()
    exchange(kombu_connection.default_channel).delete()


def test_a_worker_whose_tasks_wait_raises_its_prefetch(kombu_connection: Any, name: str) -> None:
    """As Celery's does for each task with a countdown: kombu chooses the kind of qos by the server's product."""
    queue = kombu.Queue(name, durable=True)
    with kombu_connection.Producer() as producer:
        for number in range(4):
            producer.publish({"number": number}, routing_key=name, declare=[queue])
    found: list[int] = []
    per_channel = not kombu_connection.qos_semantics_matches_spec
    consumer = kombu_connection.Consumer(
        [queue], callbacks=[lambda body, message: found.append(body["number"])]
    )
    consumer.qos(prefetch_count=2, apply_global=per_channel)
    consumer.consume()
    while len(found) < 2:
        kombu_connection.drain_events(timeout=PATIENCE_S)
    with pytest.raises(socket.timeout):
        kombu_connection.drain_events(timeout=0.05)
    consumer.qos(prefetch_count=3, apply_global=per_channel)
    kombu_connection.drain_events(timeout=PATIENCE_S)
    assert found == [0, 1, 2]
    consumer.cancel()
    queue(kombu_connection.default_channel).delete()


def test_a_channel_recovers_from_an_error(kombu_connection: Any, name: str) -> None:
    channel = kombu_connection.channel()
    with pytest.raises(amqp.exceptions.NotFound):
        channel.queue_declare(name, passive=True)
    again = kombu_connection.channel()
    assert again.queue_declare(name, exclusive=True).queue == name


def test_heartbeats_keep_a_connection(broker: Broker) -> None:
    with kombu.Connection(broker.url, heartbeat=1) as connection:
        connection.connect()
        ends = time.monotonic() + 2.5

        def beat() -> bool:
            connection.heartbeat_check()
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.3)
            return time.monotonic() > ends

        wait_until(beat, "some seconds of heartbeats", PATIENCE_S)
        assert connection.channel().queue_declare("", exclusive=True).queue


def test_a_wrong_password_is_access_refused(broker: Broker) -> None:
    with (
        kombu.Connection(broker.url.replace("guest:guest", "guest:wrong")) as connection,
        pytest.raises(amqp.exceptions.AccessRefused, match="Login was refused"),
    ):
        connection.connect()
