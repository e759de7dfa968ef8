"""Where messages go that expired, were dropped or were rejected."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest

from tests.conformance.verbs import drain, publish, ready_count, take, wait_ready


def test_an_expired_message_goes_to_the_dead_letter_exchange(channel: Any, queue: str, name: str) -> None:
    arguments = {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    dying = f"dying-{name}"
    channel.queue_declare(dying, exclusive=True, arguments=arguments)
    publish(channel, dying, b"x")
    wait_ready(channel, queue, 1)
    (death,) = take(channel, queue).properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (dying, "expired", 1)


def test_a_rejected_message_goes_to_the_dead_letter_exchange(channel: Any, queue: str, name: str) -> None:
    refusing = f"refusing-{name}"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(refusing, exclusive=True, arguments=arguments)
    publish(channel, refusing, b"x")
    channel.basic_reject(take(channel, refusing).delivery_tag, requeue=False)
    wait_ready(channel, queue, 1)
    headers = take(channel, queue).properties.headers
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (refusing, "rejected")


def _queue(channel: Any, name: str, **arguments: Any) -> str:
    """A queue of this connection; arguments with underscores for dashes, without their x-."""
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, exclusive=True, arguments=named)
    return name


def _reject(channel: Any, queue: str) -> None:
    channel.basic_reject(take(channel, queue).delivery_tag, requeue=False)


def test_a_death_is_told_in_all_its_headers(channel: Any, queue: str, name: str) -> None:
    dying = _queue(channel, f"d-{name}", dead_letter_exchange="", dead_letter_routing_key=queue)
    properties = pika.BasicProperties(
        expiration="60000", headers={"mine": 1, "CC": ["other"]}, delivery_mode=2, message_id="m"
    )
    channel.basic_publish("", dying, b"x", properties)
    wait_ready(channel, dying, 1)
    _reject(channel, dying)
    wait_ready(channel, queue, 1)
    dead = take(channel, queue).properties
    (death,) = dead.headers["x-death"]
    assert abs(death.pop("time").timestamp() - time.time()) < 60
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": dying,
        "exchange": "",
        "routing-keys": [dying, "other"],
        "original-expiration": "60000",
    }
    others = {key: value for key, value in dead.headers.items() if key != "x-death"}
    assert others == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": dying,
        "x-first-death-reason": "rejected",
    }
    assert (dead.expiration, dead.delivery_mode, dead.message_id) == (None, 2, "m")


def test_without_a_dead_letter_routing_key_the_message_keeps_its_own_and_its_copies(
    channel: Any, queue: str, name: str
) -> None:
    channel.exchange_declare(f"x-{name}", "direct", auto_delete=True)
    channel.queue_bind(queue, f"x-{name}", "copied")
    dying = _queue(channel, f"d-{name}", dead_letter_exchange=f"x-{name}")
    channel.basic_publish("", dying, b"x", pika.BasicProperties(headers={"CC": ["copied"]}))
    wait_ready(channel, dying, 1)
    _reject(channel, dying)
    wait_ready(channel, queue, 1)
    assert take(channel, queue).properties.headers["CC"] == ["copied"]


def test_deaths_of_one_queue_and_reason_are_counted(channel: Any, name: str) -> None:
    dying = _queue(channel, f"d-{name}", dead_letter_exchange="", dead_letter_routing_key=f"d-{name}")
    publish(channel, dying, b"x")
    for count in (1, 2, 3):
        wait_ready(channel, dying, 1)
        _reject(channel, dying)
        wait_ready(channel, dying, 1)
        got = take(channel, dying)
        (death,) = got.properties.headers["x-death"]
        assert death["count"] == count
        channel.basic_nack(got.delivery_tag, requeue=True)


def test_the_last_death_stands_first(channel: Any, queue: str, name: str) -> None:
    second = _queue(
        channel, f"s-{name}", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key=queue
    )
    first = _queue(
        channel, f"f-{name}", max_length=1, dead_letter_exchange="", dead_letter_routing_key=second
    )
    publish(channel, first, b"1", b"2")
    wait_ready(channel, queue, 1)
    headers = take(channel, queue).properties.headers
    assert [(death["queue"], death["reason"]) for death in headers["x-death"]] == [
        (second, "expired"),
        (first, "maxlen"),
    ]
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (first, "maxlen")


def test_a_message_that_comes_round_by_itself_is_dropped(channel: Any, name: str) -> None:
    channel.confirm_delivery()
    dying = _queue(channel, name, message_ttl=20, dead_letter_exchange="")
    # Confirmed, so it was there: RabbitMQ's queues answer how many they have before they take what came earlier.
    publish(channel, dying, b"x")
    wait_ready(channel, dying, 0)
    channel.queue_declare(f"o-{name}", exclusive=True)
    publish(channel, f"o-{name}", b"later")
    wait_ready(channel, f"o-{name}", 1)
    assert ready_count(channel, dying) == 0


def test_without_the_exchange_the_dead_are_gone(channel: Any, name: str) -> None:
    dying = _queue(channel, name, dead_letter_exchange=f"missing-{name}")
    publish(channel, dying, b"x", b"y")
    wait_ready(channel, dying, 2)
    _reject(channel, dying)
    assert drain(channel, dying) == [b"y"]


def test_many_rejected_at_once_keep_their_order(channel: Any, queue: str, name: str) -> None:
    dying = _queue(channel, f"d-{name}", dead_letter_exchange="", dead_letter_routing_key=queue)
    bodies = [b"%d" % number for number in range(50)]
    publish(channel, dying, *bodies)
    wait_ready(channel, dying, 50)
    last = [take(channel, dying) for _ in bodies][-1]
    channel.basic_nack(last.delivery_tag, multiple=True, requeue=False)
    wait_ready(channel, queue, 50)
    assert drain(channel, queue) == bodies


def test_a_refused_publish_is_dead_lettered_and_nacked(channel: Any, queue: str, name: str) -> None:
    dying = _queue(
        channel,
        f"d-{name}",
        max_length=1,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key=queue,
    )
    channel.confirm_delivery()
    publish(channel, dying, b"1")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, dying, b"2")
    wait_ready(channel, queue, 1)
    assert [drain(channel, one) for one in (dying, queue)] == [[b"1"], [b"2"]]


def test_a_quorum_queue_counts_deliveries_and_ends_a_poison_message(
    channel: Any, queue: str, name: str
) -> None:
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
    }
    poison = f"p-{name}"
    channel.queue_declare(poison, durable=True, arguments=arguments)
    try:
        channel.confirm_delivery()
        publish(channel, poison, b"x")
        for count in (0, 1, 2):
            wait_ready(channel, poison, 1)
            got = take(channel, poison)
            assert got.properties.headers["x-delivery-count"] == count
            channel.basic_nack(got.delivery_tag, requeue=True)
        wait_ready(channel, queue, 1)
        headers = take(channel, queue).properties.headers
        assert headers["x-death"][0]["reason"] == "delivery_limit"
        assert "x-delivery-count" not in headers
        assert ready_count(channel, poison) == 0
    finally:
        channel.queue_delete(poison)
