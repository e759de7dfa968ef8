"""A segment that was written elsewhere and is renamed into a log: whole or not at all, whenever the machine dies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import Corrupt, StorageError
from leveret.storage import summary
from leveret.storage.log import Log
from leveret.storage.removed import RemovedFiles
from leveret.storage.segment import Segment, SegmentState
from leveret.storage.staged import StagedDirectory
from leveret.storage.summary import summarise
from tests.unit.storage.logs import Written, append, contents, make, segments

NAME = "queues/7"


def named(directory: Path) -> Log:
    return make(directory, name=NAME)


def staged_by(directory: Path) -> tuple[Log, StagedDirectory, list[int]]:
    """A log with names of its own, and its segments copied as staged ones, by first offset."""
    whole = named(directory / "whole").open()
    for size in (90, 90, 120, 90, 90, 90, 40):
        append(whole, size, 2)
    whole.sync()
    staged = StagedDirectory(directory, RemovedFiles(directory))
    (staged.path / "s").mkdir(parents=True)
    starts = []
    for path in segments(whole.directory):
        if path.name.endswith(SegmentState.NEWEST):
            starts.append(int(path.name[:20]))
            shutil.copy(path, staged.path / "s" / f"{starts[-1]:020d}.segment")
    return whole, staged, starts


def opened_again(log: Log, directory: Path) -> list[Written]:
    """What a start finds in a copy of the log's files as they are now."""
    copy = directory / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(log.directory, copy)
    return contents(named(copy).open())


def test_a_log_takes_in_segment_after_segment_and_is_whole_after_every_crash(tmp_path: Path) -> None:
    whole, staged, starts = staged_by(tmp_path)
    assert len(starts) >= 3
    log = named(tmp_path / "log").open(defer_names=True)
    for start in starts:
        segment, chunks = staged.read("s", start)
        assert chunks[0].header.chunk_id == start
        log.take_in(segment)
        assert opened_again(log, tmp_path) == contents(log)
        if start != starts[0]:
            assert log.is_rolling, "its name is final before the end of the segment before it is on disk"
            assert log.wants_sync
        assert log.synced_offset <= start
        log.sync()
        assert log.synced_offset == log.next_offset
        assert opened_again(log, tmp_path) == contents(log)
    assert contents(log) == contents(whole)
    assert not list((staged.path / "s").iterdir())
    append(log, 50)
    assert opened_again(log, tmp_path) == contents(log)
    assert log.drop_before(log.newest_segment) >= len(starts) - 1


def test_a_segment_has_its_summary_from_the_scan_that_checked_it_unless_the_log_appends_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "SUMMARY_BYTES_MIN", 0)
    monkeypatch.setattr(summary, "NOTABLE_SHARE", 0)
    whole, staged, starts = staged_by(tmp_path)
    log = named(tmp_path / "log").open(with_messages=False, defer_names=True)
    scanned: list[str] = []
    scan = Segment.scan

    def noted(segment: Segment, *args: Any, **options: Any) -> int:
        scanned.append(segment.path.parent.name)
        return scan(segment, *args, **options)

    monkeypatch.setattr(Segment, "scan", noted)
    for start in starts:
        log.take_in(staged.read("s", start)[0])
        log.sync()
    newest = log.newest_segment
    append(log, 10)
    assert log.newest_segment == newest == starts[-1]
    log.roll()
    append(log, 10)
    log.sync()
    for path in log.take_sealed():
        summarise(path)
    assert scanned == ["s"] * len(starts) + ["log"], "only the segment that the log appended to is read again"
    log.close()
    scanned.clear()
    again = named(log.directory).open(with_messages=False)
    assert scanned == ["log"], "the newest"
    assert again.next_offset == log.next_offset
    assert not list((staged.path / "s").glob("*.summary"))
    whole.close()


def test_a_segment_that_is_cut_has_no_summary_of_the_cut_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may grow to the same size again."""
    monkeypatch.setattr(summary, "SUMMARY_BYTES_MIN", 0)
    monkeypatch.setattr(summary, "NOTABLE_SHARE", 0)
    _, staged, starts = staged_by(tmp_path)
    log = named(tmp_path / "log").open(defer_names=True)
    log.take_in(staged.read("s", starts[0])[0])
    log.sync()
    assert list(log.directory.glob("*.summary"))
    log.close()
    named(log.directory).open(with_messages=False, cut_at=2)
    assert not list(log.directory.glob("*.summary"))


def test_a_segment_is_on_disk_before_it_has_a_name_in_the_log_and_the_name_before_it_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, staged, starts = staged_by(tmp_path)
    log = named(tmp_path / "log").open(defer_names=True)
    log.take_in(staged.read("s", starts[0])[0])
    log.sync()
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        call = getattr(os, name)

        def sync(descriptor: int, call: Callable[[int], None] = call) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
            call(descriptor)

        monkeypatch.setattr(os, name, sync)
    segment, _ = staged.read("s", starts[1])
    assert synced == [f"{starts[1]:020d}.segment"]
    log.take_in(segment)
    synced.clear()
    log.sync()
    assert log.directory.name in synced


def test_a_segment_goes_with_the_torn_tail_of_the_one_before_it_and_can_be_written_again(
    tmp_path: Path,
) -> None:
    _, staged, starts = staged_by(tmp_path)
    log = named(tmp_path / "log").open(defer_names=True)
    log.take_in(staged.read("s", starts[0])[0])
    log.sync()
    log.take_in(staged.read("s", starts[1])[0])
    before = opened_again(log, tmp_path)
    copy = tmp_path / "copy"
    shutil.rmtree(copy)
    shutil.copytree(log.directory, copy)
    first = copy / f"{starts[0]:020d}.segment"
    os.truncate(first, first.stat().st_size - 10)
    again = named(copy).open()
    assert contents(again) == before[: len(contents(again))]
    assert again.next_offset < starts[1]
    assert again.torn_bytes > 0
    assert not [path for path in copy.iterdir() if path.name.startswith(f"{starts[1]:020d}")]


def test_the_newest_segment_that_is_still_empty_is_replaced(tmp_path: Path) -> None:
    whole, staged, starts = staged_by(tmp_path)
    log = named(tmp_path / "log").open()
    log.take_in(staged.read("s", starts[0])[0])
    log.sync()
    log.roll()
    log.take_in(staged.read("s", starts[1])[0])
    assert contents(log) == contents(whole)[: len(contents(log))]
    assert opened_again(log, tmp_path) == contents(log)
    log.sync()
    assert opened_again(log, tmp_path) == contents(log)


def test_what_does_not_follow_is_refused_and_a_disk_that_refuses_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, staged, starts = staged_by(tmp_path)
    log = named(tmp_path / "log").open(defer_names=True)
    with pytest.raises(StorageError, match="does not follow offset 0"):
        log.take_in(staged.read("s", starts[1])[0])

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(StorageError, match=r"cannot be taken in: .*No space left"):
            log.take_in(staged.read("s", starts[0])[0])
    assert (log.next_offset, contents(log)) == (0, [])
    log.take_in(staged.read("s", starts[0])[0])
    assert contents(log) == contents(whole)[: len(contents(log))]
    with pytest.raises(StorageError, match="No such file"):
        staged.read("s", starts[0])


def test_a_staged_segment_is_checked_to_the_last_octet(tmp_path: Path) -> None:
    _, staged, starts = staged_by(tmp_path)
    path = staged.path / "s" / f"{starts[1]:020d}.segment"
    octets = path.read_bytes()
    for at in range(0, len(octets), 7):
        path.write_bytes(octets[:at] + bytes((octets[at] ^ 4,)) + octets[at + 1 :])
        with pytest.raises(StorageError, match="damaged or cut short at byte"):
            staged.read("s", starts[1])
    for size in range(0, len(octets), 11):
        path.write_bytes(octets[:size])
        with pytest.raises(StorageError):
            staged.read("s", starts[1])


def test_a_segment_whose_file_vanishes_before_the_sync_is_not_promised(tmp_path: Path) -> None:
    _, staged, starts = staged_by(tmp_path)
    log = named(tmp_path / "log").open(defer_names=True)
    segment: Segment = staged.read("s", starts[0])[0]
    log.take_in(segment)
    segment.path.unlink()
    with pytest.raises(Corrupt, match="removed, moved or exchanged"):
        log.sync()
