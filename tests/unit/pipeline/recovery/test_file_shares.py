"""Shares of a plan's files: each file in one share, and each message of a large queue in one segment of one share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from leveret.model.errors import NotFound
from leveret.pipeline.archive.recovery_plan import (
    PlanDirectory,
    QueueOrder,
    RecoveryPlan,
    RunPart,
    RunSpan,
    read_order,
)
from leveret.pipeline.files.files import Place
from leveret.pipeline.recovery import file_shares as module
from leveret.pipeline.recovery import publish, unsettled
from leveret.pipeline.recovery.file_shares import FileShare, QueueBegin, queue_begins, shares_of, write_share
from leveret.pipeline.recovery.segments import WrittenSegment
from leveret.pipeline.recovery.unsettled import NumberedFile, write_run
from leveret.storage.segment import Segment
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.chunk import split_entries
from leveret.wire.staged_segment import LogEnd

QUEUES = ("a", "b")
MESSAGES = 300


@pytest.mark.parametrize("files", [0, 1, 2, 3, 8, 9, 10, 1000])
@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("has_spans", [False, True])
def test_each_file_is_in_one_share_and_the_first_share_is_one_file(
    files: int, cores: int, has_spans: bool
) -> None:
    found = list(shares_of(of_messages([1_000_000 * has_spans] * files), 1, cores))
    assert [index for first, end in found for index in range(first, end)] == list(range(files))
    assert all(first < end for first, end in found)
    assert found[:1] == ([(0, 1)] if files else [])
    assert len(found) <= 1 + module.SHARES_PER_CORE_MAX * cores
    if has_spans:
        assert len(found) == min(files, 1 + module.SHARES_PER_CORE_MAX * cores)


def test_shares_have_about_as_many_messages_and_are_not_smaller_for_many_queues() -> None:
    """By their files alone one of eight shares had a quarter of all messages, and one core was idle at the end."""
    messages = [10_000] * 16 + [65_000] * 14
    for queues, shares, largest in ((1, 16, 75_000), (50, 8, 195_000)):
        found = list(shares_of(of_messages(messages), queues, 2))
        assert len(found) == 1 + shares
        assert max(sum(messages[first:end]) for first, end in found) <= largest


def of_messages(by_file: list[int]) -> RecoveryPlan:
    parts = [
        RunPart("0.arrow", at, "a", rows, span=RunSpan(1, at * 10**6, at * 10**6 + rows - 1, at, at, 0, 0))
        for at, rows in enumerate(by_file)
        if rows
    ]
    return RecoveryPlan(
        plan_id="", vhost="/", number=1, files=[f"{at}" for at in range(len(by_file))], parts=parts
    )


def plan_of(data_dir: Path) -> PlanDirectory:
    upstream = StandbyUpstream(["/"])
    for first in range(0, MESSAGES, 10):
        for queue in QUEUES:
            bodies = [b"#%d" % number for number in range(first, first + 10)]
            upstream.publish("/", queue, [stored_message(body, b"ex", queue.encode()) for body in bodies])
    plan = freeze_plan(transfer(upstream, data_dir, chunks_per_file=7), "/")
    assert plan is not None
    return plan


def end_of(staging: Path) -> LogEnd:
    return LogEnd(7, 3, 1000, 42, {}, (), 1 << 20, True, staging.stat().st_ino)


def bodies_in(staging: Path, written: WrittenSegment) -> list[int]:
    segment = Segment(staging / written.directory, written.base)
    found: list[bytes] = []
    segment.scan(lambda chunk: found.append(bytes(chunk.data)), last=False)
    segment.close()
    return [int(entry[entry.rindex(b"#") + 1 :]) for data in found for entry in split_entries(data)]


@pytest.mark.parametrize("last", [0, 1, 45, 299, 300])
@pytest.mark.parametrize("batch_rows", [publish.BATCH_ROWS, 3])
def test_the_segments_of_all_shares_have_each_message_behind_the_last_one_once_at_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, batch_rows: int
) -> None:
    monkeypatch.setattr(publish, "BATCH_ROWS", batch_rows)
    directory, staging = plan_of(tmp_path / "standby"), tmp_path
    plan = directory.load()
    begins = {queue: QueueBegin(last, end_of(staging)) for queue in QUEUES}
    told: list[WrittenSegment] = []
    found: list[WrittenSegment] = []
    for first, end in reversed(list(shares_of(plan, len(QUEUES), 2))):
        found += write_share(
            FileShare(directory, "/", plan.plan_id, first, end, begins), staging, told.append
        )
    assert told == found
    for queue in QUEUES:
        mine = sorted((each for each in found if each.queue == queue), key=lambda each: each.first)
        assert sum(each.last + 1 - each.first for each in mine) == MESSAGES - last
        assert all(each.base == 1000 + each.first - 1 - last for each in mine)
        numbers = [number for each in mine for number in bodies_in(staging, each)]
        assert numbers == list(range(last, MESSAGES))
        assert all(before.last + 1 == behind.first for before, behind in pairwise(mine))


def test_a_task_that_does_not_see_the_nodes_directory_writes_nothing(tmp_path: Path) -> None:
    directory = plan_of(tmp_path / "standby")
    plan = directory.load()
    other = end_of(tmp_path)._replace(staging=tmp_path.stat().st_ino + 1)
    share = FileShare(directory, "/", plan.plan_id, 0, len(plan.files), {"a": QueueBegin(0, other)})
    assert write_share(share, tmp_path, lambda segment: None) == []


class FakeClient:
    """A node with the queue `a`; `b` is a stream, or does not exist."""

    def __init__(self, end: LogEnd, last: int) -> None:
        self.end = end
        self.last_sequence = last

    def stats(self, stream: str) -> dict[str, int]:
        if not stream.endswith("/a"):
            raise NotFound("there is no such queue")
        return self.end.statistics()

    def declare_publisher(self, reference: str, stream: str) -> FakeClient:
        return self

    def close(self) -> None:
        """The publisher."""


@pytest.mark.parametrize(
    ("large", "last", "takes", "seen", "expected"),
    [
        (300, 0, True, True, ["a"]),
        (200, 100, True, True, ["a"]),
        (300, 1, True, True, []),
        (301, 0, True, True, []),
        (300, 0, False, True, []),
        (300, 0, True, False, []),
    ],
)
def test_shares_are_for_large_queues_that_take_segments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    large: int,
    last: int,
    takes: bool,
    seen: bool,
    expected: list[str],
) -> None:
    monkeypatch.setattr(module, "MESSAGES_MIN", large)
    plan = plan_of(tmp_path / "standby").load()
    end = end_of(tmp_path)._replace(takes_segments=takes)
    if not seen:
        end = end._replace(staging=end.staging + 1)
    assert [*queue_begins(FakeClient(end, last), plan, tmp_path)] == expected  # type: ignore[arg-type]


def test_a_queue_whose_messages_must_be_sorted_first_comes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MESSAGES_MIN", 1)
    plan = plan_of(tmp_path / "standby").load()
    client = FakeClient(end_of(tmp_path), 0)
    for parts in (plan.parts[::-1], [msgspec.structs.replace(part, span=None) for part in plan.parts]):
        changed = msgspec.structs.replace(plan, parts=parts)
        assert queue_begins(client, changed, tmp_path) == {}  # type: ignore[arg-type]
    assert [*queue_begins(client, plan, tmp_path)] == ["a"]  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 25, 1000])
def test_a_share_reads_the_parts_of_a_run_that_have_messages_of_its_files_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(unsettled, "PART_ROWS_MIN", rows)
    read: list[RunPart] = []

    def read_parts(runs: Place, parts: list[RunPart], before: int = 0) -> QueueOrder:
        read.extend(parts)
        return read_order(runs, parts, before)

    monkeypatch.setattr(module, "read_order", read_parts)
    directory = plan_of(tmp_path / "standby")
    plan = directory.load()
    numbered = [NumberedFile(number, path, 70) for number, path in enumerate(plan.files)]
    found = write_run(directory.data_dir, "/", numbered, {}, directory.runs / "all.arrow")
    directory.freeze(msgspec.structs.replace(plan, parts=found.parts))
    assert len(found.parts) == {1: 2 * len(plan.files), 25: 2 * len(plan.files), 1000: 2}[rows]
    begins = {queue: QueueBegin(0, end_of(tmp_path)) for queue in QUEUES}
    for index in range(len(plan.files)):
        read.clear()
        share = FileShare(directory, "/", plan.plan_id, index, index + 1, begins)
        for written in write_share(share, tmp_path, lambda segment: None):
            assert bodies_in(tmp_path, written) == list(range(written.first - 1, written.last))
        spans = [part.span for part in read if part.span is not None]
        assert spans
        assert all(span.first_file <= index <= span.last_file for span in spans)
