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

from leveret.model.errors import LeveretError
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
    cut = list(shares_of(len(frozen.files), 2))
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


@pytest.mark.story
def test_what_queues_hold_comes_first_then_what_was_recovered_and_segments_pass_a_scrub(
    node: LeveretProcess, tmp_path: Path, way: Way
) -> None:
    plan = planned(tmp_path / "standby")
    recovered(node, plan, way)
    assert segments(node) > 2 * len(QUEUES), "they were published"
    said = node.ctl("scrub").stdout
    assert "Damaged: 0" in said, said
    node.kill9()
    node.start()
    recovered(node, plan, way)
    assert taken(node) == expected()


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


@pytest.mark.story
def test_consumers_and_publishers_go_on_and_each_message_comes_once_in_order(
    node: LeveretProcess, tmp_path: Path, way: Way
) -> None:
    """Acks and publishes move the logs' ends, so that some segments fit no more."""
    plan = planned(tmp_path / "standby")
    with StagedDirectory(node.data_dir, RemovedFiles(node.data_dir)).open() as staging:
        arguments = (plan, node.stream_port, Path(staging), list(QUEUES))
        child = multiprocessing.get_context("fork").Process(target=way, args=arguments)
        child.start()
        found: list[bytes] = []
        with closing(pika.BlockingConnection(parameters(node.amqp_port, "/"))) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=200)
            for method, _, body in channel.consume("q0", inactivity_timeout=PATIENCE_S):
                assert method is not None, f"nothing after {len(found)} messages"
                found.append(body)
                channel.basic_ack(method.delivery_tag)
                if len(found) % 500 == 0:
                    channel.basic_publish("", "q0", b"live", pika.BasicProperties(delivery_mode=2))
                if len([each for each in found if each != b"live"]) == HELD + MESSAGES:
                    break
        child.join(PATIENCE_S)
        assert child.exitcode == 0
    assert [each for each in found if each != b"live"] == [body for _, _, body in expected()["q0"]]
    rest = taken(node)
    assert {each for _, _, each in rest["q0"]} <= {b"live"}
    assert {queue: rest[queue] for queue in QUEUES[1:]} == {queue: expected()[queue] for queue in QUEUES[1:]}


@pytest.mark.story
def test_a_task_on_a_full_disk_ends_with_the_path_and_can_be_run_again(
    node: LeveretProcess, tmp_path: Path, way: Way
) -> None:
    plan = planned(tmp_path / "standby")
    with StagedDirectory(node.data_dir, RemovedFiles(node.data_dir)).open() as staging:
        arguments = (plan, node.stream_port, Path(staging), list(QUEUES))
        told = multiprocessing.get_context("fork").Queue()
        child = multiprocessing.get_context("fork").Process(
            target=_on_a_full_disk, args=(told, way, arguments)
        )
        child.start()
        said = told.get(timeout=PATIENCE_S)
        child.join(PATIENCE_S)
    assert "staged" in said
    assert "cannot be written" in said
    recovered(node, plan, way)
    assert taken(node) == expected()


def _on_a_full_disk(told: Any, way: Way, arguments: tuple[Any, ...]) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    try:
        way(*arguments)
    except LeveretError as error:
        told.put(str(error))
