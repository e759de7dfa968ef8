"""Tasks of a recovery that write segments of a real node's logs, killed at every step: each message is there once."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pika
import pytest

from leveret.pipeline.archive.recovery_plan import PlanDirectory
from leveret.pipeline.recovery import file_shares
from leveret.pipeline.recovery.file_shares import FileShare, queue_begins, shares_of, write_share
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.recovery.segment_intake import SegmentIntake
from leveret.pipeline.recovery.segments import StagingClient
from leveret.pipeline.upstream.stream_client import connect
from leveret.storage.removed import RemovedFiles
from leveret.storage.staged import StagedDirectory
from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

pytestmark = pytest.mark.timeout(900)
Way = Callable[[PlanDirectory, int, Path, list[str]], None]
QUEUES: Final = ("q0", "q1", "q2")
MESSAGES: Final = 6_000
HELD: Final = 50
PATIENCE_S: Final = 60.0
BODY_REST: Final = b"." + b"x" * 400


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LeveretProcess]:
    with LeveretProcess(data_dir=tmp_path / "node") as node:
        declare(node)
        yield node


def declare(node: LeveretProcess) -> None:
    """The queues, each with messages of its own."""
    with closing(pika.BlockingConnection(parameters(node.amqp_port, "/"))) as connection:
        channel = connection.channel()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True)
            for number in range(HELD):
                channel.basic_publish("", queue, b"held-%d" % number, pika.BasicProperties(delivery_mode=2))
        wait_until(lambda: count(channel) == HELD * len(QUEUES), "messages that are there before", PATIENCE_S)


def count(channel: Any) -> int:
    return sum(channel.queue_declare(queue, passive=True).method.message_count for queue in QUEUES)


def task(plan: PlanDirectory, port: int, staging: Path, queues: list[str]) -> None:
    """What one of Spark's tasks does; in a process of its own it can be killed."""

    def client() -> StagingClient:
        node = connect([f"{LOOPBACK}:{port}"], vhost="/", username="guest", password="guest", timeout_s=20.0)
        return StagingClient(node, staging, plan.load().queues, 20.0)

    PlanPublisher(plan, client, lambda count: None).publish(queues)


def by_shares(plan: PlanDirectory, port: int, staging: Path, queues: list[str]) -> None:
    """What the driver and the tasks do that own files, and then the tasks that own queues; in any order of shares."""
    client = connect([f"{LOOPBACK}:{port}"], vhost="/", username="guest", password="guest", timeout_s=20.0)
    frozen = plan.load()
    begins = queue_begins(client, frozen, staging)
    intake = SegmentIntake(client, staging, frozen.reference, begins, lambda count: None, 20.0)
    cut = list(shares_of(frozen, 1, 2))
    random.Random(port).shuffle(cut)
    try:
        for first, end in cut:
            share = FileShare(plan, "/", frozen.plan_id, first, end, begins)
            for segment in write_share(share, staging, intake.offer):
                intake.offer(segment)
    finally:
        intake.finish()
    task(plan, port, staging, queues)


@pytest.fixture(params=[task, by_shares])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    """The two ways of large queues; with both, each test is the same."""
    monkeypatch.setattr(file_shares, "MESSAGES_MIN", 2000)
    chosen: Way = request.param
    return chosen


def planned(data_dir: Path) -> PlanDirectory:
    upstream = StandbyUpstream(["/"])
    for first in range(0, MESSAGES, 100):
        for queue in QUEUES:
            bodies = [b"%d%s" % (number, BODY_REST) for number in range(first, first + 100)]
            upstream.publish("/", queue, [stored_message(body, b"ex", queue.encode()) for body in bodies])
    plan = freeze_plan(transfer(upstream, data_dir), "/")
    assert plan is not None
    return plan


def taken(node: LeveretProcess) -> dict[str, list[tuple[str, str, bytes]]]:
    """Exchange, routing key and body of each message, in order."""
    found: dict[str, list[tuple[str, str, bytes]]] = {}
    for queue in QUEUES:
        with closing(pika.BlockingConnection(parameters(node.amqp_port, "/"))) as connection:
            channel = connection.channel()
            left = channel.queue_declare(queue, passive=True).method.message_count
            messages = channel.consume(queue, auto_ack=True)
            deliveries = [next(messages) for _ in range(left)]
            found[queue] = [(method.exchange, method.routing_key, body) for method, _, body in deliveries]
    return found


def expected() -> dict[str, list[tuple[str, str, bytes]]]:
    return {
        queue: [("", queue, b"held-%d" % number) for number in range(HELD)]
        + [("ex", queue, b"%d%s" % (number, BODY_REST)) for number in range(MESSAGES)]
        for queue in QUEUES
    }


def recovered(node: LeveretProcess, plan: PlanDirectory, way: Way) -> None:
    """Recover to the end, as a promotion does."""
    with StagedDirectory(node.data_dir, RemovedFiles(node.data_dir)).open() as staging:
        way(plan, node.stream_port, Path(staging), list(QUEUES))
        assert not list(Path(staging).glob("*/*")), "each segment is in a log"


def segments(node: LeveretProcess) -> int:
    return len(list((node.data_dir / "queues").rglob("*.segment")))


def test_killed_at_any_moment_and_run_again_nothing_is_lost_doubled_altered_or_out_of_order(
    node: LeveretProcess, tmp_path: Path, way: Way
) -> None:
    seed = int(os.environ.get("LEVERET_SEED", "1"))
    print(f"LEVERET_SEED={seed}")
    chance = random.Random(seed)
    plan = planned(tmp_path / "standby")
    for victim in ("task", "node", "task", "disk", "node"):
        place = StagedDirectory(node.data_dir, RemovedFiles(node.data_dir))
        with place.open() as staging:
            arguments = (plan, node.stream_port, Path(staging), list(QUEUES))
            child = multiprocessing.get_context("fork").Process(target=way, args=arguments)
            before = segments(node)
            child.start()
            deadline = time.monotonic() + PATIENCE_S
            while segments(node) == before and child.is_alive() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.2)
            if victim == "task":
                child.kill()
            elif victim == "node":
                node.kill9()
            else:
                limits = (1000, resource.RLIM_INFINITY)
                resource.prlimit(node.pid, resource.RLIMIT_FSIZE, limits)
            child.join(PATIENCE_S)
            assert child.exitcode is not None
        if victim == "node":
            node.start()
        elif victim == "disk":
            limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, limits)
    recovered(node, plan, way)
    assert taken(node) == expected()
