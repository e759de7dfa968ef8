"""The way of RabbitMQ's open-source edition to a second site: a shovel, which acks a message on its confirm.

Source and destination are queues of the same node, which saves half of the sockets' work. So the shovel is faster here
than between two sites.
"""

from __future__ import annotations

import time
from typing import Final

from bench.client import Connection, LoadError
from bench.contenders import Node
from bench.management import call
from bench.rows import Reading
from bench.workers import QUEUE, rate_between
from leveret.testing.network.ports import LOOPBACK, wait_until

DESTINATION: Final = "shovelled"
PREFETCH: Final = 1000
POLL_S: Final = 0.1
TIMEOUT_S: Final = 600.0
_MEASURED: Final = (0.1, 0.9)
"""The measured part of the messages: a shovel is slow at its begin and at its end."""


def shovelled(node: Node, count: int, source: str = QUEUE) -> Reading:
    """Move the source's `count` persistent messages with a shovel; return the rate in messages a second."""
    connection = Connection(node.amqp_port)
    connection.declare_queue(DESTINATION)
    samples: list[tuple[float, int]] = []
    _declare(node, source)

    def moved() -> bool:
        samples.append((time.monotonic(), connection.ready_messages(DESTINATION)))
        return samples[-1][1] >= count

    try:
        wait_until(moved, f"{count} messages shovelled", TIMEOUT_S, interval_s=POLL_S)
    finally:
        connection.delete_queue(source)
        connection.delete_queue(DESTINATION)
        connection.close()
    start, end = (next(at for at, seen in samples if seen >= part * count) for part in _MEASURED)
    if end <= start:
        raise LoadError(f"{count} messages are too few to measure a shovel with")
    return Reading(rate_between(samples, start, end), details={"messages": float(count)})


def _declare(node: Node, source: str) -> None:
    uri = f"amqp://{LOOPBACK}:{node.amqp_port}"
    value = {
        "src-protocol": "amqp091",
        "src-uri": uri,
        "src-queue": source,
        "src-prefetch-count": PREFETCH,
        "dest-protocol": "amqp091",
        "dest-uri": uri,
        "dest-queue": DESTINATION,
        "ack-mode": "on-confirm",
    }
    call(node, "PUT", "/api/parameters/shovel/%2F/bench", {"value": value})
