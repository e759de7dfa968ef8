"""When a recovery counts as done: once every queue of every plan is complete, those that came by segments too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.model.errors import PreconditionFailed
from leveret.pipeline.archive.recovery_plan import PlanDirectory
from leveret.pipeline.jobs.job import LoginCredentials, RecoverJob, Selection
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.recovery import driver
from leveret.pipeline.recovery.driver import RecoveryRun
from leveret.pipeline.recovery.file_shares import FileShare, QueueBegin
from leveret.pipeline.recovery.publish import PlanReader, queue_outcome
from leveret.pipeline.recovery.segments import WrittenSegment
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.recovery.test_unsettled import QUEUES, VHOST, FakeBroker, Lost, Standby

MESSAGES = 6
BY_SEGMENTS = 4


class InTurn:
    """spark_tasks.SparkTasks without Spark: one task after the other."""

    cores = 2

    def run(
        self, tasks: Iterable[Any], work: Callable[[Any], Any], result: type | None = None
    ) -> Iterator[Any]:
        return map(work, tasks)


@pytest.fixture
def standby(tmp_path: Path) -> Standby:
    upstream = StandbyUpstream()
    for queue in QUEUES:
        upstream.publish(VHOST, queue, [stored_message(b"%d" % number) for number in range(MESSAGES)])
    standby = Standby(tmp_path)
    standby.transfer(upstream)
    return standby


@pytest.fixture
def broker(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """That of the driver. Of the queue `a` some messages come by segments, once their intake has finished."""
    broker = standby.broker

    class Intake:
        def __init__(self, client: FakeBroker, staging: Path, reference: str, *more: object) -> None:
            self.key = "a", reference
            self.offered: list[WrittenSegment] = []
            self.last_by_queue = {"a": 0}

        def offer(self, segment: WrittenSegment) -> None:
            self.offered.append(segment)

        def finish(self) -> None:
            if self.offered:
                broker.queues["a"] = [b"by segments"] * BY_SEGMENTS
                broker.last[self.key] = self.last_by_queue["a"] = BY_SEGMENTS

    def write_share(share: FileShare, staging: Path, written: object) -> list[WrittenSegment]:
        return [] if share.first else [WrittenSegment("a", "", 0, 1, BY_SEGMENTS, 1, 1)]

    begins = {"a": QueueBegin(0, cast(Any, None))}
    monkeypatch.setattr(driver, "SegmentIntake", Intake)
    monkeypatch.setattr(driver, "write_share", write_share)
    monkeypatch.setattr(driver, "queue_begins", lambda *given: begins)
    monkeypatch.setattr(driver, "node_client", lambda *given: broker.connect())
    monkeypatch.setattr(driver, "client_of", lambda *given, **more: broker.connect())
    return broker


def run_of(standby: Standby, inbox: Inbox, **more: Any) -> RecoveryRun:
    job = RecoverJob(
        data_dir=str(standby.data_dir),
        work_dir=str(standby.data_dir),
        endpoint="",
        credentials=LoginCredentials(username="", password=""),
        staging=str(standby.data_dir),
        **more,
    )
    run = RecoveryRun(job, cast(ParentChannel, SimpleNamespace(say=lambda *said, **more: None)), inbox)
    run._spark = cast(Any, InTurn())
    return run


@pytest.mark.parametrize("scratch", ["", "rehearsal"])
def test_a_plan_is_done_when_the_rest_of_what_came_by_segments_is_there(
    standby: Standby, broker: FakeBroker, scratch: str
) -> None:
    directory = cast(PlanDirectory, standby.plan())
    with Inbox() as inbox:
        [outcome] = run_of(standby, inbox, scratch=scratch)._publish([(directory, directory.load())])
    assert outcome.totals == dict.fromkeys(QUEUES, MESSAGES)
    rest = [stored_message(b"%d" % number) for number in range(MESSAGES)]
    assert broker.queues == {"a": [b"by segments"] * BY_SEGMENTS + rest[BY_SEGMENTS:], "b": rest}
    assert directory.is_done is not bool(scratch), "a rehearsal brings nothing"


def test_a_queue_that_came_whole_by_segments_is_read_by_no_further_task(
    standby: Standby, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BY_SEGMENTS", MESSAGES)
    directory = cast(PlanDirectory, standby.plan())
    expected = [queue_outcome(*each) for each in PlanReader(directory).orders(QUEUES).items()]
    published: list[str] = []

    class Watched(InTurn):
        def run(self, tasks: Iterable[Any], work: Callable[[Any], Any], result: type | None = None) -> Any:
            published.extend(queue for task in tasks for queue in getattr(task, "queues", ()))
            return super().run(tasks, work, result)

    with Inbox() as inbox:
        run = run_of(standby, inbox)
        run._spark = cast(Any, Watched())
        [outcome] = run._publish([(directory, directory.load())])
    assert published == ["b"]
    assert sorted(outcome.queues, key=lambda each: each.queue) == expected
    assert directory.is_done
    assert standby.promote() == 0


@pytest.mark.parametrize("after", range(0, MESSAGES + MESSAGES - BY_SEGMENTS, 3))
def test_a_plan_whose_publishing_failed_is_not_done_and_goes_on(
    standby: Standby, broker: FakeBroker, after: int
) -> None:
    directory = cast(PlanDirectory, standby.plan())
    broker.goes_away_after = after
    with Inbox() as inbox, pytest.raises(Lost):
        run_of(standby, inbox)._publish([(directory, directory.load())])
    assert not directory.is_done
    broker.goes_away_after = None
    assert standby.publish(directory).totals == dict.fromkeys(QUEUES, MESSAGES)
    assert {queue: len(messages) for queue, messages in broker.queues.items()} == {
        queue: MESSAGES for queue in QUEUES
    }


@pytest.mark.parametrize("before", [None, 1_800_000_000_000])
def test_an_interrupted_plan_of_another_moment_ends_unless_some_of_its_messages_are_there(
    standby: Standby, broker: FakeBroker, before: int | None
) -> None:
    """Messages of the other moment came behind those that were there: a queue as it never had been (2026-11-30)."""
    other = 1_800_000_000_000 if before is None else None
    directory = cast(PlanDirectory, standby.plan(Selection(as_of_ms=before)))
    plan = directory.load()
    with Inbox() as inbox:
        assert not run_of(standby, inbox, as_of_ms=before)._ends(directory, plan), "it goes on"
        assert run_of(standby, inbox, as_of_ms=other)._ends(directory, plan), "nothing of it is there"
        broker.last["b", plan.reference] = 2
        for more in ({}, {"all_available": True}, {"queues": ["a"]}):
            with pytest.raises(
                PreconditionFailed, match=r"has recovered 2 messages .*finish it first.*--as-of"
            ):
                run_of(standby, inbox, as_of_ms=other, **more)._ends(directory, plan)
        assert run_of(standby, inbox, as_of_ms=before, queues=["a"])._ends(directory, plan), "as before"


def test_a_manifest_that_is_older_than_its_files_is_not_recovered_from_unseen(
    tmp_path: Path,
) -> None:
    """After it came back from a copy, settled messages would return, and later ones be missing."""
    upstream, standby = StandbyUpstream(), Standby(tmp_path, chunks_per_file=1)
    for queue in QUEUES:
        upstream.publish(VHOST, queue, [stored_message(b"0")])
    standby.transfer(upstream)
    [log] = tmp_path.glob("manifest/*.log")
    log.write_bytes(log.read_bytes().split(b"\n")[0] + b"\n")
    run = partial(run_of, standby)
    with Inbox() as inbox:
        with pytest.raises(
            PreconditionFailed, match="it is an older copy, or was deleted; restore a newer copy"
        ):
            run(inbox, dry_run=True).run()
        run(inbox, dry_run=True, exclude=[VHOST])._check_manifest()
        run(inbox, all_available=True)._check_manifest()
