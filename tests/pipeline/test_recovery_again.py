"""A recovery that stopped, done again in another way: without what stopped it, by another name of the same place."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest
from pyspark.errors import PySparkException

from leveret.model.errors import PreconditionFailed
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials, RecoverJob
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.recovery.targets import client_of
from leveret.pipeline.target_broker.publish import progress_path, read_progress
from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.stream_entry import pack_entries
from tests.conformance.killing import killed_after

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
GUEST = LoginCredentials(username="guest", password="guest")
MESSAGES = 1500


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """Another broker, with vhosts `a`, `b` and `shop`."""
    with LeveretProcess(parent_dir=tmp_path_factory.mktemp("node")) as node:
        for vhost in ("a", "b", "shop"):
            node.ctl("add_vhost", vhost)
            node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        yield node


Recover = Callable[[RecoverJob], list[dict[str, Any]]]


@pytest.fixture
def recover(recover: Callable[[RecoverJob], list[dict[str, Any]]]) -> Recover:
    """The rows of the vhosts."""

    def run(job: RecoverJob) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = recover(job)[-1]["summary"]
        return rows

    return run


def into(node: LeveretProcess, folder: Path, **changes: Any) -> RecoverJob:
    """A recovery into that node, which takes queues `q` that it does not have."""
    target = AmqpTarget(
        host=LOOPBACK,
        port=node.amqp_port,
        credentials=GUEST,
        vhost=changes.pop("vhost", None),
        queues={vhost: {"q": {}} for vhost in ("a", "b", "shop")},
    )
    return RecoverJob(
        data_dir=str(folder), endpoint="", credentials=GUEST, to=target, timeout_s=10, **changes
    )


def filled(folder: Path, *vhosts: str, chunks_per_file: int = 40) -> Manifest:
    """An archive with messages in the queue `q` of each of these vhosts."""
    upstream = StandbyUpstream(list(vhosts))
    for vhost in vhosts:
        for first in range(0, MESSAGES, 100):
            bodies = [b"%d" % number for number in range(first, first + 100)]
            upstream.publish(vhost, "q", [stored_message(body) for body in bodies])
    return transfer(upstream, folder, chunks_per_file=chunks_per_file)


def taken(node: LeveretProcess, vhost: str, queue: str = "q") -> list[int]:
    """The numbers in a queue's messages; it is deleted."""
    found = []
    with closing(pika.BlockingConnection(parameters(node.amqp_port, vhost))) as connection:
        channel = connection.channel()
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(int(message[2]))
        channel.queue_delete(queue)
    return found


def stopped(job: RecoverJob, manifest: Manifest, vhost: str, sent: int, patch: pytest.MonkeyPatch) -> int:
    """Leave a plan whose job died after it had sent so many messages; returns how many are known to be confirmed."""
    plan = freeze_plan(manifest, vhost, plans=job.plans_of(vhost))
    assert plan is not None
    publisher = PlanPublisher(plan, lambda: client_of(job, vhost, plan), lambda count: None)
    killed_after(sent, patch, lambda: publisher.publish(["q"]))
    return read_progress(progress_path(plan.progress, "q")).confirmed


def test_what_arrived_before_a_job_died_is_not_sent_again_by_one_that_takes_all_available(
    node: LeveretProcess, recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = into(node, tmp_path, all_available=True)
    assert stopped(job, filled(tmp_path, "a"), "a", 1200, monkeypatch) < 1200
    [row] = recover(job)
    assert (row["message_count"], row["in_doubt"]) == (MESSAGES, 0)
    assert taken(node, "a") == list(range(MESSAGES))


@pytest.mark.story
def test_what_arrived_and_cannot_be_read_any_more_is_in_doubt(
    node: LeveretProcess, recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to compare it with; it is not sent again either, unless the file is restored."""
    job = into(node, tmp_path, all_available=True)
    manifest = filled(tmp_path, "a", chunks_per_file=10)
    assert stopped(job, manifest, "a", 900, monkeypatch) == 0
    path = tmp_path / manifest.files()[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    [row] = recover(job)
    assert (row["message_count"], row["unreadable_records"]) == (MESSAGES - 1000, 1000)
    # Of what was on its way when the connection broke.
    assert 0 < row["in_doubt"] <= 900
    path.write_bytes(whole)
    recover(msgspec.structs.replace(job, all_available=False))
    found = taken(node, "a")
    assert sorted(set(found)) == list(range(MESSAGES))
    assert len(found) - MESSAGES == row["in_doubt"]


@pytest.mark.story
def test_a_queue_that_is_refused_is_left_out_by_naming_the_others(
    node: LeveretProcess, recover: Recover, tmp_path: Path
) -> None:
    upstream = StandbyUpstream(["shop"])
    snappy = struct.pack(">BHII", 0x80 | 2 << 4, 3, 30, 5) + b"12345"
    upstream.publish("shop", "events", [pack_entries(snappy)[0][4:]])
    upstream.publish("shop", "q", [stored_message(b"%d" % number) for number in range(10)])
    transfer(upstream, tmp_path)
    job = into(node, tmp_path)
    with closing(pika.BlockingConnection(parameters(node.amqp_port, "shop"))) as connection:
        arguments = {"x-queue-type": "stream"}
        connection.channel().queue_declare("events", durable=True, arguments=arguments)
        with pytest.raises(PySparkException, match="compressed: snappy"):
            recover(job)
        rest = msgspec.structs.replace(job, queues=["q"])
        recover(rest)
        assert sum(row["message_count"] for row in recover(rest)) == 0, "nothing again"
        with pytest.raises(PySparkException, match="compressed: snappy"):
            recover(job)
        connection.channel().queue_delete("events")
    assert taken(node, "shop") == list(range(10))


@pytest.mark.story
def test_queues_of_one_name_in_several_vhosts_go_to_one_vhost_one_after_the_other_only(
    node: LeveretProcess, recover: Recover, tmp_path: Path
) -> None:
    filled(tmp_path, "a", "b")
    job = into(node, tmp_path, vhost="shop")
    with pytest.raises(
        PreconditionFailed, match=r"'a', 'b' has a queue 'q'.*vhost 'shop'.*--exclude-virtual"
    ):
        recover(job)
    for other in ("b", "a"):
        [row] = recover(msgspec.structs.replace(job, exclude=[other]))
        assert row["message_count"] == MESSAGES
    assert taken(node, "shop") == [*range(MESSAGES), *range(MESSAGES)]


def test_a_place_is_the_same_with_its_vhost_named_or_not(
    node: LeveretProcess, recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = filled(tmp_path, "shop")
    stopped(into(node, tmp_path, vhost="shop"), manifest, "shop", 700, monkeypatch)
    counts = [
        recover(into(node, tmp_path, vhost=vhost))[0]["message_count"] for vhost in (None, "shop", None)
    ]
    assert counts == [MESSAGES, 0, 0]
    assert taken(node, "shop") == list(range(MESSAGES))
    assert recover(into(node, tmp_path, vhost="a"))[0]["message_count"] == MESSAGES, "another place"
    assert taken(node, "a") == list(range(MESSAGES))
