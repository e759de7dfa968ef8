"""Real processes: what stays on disk of queues that were consumed, and what a node does when files go under it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess

PATIENCE_S: Final = 30.0
BODY: Final = b"." * 10_000
KINDS: Final[dict[str, dict[str, Any]]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "priority": {"x-max-priority": 3},
}


@pytest.fixture
def node() -> Iterator[LeveretProcess]:
    with LeveretProcess() as one:
        yield one


@pytest.fixture
def channel(node: LeveretProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port))
    yield connection.channel()
    # Some tests end the node.
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def publish(channel: BlockingChannel, queue: str, count: int) -> None:
    for _ in range(count):
        channel.basic_publish("", queue, BODY, pika.BasicProperties(delivery_mode=2))
    channel.queue_declare(queue, passive=True)


def drain(channel: BlockingChannel, queue: str, count: int) -> None:
    for _ in range(count):
        method, _, _ = channel.basic_get(queue)
        assert method is not None
    channel.basic_ack(0, multiple=True)
    channel.queue_declare(queue, passive=True)


def on_disk(node: LeveretProcess) -> int:
    return sum(
        path.stat().st_size for path in (node.data_dir / "queues").rglob("*.segment*") if path.exists()
    )


def logs(node: LeveretProcess) -> list[Path]:
    return sorted((node.data_dir / "queues").iterdir())


def count_of(node: LeveretProcess, queue: str) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def test_drained_queues_of_every_kind_keep_next_to_nothing(
    node: LeveretProcess, channel: BlockingChannel
) -> None:
    for name, arguments in KINDS.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
        publish(channel, name, 200)
    assert on_disk(node) > 3 * 200 * len(BODY)
    for name in KINDS:
        drain(channel, name, 200)
    wait_until(lambda: on_disk(node) < 1000 * len(KINDS), "disk is given back", PATIENCE_S)
    node.kill9()
    node.start()
    assert {name: count_of(node, name) for name in KINDS} == dict.fromkeys(KINDS, 0)


def test_what_was_drained_before_a_kill_is_given_back_after_it(
    node: LeveretProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("q", durable=True)
    publish(channel, "q", 200)
    drain(channel, "q", 200)
    node.kill9()
    node.start()
    wait_until(lambda: on_disk(node) < 1000, "disk is given back", PATIENCE_S)
    assert count_of(node, "q") == 0


def test_a_publish_into_a_directory_that_is_gone_is_not_confirmed_and_others_are_served(
    node: LeveretProcess, channel: BlockingChannel
) -> None:
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", 1)
    (log,) = logs(node)
    channel.queue_declare("other", durable=True)
    publish(channel, "other", 1)
    shutil.rmtree(log)
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, "q", 1)
    publish(channel, "other", 1)
    assert count_of(node, "other") == 2
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="is down"):
        count_of(node, "q")


def test_queues_whose_directories_were_exchanged_are_down_and_others_are_served(
    node: LeveretProcess, channel: BlockingChannel
) -> None:
    for name in ("one", "two", "other"):
        channel.queue_declare(name, durable=True)
        publish(channel, name, 1)
    node.stop()
    one, two, _ = logs(node)
    one.rename(one.with_name("aside"))
    two.rename(one)
    one.with_name("aside").rename(two)
    node.start()
    for name, other in (("one", two), ("two", one)):
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker, match=f"belongs to log queues/{other.name}"
        ):
            count_of(node, name)
    assert count_of(node, "other") == 1
