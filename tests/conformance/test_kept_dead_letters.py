"""Quorum queues with `dead-letter-strategy: at-least-once`: dead letters stay until every target queue has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pika
import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.brokers import RABBITMQ, Broker
from tests.conformance.test_metrics import GLOBAL, expect, scraped
from tests.conformance.verbs import drain, get, publish, ready_count, take, wait_ready

KEEPING = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
PATIENCE_S = 30.0
"""RabbitMQ gathers a queue's figures every five seconds."""


@pytest.fixture
def at_once(broker: Broker) -> None:
    """RabbitMQ tries letters again after 3 minutes, by a setting that its configuration file does not have."""
    if broker.kind == RABBITMQ:
        broker.ctl("eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000).")


pytestmark = pytest.mark.usefixtures("at_once")


def keeping(
    channel: Any, name: str, *, exchange: str = "", key: str | None = None, more: dict[str, Any] | None = None
) -> str:
    """A quorum queue that keeps its dead letters, which go to this exchange."""
    arguments = {**KEEPING, "x-dead-letter-exchange": exchange, **(more or {})}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    channel.queue_declare(name, durable=True, arguments=arguments)
    return name


def reject(channel: Any, queue: str, *bodies: bytes) -> None:
    """Publish messages and reject them."""
    publish(channel, queue, *bodies)
    wait_ready(channel, queue, len(bodies))
    for _ in bodies:
        channel.basic_reject(take(channel, queue).delivery_tag, requeue=False)


def figures(broker: Broker, queue: str) -> dict[str, int]:
    told = broker.api(f"queues/%2F/{queue}")
    names = ("messages", "messages_ready", "messages_unacknowledged", "messages_dlx")
    octets = ("message_bytes", "message_bytes_ready", "message_bytes_unacknowledged", "message_bytes_dlx")
    return {name: told.get(name, -1) for name in (*names, *octets)}


def until(broker: Broker, queue: str, **expected: int) -> None:
    def is_so() -> bool:
        found = figures(broker, queue)
        return {name: found[name] for name in expected} == expected

    try:
        wait_until(is_so, "the figures", PATIENCE_S)
    except AssertionError:
        raise AssertionError(f"{figures(broker, queue)} instead of {expected}") from None


def test_letters_without_a_target_count_as_messages_of_their_queue(
    broker: Broker, channel: Any, name: str
) -> None:
    keeping(channel, name, exchange=f"x-{name}")
    publish(channel, name, b"12345", b"1234567", b"-")
    wait_ready(channel, name, 3)
    for _ in range(2):
        channel.basic_reject(take(channel, name).delivery_tag, requeue=False)
    until(broker, name, messages=3, messages_ready=1, messages_unacknowledged=0, messages_dlx=2)
    until(
        broker,
        name,
        message_bytes=13,
        message_bytes_ready=1,
        message_bytes_unacknowledged=0,
        message_bytes_dlx=12,
    )
    assert ready_count(channel, name) == 1
    channel.queue_purge(name)
    until(broker, name, messages=2, messages_ready=0, messages_dlx=2)
    channel.queue_delete(name)


def test_letters_go_when_their_exchange_and_its_queue_are_there(
    broker: Broker, channel: Any, queue: str, name: str
) -> None:
    source = keeping(channel, f"s-{name}", exchange=f"x-{name}", key="k")
    reject(channel, source, b"1", b"2")
    until(broker, source, messages_dlx=2)
    channel.exchange_declare(f"x-{name}", "direct", auto_delete=True)
    channel.queue_bind(queue, f"x-{name}", "k")
    wait_ready(channel, queue, 2)
    until(broker, source, messages=0, messages_dlx=0)
    first = take(channel, queue)
    (death,) = first.properties.headers["x-death"]
    assert death.pop("time")
    assert (first.body, death) == (
        b"1",
        {"count": 1, "reason": "rejected", "queue": source, "exchange": "", "routing-keys": [source]},
    )
    channel.queue_delete(source)


def test_letters_wait_until_a_full_queue_has_room(broker: Broker, channel: Any, name: str) -> None:
    full = f"f-{name}"
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    source = keeping(channel, f"s-{name}", key=full)
    reject(channel, source, b"1", b"2", b"3")
    until(broker, source, messages_dlx=2)
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 3 and time.monotonic() < deadline:
        found += drain(channel, full)
        time.sleep(0.2)
    assert sorted(found) == [b"1", b"2", b"3"]
    until(broker, source, messages=0)
    for each in (source, full):
        channel.queue_delete(each)


def test_a_target_that_has_a_letter_does_not_get_it_again_with_one_that_is_full(
    broker: Broker, channel: Any, queue: str, name: str
) -> None:
    full, exchange = f"f-{name}", f"x-{name}"
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    for each in (full, queue):
        channel.queue_bind(each, exchange)
    source = keeping(channel, f"s-{name}", exchange=exchange)
    reject(channel, source, b"1", b"2")
    wait_ready(channel, queue, 2)
    until(broker, source, messages_dlx=1)
    assert drain(channel, full) == [b"1"]
    wait_until(lambda: drain(channel, full) == [b"2"], "the second one", PATIENCE_S)
    until(broker, source, messages=0)
    assert drain(channel, queue) == [b"1", b"2"]
    for each in (source, full):
        channel.queue_delete(each)


def test_expired_and_often_returned_messages_are_kept_with_their_reason(
    broker: Broker, channel: Any, queue: str, name: str
) -> None:
    exchange = f"x-{name}"
    expiring = keeping(channel, f"e-{name}", exchange=exchange, more={"x-message-ttl": 10})
    poisoned = keeping(channel, f"p-{name}", exchange=exchange, more={"x-delivery-limit": 0})
    publish(channel, expiring, b"expired")
    publish(channel, poisoned, b"delivery_limit")
    wait_ready(channel, poisoned, 1)
    channel.basic_nack(take(channel, poisoned).delivery_tag, requeue=True)
    for each in (expiring, poisoned):
        until(broker, each, messages=1, messages_dlx=1)
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_bind(queue, exchange)
    wait_ready(channel, queue, 2)
    found = [take(channel, queue) for _ in range(2)]
    assert {one.body.decode(): one.properties.headers["x-first-death-reason"] for one in found} == {
        reason: reason for reason in ("expired", "delivery_limit")
    }
    for each in (expiring, poisoned):
        channel.queue_delete(each)


def test_a_letter_that_would_come_back_to_its_queue_by_itself_stays(
    broker: Broker, channel: Any, name: str
) -> None:
    keeping(channel, name, key=name, more={"x-message-ttl": 10})
    publish(channel, name, b"x")
    until(broker, name, messages=1, messages_ready=0, messages_dlx=1)
    channel.queue_delete(name)


def test_dead_letters_count_for_the_length_limit_of_their_queue(channel: Any, name: str) -> None:
    """RabbitMQ notices that a queue is full somewhat later than with the message that makes it full."""
    keeping(channel, name, exchange=f"x-{name}", more={"x-max-length": 3})
    channel.confirm_delivery()

    def publish_and_reject() -> None:
        for _ in range(10):
            publish(channel, name, b"x")
            channel.basic_reject(take(channel, name).delivery_tag, requeue=False)
            time.sleep(0.1)

    with pytest.raises(pika.exceptions.NackError):
        publish_and_reject()
    assert get(channel, name) is None
    channel.queue_delete(name)


def _policy(http: httpx.Client, name: str, **definition: Any) -> Callable[[], object]:
    """Set a policy; return its removal."""
    path = f"policies/%2F/{name}"
    json = {"pattern": f"^{name}$", "definition": definition, "apply-to": "queues"}
    http.put(path, json=json).raise_for_status()
    return lambda: http.delete(path).raise_for_status()


def test_policies_make_a_queue_keep_its_letters_and_end_it(
    broker: Broker, http: httpx.Client, channel: Any, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    definition = {
        "dead-letter-strategy": "at-least-once",
        "dead-letter-exchange": f"x-{name}",
        "overflow": "reject-publish",
    }
    _policy(http, name, **definition)
    wait_until(lambda: broker.api(f"queues/%2F/{name}").get("policy") == name, "the policy", PATIENCE_S)
    reject(channel, name, b"x")
    until(broker, name, messages=1, messages_dlx=1)
    # Without the other settings that the strategy needs, it is at-most-once.
    remove = _policy(http, name, **(definition | {"overflow": "drop-head"}))
    until(broker, name, messages=0, messages_dlx=0)
    reject(channel, name, b"x")
    until(broker, name, messages=0, messages_dlx=0)
    remove()
    channel.queue_delete(name)


def test_kept_letters_are_counted_when_they_die_and_when_all_queues_have_them(
    broker: Broker, channel: Any, queue: str, name: str
) -> None:
    before = scraped(broker)
    source = keeping(channel, f"s-{name}", key=queue)
    reject(channel, source, b"1", b"2")
    wait_ready(channel, queue, 2)
    labels = (("dead_letter_strategy", "at_least_once"), ("queue_type", "rabbit_quorum_queue"))
    counts = {"rejected": 2, "expired": 0, "delivery_limit": 0, "confirmed": 2}
    expect(broker, {(f"{GLOBAL}dead_lettered_{why}_total", labels): n for why, n in counts.items()}, before)
    channel.queue_delete(source)
