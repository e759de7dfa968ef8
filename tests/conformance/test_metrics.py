"""What Prometheus scrapes, and the message rates of the management API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from leveret.testing.network.ports import wait_until
from tests.conformance.brokers import RABBITMQ, Broker

PATIENCE_S: Final = 20.0
"""RabbitMQ tells lengths and rates of the last interval of five seconds."""

PROTOCOL: Final = (("protocol", "amqp091"),)
CLASSIC: Final = (("protocol", "amqp091"), ("queue_type", "rabbit_classic_queue"))
GLOBAL: Final = "rabbitmq_global_messages_"
CHANNEL: Final = "rabbitmq_channel_"

KNOWN: Final = dict(line.split() for line in (Path(__file__).parent / "metrics.txt").read_text().splitlines())
"""The names of RabbitMQ 3.10.8 and their types, Erlang's and the scrape's own left out."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def scraped(broker: Broker, path: str = "/metrics") -> dict[Key, float]:
    """Every sample, by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(broker.metrics(path))
        for sample in family.samples
    }


def expect(broker: Broker, expected: dict[Key, float], before: dict[Key, float]) -> None:
    """Wait until what is scraped differs from `before` by just this."""
    seen: dict[Key, float] = {}

    def differs_so() -> bool:
        now = scraped(broker)
        seen.update({key: now.get(key, -1) - before.get(key, 0) for key in expected})
        return seen == expected

    try:
        wait_until(differs_so, "the counts", PATIENCE_S)
    finally:
        assert seen == expected


def drained(connection: pika.BlockingConnection, done: Callable[[], bool]) -> None:
    """Take deliveries until `done`."""
    for _ in range(200):
        if done():
            return
        connection.process_data_events(time_limit=0.05)
    pytest.fail("too few deliveries")


@contextmanager
def traffic(broker: Broker, name: str) -> Iterator[None]:
    """Of everything something; the channels stay open for the length of the block."""
    with broker.connect() as connection:
        confirming, plain = connection.channel(), connection.channel()
        confirming.confirm_delivery()
        confirming.queue_declare(name)
        confirming.queue_declare(name)
        confirming.queue_declare(f"{name}-empty")
        for _ in range(5):
            confirming.basic_publish("", name, b"five")
        for _ in range(2):
            confirming.basic_publish("amq.direct", name, b"nowhere")
        with pytest.raises(pika.exceptions.UnroutableError):
            confirming.basic_publish("amq.direct", name, b"back", mandatory=True)
        for _ in range(3):
            plain.basic_publish("", name, b"three")
        wait_until(
            lambda: plain.queue_declare(name, passive=True).method.message_count == 8, "eight", PATIENCE_S
        )
        _fetch(plain, name)
        _consume(connection, confirming, plain, name)
        yield
        confirming.queue_delete(name)
        confirming.queue_delete(f"{name}-empty")


def _fetch(channel: Any, name: str) -> None:
    for _ in range(2):
        channel.basic_ack(channel.basic_get(name)[0].delivery_tag)
    assert channel.basic_get(name, auto_ack=True)[0] is not None
    assert channel.basic_get(f"{name}-empty")[0] is None


def _consume(connection: pika.BlockingConnection, acking: Any, plain: Any, name: str) -> None:
    """Three to be acknowledged, one of them twice; the other two not."""
    taken: list[Any] = []

    def take(channel: Any, method: Any, properties: object, body: bytes) -> None:
        taken.append(method)
        if len(taken) == 1:
            channel.basic_nack(method.delivery_tag, requeue=True)
        elif len(taken) < 4:
            channel.basic_ack(method.delivery_tag)

    acking.basic_qos(prefetch_count=1)
    acking.basic_consume(name, take, consumer_tag="acking")
    drained(connection, lambda: len(taken) == 4)
    acking.basic_cancel("acking")
    acking.basic_ack(taken[3].delivery_tag)
    rest: list[bytes] = []
    plain.basic_consume(name, lambda *got: rest.append(got[3]), auto_ack=True)
    drained(connection, lambda: len(rest) == 2)


def test_messages_are_counted_by_protocol_and_queue_type(broker: Broker, name: str) -> None:
    before = scraped(broker)
    counts = {
        "received": 11,
        "received_confirm": 8,
        "confirmed": 8,
        "routed": 8,
        "unroutable_dropped": 2,
        "unroutable_returned": 1,
    }
    by_type = {
        "delivered": 9,
        "delivered_consume_manual_ack": 4,
        "delivered_consume_auto_ack": 2,
        "delivered_get_manual_ack": 2,
        "delivered_get_auto_ack": 1,
        "get_empty": 1,
        "redelivered": 1,
        "acknowledged": 5,
    }
    expected: dict[Key, float] = {(f"{GLOBAL}{what}_total", PROTOCOL): n for what, n in counts.items()}
    expected |= {(f"{GLOBAL}{what}_total", CLASSIC): n for what, n in by_type.items()}
    with traffic(broker, name):
        expect(broker, expected, before)
    expect(broker, expected, before)


def test_open_channels_tell_what_they_published_and_took(broker: Broker, name: str) -> None:
    before = scraped(broker, "/metrics/per-object")
    counts = {
        "messages_published_total": 11,
        "messages_confirmed_total": 8,
        "messages_unroutable_returned_total": 1,
        "messages_unroutable_dropped_total": 2,
        "get_ack_total": 2,
        "get_total": 1,
        "get_empty_total": 1,
        "messages_delivered_ack_total": 4,
        "messages_delivered_total": 2,
        "messages_redelivered_total": 1,
        "messages_acked_total": 5,
    }
    with traffic(broker, name):

        def counted() -> dict[str, float]:
            sums = dict.fromkeys(counts, 0.0)
            for key, value in scraped(broker, "/metrics/per-object").items():
                what = key[0].removeprefix(CHANNEL)
                if what in sums and key not in before:
                    sums[what] += value
            return sums

        wait_until(lambda: counted() == counts, "the counts", PATIENCE_S)


def test_dead_letters_are_counted_by_their_reason(broker: Broker, channel: Any, name: str) -> None:
    before = scraped(broker)
    arguments = {"x-dead-letter-exchange": "amq.fanout", "x-max-length": 2}
    channel.queue_declare(name, arguments=arguments)
    for _ in range(5):
        channel.basic_publish("", name, b"x")
    wait_until(lambda: channel.queue_declare(name, passive=True).method.message_count == 2, "two", PATIENCE_S)
    channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
    labels = (("dead_letter_strategy", "at_most_once"), ("queue_type", "rabbit_classic_queue"))
    counts = {"maxlen": 3, "rejected": 1, "expired": 0}
    expected: dict[Key, float] = {
        (f"{GLOBAL}dead_lettered_{why}_total", labels): n for why, n in counts.items()
    }
    expect(broker, expected, before)
    channel.queue_delete(name)


def test_queues_tell_what_was_published_to_them(broker: Broker, channel: Any, queue: str) -> None:
    for _ in range(3):
        channel.basic_publish("", queue, b"x")

    def published() -> float:
        rows = scraped(broker, "/metrics/per-object").items()
        name = "rabbitmq_queue_messages_published_total"
        return sum(value for key, value in rows if key[0] == name and ("queue", queue) in key[1])

    wait_until(lambda: published() == 3, "three", PATIENCE_S)


def test_what_comes_and_goes_is_counted(broker: Broker, name: str) -> None:
    before = scraped(broker)
    with traffic(broker, name):
        pass
    counts = {
        "connections_opened": 1,
        "channels_opened": 2,
        "channels_closed": 2,
        "queues_declared": 3,
        "queues_created": 2,
        "queues_deleted": 2,
    }
    expect(broker, {(f"rabbitmq_{what}_total", ()): n for what, n in counts.items()}, before)


def test_lengths_of_queues_are_told_as_a_sum_and_one_by_one(broker: Broker, channel: Any, queue: str) -> None:
    for _ in range(4):
        channel.basic_publish("", queue, b"body")
    wait_until(lambda: channel.basic_get(queue)[0] is not None, "a message", PATIENCE_S)
    place = (("queue", queue), ("vhost", "/"))
    lengths = {"": 4, "_ready": 3, "_unacked": 1, "_bytes": 16}
    expected = {(f"rabbitmq_queue_messages{what}", place): n for what, n in lengths.items()}
    wait_until(
        lambda: expected.items() <= scraped(broker, "/metrics/per-object").items(), "the lengths", PATIENCE_S
    )
    detailed = scraped(broker, "/metrics/detailed?family=queue_coarse_metrics&vhost=/")
    assert detailed["rabbitmq_detailed_queue_messages_ready", place] == 3

    def sum_of_all() -> bool:
        rows = scraped(broker, "/metrics/per-object").items()
        ready = sum(value for (name, _), value in rows if name == "rabbitmq_queue_messages_ready")
        return scraped(broker)["rabbitmq_queue_messages_ready", ()] == ready > 0

    wait_until(sum_of_all, "the sum", PATIENCE_S)


def test_families_are_told_under_their_names(broker: Broker, channel: Any, queue: str) -> None:
    path = "/metrics/detailed?family=queue_consumer_count&family=vhost_status&family=exchange_names"
    place = (("queue", queue), ("vhost", "/"))
    exchange = (("exchange", "amq.topic"), ("type", "topic"), ("vhost", "/"))
    wait_until(
        lambda: ("rabbitmq_detailed_queue_consumers", place) in scraped(broker, path), "the queue", PATIENCE_S
    )
    found = scraped(broker, path)
    assert found["rabbitmq_cluster_vhost_status", (("vhost", "/"),)] == 1
    assert found["rabbitmq_cluster_exchange_name", exchange] == 1


def test_a_queue_that_takes_messages_has_a_rate(broker: Broker, channel: Any, queue: str) -> None:
    channel.confirm_delivery()
    path = f"queues/%2F/{queue}"
    seen: list[dict[str, Any]] = []

    def publishes_are_seen() -> bool:
        channel.basic_publish("", queue, b"x")
        seen.append(broker.api(path).get("message_stats", {}))
        return bool(seen[-1].get("publish_details", {}).get("rate"))

    wait_until(publishes_are_seen, "a rate above zero", PATIENCE_S)
    assert set(seen[-1]) == {"publish", "publish_details"}


def test_a_range_has_samples_and_their_averages(broker: Broker, channel: Any, queue: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"x")
    path = f"queues/%2F/{queue}"
    wanted = {
        f"{kind}_{part}": n for kind in ("lengths", "msg_rates") for part, n in (("age", 60), ("incr", 5))
    }

    def details() -> dict[str, Any]:
        found: dict[str, Any] = broker.api(path, **wanted).get("message_stats", {}).get("publish_details", {})
        return found

    wait_until(lambda: [each["sample"] for each in details().get("samples", [])][:1] == [1], "it", PATIENCE_S)
    found = details()
    samples = found["samples"]
    assert len(samples) == 13
    assert {a["timestamp"] - b["timestamp"] for a, b in pairwise(samples)} == {5000}
    assert found["avg_rate"] == pytest.approx(1 / 60)
    assert found["avg"] == pytest.approx(sum(each["sample"] for each in samples) / 13)


def test_a_range_that_is_no_range_is_refused(broker: Broker) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        broker.api("overview", lengths_age=60, lengths_incr=0)


def test_every_name_is_one_of_rabbitmqs_and_has_its_type(broker: Broker) -> None:
    # What the stream plugin adds is in test_stream_errors.
    found = {
        name: kind
        for name, kind in types_of(broker.metrics()).items()
        if not name.startswith("rabbitmq_global_stream_error_")
    }
    assert {name: kind for name, kind in found.items() if KNOWN.get(name) != kind} == {}
    if broker.kind == RABBITMQ:
        assert set(found) == set(KNOWN)


def types_of(text: str) -> dict[str, str]:
    lines = (line.split() for line in text.splitlines() if line.startswith("# TYPE"))
    return {name: kind for _, _, name, kind in lines if name.startswith(("rabbitmq_", "process_"))}


def test_logins_are_counted_by_protocol_until_they_are_counted_anew(
    broker: Broker, http: httpx.Client
) -> None:
    def amqp() -> tuple[int, int, int]:
        rows = http.get(f"auth/attempts/{node}").json()
        row: dict[str, int] = next((each for each in rows if each["protocol"] == "amqp091"), {})
        names = ("auth_attempts", "auth_attempts_succeeded", "auth_attempts_failed")
        total, succeeded, failed = (row.get(name, 0) for name in names)
        return total, succeeded, failed

    [node] = [each["name"] for each in http.get("nodes").json()]
    http.delete(f"auth/attempts/{node}").raise_for_status()
    assert amqp() == (0, 0, 0)
    for _ in range(2):
        broker.connect().close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        broker.connect("guest", "wrong")
    assert amqp() == (3, 2, 1)
    rows = scraped(broker)
    attempts = [
        rows[f"rabbitmq_auth_attempts_{name}total", PROTOCOL] for name in ("", "succeeded_", "failed_")
    ]
    assert attempts == [3, 2, 1]
