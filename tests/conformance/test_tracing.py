"""Tracing (the firehose): copies of what is published and delivered in a vhost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest

from tests.conformance.brokers import Broker
from tests.conformance.verbs import Consumer, publish, take, wait_ready

TRACE = "amq.rabbitmq.trace"
PROPERTIES = pika.BasicProperties(
    content_type="text/plain",
    headers={"x": 1, "CC": ["other"]},
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    expiration="60000",
    timestamp=1_600_000_000,
    user_id="guest",
)
AS_TABLE = {
    "content_type": "text/plain",
    "headers": {"x": 1, "CC": ["other"]},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "expiration": "60000",
    "timestamp": 1_600_000_000,
    "user_id": "guest",
}


@pytest.fixture
def vhost(broker: Broker, http: httpx.Client, name: str) -> Iterator[str]:
    """A vhost of the test's own, which is not traced."""
    broker.add_vhost(name)
    yield name
    http.delete(f"vhosts/{name}").raise_for_status()


@pytest.fixture
def channel(connect: Any, vhost: str) -> Any:
    """A channel in that vhost, with a queue `q` and a queue `traces` that gets all copies."""
    channel = connect(vhost=vhost).channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    channel.queue_declare("traces")
    channel.queue_bind("traces", TRACE, "#")
    return channel


def traced(broker: Broker, vhost: str, *, on: bool = True) -> None:
    printed = broker.ctl("trace_on" if on else "trace_off", "-p", vhost).stdout
    word = "enabled" if on else "disabled"
    assert f"Trace {word} for vhost {vhost}" in printed


def copies(channel: Any, count: int) -> list[tuple[str, dict[str, Any], bytes]]:
    """Key, headers and body of the copies, of which there must be as many; without what is another each time."""
    wait_ready(channel, "traces", count)
    found: list[tuple[str, dict[str, Any], bytes]] = []
    while True:
        method, properties, body = channel.basic_get("traces", auto_ack=True)
        if method is None:
            return found
        headers = dict(properties.headers)
        node, connection = headers.pop("node"), headers.pop("connection")
        assert "@" in node
        assert " -> 127.0.0.1:" in connection
        assert (method.exchange, properties.delivery_mode) == (TRACE, None)
        found.append((method.routing_key, headers, body))


def test_what_is_published_and_delivered_is_copied_with_all_that_is_known(
    broker: Broker, vhost: str, channel: Any
) -> None:
    traced(broker, vhost)
    channel.exchange_declare("x", "topic")
    channel.queue_bind("q", "x", "a.#")
    channel.basic_publish("x", "a.b", b"m", PROPERTIES)
    held = take(channel, "q")
    channel.basic_reject(held.delivery_tag, requeue=True)
    take(channel, "q", auto_ack=True)
    of_message = {"exchange_name": "x", "routing_keys": ["a.b", "other"], "properties": AS_TABLE}
    of_channel = {"vhost": vhost, "channel": channel.channel_number, "user": "guest"}
    common = of_message | of_channel
    assert copies(channel, 3) == [
        ("publish.x", common | {"routed_queues": ["q"]}, b"m"),
        ("deliver.q", common | {"redelivered": 0}, b"m"),
        ("deliver.q", common | {"redelivered": 1}, b"m"),
    ]


def test_a_message_of_the_default_exchange_and_one_that_goes_nowhere(
    broker: Broker, vhost: str, channel: Any
) -> None:
    traced(broker, vhost)
    channel.basic_publish("", "q", b"")
    channel.basic_publish("amq.fanout", "k", b"m")
    [(key, headers, body), nowhere] = copies(channel, 2)
    assert (key, body) == ("publish.", b"")
    assert (headers["exchange_name"], headers["routing_keys"]) == ("", ["q"])
    assert (headers["routed_queues"], headers["properties"]) == (["q"], {})
    assert (nowhere[0], nowhere[1]["routed_queues"]) == ("publish.amq.fanout", [])


def test_nothing_is_copied_before_tracing_is_on_after_it_is_off_and_in_other_vhosts(
    broker: Broker, vhost: str, channel: Any, connect: Any
) -> None:
    publish(channel, "q", b"before")
    traced(broker, vhost)
    elsewhere = connect().channel()
    publish(elsewhere, elsewhere.queue_declare("", exclusive=True).method.queue, b"elsewhere")
    publish(channel, "q", b"on")
    traced(broker, vhost, on=False)
    publish(channel, "q", b"after")
    assert [body for _, _, body in copies(channel, 1)] == [b"on"]


def test_messages_for_a_consumer_are_copied_one_by_one(broker: Broker, vhost: str, channel: Any) -> None:
    publish(channel, "q", b"1", b"2", b"3")
    traced(broker, vhost)
    Consumer(channel, "q", auto_ack=True).wait(3)
    delivered = [(key, body) for key, _, body in copies(channel, 3)]
    assert delivered == [("deliver.q", b"1"), ("deliver.q", b"2"), ("deliver.q", b"3")]


def test_the_vhost_tells_whether_it_is_traced_and_is_switched_over_http(
    vhost: str, channel: Any, http: httpx.Client
) -> None:
    def is_traced() -> bool:
        return bool(http.get(f"vhosts/{vhost}").json()["tracing"])

    assert not is_traced()
    http.put(f"vhosts/{vhost}", json={"tracing": True}).raise_for_status()
    assert is_traced()
    http.put(f"vhosts/{vhost}", json={}).raise_for_status()
    assert is_traced()
    publish(channel, "q", b"m")
    assert len(copies(channel, 1)) == 1
    http.put(f"vhosts/{vhost}", json={"tracing": False}).raise_for_status()
    assert not is_traced()
