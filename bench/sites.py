"""Clusters as the sites of a warm standby: transfers, the take-over of a virtual host, many vhosts, many queues.

sites      An upstream of three nodes with a mirrored queue gets as many messages as the backlog has. The transfer
           ends when the downstream, of one node or of three, lacks no record. Then the node of the downstream that
           owns the vhost is killed; the time runs until another node follows and has all of its data.
vhosts     A hundred replicated vhosts with one queue each, between two single nodes, without traffic: the processor
           time of both nodes and of Spark.
queues     Ten thousand replicated queues with one message each, between two single nodes: the transfer, then the
           promotion, from the command to its end.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pika

from bench.client import LoadError
from bench.contenders import LEVERET, Node
from bench.load import PublishJob
from bench.rows import WINDOW, Reading, Row, Scenario, Settings
from bench.workers import Worker
from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.process import cpu_seconds, descendants
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_standby import ClusterStandby
from leveret.testing.sites.standby_pair import StandbyPair, get

VHOST: Final = "bench"
QUEUE: Final = "bench"
NODES: Final = 3
PART: Final = 4
"""The backlog's part that a cluster transfers: three nodes, their mirrors and Spark share the machine."""
VHOSTS: Final = 100
QUEUES: Final = 10_000
QUICK_PART: Final = 10
IDLE_S: Final = 20.0
FOLLOW_TIMEOUT_S: Final = 300.0


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    if missing := cluster_site.available():
        raise LoadError(missing)
    one, _ = _transferred(settings, downstream_nodes=1)
    three, taken_over = _transferred(settings, downstream_nodes=NODES)
    assert taken_over is not None
    return {"sites-transfer-1": one, "sites-transfer-3": three, "sites-take-over": taken_over}


def _transferred(settings: Settings, downstream_nodes: int) -> tuple[Reading, Reading | None]:
    """Measure a transfer from a cluster, and the loss of the owner if the downstream has several nodes."""
    count = settings.backlog // PART
    with (
        tempfile.TemporaryDirectory(dir=settings.folder) as folder,
        ClusterStandby(VHOST, Path(folder), NODES, downstream_nodes) as sites,
    ):
        sites.start()
        sites.replicate("osr", "^bench")
        with pika.BlockingConnection(parameters(sites.upstream.amqp_port, VHOST)) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        sites.follow()
        job = PublishJob(sites.upstream.amqp_port, QUEUE, window=WINDOW, count=count, vhost=VHOST)
        with Worker(job) as publisher:
            publisher.ready().go()
            result = publisher.result()
        start, end = result.samples[0][0], result.samples[-1][0]
        sites.wait_transferred()
        done = time.monotonic()
        details = {"upstream_rate": count / (end - start), "after_the_last_s": done - end}
        transfer = Reading(count / (done - start), details=details)
        if sites.second is None:
            return transfer, None
        lost = sites.lose_owner()
        killed = time.monotonic()
        sites.wait_taken_over(lost)
        return transfer, Reading(time.monotonic() - killed, details={"messages": float(count)})


@contextmanager
def _following(settings: Settings) -> Iterator[StandbyPair]:
    """Start two single nodes, the second a downstream of the first."""
    with (
        tempfile.TemporaryDirectory(dir=settings.folder) as folder,
        StandbyPair(VHOST, Path(folder)) as pair,
    ):
        pair.start()
        pair.replicate("osr", "^.*")
        pair.follow()
        yield pair


def _run_vhosts(node: Node, settings: Settings) -> dict[str, Reading]:
    """Measure the processor time of a hundred idle vhosts, by that of one."""
    count = VHOSTS // QUICK_PART if settings.quick else VHOSTS
    with _following(settings) as pair:
        pair.publish(QUEUE, [b"x"])
        pair.wait_transferred()
        one = _idle_share(pair)
        policy = json.dumps({"remote-dc-replicate": True})
        for number in range(1, count):
            vhost = f"{VHOST}-{number:03}"
            pair.upstream.ctl("add_vhost", vhost, "--tags", "standby_replication")
            for user in ("guest", "offsite-replicator"):
                pair.upstream.ctl("set_permissions", "-p", vhost, user, ".*", ".*", ".*")
            pair.upstream.ctl("set_policy", "--vhost", vhost, "osr", "^.*", policy, "--apply-to", "queues")
            with pika.BlockingConnection(parameters(pair.upstream.amqp_port, vhost)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare(QUEUE, durable=True)
                channel.basic_publish("", QUEUE, b"x", pika.BasicProperties(delivery_mode=2))
        _wait_all(pair, count)
        many = _idle_share(pair)
        rss = (pair.upstream.rss_bytes() + pair.downstream.rss_bytes()) / 1e6
        return {
            "vhosts-100-idle": Reading(many, details={"one_vhost": one, "vhosts": count, "nodes_mb": rss})
        }


def _wait_all(pair: StandbyPair, vhosts: int) -> None:
    """Wait until all vhosts are followed and lack nothing."""

    def all_are_here() -> bool:
        rows = pair.status()["vhosts"]
        here = [row for row in rows if row["state"] == "connected" and not row["lag_records"]]
        return len(here) == vhosts and all(row["transferred"] for row in here)

    wait_until(all_are_here, f"{vhosts} vhosts that are followed", FOLLOW_TIMEOUT_S, interval_s=1)


def _idle_share(pair: StandbyPair) -> float:
    """Return the processor time of both nodes and their child processes, in percent of one core."""
    began, before = time.monotonic(), _cpu_s(pair)
    time.sleep(IDLE_S)
    return 100 * (_cpu_s(pair) - before) / (time.monotonic() - began)


def _cpu_s(pair: StandbyPair) -> float:
    found = 0.0
    for node in (pair.upstream, pair.downstream):
        for pid in (node.pid, *(child for child, _ in descendants(node.pid))):
            try:
                found += cpu_seconds(pid)
            except OSError:
                continue
    return found


def _run_queues(node: Node, settings: Settings) -> dict[str, Reading]:
    """Measure the transfer and the promotion of many queues with one message each."""
    count = QUEUES // QUICK_PART if settings.quick else QUEUES
    with _following(settings) as pair:
        with pika.BlockingConnection(parameters(pair.upstream.amqp_port, VHOST)) as connection:
            channel = connection.channel()
            for number in range(count):
                channel.queue_declare(f"q{number:05}", durable=True)
            channel.confirm_delivery()
            start = time.monotonic()
            for number in range(count):
                channel.basic_publish("", f"q{number:05}", b"x", pika.BasicProperties(delivery_mode=2))
        end = time.monotonic()
        pair.wait_transferred()
        done = time.monotonic()
        _wait_definitions(pair, count)
        pair.upstream.kill9()
        asked = time.monotonic()
        promoted = pair.promote()
        if promoted.returncode:
            raise LoadError(promoted.stderr)
        ended = time.monotonic()
        found = sum(int(row["message_count"]) for row in json.loads(promoted.stdout))
        if found != count:
            raise LoadError(f"{count} messages in as many queues, {found} after the promotion")
        return {
            "queues-10000-transfer": Reading(
                done - start, details={"published_s": end - start, "queues": count}
            ),
            "queues-10000-promotion": Reading(ended - asked, details={"queues": count}),
        }


def _wait_definitions(pair: StandbyPair, queues: int) -> None:
    """Wait until the downstream has all queues."""
    path = f"queues/{VHOST}?columns=name&disable_stats=true"
    wait_until(
        lambda: len(get(pair.downstream, path)) >= queues,
        f"{queues} queues at the downstream",
        FOLLOW_TIMEOUT_S,
        interval_s=1,
    )


SITES: Final = Scenario(
    (
        Row(
            "sites-transfer-1", "transfer of a burst, 1000 B, from a cluster of 3 to one node", "msg/s", True
        ),
        Row(
            "sites-transfer-3",
            "transfer of a burst, 1000 B, from a cluster of 3 to a cluster of 3",
            "msg/s",
            True,
        ),
        Row("sites-take-over", "take-over of a vhost from a killed owner, with all its data", "s", False),
    ),
    _run,
    once=True,
    brokers=(LEVERET,),
)
VHOSTS_IDLE: Final = Scenario(
    (Row("vhosts-100-idle", "100 idle replicated vhosts: both nodes and Spark, of one core", "%", False),),
    _run_vhosts,
    once=True,
    brokers=(LEVERET,),
)
SMALL_QUEUES: Final = Scenario(
    (
        Row(
            "queues-10000-transfer",
            "10,000 replicated queues, one message each: until transferred",
            "s",
            False,
        ),
        Row("queues-10000-promotion", "promotion of 10,000 queues, one message each", "s", False),
    ),
    _run_queues,
    once=True,
    brokers=(LEVERET,),
)
