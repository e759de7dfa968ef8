"""Recoveries into real nodes that fail half-way: each message is there once, in order, when it is done again."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import pika
import pytest

from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import PlanDirectory
from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials
from leveret.pipeline.recovery import driver
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.target_broker.compare import ComparisonClient, Differs
from leveret.pipeline.target_broker.publish import AmqpClient, read_progress
from leveret.pipeline.upstream.stream_client import connect
from leveret.storage.removed import RemovedFiles
from leveret.storage.staged import StagedDirectory
from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.chunk import encode_entry
from leveret.wire.stream_entry import pack_entries

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
Start = Callable[[str, dict[str, Any]], Any]
Recover = Callable[..., list[dict[str, Any]]]
Job = Callable[..., dict[str, Any]]
FILE_BYTES_MAX: Final = 1_000_000
"""No file of the node may grow beyond this while its disk is full; what it writes of itself is far less."""
MESSAGES: Final = 20_000
LARGE: Final = 30_000
"""The messages of a queue that is brought by shares of files."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LeveretProcess]:
    with LeveretProcess(parent_dir=tmp_path) as node:
        yield node


def filled(data_dir: Path, vhosts: dict[str, int]) -> Manifest:
    """An archive with so many messages in the queue `q` of each of these vhosts."""
    upstream = StandbyUpstream(list(vhosts))
    for vhost, messages in vhosts.items():
        for first in range(0, messages, 100):
            bodies = [b"%d.%s" % (number, b"x" * 200) for number in range(first, first + 100)]
            upstream.publish(vhost, "q", [stored_message(body) for body in bodies])
    return transfer(upstream, data_dir)


def declare(node: LeveretProcess, *vhosts: str) -> None:
    for vhost in vhosts:
        with closing(pika.BlockingConnection(parameters(node.amqp_port, vhost))) as connection:
            connection.channel().queue_declare("q", durable=True)


def numbers(node: LeveretProcess, vhost: str) -> list[int]:
    """What is in the queue, in its order."""
    with closing(pika.BlockingConnection(parameters(node.amqp_port, vhost))) as connection:
        channel = connection.channel()
        count = channel.queue_declare("q", passive=True).method.message_count
        found = channel.consume("q", auto_ack=True)
        return [int(next(found)[2].partition(b".")[0]) for _ in range(count)]


def publish(node: LeveretProcess, directory: PlanDirectory, vhost: str) -> None:
    """What one of Spark's tasks does."""
    client = partial(
        connect,
        [f"{LOOPBACK}:{node.stream_port}"],
        vhost=vhost,
        username="guest",
        password="guest",
        timeout_s=10.0,
    )
    PlanPublisher(directory, client, lambda count: None).publish(["q"])


@contextmanager
def full_disk(node: LeveretProcess) -> Iterator[None]:
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, resource.RLIM_INFINITY))
    yield
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.story
def test_a_full_disk_at_the_node_and_a_job_that_died_just_before_its_end(
    node: LeveretProcess, recover: Recover, recover_job: Job, tmp_path: Path
) -> None:
    """Two plans that were left: one stopped where the disk was full, one published whole and never marked so."""
    manifest = filled(tmp_path / "standby", {"/": MESSAGES, "whole": 1000})
    plans = {vhost: freeze_plan(manifest, vhost) for vhost in ("/", "whole")}
    half, whole = plans["/"], plans["whole"]
    assert half is not None
    assert whole is not None
    node.ctl("add_vhost", "whole")
    node.ctl("set_permissions", "-p", "whole", "guest", ".*", ".*", ".*")
    declare(node, "/", "whole")
    with full_disk(node), pytest.raises(LeveretError, match="its log says why"):
        publish(node, half, "/")
    assert "the disk refused" in node.log_text()
    publish(node, whole, "whole")
    assert (half.is_done, whole.is_done) == (False, False)
    with closing(pika.BlockingConnection(parameters(node.amqp_port, "/"))) as connection:
        before = connection.channel().queue_declare("q", passive=True).method.message_count
    assert 0 < before < MESSAGES
    summary = recover(recover_job(node.stream_port))[-1]["summary"]
    assert (half.is_done, whole.is_done) == (True, True)
    counts = {row["virtual_host"]: row["message_count"] for row in summary}
    assert counts == {"/": MESSAGES, "whole": 1000}
    assert numbers(node, "/") == list(range(MESSAGES))
    assert numbers(node, "whole") == list(range(1000))


def test_large_queues_come_by_shares_of_files_small_ones_beside_them_and_each_is_counted_once(
    node: LeveretProcess, recover: Recover, recover_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the driver itself scans so few messages.
    monkeypatch.setattr(driver, "RECORDS_SCANNED_HERE_MAX", 0)
    manifest = filled(tmp_path / "standby", {"/": LARGE, "small": 3000})
    node.ctl("add_vhost", "small")
    node.ctl("set_permissions", "-p", "small", "guest", ".*", ".*", ".*")
    declare(node, "/", "small")
    with StagedDirectory(node.data_dir, RemovedFiles(node.data_dir)).open() as staging:
        said = recover(recover_job(node.stream_port, staging=staging))
    counts = {row["virtual_host"]: row["message_count"] for row in said[-1]["summary"]}
    assert counts == {"/": LARGE, "small": 3000}
    published = [
        event["messages"] for event in said if event["event"] == "published" and event["vhost"] == "/"
    ]
    assert sum(published) <= LARGE, "no message is reported twice; a report may be lost"
    # A task that owns the queue would write three: of 1 MB, 4 MB, and the rest.
    assert len(list((node.data_dir / "queues").rglob("*.segment"))) > len(manifest.files_of("/"))
    assert numbers(node, "/") == list(range(LARGE))
    assert numbers(node, "small") == list(range(3000))


@pytest.mark.story
def test_what_came_of_a_vhost_since_a_rehearsal_began_goes_nowhere(
    node: LeveretProcess, recover: Recover, recover_job: Job, tmp_path: Path
) -> None:
    """Above all not to the vhost that applications use; the rehearsal knew of the other one alone."""
    filled(tmp_path / "standby", {"/": 200, "late": 100})
    scratch = "leveret.rehearsal.abc.0"
    for vhost in ("late", scratch):
        node.ctl("add_vhost", vhost)
        node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    declare(node, "/", "late", scratch)
    guest = {"username": "guest", "password": "guest"}
    compare = {"host": LOOPBACK, "port": node.amqp_port, "credentials": guest}
    rehearsal = recover_job(node.stream_port, scratch="abc", compare=compare)
    for vhosts, compared in (({}, 0), ({"/": scratch}, 200)):
        done = recover(rehearsal | {"vhosts": vhosts})[-1]
        assert done["compared"] == {"messages": compared}
        assert [row["virtual_host"] for row in done["summary"]] == list(vhosts)
        assert (numbers(node, "/"), numbers(node, "late")) == ([], [])


def test_a_broker_that_is_killed_and_started_while_it_is_recovered_into(
    node: LeveretProcess, recover: Recover, recover_job: Job, tmp_path: Path
) -> None:
    filled(tmp_path / "standby", {"/": MESSAGES})
    target = {
        "host": LOOPBACK,
        "port": node.amqp_port,
        "credentials": {"username": "guest", "password": "guest"},
        "queues": {"/": {"q": {}}},
    }
    counts: list[int] = []

    def kill_once(event: dict[str, Any]) -> None:
        """In the driver's thread, while the task goes on in its worker."""
        if event["event"] == "published" and not counts:
            with closing(pika.BlockingConnection(parameters(node.amqp_port, "/"))) as connection:
                counts.append(connection.channel().queue_declare("q", passive=True).method.message_count)
            node.kill9()
            node.start()

    [row] = recover(recover_job(1, to=target), kill_once)[-1]["summary"]
    assert counts[0] < MESSAGES, "it is half-way"
    assert (row["message_count"], row["in_doubt"]) == (MESSAGES, 0)
    assert numbers(node, "/") == list(range(MESSAGES))


@pytest.mark.story
@pytest.mark.parametrize("vhost", ["leveret.rehearsal.abc.0", "shop"])
def test_messages_with_a_time_to_live_of_their_own_expire_but_not_before_a_rehearsal_compares_them(
    node: LeveretProcess, tmp_path: Path, vhost: str
) -> None:
    expiring = b"\x11\x00\x02\x03100"
    upstream = StandbyUpstream(["/"])
    upstream.publish(
        "/", "q", [stored_message(b"%d." % number, properties=expiring) for number in range(100)]
    )
    plan = freeze_plan(transfer(upstream, tmp_path / "standby"), "/")
    assert plan is not None
    node.ctl("add_vhost", vhost)
    node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    declare(node, vhost)
    publish(node, plan, vhost)
    time.sleep(0.5)
    guest = LoginCredentials(username="guest", password="guest")
    target = AmqpTarget(host=LOOPBACK, port=node.amqp_port, credentials=guest)
    client = partial(ComparisonClient, target, vhost, plan.load().queues, 5.0)
    with nullcontext() if vhost.startswith("leveret.") else pytest.raises(Differs, match="has 0 messages"):
        PlanPublisher(plan, client, lambda count: None).publish(["q"])


@pytest.mark.story
def test_messages_of_other_users_need_a_user_that_may_impersonate_them(
    node: LeveretProcess, tmp_path: Path
) -> None:
    of_app = b"\x10\x10\x02\x03app"
    upstream = StandbyUpstream(["/"])
    upstream.publish("/", "q", [stored_message(b"%d." % number, properties=of_app) for number in range(5)])
    plan = freeze_plan(transfer(upstream, tmp_path / "standby"), "/")
    assert plan is not None
    declare(node, "/")
    guest = LoginCredentials(username="guest", password="guest")
    target = AmqpTarget(host=LOOPBACK, port=node.amqp_port, credentials=guest)
    client = partial(AmqpClient, target, "/", plan.progress, plan.load().queues, timeout_s=10)
    with pytest.raises(PreconditionFailed, match=r"'app' .* the tag `impersonator`"):
        PlanPublisher(plan, client, lambda count: None).publish(["q"])
    node.ctl("set_user_tags", "guest", "administrator", "impersonator")
    PlanPublisher(plan, client, lambda count: None).publish(["q"])
    with closing(pika.BlockingConnection(parameters(node.amqp_port, "/"))) as connection:
        _, properties, body = connection.channel().basic_get("q", auto_ack=True)
        assert (properties.user_id, body) == ("app", b"0.")
    assert numbers(node, "/") == [1, 2, 3, 4]


# Two JVMs and two starts of Erlang; without processes, see conformance/test_recovery_target_streams.py.
@pytest.mark.torture
@pytest.mark.rabbitmq
def test_a_job_and_then_the_rabbitmq_that_are_killed_while_a_stream_is_recovered_into_it(
    start_pipeline: Start, recover_job: Job, tmp_path: Path
) -> None:
    upstream = StandbyUpstream(["/"])
    for first in range(0, MESSAGES, 100):
        entries = [encode_entry(b"%d" % number) for number in range(first, first + 100)]
        upstream.publish("/", "events", [pack_entries(entry)[0][4:] for entry in entries])
    transfer(upstream, tmp_path / "standby")
    with RabbitNode(parent_dir=tmp_path) as rabbit:
        target = {
            "host": LOOPBACK,
            "port": rabbit.amqp_port,
            "credentials": {"username": "guest", "password": "guest"},
            "queues": {"/": {"events": {"x-queue-type": "stream"}}},
        }
        # RabbitMQ itself forgets a stream that was made just before it is killed.
        with closing(pika.BlockingConnection(parameters(rabbit.amqp_port, "/"))) as connection:
            connection.channel().queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        killed = start_pipeline("recover", recover_job(1, to=target))
        killed.wait_for(lambda event: event["event"] == "published")
        killed.kill9()
        [progress] = (tmp_path / "standby" / "exports").rglob("progress/*.json")
        assert read_progress(progress).confirmed < MESSAGES, "it is half-way"
        rest = start_pipeline("recover", recover_job(1, to=target))
        rest.wait_for(lambda event: event["event"] == "published")
        rabbit.kill9()
        rabbit.start()
        assert rest.wait() == 0, rest.events[-1]
        [row] = rest.events[-1]["summary"]
        assert (row["message_count"], row["in_doubt"]) == (MESSAGES, 0)
        assert in_stream(rabbit.amqp_port, "events", MESSAGES) == list(range(MESSAGES))


def in_stream(port: int, stream: str, count: int) -> list[int]:
    """The numbers in a stream's messages, in its order."""
    found: list[int] = []
    with closing(pika.BlockingConnection(parameters(port, "/"))) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        begin = {"x-stream-offset": "first"}
        for method, _, body in channel.consume(stream, arguments=begin, inactivity_timeout=20):
            if method is None:
                break
            found.append(int(body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
    return found
