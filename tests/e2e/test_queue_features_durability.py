"""What kill -9 does to messages that expire, die, rank or belong to a transaction.

Each test draws its amounts and moments from a seed, which it prints; LEVERET_SEED sets another one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

import pika
import pytest

from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from tests.conformance.rawclient import PATIENCE_S
from tests.conformance.verbs import drain, get, ready_count, take, wait_ready

DYING: Final = "dying"
GRAVE: Final = "grave"
Connect: TypeAlias = Callable[[], Any]
ROUNDS: Final = 3
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


def test_a_message_that_dies_during_a_crash_is_never_lost(
    node: LeveretProcess, connect: Connect, chance: random.Random
) -> None:
    """It may be found twice: once dead, and once more when its death happens again."""
    channel = connect()
    declare(channel, GRAVE)
    declare(channel, DYING, message_ttl=5, dead_letter_exchange="", dead_letter_routing_key=GRAVE)
    confirmed: set[bytes] = set()
    for round_ in range(ROUNDS):
        channel = connect()
        channel.confirm_delivery()
        for number in range(chance.randint(20, 300)):
            body = b"%d-%d" % (round_, number)
            channel.basic_publish("", DYING, body, PERSISTENT)
            confirmed.add(body)
        time.sleep(chance.random() * 0.02)
        node.kill9()
        node.start()
    channel = connect()
    wait_ready(channel, DYING, 0)
    wait_until(lambda: ready_count(channel, GRAVE) >= len(confirmed), "all graves", PATIENCE_S)
    found = drain(channel, GRAVE)
    assert set(found) == confirmed
    print(f"{len(found) - len(confirmed)} of {len(confirmed)} died twice")


def test_the_time_to_live_goes_on_while_the_node_is_down(node: LeveretProcess, connect: Connect) -> None:
    channel = connect()
    declare(channel, DYING, message_ttl=1500)
    declare(channel, "own")
    channel.confirm_delivery()
    channel.basic_publish("", DYING, b"x", PERSISTENT)
    channel.basic_publish("", "own", b"x", pika.BasicProperties(delivery_mode=2, expiration="1500"))
    published_s = time.monotonic()
    node.kill9()
    node.start()
    channel = connect()
    for queue in (DYING, "own"):
        wait_ready(channel, queue, 0)
    assert time.monotonic() - published_s >= 1.4


def test_what_expired_or_was_dropped_before_a_crash_never_returns(
    node: LeveretProcess, connect: Connect
) -> None:
    channel = connect()
    declare(channel, DYING, message_ttl=10)
    declare(channel, "short", max_length=2)
    channel.confirm_delivery()
    for queue in (DYING, "short"):
        for body in (b"1", b"2", b"3"):
            channel.basic_publish("", queue, body, PERSISTENT)
    wait_ready(channel, DYING, 0)
    channel.basic_publish("", "marker", b"")
    declare(channel, "marker")
    channel.basic_publish("", "marker", b"", PERSISTENT)
    node.kill9()
    node.start()
    channel = connect()
    assert get(channel, DYING) is None
    assert drain(channel, "short") == [b"2", b"3"]


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


def test_a_queue_that_expired_is_gone_after_a_crash(node: LeveretProcess, connect: Connect) -> None:
    channel = connect()
    declare(channel, "passing", expires=100)
    declare(channel, "staying", expires=60_000)

    def gone() -> bool:
        leader_client = connect()
        try:
            leader_client.queue_bind("passing", "amq.fanout")
        except pika.exceptions.ChannelClosedByBroker:
            return True
        finally:
            leader_client.connection.close()
        return False

    wait_until(gone, "the queue's end", PATIENCE_S)
    declare(channel, "marker")
    node.kill9()
    node.start()
    assert gone()
    connect().queue_declare("staying", passive=True)
