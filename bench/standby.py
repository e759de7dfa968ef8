"""The warm standby: its lag, the rate of its transfers, and the time of its promotion.

One run on two nodes: the runner has started the upstream, and this module makes the downstream.

    follow     The upstream gets 20,000 messages/s. Twenty times a second the downstream is asked for the number of its
               records. Its lag is the age of the first message that it lacks, by the publisher's clock: the loss that a
               disaster at that moment would cause.
    burst      A publisher sends as many messages as the backlog has, as fast as the upstream confirms them.
    take over  The upstream is killed, and the downstream is promoted; the time runs from Spark's start. This recovery
               publishes the messages, because a file in the place of its staging directory keeps it from segments.
    ingest     Another downstream with the same messages is promoted by segments, while a consumer waits.

At the end each downstream's queue must have every confirmed message.
"""

from __future__ import annotations

import bisect
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx

from bench.backlog import fill
from bench.client import Connection, LoadError
from bench.contenders import LEVERET, RABBITMQ, Node
from bench.load import PublishJob
from bench.management import GUEST, call
from bench.mixed import declare, declared, published_and_consumed, taken
from bench.mixed import fill as traffic_fill
from bench.process import Result
from bench.rows import WINDOW, Reading, Row, Scenario, Settings, Target
from bench.shovel import shovelled
from bench.traffic import Load, queue_name
from bench.workers import Worker, count_at, publish_only, rate_between, sleep_until
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess

VHOST: Final = "bench"
QUEUE: Final = "bench"
FOLLOW_RATE: Final = 20_000
FOLLOW_SPANS: Final = 3
# The span ends with the last confirm, so on a busy machine it is a little longer than the pace demands.
FOLLOW_SHARE_MIN: Final = 0.9
COLLECTED_SHARE_MIN: Final = 0.75
SHOVEL_RATIO_MIN: Final = 10.0
MIXED_SHOVEL_RATIO_MIN: Final = 8.0
# A shovel is slow, so it is measured with a tenth of the backlog.
SHOVELLED_PART: Final = 10
POLL_S: Final = 0.05
CONNECT_TIMEOUT_S: Final = 180.0
TRANSFER_TIMEOUT_S: Final = 300.0
PROMOTE_TIMEOUT_S: Final = 300.0
STAGED: Final = "staged"
INGEST_SHARE_MIN: Final = 3.0
FIRST_MESSAGE_S_MAX: Final = 2.0
RTO_PART: Final = 100
RTO_LARGE_TIMES: Final = 10
RTO_LARGE_BODY_BYTES: Final = 100
"""With 1000 bytes a run would write some 40 GB: both nodes' logs, the outgoing log and the archive."""
USER: Final = "replicator"
PASSWORD: Final = "bench"
DOWNSTREAM: Final = {
    "schema_definition_sync.operating_mode": "downstream",
    "schema_definition_sync.downstream.minimum_sync_interval": "1",
    "schema_definition_sync.downstream.locals.global_parameters": "^standby",
    "standby.replication.operating_mode": "downstream",
}

Progress = list[tuple[float, int]]


class Pair:
    """Upstream and downstream, and the one queue between them."""

    def __init__(self, upstream: LeveretProcess, downstream: LeveretProcess) -> None:
        self.upstream = upstream
        self.downstream = downstream
        self.published = 0

    def connect(self) -> None:
        """Declare vhost, policy, user and queue at the upstream; point the downstream at it."""
        ctl = self.upstream.ctl
        ctl("add_vhost", VHOST, "--tags", "standby_replication")
        ctl("set_permissions", "-p", VHOST, "guest", ".*", ".*", ".*")
        policy = '{"remote-dc-replicate": true}'
        ctl("set_policy", "--vhost", VHOST, "standby", ".*", policy, "--apply-to", "queues")
        ctl("add_schema_replication_user", USER, "-", input_text=PASSWORD)
        ctl("set_permissions", "-p", VHOST, USER, ".*", ".*", ".*")
        connection = Connection(self.upstream.amqp_port, vhost=VHOST)
        connection.declare_queue(QUEUE)
        connection.close()
        self.follow()

    def follow(self) -> None:
        """Point the downstream at the upstream; wait until it is connected."""
        for link, port in (("schema", self.upstream.amqp_port), ("standby", self.upstream.stream_port)):
            endpoints = {"endpoints": [f"{LOOPBACK}:{port}"], "username": USER, "password": PASSWORD}
            command = f"set_{link}_replication_upstream_endpoints"
            self.downstream.ctl(command, "-", input_text=json.dumps(endpoints))
        wait_until(
            lambda: self.status().get("state") == "connected",
            "the downstream's link",
            CONNECT_TIMEOUT_S,
            interval_s=POLL_S,
        )

    def status(self) -> dict[str, Any]:
        """Return the downstream's status row of the vhost, empty if it has none yet."""
        rows: list[dict[str, Any]] = call(self.downstream, "GET", "/api/replication/status").json()
        return next((row for row in rows if row["virtual_host"] == VHOST), {})

    def transferred(self) -> int:
        """Return the number of the outgoing log's records that are durable at the downstream."""
        return int(self.status().get("transferred") or 0)

    def progress(self) -> tuple[float, int]:
        """Return the time, and the number of records that are durable at the downstream.

        The time is the middle of the question: its begin would make the lag look shorter by what the answer takes.
        """
        asked = time.monotonic()
        found = self.transferred()
        return (asked + time.monotonic()) / 2, found

    def wait_transferred(self) -> float:
        """Wait until the downstream has all published messages; return the time."""
        everything = self.published
        what = f"{everything} messages at the downstream"
        wait_until(lambda: self.transferred() >= everything, what, TRANSFER_TIMEOUT_S, interval_s=POLL_S)
        return time.monotonic()

    def publish(self, job: PublishJob) -> tuple[Result, Progress]:
        """Publish; return the publisher's result, and the downstream's progress during it."""
        before, seen = self.published, []
        with Worker(job) as publisher, ThreadPoolExecutor(1) as pool:
            publisher.ready().go()
            ended = pool.submit(publisher.result)
            while not ended.done():
                at, found = self.progress()
                seen.append((at, found - before))
                sleep_until(at + POLL_S)
            result = ended.result()
        self.published += result.count
        return result, seen

    def job(self, **how: float) -> PublishJob:
        """Return a publisher's job at the upstream."""
        return PublishJob(self.upstream.amqp_port, QUEUE, vhost=VHOST, **how)  # type: ignore[arg-type]

    def promote(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Promote the downstream; yield the lines of its answer, each with the time."""
        url = f"http://{LOOPBACK}:{self.downstream.management_port}/api/replication/standby/promote"
        with httpx.stream("POST", url, auth=GUEST, json={}, timeout=PROMOTE_TIMEOUT_S) as answer:
            for line in answer.iter_lines():
                yield time.monotonic(), json.loads(line)


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    if not isinstance(node, LeveretProcess):
        count = settings.backlog // SHOVELLED_PART
        fill(node, count)
        return dict.fromkeys(("transfer", "promotion"), shovelled(node, count))
    with LeveretProcess(config=DOWNSTREAM, parent_dir=settings.folder) as downstream:
        pair = Pair(node, downstream)
        pair.connect()
        follow = _follow(pair, settings)
        burst = _burst(pair, settings)
        with LeveretProcess(config=DOWNSTREAM, parent_dir=settings.folder) as other:
            beside = Pair(node, other)
            beside.follow()
            beside.published = pair.published
            beside.wait_transferred()
            node.kill9()
            (downstream.data_dir / STAGED).touch()
            found = {"transfer": burst, "promotion": take_over(pair)}
            downstream.kill9()
            return follow | found | _ingested(beside)


def _ingested(pair: Pair) -> dict[str, Reading]:
    """Measure a promotion by segments, and the time from the command to a consumer's first message."""
    port = pair.downstream.amqp_port
    with ThreadPoolExecutor(1) as pool:
        asked = time.monotonic()
        first = pool.submit(_first_message, port)
        reading = take_over(pair)
        first_s = first.result() - asked
    return {"ingest": reading, "first-message": Reading(first_s, details=reading.details)}


def _first_message(port: int) -> float:
    """Return the time of a consumer's first message, which is then requeued."""
    connection = Connection(port, vhost=VHOST)
    try:
        connection.consume(QUEUE, prefetch=1)
        connection.skip_frames(1)
        return time.monotonic()
    finally:
        connection.close()


def _run_rto(node: Node, settings: Settings) -> dict[str, Reading]:
    return _promoted(node, settings, {"rto-small": settings.backlog // RTO_PART, "rto": settings.backlog})


def _run_rto_large(node: Node, settings: Settings) -> dict[str, Reading]:
    return _promoted(node, settings, {"rto-large": RTO_LARGE_TIMES * settings.backlog}, RTO_LARGE_BODY_BYTES)


def _promoted(
    node: Node, settings: Settings, sizes: dict[str, int], body_bytes: int = 1000
) -> dict[str, Reading]:
    """Measure promotions of so many messages, the smallest first, from the command to the end."""
    assert isinstance(node, LeveretProcess)
    found: dict[str, Reading] = {}
    published = 0
    for name, size in sizes.items():
        with LeveretProcess(config=DOWNSTREAM, parent_dir=settings.folder) as downstream:
            pair = Pair(node, downstream)
            if published:
                pair.follow()
            else:
                pair.connect()
            pair.published = published
            while pair.published < size:
                # In portions, so that the upstream retains all that is not transferred yet.
                count = min(settings.backlog, size - pair.published)
                pair.publish(pair.job(count=count, body_bytes=body_bytes))
                pair.wait_transferred()
            published = pair.published
            reading = take_over(pair)
            found[name] = Reading(reading.details["whole_s"], details=reading.details)
    return found


def _run_collection(node: Node, settings: Settings) -> dict[str, Reading]:
    """Measure the rate of a queue before and while its messages are collected for a standby."""
    assert isinstance(node, LeveretProcess)
    job = PublishJob(node.amqp_port, QUEUE, window=WINDOW, seconds=settings.seconds)
    without = publish_only(node, job, settings.warmup_s).rate
    mixed_without = _mixed_rate(node, settings)
    node.ctl("set_vhost_tags", "/", "standby_replication")
    node.ctl("set_policy", "standby", ".*", '{"remote-dc-replicate": true}', "--apply-to", "queues")
    collected = publish_only(node, job, settings.warmup_s).rate
    mixed = _mixed_rate(node, settings)
    return {
        "collection": Reading(collected / without, details={"without": without, "with": collected}),
        "collection-mixed": Reading(mixed / mixed_without, details={"without": mixed_without, "with": mixed}),
    }


def _mixed_rate(node: Node, settings: Settings) -> float:
    load = Load()
    with declared(node.amqp_port, load):
        return published_and_consumed(node, load, settings).rate


def _run_mixed(node: Node, settings: Settings) -> dict[str, Reading]:
    """Measure transfer and promotion of messages that differ; check each recovered message, and their order."""
    load = Load()
    if not isinstance(node, LeveretProcess):
        count = settings.backlog // SHOVELLED_PART
        with declared(node.amqp_port, load):
            traffic_fill(node.amqp_port, load, count)
            return dict.fromkeys(("mixed-transfer", "mixed-promotion"), shovelled(node, count, queue_name(0)))
    with LeveretProcess(config=DOWNSTREAM, parent_dir=settings.folder) as downstream:
        pair = Pair(node, downstream)
        pair.connect()
        connection = Connection(node.amqp_port, vhost=VHOST)
        declare(connection, load)
        connection.close()
        started = time.monotonic()
        traffic_fill(node.amqp_port, load, settings.backlog, VHOST)
        confirmed = time.monotonic()
        pair.published = settings.backlog
        done = pair.wait_transferred()
        node.kill9()
        promotion = take_over(pair, queue_name(0))
        taken(downstream, load, settings.backlog, VHOST)
    details = {
        "upstream_rate": settings.backlog / (confirmed - started),
        "after_the_last_s": done - confirmed,
    }
    transfer = Reading(settings.backlog / (done - started), details=details)
    return {"mixed-transfer": transfer, "mixed-promotion": promotion}


def _follow(pair: Pair, settings: Settings) -> dict[str, Reading]:
    """Measure the lag at a steady rate, after a warm-up at that rate."""
    spans = FOLLOW_SPANS * settings.seconds
    pair.publish(pair.job(seconds=spans, rate=FOLLOW_RATE))
    pair.wait_transferred()
    result, seen = pair.publish(pair.job(seconds=spans, rate=FOLLOW_RATE))
    start, end = result.samples[0][0], result.samples[-1][0]
    taken = rate_between(result.samples, start, end)
    if taken < FOLLOW_SHARE_MIN * FOLLOW_RATE and not settings.quick:
        raise LoadError(f"the upstream took {taken:.0f} messages/s of {FOLLOW_RATE}")
    lags_s = sorted(lag_s(result.samples, at, have) for at, have in seen if start < at < end)
    caught_up_s = pair.wait_transferred() - end
    details = {"upstream_rate": taken, "max": lags_s[-1], "caught_up_after_s": caught_up_s}
    return {
        "lag-p50": Reading(lags_s[len(lags_s) // 2], details=details),
        "lag-p99": Reading(lags_s[int(len(lags_s) * 0.99)], details=details),
    }


def lag_s(samples: Progress, at: float, have: int) -> float:
    """Return the age of the first message behind the `have` transferred ones; 0 if there is none."""
    if have >= int(count_at(samples, at)):
        return 0.0
    after = bisect.bisect_right(samples, have, key=lambda sample: sample[1])
    if after == 0:
        return at - samples[0][0]
    (left, low), (right, high) = samples[after - 1], samples[after]
    return at - (left + (right - left) * (have - low) / (high - low))


def _burst(pair: Pair, settings: Settings) -> Reading:
    """Measure a burst, from its first message until all of it is durable at the downstream."""
    result, _ = pair.publish(pair.job(count=settings.backlog))
    start, end = result.samples[0][0], result.samples[-1][0]
    done = pair.wait_transferred()
    details = {
        "upstream_rate": result.count / (end - start),
        "after_the_last_s": done - end,
        "messages": float(result.count),
    }
    return Reading(result.count / (done - start), details=details)


def take_over(pair: Pair, queue: str = QUEUE, settled: int = 0) -> Reading:
    """Measure a promotion; check that all messages but the settled ones are there after it."""
    asked = time.monotonic()
    started = ended = 0.0
    for at, line in pair.promote():
        if "error" in line:
            raise LoadError(f"promotion: {line.get('reason', line)}")
        if line.get("progress", {}).get("event") == "started":
            started = at
        ended = at
    if not started:
        raise LoadError("promotion: it did not say when Spark had started")
    connection = Connection(pair.downstream.amqp_port, vhost=VHOST)
    found = connection.ready_messages(queue)
    connection.close()
    if found != pair.published - settled:
        raise LoadError(
            f"{pair.published} messages confirmed and transferred, {settled} settled, {found} after the promotion"
        )
    details = {"spark_s": started - asked, "whole_s": ended - asked, "messages": float(found)}
    return Reading(found / (ended - started), details=details)


COLLECTION: Final = Scenario(
    (
        Row(
            "collection",
            "publish to a queue that is collected for a standby, by the rate before it was",
            "share",
            True,
            Target("value", COLLECTED_SHARE_MIN),
        ),
        Row(
            "collection-mixed",
            "mixed messages through a queue that is collected for a standby, by the rate before it was",
            "share",
            True,
            Target("value", COLLECTED_SHARE_MIN),
        ),
    ),
    _run_collection,
    brokers=(LEVERET,),
)

STANDBY: Final = Scenario(
    (
        Row(
            "transfer",
            "transfer to the standby of a burst of 1000 B messages (RabbitMQ: a shovel)",
            "msg/s",
            True,
            Target("ratio", SHOVEL_RATIO_MIN),
        ),
        Row(
            "lag-p50",
            f"lag of the standby at {FOLLOW_RATE:,} messages/s, p50",
            "s",
            False,
            Target("value", 1.0),
        ),
        Row(
            "lag-p99",
            f"lag of the standby at {FOLLOW_RATE:,} messages/s, p99",
            "s",
            False,
            Target("value", 3.0),
        ),
        Row(
            "promotion",
            "promotion, 1000 B, after Spark has started (RabbitMQ: a shovel)",
            "msg/s",
            True,
            Target("ratio", SHOVEL_RATIO_MIN),
        ),
        Row(
            "ingest",
            "promotion by segments, 1000 B, by the rate of the promotion that publishes",
            "msg/s",
            True,
            Target("share", INGEST_SHARE_MIN, "promotion"),
        ),
        Row(
            "first-message",
            "first message at a consumer, after the command to promote",
            "s",
            False,
            Target("value", FIRST_MESSAGE_S_MAX),
        ),
    ),
    _run,
    once=True,
    brokers=(LEVERET, RABBITMQ),
)
RTO: Final = Scenario(
    (
        Row(
            "rto-small", "promotion of one hundredth of the backlog, from the command to its end", "s", False
        ),
        Row("rto", "promotion of the backlog, 1000 B, from the command to its end", "s", False),
    ),
    _run_rto,
    once=True,
    brokers=(LEVERET,),
)
RTO_LARGE: Final = Scenario(
    (
        Row(
            "rto-large",
            f"promotion of {RTO_LARGE_TIMES} times the backlog, {RTO_LARGE_BODY_BYTES} B, from the command to its end",
            "s",
            False,
        ),
    ),
    _run_rto_large,
    once=True,
    brokers=(LEVERET,),
)
MIXED_STANDBY: Final = Scenario(
    (
        Row(
            "mixed-transfer",
            "transfer to the standby of a burst of mixed messages (RabbitMQ: a shovel)",
            "msg/s",
            True,
            Target("ratio", MIXED_SHOVEL_RATIO_MIN),
        ),
        Row(
            "mixed-promotion",
            "promotion, mixed messages, after Spark has started (RabbitMQ: a shovel)",
            "msg/s",
            True,
            Target("ratio", MIXED_SHOVEL_RATIO_MIN),
        ),
    ),
    _run_mixed,
    once=True,
    brokers=(LEVERET, RABBITMQ),
)
