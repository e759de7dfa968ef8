"""The disk that remains in use after messages were consumed: by many drained queues, and beside one unacked message.

All files below the node's data directory are counted before and after, by the blocks that they occupy.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pika
from pika.adapters.blocking_connection import BlockingChannel

from bench.client import LoadError
from bench.contenders import Node
from bench.lavinmq import LavinNode
from bench.round_trips import pika_channel
from bench.rows import Reading, Row, Scenario, Settings, Target
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode

QUEUES: Final = 1_000
QUEUES_QUICK: Final = 20
MESSAGES: Final = 150
BODY_BYTES: Final = 1_000
SETTLE_S: Final = 10.0
"""The time from the last ack until the measurement."""
MB_A_QUEUE_MAX: Final = 1.0
STRAGGLER_MB: Final = 5_000
STRAGGLER_MB_QUICK: Final = 50
STRAGGLER_BODY_BYTES: Final = 10_000
_BATCH: Final = 1_000
_BLOCK_BYTES: Final = 512


def _mb_on_disk(node: Node) -> float:
    assert isinstance(node, LeveretProcess | RabbitNode | LavinNode)
    root = node.home / "mnesia" if isinstance(node, RabbitNode) else node.data_dir
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                # The node may delete files during the count.
                continue
    return total / 1e6


def _publish(channel: BlockingChannel, queue: str, count: int, body_bytes: int) -> None:
    lasting = pika.BasicProperties(delivery_mode=2)
    for number in range(count):
        channel.basic_publish("", queue, b"%012d" % number + b"." * (body_bytes - 12), lasting)


def _take(channel: BlockingChannel, queues: list[str], count: int) -> None:
    """Consume and acknowledge `count` messages of these queues together."""
    left = count

    def taken(channel: BlockingChannel, method: object, properties: object, body: bytes) -> None:
        nonlocal left
        left -= 1
        if not left:
            channel.basic_ack(0, multiple=True)
            channel.stop_consuming()

    for queue in queues:
        channel.basic_consume(queue, taken)
    channel.start_consuming()
    channel.queue_declare(queues[0], passive=True)


def _drained(node: Node, settings: Settings) -> dict[str, Reading]:
    names = [f"drained-{number:05}" for number in range(QUEUES_QUICK if settings.quick else QUEUES)]
    with pika_channel(node.amqp_port) as channel:
        for name in names:
            channel.queue_declare(name, durable=True)
        before = _mb_on_disk(node)
        for name in names:
            _publish(channel, name, MESSAGES, BODY_BYTES)
        channel.queue_declare(names[-1], passive=True)
        full = _mb_on_disk(node)
        _take(channel, names, MESSAGES * len(names))
        time.sleep(SETTLE_S)
        left = _mb_on_disk(node) - before
        for name in names:
            channel.queue_delete(name)
    details = {"full_mb": full - before, "queues": float(len(names))}
    return {"disk-drained": Reading(max(0.0, left), details=details)}


def _straggler(node: Node, settings: Settings) -> dict[str, Reading]:
    size_mb = STRAGGLER_MB_QUICK if settings.quick else STRAGGLER_MB
    count = size_mb * 1_000_000 // STRAGGLER_BODY_BYTES
    with pika_channel(node.amqp_port) as channel, pika_channel(node.amqp_port) as holding:
        channel.queue_declare("straggler", durable=True)
        before = _mb_on_disk(node)
        _publish(channel, "straggler", 1, STRAGGLER_BODY_BYTES)
        channel.queue_declare("straggler", passive=True)
        method, _, _ = holding.basic_get("straggler")
        if method is None:
            raise LoadError("the first message is not there")
        for at in range(0, count, _BATCH):
            batch = min(_BATCH, count - at)
            _publish(channel, "straggler", batch, STRAGGLER_BODY_BYTES)
            with pika_channel(node.amqp_port) as taking:
                _take(taking, ["straggler"], batch)
        time.sleep(SETTLE_S)
        left = _mb_on_disk(node) - before
        holding.basic_ack(method.delivery_tag)
        channel.queue_delete("straggler")
    return {"disk-straggler": Reading(max(0.0, left), details={"passed_mb": float(size_mb)})}


DRAINED: Final = Scenario(
    (
        Row(
            "disk-drained",
            f"disk {SETTLE_S:.0f} s after {QUEUES:,} queues were drained",
            "MB",
            False,
            Target("value", QUEUES * MB_A_QUEUE_MAX),
        ),
    ),
    _drained,
    once=True,
)
STRAGGLER: Final = Scenario(
    (
        Row(
            "disk-straggler",
            f"disk with one message unacked beside {STRAGGLER_MB / 1000:.0f} GB that were",
            "MB",
            False,
        ),
    ),
    _straggler,
    once=True,
)
