"""Which files a task reads, and whose settlements: planned from the manifest alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.pipeline.archive import store
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.table import plan
from leveret.pipeline.table.plan import plan_ranges, ranges_by_task
from leveret.pipeline.table.request import TableRequest
from leveret.pipeline.table.scan import read_rows
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.archive.test_logs_of_nodes import EPOCH, RENUMBERED, A, B, Node, recovered

OFFSETS = TableRequest(columns=("queue", "offset", "state"))


def archived(tmp_path: Path, turns: int, *, vhosts: int = 1) -> Manifest:
    """In each turn, a file of a queue's ten messages, of which the next turn's file settles most."""
    names = [f"v{number}" for number in range(vhosts)]
    upstream = StandbyUpstream(names)
    for turn in range(turns):
        for name in names:
            upstream.publish(name, "q", [stored_message(b"%d" % turn)] * 10)
            if turn:
                upstream.settle(name, "q", [((turn - 1) * 11 - (turn > 1), 5)])
        transfer(upstream, tmp_path, chunks_per_file=2)
    return Manifest(tmp_path)


def test_a_task_needs_the_settlements_of_few_files_however_long_the_history_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RANGE_FILES_MAX", 2)
    manifest = archived(tmp_path, 12)
    ranges = plan_ranges(manifest, OFFSETS)
    assert len(ranges) == 6
    assert all(1 <= len(each.settlements) <= 4 for each in ranges)
    rows = [row for each in ranges for batch in read_rows(each) for row in batch.to_pylist()]
    assert (len(rows), sum(row["state"] == "settled" for row in rows)) == (120, 55)
    assert not any(each.settlements for each in plan_ranges(manifest, TableRequest(columns=("offset",))))
    for file in manifest.files():
        for part in file.queues:
            part.settled_span = None
    assert max(len(each.settlements) for each in plan_ranges(manifest, OFFSETS)) == 11, (
        "as an earlier version wrote"
    )


def test_what_a_compaction_merged_may_settle_anything(tmp_path: Path) -> None:
    manifest = archived(tmp_path, 4)
    files = manifest.files()[:3]
    manifest.append([compact(tmp_path, files)], removed=[file.path for file in files])
    [planned] = plan_ranges(manifest, OFFSETS)
    assert [bool(file.history_from_ms) for file in planned.settlements] == [True, False]


def test_small_vhosts_share_a_task_and_a_large_file_is_shared_by_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ROW_GROUP_ROWS", 2)
    manifest = archived(tmp_path, 1, vhosts=7)
    assert [len(task) for task in ranges_by_task(plan_ranges(manifest, OFFSETS))] == [7]
    monkeypatch.setattr(plan, "RANGE_MESSAGES", 20)
    assert [len(task) for task in ranges_by_task(plan_ranges(manifest, OFFSETS))] == [2, 2, 2, 1]
    monkeypatch.setattr(plan, "RANGE_MESSAGES", 3)
    tasks = ranges_by_task(plan_ranges(manifest, OFFSETS))
    assert len(tasks) == 28
    rows = [
        (each.vhost, offset)
        for task in tasks
        for each in task
        for batch in read_rows(each)
        for offset in batch.column("offset").to_pylist()
    ]
    assert len(rows) == len(set(rows)) == 70, "each row group by one of them"


def test_of_an_offset_that_was_given_twice_the_message_of_the_later_numbering_is_pending(
    tmp_path: Path,
) -> None:
    """As in a recovery: the next leader has copied what it had, and the earlier numbering has not ended yet."""
    manifest, a, b = Manifest(tmp_path), Node(A, tmp_path), Node(B, tmp_path)
    a.messages(0, range(7))
    a.store(manifest)
    b.settle(0, (0, 1), epoch=RENUMBERED)
    b.messages(1, range(1, 4), epoch=RENUMBERED)
    b.messages(4, [104, 105], epoch=RENUMBERED)
    b.store(manifest)
    request = TableRequest(columns=("incarnation", "offset", "body"), state="pending")
    pending = [
        row for each in plan_ranges(manifest, request) for rows in read_rows(each) for row in rows.to_pylist()
    ]
    later = [
        (RENUMBERED, offset, b"%d" % body) for offset, body in ((1, 1), (2, 2), (3, 3), (4, 104), (5, 105))
    ]
    found = sorted((row["incarnation"], row["offset"], row["body"]) for row in pending)
    assert found == [(EPOCH, 6, b"6"), *later]
    assert [row[:2] for row in found] == recovered(manifest)
