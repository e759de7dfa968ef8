"""The rows of messages that differ, as applications send them, to one queue or to many."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.client import Connection, LoadError
from bench.contenders import Node
from bench.rows import Reading, Row, Scenario, Settings, Target, reading
from bench.traffic import EXCHANGE, NUMBER_BYTES, Load, binding_key, queue_name, tenant_name
from bench.traffic_load import TrafficJob
from bench.workers import Throughput, Worker, drained, measured

MODULE: Final = "bench.traffic_load"
FILL_TIMEOUT_S: Final = 600.0
SETTLE_S: Final = 1.0
MIXED_MEMORY_MB_MAX: Final = 150
EXPIRING: Final = "traffic-expiring"
TTL_MS: Final = 100
POLLED: Final = 20_000
POLLED_QUICK: Final = 500
DISPATCH: Final = 10_000
DISPATCH_QUICK: Final = 200
DISPATCH_CONNECTIONS: Final = 10
DISPATCH_WARMUPS: Final = 10


def declare(connection: Connection, load: Load, arguments: dict[str, Any] | None = None) -> None:
    """Declare the exchange of a load and its queues, each with its binding."""
    connection.declare_exchange(EXCHANGE, load.kind)
    for number in range(load.queues):
        connection.declare_queue(queue_name(number), arguments=arguments)
        if not load.tenants:
            connection.bind_queue(queue_name(number), EXCHANGE, binding_key(number))
    for number in range(load.tenants):
        pairs = {"x-match": "all", "tenant": tenant_name(number)}
        connection.bind_queue(queue_name(number % load.queues), EXCHANGE, "", pairs)


@contextmanager
def declared(port: int, load: Load, arguments: dict[str, Any] | None = None) -> Iterator[Connection]:
    """Declare the exchange, queues and bindings of a load for a block; yield the connection."""
    connection = Connection(port)
    declare(connection, load, arguments)
    try:
        yield connection
    finally:
        for number in range(load.queues):
            connection.delete_queue(queue_name(number))
        connection.delete_exchange(EXCHANGE)
        connection.close()


def job_of(role: str, port: int, load: Load, **how: Any) -> TrafficJob:
    """Return the job of one process of this load."""
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


def fill(port: int, load: Load, count: int, vhost: str = "/") -> None:
    """Publish `count` messages; return when all are confirmed."""
    with Worker(job_of("publish", port, load, count=count, vhost=vhost), MODULE) as publisher:
        publisher.ready().go()
        publisher.result(FILL_TIMEOUT_S)


def taken(node: Node, load: Load, count: int, vhost: str = "/") -> Throughput:
    """Consume `count` messages that the queues have, and check each."""
    with Worker(job_of("consume", node.amqp_port, load, vhost=vhost), MODULE) as consumer:
        return drained(node, consumer, count)


def _together(
    name: str, load: Load, arguments: dict[str, Any] | None = None, worth: float = 1.0
) -> Callable[[Node, Settings], dict[str, Reading]]:
    """Return the run of a scenario; `worth` is a message in the row's unit."""

    def run(node: Node, settings: Settings) -> dict[str, Reading]:
        with declared(node.amqp_port, load, arguments):
            found = reading(published_and_consumed(node, load, settings))
            return {name: dataclasses.replace(found, value=found.value * worth)}

    return run


def _scenario(
    name: str,
    title: str,
    load: Load,
    ratio_min: float = 0.0,
    arguments: dict[str, Any] | None = None,
) -> Scenario:
    target = Target("ratio", ratio_min) if ratio_min else None
    return Scenario((Row(name, title, "msg/s", True, target),), _together(name, load, arguments))


def _expired(node: Node, settings: Settings) -> dict[str, Reading]:
    """Consume dead letters of messages that expire in another queue."""
    load, port = dataclasses.replace(Load(), altered=True), node.amqp_port
    connection = Connection(port)
    connection.declare_exchange(EXCHANGE, load.kind)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue_name(0)}
    connection.declare_queue(EXPIRING, arguments={"x-message-ttl": TTL_MS, **dead})
    connection.bind_queue(EXPIRING, EXCHANGE, binding_key(0))
    connection.declare_queue(queue_name(0))
    try:
        return {"dead-letter": reading(published_and_consumed(node, load, settings))}
    finally:
        for queue in (EXPIRING, queue_name(0)):
            connection.delete_queue(queue)
        connection.delete_exchange(EXCHANGE)
        connection.close()


def _polled(node: Node, settings: Settings) -> dict[str, Reading]:
    """Get and acknowledge one message after another until the queue is empty."""
    load, count = Load(), POLLED_QUICK if settings.quick else POLLED
    with declared(node.amqp_port, load) as connection:
        fill(node.amqp_port, load, count)
        before_s, started = node.cpu_seconds(), time.monotonic()
        for sequence in range(count):
            found = int.from_bytes(connection.get(queue_name(0))[:NUMBER_BYTES], "big")
            if found != sequence:
                raise LoadError(f"message {found} came where {sequence} was expected")
        took_s = time.monotonic() - started
        cpu_us = (node.cpu_seconds() - before_s) / count * 1e6
        if connection.ready_messages(queue_name(0)):
            raise LoadError("there are more messages than were published")
    return {"get": Reading(count / took_s, cpu_us)}


def _backlog(node: Node, settings: Settings) -> dict[str, Reading]:
    """Measure the memory and the consumption of a backlog of messages that differ."""
    load = Load()
    with declared(node.amqp_port, load) as connection:
        fill(node.amqp_port, load, settings.backlog)
        time.sleep(SETTLE_S)
        standing = node.rss_bytes()
        if (found := connection.ready_messages(queue_name(0))) != settings.backlog:
            raise LoadError(f"{settings.backlog} messages confirmed, {found} in the queue")
        drain = reading(taken(node, load, settings.backlog))
    return {"mixed-backlog-memory": Reading(standing / 1e6), "mixed-drain": drain}


def _dispatched(node: Node, settings: Settings) -> dict[str, Reading]:
    """Measure ten thousand consumers of one queue, then one consumer for each of ten thousand queues."""
    count = DISPATCH_QUICK if settings.quick else DISPATCH
    connections = DISPATCH_CONNECTIONS
    # The first message of each queue makes a log. The longer warm-up keeps that out of the measurement.
    settings = dataclasses.replace(settings, warmup_s=DISPATCH_WARMUPS * settings.warmup_s)
    one_queue = Load(
        consumers=connections, consumers_each=count // connections, prefetch=10, ordered=False, publishers=2
    )
    each_queue = Load(queues=count, consumers=connections, publishers=2)
    found: dict[str, Reading] = {}
    for name, load in (("consumers-10000", one_queue), ("queues-10000", each_queue)):
        found |= _together(name, load)(node, settings)
    return found


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
    _scenario(
        "headers-300",
        "mixed messages, headers exchange with 300 bindings, 20 queues",
        Load(queues=20, kind="headers", tenants=300),
    ),
    _scenario(
        "acked-alone",
        "mixed messages, 500 B, 20 consumers, prefetch 10, each delivery acked alone",
        Load(consumers=20, prefetch=10, ack_every=1, ordered=False, body_bytes=(500, 500)),
        4.5,
    ),
    _scenario(
        "fanout-10",
        "fanout of 1000 B to 10 queues, copies",
        Load(mixed=False, queues=10, kind="fanout", consumers=2, body_bytes=(1000, 1000)),
    ),
    Scenario(
        (Row("large", "messages of 1 MB, published and consumed", "MB/s", True),),
        _together("large", Load(body_bytes=(1_000_000, 1_000_000), window=50, prefetch=20, ack_every=5)),
    ),
    _scenario(
        "priorities",
        "mixed messages of 5 priorities, 1 queue",
        Load(priorities=5),
        arguments={"x-max-priority": 5},
    ),
    _scenario("quorum", "mixed messages, 1 quorum queue", Load(), arguments={"x-queue-type": "quorum"}),
    _scenario(
        "mixed-stream",
        "mixed messages, 1 stream over AMQP 0-9-1",
        Load(altered=True),
        arguments={"x-queue-type": "stream"},
    ),
    Scenario(
        (Row("dead-letter", f"mixed messages that expire after {TTL_MS} ms, dead-lettered", "msg/s", True),),
        _expired,
    ),
    Scenario((Row("get", "mixed messages, got one by one by polling, each acked", "msg/s", True),), _polled),
    Scenario(
        (
            Row(
                "mixed-backlog-memory",
                "resident memory with the backlog standing, mixed messages",
                "MB",
                False,
                Target("value", MIXED_MEMORY_MB_MAX),
            ),
            Row("mixed-drain", "consume the backlog of mixed messages", "msg/s", True),
        ),
        _backlog,
        once=True,
    ),
    Scenario(
        (
            Row("consumers-10000", f"mixed messages, {DISPATCH:,} consumers of one queue", "msg/s", True),
            Row("queues-10000", f"mixed messages, {DISPATCH:,} queues with a consumer each", "msg/s", True),
        ),
        _dispatched,
        once=True,
    ),
)
