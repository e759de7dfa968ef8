"""The cost of a long queue: its memory, a start with it, and its consumption.

One run on one fresh node, in this order: fill the queue with confirms, read the memory, stop the node in order and
start it, kill it and start it, consume everything. A start ends when the queue reports all messages and delivers its
first one.

The restarts with a larger backlog are a run of their own, of Leveret alone, because the backlog takes gigabytes.
"""

from __future__ import annotations

import time
from typing import Final

from bench.client import Connection, LoadError
from bench.contenders import LEVERET, Node
from bench.load import ConsumeJob, PublishJob
from bench.rows import Reading, Row, Scenario, Settings, Target, reading
from bench.workers import QUEUE, Worker, drained
from leveret.testing.network.ports import wait_until

MEMORY_BYTES_MAX: Final = 200_000_000
LARGE_RESTART_S_MAX: Final = 5.0
RETURN_TIMEOUT_S: Final = 120.0
SETTLE_S: Final = 1.0


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    idle_bytes = node.rss_bytes()
    fill(node, settings.backlog)
    standing_bytes = node.rss_bytes()
    started_again_s = _restart(node, settings.backlog, crash=False)
    recovered_s = _restart(node, settings.backlog, crash=True)
    recovered_bytes = node.rss_bytes()
    drain = _drain(node, settings.backlog)
    memory = {"idle_mb": idle_bytes / 1e6, "after_restart_mb": recovered_bytes / 1e6}
    return {
        "backlog-memory": Reading(standing_bytes / 1e6, details=memory),
        "restart": Reading(started_again_s),
        "restart-crash": Reading(recovered_s),
        "drain": drain,
    }


def fill(node: Node, count: int) -> None:
    """Publish the backlog, and check that the queue reports all messages."""
    connection = Connection(node.amqp_port)
    connection.declare_queue(QUEUE)
    with Worker(PublishJob(node.amqp_port, QUEUE, count=count)) as publisher:
        publisher.ready().go()
        publisher.result()
    # The buffers of the last confirms are not part of the backlog's memory.
    time.sleep(SETTLE_S)
    found = connection.ready_messages(QUEUE)
    connection.close()
    if found != count:
        raise LoadError(f"{count} messages confirmed, {found} in the queue")


def _restart(node: Node, count: int, *, crash: bool) -> float:
    """End the node and start it; return the seconds from the start until it serves all messages."""
    if crash:
        node.kill9()
    else:
        node.stop()
    started = time.monotonic()
    node.start()

    def serves() -> bool:
        connection = Connection(node.amqp_port)
        found = connection.ready_messages(QUEUE)
        served = found == count and len(connection.peek(QUEUE)) == PublishJob.body_bytes
        connection.close()
        return served

    wait_until(serves, f"{count} messages after a restart", RETURN_TIMEOUT_S)
    return time.monotonic() - started


def _drain(node: Node, count: int) -> Reading:
    """Consume the whole backlog; return the rate between its first and its last message."""
    with Worker(ConsumeJob(node.amqp_port, QUEUE)) as consumer:
        run = drained(node, consumer, count)
    connection = Connection(node.amqp_port)
    connection.delete_queue(QUEUE)
    connection.close()
    return reading(run)


def _run_large(node: Node, settings: Settings) -> dict[str, Reading]:
    fill(node, settings.large_backlog)
    return {
        "restart-5m": Reading(_restart(node, settings.large_backlog, crash=False)),
        "restart-5m-crash": Reading(_restart(node, settings.large_backlog, crash=True)),
    }


BACKLOG: Final = Scenario(
    (
        Row(
            "backlog-memory",
            "resident memory with the backlog standing",
            "MB",
            False,
            Target("value", MEMORY_BYTES_MAX / 1e6),
        ),
        Row("restart", "start with the backlog, after an orderly end", "s", False),
        Row("restart-crash", "start with the backlog, after kill -9", "s", False),
        Row("drain", "consume the backlog", "msg/s", True),
    ),
    _run,
    once=True,
)
LARGE_BACKLOG: Final = Scenario(
    (
        Row(
            "restart-5m",
            "start with 5 million messages, after an orderly end",
            "s",
            False,
            Target("value", LARGE_RESTART_S_MAX),
        ),
        Row(
            "restart-5m-crash",
            "start with 5 million messages, after kill -9",
            "s",
            False,
            Target("value", LARGE_RESTART_S_MAX),
        ),
    ),
    _run_large,
    once=True,
    brokers=(LEVERET,),
)
