"""What conformance tests do and expect again and again, with pika's blocking connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pika
import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import PATIENCE_S

POLL_S: Final = 0.01


class Message(NamedTuple):
    """A message as a consumer gets it."""

    body: bytes
    redelivered: bool
    delivery_tag: int
    properties: pika.BasicProperties


@contextmanager
def channel_refuses(code: int, text: str) -> Iterator[None]:
    """The block makes the broker close the channel, with exactly this code and text."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


@contextmanager
def connection_refuses(code: int, text: str) -> Iterator[None]:
    """The block makes the broker close the connection, with exactly this code and text."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


def publish(channel: Any, queue: str, *bodies: bytes) -> None:
    """Put messages into a queue through the default exchange, in this order."""
    for one in bodies:
        channel.basic_publish("", queue, one)


def get(channel: Any, queue: str, *, auto_ack: bool = False) -> Message | None:
    """Take one message; None when the queue is empty."""
    method, properties, content = channel.basic_get(queue, auto_ack=auto_ack)
    if method is None:
        return None
    return Message(content, method.redelivered, method.delivery_tag, properties)


def take(channel: Any, queue: str, *, auto_ack: bool = False) -> Message:
    """Take one message; there must be one."""
    found = get(channel, queue, auto_ack=auto_ack)
    assert found is not None, f"queue {queue} is empty"
    return found


def drain(channel: Any, queue: str) -> list[bytes]:
    """Take everything that is ready; return the bodies in order."""
    return [one.body for one in iter(lambda: get(channel, queue, auto_ack=True), None)]


def ready_count(channel: Any, queue: str) -> int:
    """How many messages the queue has ready, as queue.declare-ok tells."""
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def wait_ready(channel: Any, queue: str, count: int, *, timeout_s: float = PATIENCE_S) -> None:
    """Wait until the queue has this many messages ready.

    RabbitMQ's queues answer a declare before they handle what was published earlier.
    """
    wait_until(lambda: ready_count(channel, queue) == count, f"{count} ready in {queue}", timeout_s)


class Consumer:
    """A pika consumer that keeps what it gets."""

    def __init__(self, channel: Any, queue: str, *, auto_ack: bool = False, **options: Any) -> None:
        self.channel = channel
        self.messages: list[Message] = []
        self.tag: str = channel.basic_consume(queue, self._take, auto_ack=auto_ack, **options)

    def _take(self, channel: Any, method: Any, properties: pika.BasicProperties, content: bytes) -> None:
        self.messages.append(Message(content, method.redelivered, method.delivery_tag, properties))

    def wait(self, count: int) -> list[Message]:
        """Wait until at least `count` messages are here; return all so far."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.messages) < count:
            assert time.monotonic() < deadline, f"{len(self.messages)} messages came, not {count}"
            self.channel.connection.process_data_events(POLL_S)
        return self.messages

    def bodies(self, count: int) -> list[bytes]:
        """Wait for exactly `count` messages; return their bodies in order."""
        found = [one.body for one in self.wait(count)]
        assert len(found) == count
        return found
