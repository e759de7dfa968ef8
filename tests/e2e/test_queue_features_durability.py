"""What kill -9 does to messages that rank or belong to a transaction.

Each test draws its amounts and moments from a seed, which it prints; LEVERET_SEED sets another one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

import pika
import pytest

from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from tests.conformance.verbs import drain, take

Connect: TypeAlias = Callable[[], Any]
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def node() -> Iterator[LeveretProcess]:
    with LeveretProcess() as one:
        yield one


@pytest.fixture
def connect(node: LeveretProcess) -> Iterator[Connect]:
    """Makes a channel of a connection of its own, which ends with the test."""
    opened: list[pika.BlockingConnection] = []

    def channel() -> Any:
        opened.append(pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)))
        return opened[-1].channel()

    yield channel
    for connection in opened:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


def declare(channel: Any, name: str, **arguments: Any) -> str:
    """A durable queue; arguments without their x-."""
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=named)
    return name


def test_priorities_and_order_survive_a_crash(
    node: LeveretProcess, connect: Connect, chance: random.Random
) -> None:
    channel = connect()
    declare(channel, "ranked", max_priority=4)
    channel.confirm_delivery()
    published: list[tuple[int, int]] = []
    for number in range(chance.randint(50, 200)):
        priority = chance.randint(0, 5)
        published.append((-min(priority, 4), number))
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        channel.basic_publish("", "ranked", b"%d" % number, properties)
    node.kill9()
    node.start()
    channel = connect()
    assert drain(channel, "ranked") == [b"%d" % number for _, number in sorted(published)]


def test_a_committed_transaction_survives_a_crash(
    node: LeveretProcess, connect: Connect, chance: random.Random
) -> None:
    channel = connect()
    for queue in ("source", "target"):
        declare(channel, queue)
    channel.confirm_delivery()
    count = chance.randint(10, 60)
    for number in range(count):
        channel.basic_publish("", "source", b"%d" % number, PERSISTENT)
    channel = connect()
    channel.tx_select()
    moved = chance.randint(1, count - 1)
    for _ in range(moved):
        message = take(channel, "source")
        channel.basic_publish("", "target", message.body, PERSISTENT)
        channel.basic_ack(message.delivery_tag)
        channel.tx_commit()
    for _ in range(chance.randint(0, count - moved)):
        message = take(channel, "source")
        channel.basic_publish("", "target", message.body, PERSISTENT)
        channel.basic_ack(message.delivery_tag)
    node.kill9()
    node.start()
    channel = connect()
    numbers = [b"%d" % number for number in range(count)]
    assert drain(channel, "target") == numbers[:moved]
    assert drain(channel, "source") == numbers[moved:]
