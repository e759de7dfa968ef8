"""A connection that leads to another upstream by the time the executors fetch brings nothing of that one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.transfer.sink import StoreWriter, TransferCut
from leveret.pipeline.transfer.source import TransferOptions, UpstreamReader
from leveret.pipeline.upstream import link
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.record import EPOCH_PREFIX, FINGERPRINT_PREFIX

LIMIT: Any = None

pytestmark = pytest.mark.usefixtures("impatient")


def upstream(log_id: int, chunks: int = 4) -> StandbyUpstream:
    made = StandbyUpstream()
    made.logs["/"].log_id = log_id
    for _ in range(chunks):
        made.publish("/", "q", [stored_message(b"%d" % log_id)] * 10)
    return made


def test_an_upstream_that_lost_the_end_of_what_came_says_so_and_nothing_is_skipped(tmp_path: Path) -> None:
    """By its name the log is the same; the records behind what its new writer had mean something else."""

    def look(job: TransferJob) -> int:
        reader = UpstreamReader(TransferOptions(job=job, inbox=inbox.address, cores=1))
        return reader.latestOffset({"/": 40}, LIMIT)["/"]

    made = upstream(1)
    with Inbox() as inbox, made.serving() as port:
        job = job_of(tmp_path, port)
        options = TransferOptions(job=job, inbox=inbox.address, cores=1)
        reader, writer = UpstreamReader(options), StoreWriter(options)
        begin = reader.latestOffset({}, LIMIT)
        end = reader.latestOffset(begin, LIMIT)
        [task] = reader.partitions(begin, end)
        writer.commit([writer.write(reader.read(task))], 0)
        mark, epoch = Manifest(tmp_path).last_chunk("/")
        assert (mark != 0, epoch) == (True, 1)
        # Its node was started again, with all that came: that is no reason to stop.
        made.logs["/"].writer = 5
        made.host.offsets["/", f"{FINGERPRINT_PREFIX}40"] = mark
        made.host.offsets["/", f"{EPOCH_PREFIX}40"] = 7
        made.publish("/", "q", [stored_message(b"more")] * 10)
        assert look(job) == 50
        # What was planned before that is not stored: whether it is the same was not asked.
        [task] = reader.partitions(end, {"/": 50})
        stored = writer.write(reader.read(task))
        with pytest.raises(
            TransferCut, match="another log than the one that was begun with, or another writer's"
        ):
            writer.commit([stored], 1)
        time.sleep(link.BACKOFF_MIN_S)
        # A follower was promoted that had 30 of the 40, and it chose the same epoch; or the chunk is retained no more.
        made.host.offsets["/", f"{EPOCH_PREFIX}40"] = 1
        made.host.offsets["/", f"{FINGERPRINT_PREFIX}40"] = mark ^ 2
        assert look(job) == 40
        del made.host.offsets["/", f"{FINGERPRINT_PREFIX}40"]
        time.sleep(2 * link.BACKOFF_MIN_S)
        assert look(job) == 50
        made.host.offsets["/", f"{EPOCH_PREFIX}40"] = 7
        assert look(job) == 40
        links = [event for event in inbox.wait(1) if event["event"] == "link"]
        assert links[-1]["state"] == "recover"
        assert "has other records before that offset" in links[-1]["error"]
        assert UpstreamIdentities(tmp_path).by_log["/"].is_replaced, (
            "delete_orphaned_data... takes it for what it is"
        )


def job_of(data_dir: Path, port: int) -> TransferJob:
    return TransferJob(
        data_dir=str(data_dir),
        reference="eu.2",
        endpoints=[f"127.0.0.1:{port}"],
        vhosts=["/"],
        credentials=LoginCredentials(username="standby", password="secret"),
    )


def test_a_log_that_ended_before_what_came_is_asked_again_once_it_has_grown(tmp_path: Path) -> None:
    """While its end is before that, it knows no record there; its new records up to that were skipped (2026-11-30)."""
    with Inbox() as inbox:
        made = upstream(1)
        with made.serving() as port:
            options = TransferOptions(job=job_of(tmp_path, port), inbox=inbox.address, cores=1)
            reader, writer = UpstreamReader(options), StoreWriter(options)
            begin = reader.latestOffset({}, LIMIT)
            end = reader.latestOffset(begin, LIMIT)
            [task] = reader.partitions(begin, end)
            writer.commit([writer.write(reader.read(task))], 0)
            mark, epoch = Manifest(tmp_path).last_chunk("/")
        restored = upstream(1, 3)
        restored.logs["/"].writer = 5
        restored.host.offsets["/", f"{EPOCH_PREFIX}40"] = epoch
        with restored.serving(port):
            time.sleep(2 * link.BACKOFF_MIN_S)
            assert reader.latestOffset(end, LIMIT) == end
            restored.publish("/", "q", [stored_message(b"new")] * 20)
            restored.host.offsets["/", f"{FINGERPRINT_PREFIX}40"] = mark ^ 2
            time.sleep(2 * link.BACKOFF_MIN_S)
            assert reader.latestOffset(end, LIMIT) == end
        errors = [
            event["error"] for event in inbox.wait(1) if event["event"] == "link" and event.get("error")
        ]
        assert any("the upstream has only 30" in error for error in errors)
        assert "has other records before that offset" in errors[-1]


def test_a_batch_that_was_planned_from_another_log_stores_nothing_of_the_one_that_is_there(
    tmp_path: Path,
) -> None:
    def carried_out(start: dict[str, int], end: dict[str, int]) -> None:
        [task] = reader.partitions(start, end)
        writer.commit([writer.write(reader.read(task))], 0)

    with Inbox() as inbox:
        made = upstream(1, 2)
        with made.serving() as port:
            options = TransferOptions(job=job_of(tmp_path, port), inbox=inbox.address, cores=1)
            reader, writer = UpstreamReader(options), StoreWriter(options)
            begin = reader.latestOffset({}, LIMIT)
            half = begin | {"/": 20}
            carried_out(begin, half)
            for _ in range(2):
                made.publish("/", "q", [stored_message(b"1")] * 10)
            end = reader.latestOffset(half, LIMIT)
        assert end == {"/": 40}
        with upstream(2).serving(port):
            with pytest.raises(
                TransferCut, match="another log than the one that was begun with, or another writer's"
            ):
                carried_out(half, end)
            assert Manifest(tmp_path).next_by_log == {"/": 20}
        with upstream(1).serving(port):
            time.sleep(link.BACKOFF_MIN_S)
            carried_out(half, end)
            assert Manifest(tmp_path).next_by_log == {"/": 40}
