"""The rows of messages as applications send them: they differ, and go to one queue or to many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.client import Connection
from bench.contenders import Node
from bench.rows import Reading, Row, Scenario, Settings, Target, reading
from bench.traffic import EXCHANGE, Load, binding_key, queue_name
from bench.traffic_load import TrafficJob
from bench.workers import Throughput, Worker, measured

MODULE: Final = "bench.traffic_load"


@contextmanager
def declared(
    port: int, load: Load, arguments: dict[str, Any] | None = None, vhost: str = "/"
) -> Iterator[Connection]:
    """The exchange of a load and its queues, each with its binding; deleted at the end."""
    connection = Connection(port, vhost=vhost)
    connection.declare_exchange(EXCHANGE, load.kind)
    for number in range(load.queues):
        connection.declare_queue(queue_name(number), arguments=arguments)
        connection.bind_queue(queue_name(number), EXCHANGE, binding_key(number))
    try:
        yield connection
    finally:
        for number in range(load.queues):
            connection.delete_queue(queue_name(number))
        connection.delete_exchange(EXCHANGE)
        connection.close()


def job_of(role: str, port: int, load: Load, **how: Any) -> TrafficJob:
    """A job for one of the processes of this load."""
    return TrafficJob(role, port, dataclasses.asdict(load), **how)


def published_and_consumed(node: Node, load: Load, settings: Settings) -> Throughput:
    """Publish and consume at once; every message is checked."""
    seconds = settings.warmup_s + settings.seconds
    publish = job_of("publish", node.amqp_port, load, seconds=seconds)
    with (
        Worker(job_of("consume", node.amqp_port, load), MODULE) as consumer,
        Worker(publish, MODULE) as publisher,
    ):
        return measured(node, publisher, consumer, settings.warmup_s, settings.seconds, load.copies)


def _together(
    name: str, load: Load, arguments: dict[str, Any] | None = None
) -> Callable[[Node, Settings], dict[str, Reading]]:
    def run(node: Node, settings: Settings) -> dict[str, Reading]:
        with declared(node.amqp_port, load, arguments):
            return {name: reading(published_and_consumed(node, load, settings))}

    return run


def _scenario(name: str, title: str, load: Load, ratio_min: float) -> Scenario:
    return Scenario((Row(name, title, "msg/s", True, Target("ratio", ratio_min)),), _together(name, load))


MIXED: Final = (
    _scenario("mixed-1", "mixed messages, 1 queue, 1 publisher, 1 consumer", Load(), 6.0),
    _scenario(
        "mixed-20",
        "mixed messages, 20 queues, 2 publishers, 2 consumers",
        Load(queues=20, publishers=2, consumers=2),
        8.0,
    ),
    _scenario(
        "mixed-100",
        "mixed messages, 100 queues, 4 publishers, 4 consumers",
        Load(queues=100, publishers=4, consumers=4),
        8.0,
    ),
)
