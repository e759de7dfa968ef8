"""Streams over AMQP 0-9-1: declared, published to, read by offset, and what they refuse."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

PATIENCE_S = 10.0
STREAM = {"x-queue-type": "stream"}
Delivered = tuple[Any, Any, bytes]


@pytest.fixture
def stream(channel: Any, name: str) -> str:
    """A stream that nobody else has."""
    channel.queue_declare(name, durable=True, arguments=STREAM)
    return name


def read(channel: Any, stream: str, count: int, offset: Any = None, prefetch: int = 100) -> list[Delivered]:
    """Consume from an offset until `count` messages came, acknowledging each."""
    got: list[Delivered] = []

    def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
        got.append((method, properties, body))
        channel.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=prefetch)
    arguments = {} if offset is None else {"x-stream-offset": offset}
    tag = channel.basic_consume(stream, take, arguments=arguments)
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} messages came"
        channel.connection.process_data_events(0.05)
    channel.basic_cancel(tag)
    return got


def fill(channel: Any, stream: str, count: int) -> None:
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", stream, b"%d" % number)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable'"),
        ({"durable": True, "exclusive": True}, "invalid property 'exclusive-owner'"),
        ({"durable": True, "auto_delete": True}, "invalid property 'auto-delete'"),
    ],
)
def test_a_stream_is_durable_and_for_all(
    channel: Any, name: str, options: dict[str, bool], text: str
) -> None:
    with pytest.raises(ChannelClosedByBroker, match=text):
        channel.queue_declare(name, arguments=STREAM, **options)


@pytest.mark.parametrize("argument", [{"x-message-ttl": 5}, {"x-max-length": 5}, {"x-max-age": "5x"}])
def test_arguments_that_streams_do_not_have_are_refused(
    channel: Any, name: str, argument: dict[str, Any]
) -> None:
    with pytest.raises(ChannelClosedByBroker, match=f"invalid arg '{next(iter(argument))}'"):
        channel.queue_declare(name, durable=True, arguments={**STREAM, **argument})


def test_streams_take_limits_of_length_age_and_segments(channel: Any, name: str) -> None:
    limits = {"x-max-length-bytes": 1 << 20, "x-max-age": "7D", "x-stream-max-segment-size-bytes": 1 << 16}
    channel.queue_declare(name, durable=True, arguments={**STREAM, **limits})
    with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'x-max-length-bytes'"):
        channel.queue_declare(name, durable=True, arguments=STREAM)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda channel, stream: channel.basic_get(stream), "basic.get not supported by stream queues"),
        (lambda channel, stream: channel.queue_purge(stream), "queue.purge not supported by stream queues"),
        (
            lambda channel, stream: read_without_acknowledgements(channel, stream),
            "automatic acknowledgement not supported by stream queues",
        ),
        (
            lambda channel, stream: refuse_one(channel, stream, requeue=False),
            "basic.nack and basic.reject not supported",
        ),
        (
            lambda channel, stream: refuse_one(channel, stream, requeue=True),
            "basic.nack and basic.reject not supported",
        ),
    ],
    ids=["get", "purge", "no-ack", "reject", "requeue"],
)
def test_what_streams_do_not_do_is_not_implemented(
    channel: Any, stream: str, step: Callable[[Any, str], object], text: str
) -> None:
    with pytest.raises(ConnectionClosedByBroker, match=text) as closed:
        step(channel, stream)
    assert closed.value.reply_code == 540


def read_without_acknowledgements(channel: Any, stream: str) -> None:
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(stream, lambda *_: None, auto_ack=True)


def refuse_one(channel: Any, stream: str, *, requeue: bool) -> None:
    fill(channel, stream, 1)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(
        stream,
        lambda _, method, *__: channel.basic_reject(method.delivery_tag, requeue=requeue),
        arguments={"x-stream-offset": "first"},
    )
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)


def test_a_consumer_needs_a_prefetch_count(channel: Any, stream: str) -> None:
    with pytest.raises(ChannelClosedByBroker, match="consumer prefetch count is not set for 'queue"):
        channel.basic_consume(stream, lambda *_: None)


def test_an_offset_that_is_none_is_refused(channel: Any, stream: str) -> None:
    channel.basic_qos(prefetch_count=1)
    with pytest.raises(AMQPError):
        channel.basic_consume(stream, lambda *_: None, arguments={"x-stream-offset": "nonsense"})


@pytest.mark.parametrize(
    ("offset", "first"),
    [
        ("first", 0),
        (0, 0),
        (3, 3),
        ("1h", 0),
        (datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1), 0),
    ],
    ids=["first", "0", "3", "interval", "timestamp"],
)
def test_a_consumer_begins_at_its_offset_and_sees_it_in_a_header(
    channel: Any, stream: str, offset: Any, first: int
) -> None:
    fill(channel, stream, 6)
    got = read(channel, stream, 6 - first, offset)
    assert [(properties.headers["x-stream-offset"], body) for _, properties, body in got] == [
        (number, b"%d" % number) for number in range(first, 6)
    ]


def test_the_default_is_what_comes_next(channel: Any, stream: str) -> None:
    fill(channel, stream, 3)
    got: list[bytes] = []
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(stream, lambda _, __, ___, body: got.append(body))
    deadline = time.monotonic() + PATIENCE_S
    while not got and time.monotonic() < deadline:
        channel.basic_publish("", stream, b"later")
        channel.connection.process_data_events(0.2)
    assert set(got) == {b"later"}


def test_reading_takes_nothing_away(channel: Any, stream: str) -> None:
    fill(channel, stream, 4)
    for _ in range(2):
        assert [body for _, _, body in read(channel, stream, 4, "first")] == [b"0", b"1", b"2", b"3"]


def test_acknowledgements_give_room_for_more(channel: Any, stream: str) -> None:
    fill(channel, stream, 10)
    assert len(read(channel, stream, 10, "first", prefetch=2)) == 10


def test_without_acknowledgements_no_more_than_the_prefetch_count_comes(channel: Any, stream: str) -> None:
    fill(channel, stream, 5)
    got: list[Any] = []
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(
        stream, lambda _, method, *__: got.append(method), arguments={"x-stream-offset": "first"}
    )
    channel.connection.process_data_events(0.5)
    assert len(got) == 2
    channel.basic_ack(got[0].delivery_tag)
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < 3 and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    assert [method.delivery_tag for method in got] == [1, 2, 3]


def test_a_message_comes_back_with_all_it_had(channel: Any, stream: str) -> None:
    headers = {"text": "v", "small": 5, "big": 1 << 40, "negative": -3, "true": True, "x-own": "y"}
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=3,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="id",
        timestamp=1_600_000_000,
        type="type",
        user_id="guest",
        app_id="app",
    )
    channel.confirm_delivery()
    channel.queue_bind(stream, "amq.direct", f"key-{stream}")
    channel.basic_publish("amq.direct", f"key-{stream}", b"body", sent)
    ((method, properties, body),) = read(channel, stream, 1, "first")
    assert (method.exchange, method.routing_key, method.redelivered) == ("amq.direct", f"key-{stream}", False)
    assert properties.headers.pop("x-stream-offset") == 0
    assert (vars(properties), body) == (vars(sent), b"body")


def test_a_message_without_properties_has_none_but_its_offset(channel: Any, stream: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", stream, b"")
    ((method, properties, body),) = read(channel, stream, 1, "first")
    assert (method.exchange, method.routing_key, body) == ("", stream, b"")
    assert properties.headers == {"x-stream-offset": 0}
    properties.headers = None
    assert vars(properties) == vars(pika.BasicProperties())
