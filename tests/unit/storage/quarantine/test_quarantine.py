"""storage.quarantine: whatever is cut off a log is elsewhere before, whenever the node dies."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import Corrupt, NotFound, StorageError
from leveret.storage.inspection.walk import WalkedChunk, walk
from leveret.storage.log import Log
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentLog, DivergentReport, chunks_of, directory_of, reports
from leveret.storage.segment_file import STEP_BYTES
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.wire.chunk import ChunkType, encode_entry
from leveret.wire.record import Settlement, encode_settlements
from tests.unit.storage.logs import append, append_often, files, make, scratch, segments
from tests.unit.storage.places import CHUNKS, Chunks, filled, flip, held, overwrite, segment_path

AT_MS = 1_795_261_500_000
EIGHT: Chunks = [(90, 2, True)] * 8
"""Two chunks a segment."""


def setting_aside(data_dir: Path, *, is_lost: bool = False, **more: int) -> Quarantine:
    about = {"at_ms": AT_MS, "from_epoch": 5, "to_epoch": 6} | more
    join = DivergentReport.begun(**about, node_id="here", leader_id="there", leader_uri="tcp://there:5679")
    return Quarantine(
        data_dir, join, lambda path: ("/", "work") if path == "queues/1" else None, is_lost=is_lost
    )


def quarantine(data_dir: Path, at_offset: int, path: str = "queues/1", **more: Any) -> DivergentReport | None:
    """A whole join, by one log."""
    quarantine = setting_aside(data_dir, **more)
    quarantine.add(path, at_offset)
    cut(data_dir / path, at_offset)
    return quarantine.finish()


def cut(directory: Path, at_offset: int) -> None:
    """As a follower does it."""
    make(directory).open(cut_at=at_offset).close()


def chunks_in(directory: Path) -> list[tuple[int, bytes]]:
    """Offset and octets of the whole chunks in a log's files."""
    found = []
    for each in walk(directory):
        if isinstance(each, WalkedChunk) and each.fault() is None:
            found.append(
                (each.header.chunk_id, bytes(each.file.read(each.position, each.header.chunk_bytes)))
            )
    return found


def chunks_aside(data_dir: Path, path: str = "queues/1") -> list[tuple[int, bytes]]:
    """The same of what was set aside of a log, by all reports, oldest first."""
    return [
        chunk for report in sorted((data_dir / "divergent").glob("*")) for chunk in chunks_in(report / path)
    ]


# -- what is set aside ------------------------------------------------------------------------


@given(CHUNKS, st.data())
def test_what_is_cut_off_was_set_aside(chunks: Chunks, data: st.DataObject) -> None:
    with scratch() as data_dir:
        log = filled(data_dir / "queues/1", chunks, first_offset=7)
        before = chunks_in(log.directory)
        at = data.draw(st.sampled_from([offset for offset, _ in before] + [log.next_offset]))
        report = quarantine(data_dir, at)
        kept = [chunk for chunk in before if chunk[0] < at]
        assert chunks_in(log.directory) == kept
        assert chunks_aside(data_dir) == before[len(kept) :]
        assert (report is None) == (at == log.next_offset)
        if report is not None:
            (log_report,) = report.logs
            assert (log_report.from_offset, log_report.next_offset) == (at, log.next_offset)
            assert (log_report.chunks, log_report.octets) == (
                len(before) - len(kept),
                sum(len(octets) for _, octets in before[len(kept) :]),
            )


def test_a_log_is_set_aside_as_a_whole_and_may_be_deleted(tmp_path: Path) -> None:
    log = filled(tmp_path / "queues/1", EIGHT)
    before = chunks_in(log.directory)
    quarantine = setting_aside(tmp_path)
    assert quarantine.add("queues/1") is not None
    log.delete()
    assert chunks_aside(tmp_path) == before


def test_where_the_cut_falls_into_a_chunk_all_of_it_is_set_aside(tmp_path: Path) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    log_report = setting_aside(tmp_path).add("queues/1", 7)
    assert log_report is not None
    assert log_report.from_offset == 6
    assert [offset for offset, _ in chunks_aside(tmp_path)] == [6, 8, 10, 12, 14]


def test_what_stays_in_the_log_can_be_written_to_and_what_is_aside_stays_as_it_was(tmp_path: Path) -> None:
    for at in (0, 4, 6):
        data_dir = tmp_path / str(at)
        log = filled(data_dir / "queues/1", EIGHT)
        tail = [chunk for chunk in chunks_in(log.directory) if chunk[0] >= at]
        quarantine(data_dir, at)
        log = make(log.directory).open()
        assert log.next_offset == at
        append_often(log, 9, 33)
        log.close()
        assert chunks_aside(data_dir) == tail


def test_whole_segments_are_not_copied_but_the_first_is(tmp_path: Path) -> None:
    """For a log that is cut at its very begin truncates its first segment."""
    log = filled(tmp_path / "queues/1", EIGHT)
    log_report = setting_aside(tmp_path).add("queues/1", 0)
    assert log_report is not None
    assert [path.stat().st_nlink for path in segments(log.directory)] == [1, 2, 2, 2]


def test_a_log_that_goes_on_although_it_was_quarantined_changes_nothing_there(tmp_path: Path) -> None:
    """The node died before it had cut the log, led with it, and was cut somewhere else later: at each chunk."""
    for at in range(4, 20, 2):
        data_dir = tmp_path / str(at)
        log = filled(data_dir / "queues/1", EIGHT)
        log_report = setting_aside(data_dir).add("queues/1", 2)
        before = chunks_aside(data_dir)
        assert log_report is not None
        log = make(log.directory).open()
        append_often(log, 2, 33)
        log.sync()
        log.close()
        assert chunks_aside(data_dir) == before
        cut(log.directory, at)
        assert chunks_aside(data_dir) == before
        make(log.directory).open().delete()
        assert not log.directory.exists()


def test_a_kill_while_a_log_parts_from_its_quarantine_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "whole/queues/1", EIGHT)
    every = chunks_in(tmp_path / "whole/queues/1")
    step, is_done = 0, False
    while not is_done:
        data_dir = tmp_path / str(step)
        shutil.copytree(tmp_path / "whole", data_dir)
        assert setting_aside(data_dir).add("queues/1", 2) is not None
        try:
            with killed_before(step, monkeypatch):
                make(data_dir / "queues/1").open().close()
            is_done = True
        except Killed:
            assert chunks_in(data_dir / "queues/1") == every
        make(data_dir / "queues/1").open().delete()
        assert chunks_aside(data_dir) == every[1:]
        assert not (data_dir / "queues/1").exists()
        step += 1
    assert step > 2


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_where_files_cannot_be_linked_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    log = filled(tmp_path / "queues/1", EIGHT)
    before = chunks_in(log.directory)

    def refuse(*args: object) -> None:
        raise OSError(refusal, "no")

    monkeypatch.setattr(os, "link", refuse)
    quarantine(tmp_path, 0)
    assert chunks_aside(tmp_path) == before


def test_nothing_behind_the_cut_makes_no_report(tmp_path: Path) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    quarantine = setting_aside(tmp_path)
    assert quarantine.add("queues/1", 16) is None
    assert quarantine.add("queues/none") is None
    assert quarantine.finish() is None
    assert quarantine.report is None
    assert not (tmp_path / "divergent").exists()


def test_it_is_for_the_owner_alone(tmp_path: Path) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    quarantine(tmp_path, 6)
    for path in (tmp_path / "divergent").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_large_segments_are_copied_in_steps(tmp_path: Path) -> None:
    log = make(tmp_path / "queues/1").open()
    log.append(0, 1, 1, bytes(3 * STEP_BYTES), 0)
    log.close()
    join = DivergentReport.begun(0, from_epoch=1, to_epoch=2, node_id="")
    quarantine = Quarantine(tmp_path, join, lambda path: None)
    tracemalloc.start()
    try:
        quarantine.add("queues/1")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 2.5 * STEP_BYTES
    assert chunks_aside(tmp_path) == chunks_in(log.directory)


# -- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 4, 6])
@pytest.mark.parametrize("hit", range(8))
def test_damaged_octets_are_set_aside_as_they_are(tmp_path: Path, at: int, hit: int) -> None:
    log = filled(tmp_path / "queues/1", EIGHT)
    before = chunks_in(log.directory)
    place = held(log.directory)[hit]
    overwrite(log.directory, place.segment, place.position, b"\xff" * 60)
    octets = b"".join(path.read_bytes() for path in segments(log.directory))
    log_report = setting_aside(tmp_path).add("queues/1", at)
    assert log_report is not None
    tail = b"".join(path.read_bytes() for path in sorted((tmp_path / "divergent").rglob("*.segment")))
    assert octets.endswith(tail)
    assert chunks_aside(tmp_path) == [chunk for chunk in before if chunk[0] >= at and chunk[0] != 2 * hit]
    assert log_report.damaged == (2 * hit >= at)


def test_what_the_disk_cannot_read_does_not_keep_the_rest_from_being_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path / "queues/1").open()
    for size in (9000, 50_000, 10):
        append(log, size)
    log.close()
    before = chunks_in(log.directory)
    pread = os.pread
    inode = segments(log.directory)[1].stat().st_ino

    def fails(fd: int, size: int, at: int) -> bytes:
        if os.fstat(fd).st_ino == inode and at <= 20_000 < at + size:
            raise OSError(errno.EIO, "input/output error")
        return pread(fd, size, at)

    log_report = None
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fails)
        patch.setattr(os, "link", lambda *args: fails(-1, 0, 0))
        log_report = setting_aside(tmp_path).add("queues/1", 1)
    assert log_report is not None
    assert chunks_aside(tmp_path) == before[2:]
    (copy,) = (tmp_path / "divergent").rglob("00000000000000000001.segment")
    octets = segments(log.directory)[1].read_bytes()
    assert len(copy.read_bytes()) == len(octets)
    assert sum(one != other for one, other in zip(copy.read_bytes(), octets, strict=True)) <= 4096


def test_a_missing_segment_does_not_keep_the_rest_from_being_set_aside(tmp_path: Path) -> None:
    log = filled(tmp_path / "queues/1", EIGHT)
    before = chunks_in(log.directory)
    segment_path(log.directory, 4).unlink()
    log_report = setting_aside(tmp_path).add("queues/1", 4)
    assert log_report is not None
    assert (log_report.from_offset, log_report.next_offset) == (8, 16)
    assert chunks_aside(tmp_path) == before[4:]


# -- the node dies ----------------------------------------------------------------------------


class Killed(BaseException):
    """The node is gone."""


@contextmanager
def killed_before(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Die before the call of this number that changes what is on disk, or makes it durable."""
    calls = 0

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal calls
            if calls == step:
                raise Killed
            calls += 1
            return function(*args, **more)

        return call

    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "link", "unlink", "ftruncate", "fsync", "fdatasync"):
            patch.setattr(os, name, counting(getattr(os, name)))
        yield


@pytest.mark.long
@pytest.mark.parametrize(("at", "stride"), [(0, 3), (4, 1), (6, 3)])
def test_no_chunk_is_lost_or_doubled_whenever_the_node_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, stride: int
) -> None:
    filled(tmp_path / "whole/queues/1", EIGHT)
    filled(tmp_path / "whole/queues/2", EIGHT[:5])
    before = {path: chunks_in(tmp_path / "whole" / path) for path in ("queues/1", "queues/2")}
    step = 0
    is_done = False
    while not is_done:
        data_dir = tmp_path / str(step)
        shutil.copytree(tmp_path / "whole", data_dir)
        try:
            with killed_before(step, monkeypatch):
                join(data_dir, at)
            is_done = True
        except Killed:
            for path, every in before.items():
                there = dict([*chunks_aside(data_dir, path), *chunks_in(data_dir / path)])
                assert there == dict(every)
            join(data_dir, at)
        for path, every in before.items():
            assert chunks_in(data_dir / path) == [chunk for chunk in every if chunk[0] < at]
            assert sorted(chunks_aside(data_dir, path)) == [chunk for chunk in every if chunk[0] >= at]
        (report,) = [report for report in reports(data_dir) if report.logs]
        assert report.is_finished
        assert [log.path for log in report.logs] == ["queues/1", "queues/2"]
        step += stride
    assert step > 30


def join(data_dir: Path, at: int) -> None:
    """What a follower does that starts."""
    quarantine = setting_aside(data_dir)
    for path in ("queues/1", "queues/2"):
        quarantine.add(path, at)
        cut(data_dir / path, at)
    quarantine.finish()


@pytest.mark.parametrize("can_link", [True, False])
def test_all_of_it_is_on_disk_for_good_when_the_log_may_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    """What was not synced is gone when the power is: so names must be, and sizes, after they were as they are now."""
    data, chance = tmp_path / "data", random.Random(1)
    filled(data / "queues/1", EIGHT)

    def refuse(*args: object) -> None:
        raise OSError(errno.EPERM, "no")

    def quarantined(place: Path) -> dict[str, bytes]:
        paths = (place / "divergent").rglob("*")
        return {str(path.relative_to(place)): path.read_bytes() for path in paths if path.is_file()}

    def after_power_loss() -> dict[str, bytes]:
        place = tmp_path / str(chance.random())
        disk.power_lost(data, place, chance)
        return quarantined(place)

    with monkeypatch.context() as patch, SimulatedDisk(tmp_path) as disk:
        renamed = os.rename

        def renaming(old: Path, new: Path) -> None:
            if Path(new).name == "log.json":
                # Which says that they are there.
                expected = quarantined(data)
                assert sum(path.endswith("segment") for path in expected) == 4
                for _ in range(20):
                    found = after_power_loss()
                    assert {path: found.get(path) for path in expected if path.endswith("segment")} == {
                        path: octets for path, octets in expected.items() if path.endswith("segment")
                    }
            renamed(old, new)

        patch.setattr(os, "rename", renaming)
        if not can_link:
            patch.setattr(os, "link", refuse)
        setting_aside(data).add("queues/1")
        assert len(quarantined(data)) == 6
        assert all(after_power_loss() == quarantined(data) for _ in range(20))


def test_a_copy_that_was_not_finished_counts_for_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path / "queues/1", EIGHT)
    before = chunks_in(log.directory)
    target = tmp_path / "divergent/20261121T114500-e5/queues/1"
    target.mkdir(parents=True)
    (target / "00000000000000000006.segment.copy").write_bytes(b"half of a chunk")
    DivergentReport("20261121T114500-e5", AT_MS, 5, 6, "here", "there", "").save(tmp_path)
    report = quarantine(tmp_path, 6)
    assert report is not None
    assert report.id == "20261121T114500-e5"
    assert chunks_aside(tmp_path) == before[3:]


def test_what_is_aside_is_never_replaced(tmp_path: Path) -> None:
    """The log was cut, the join not finished; now other records stand there, in the same epochs."""
    log = filled(tmp_path / "queues/1", EIGHT)
    first = chunks_in(log.directory)
    setting_aside(tmp_path).add("queues/1", 6)
    cut(log.directory, 6)
    log = make(log.directory).open()
    append(log, 77, records=2)
    append(log, 78, records=2)
    log.sync()
    log.close()
    second = chunks_in(log.directory)
    report = quarantine(tmp_path, 6)
    assert report is not None
    assert report.id.endswith("-e5-2")
    assert chunks_aside(tmp_path) == [*first[3:], *second[3:]]
    assert [each.is_finished for each in reports(tmp_path)] == [True, True]


def test_a_longer_tail_than_before_makes_a_report_of_its_own(tmp_path: Path) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    setting_aside(tmp_path).add("queues/1", 6)
    setting_aside(tmp_path).add("queues/1", 2)
    assert [report.logs[0].from_offset for report in reports(tmp_path)] == [6, 2]


def test_of_a_log_that_is_appended_to_what_is_before_the_given_end_counts(tmp_path: Path) -> None:
    log = filled(tmp_path / "queues/1", EIGHT)
    log_report = setting_aside(tmp_path).add("queues/1", 2, 10)
    assert log_report is not None
    assert (log_report.from_offset, log_report.next_offset, log_report.messages) == (2, 10, 8)
    log.close()


@pytest.mark.parametrize("until", range(2, 17, 2))
@pytest.mark.parametrize("cut_at", range(2, 17, 2))
def test_a_log_that_lost_its_head_may_be_cut_and_written_to_and_what_is_aside_stays(
    tmp_path: Path, until: int, cut_at: int
) -> None:
    """Its segments beyond the head live on: the log truncates them when it is cut again, and appends to them."""
    log = filled(tmp_path / "queues/1", EIGHT)
    quarantine = setting_aside(tmp_path, is_lost=True)
    log_report = quarantine.add("queues/1", 0, until)
    quarantine.finish()
    before = chunks_aside(tmp_path)
    assert log_report is not None
    log = make(log.directory).open()
    log.drop_before(until)
    log.close()
    if log.first_offset <= cut_at:
        cut(log.directory, cut_at)
        log = make(log.directory).open()
        append(log, 33)
        log.close()
    assert chunks_aside(tmp_path) == before
    assert log_report.next_offset == until
    for kind in (ChunkType.USER, ChunkType.TRACKING):
        assert not [
            found
            for found in chunks_of(tmp_path, next(iter(reports(tmp_path))).id, log_report, kind)
            if isinstance(found, Corrupt)
        ]


def test_what_was_appended_to_a_log_since_it_was_added_makes_a_report_of_its_own(tmp_path: Path) -> None:
    """Its copies are as they were, and no report told of it."""
    log = filled(tmp_path / "queues/1", [*EIGHT, EIGHT[0]])
    setting_aside(tmp_path).add("queues/1", 2, 18)
    append(log, 33)
    log.close()
    quarantine = setting_aside(tmp_path)
    log_report = quarantine.add("queues/1", 2, log.next_offset)
    assert log_report is not None
    assert (log_report.from_offset, log_report.next_offset) == (2, log.next_offset)
    assert quarantine.add("queues/1", 2, log.next_offset) == log_report
    assert [report.logs[0].next_offset for report in reports(tmp_path)] == [18, log.next_offset]


@pytest.mark.parametrize(("from_epoch", "to_epoch"), [(4, 6), (5, 7)])
def test_a_join_between_other_epochs_makes_another_report(
    tmp_path: Path, from_epoch: int, to_epoch: int
) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    setting_aside(tmp_path).add("queues/1", 6)
    setting_aside(tmp_path, from_epoch=from_epoch, to_epoch=to_epoch).add("queues/1", 6)
    assert len(reports(tmp_path)) == 2


def test_a_finished_report_is_not_taken_up(tmp_path: Path) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    for at in (12, 6):
        quarantine(tmp_path, at)
    assert [report.id for report in reports(tmp_path)] == ["20261121T114500-e5", "20261121T114500-e5-2"]


def test_a_join_that_has_nothing_left_to_add_finishes_what_was_begun(tmp_path: Path) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    setting_aside(tmp_path).add("queues/1", 6)
    cut(tmp_path / "queues/1", 6)
    assert not reports(tmp_path)[0].is_finished
    report = quarantine(tmp_path, 6)
    assert report == reports(tmp_path)[0]
    assert report.is_finished
    assert setting_aside(tmp_path).finish() is None


@pytest.mark.parametrize("name", ["fsync", "mkdir", "rename", "listdir"])
def test_a_disk_that_refuses_leaves_the_log_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    log = filled(tmp_path / "queues/1", EIGHT)
    before = files(log.directory)

    def refuse(*args: object, **more: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        with pytest.raises(StorageError, match="input/output error"):
            setting_aside(tmp_path).add("queues/1", 6)
    assert files(log.directory) == before
    assert quarantine(tmp_path, 6) is not None
    assert [offset for offset, _ in chunks_aside(tmp_path)] == [6, 8, 10, 12, 14]


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """As on a disk that becomes full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_without_room_for_the_copy_leaves_the_log_as_it_is(tmp_path: Path) -> None:
    log = make(tmp_path / "queues/1").open()
    log.append(0, 1, 1, b"x" * 100_000, 0)
    log.sync()
    log.close()
    before = files(log.directory)
    with (
        no_file_larger_than(60_000),
        pytest.raises(StorageError, match=r"cannot be quarantined: .*too large"),
    ):
        setting_aside(tmp_path).add("queues/1")
    assert files(log.directory) == before
    assert chunks_aside(tmp_path) == []
    setting_aside(tmp_path).add("queues/1")
    assert chunks_aside(tmp_path) == chunks_in(log.directory)


# -- reports ----------------------------------------------------------------------------------


def settle(log: Log, *ranges: tuple[int, int]) -> None:
    octets = encode_settlements(Settlement(0, first, count) for first, count in ranges)
    log.append(ChunkType.TRACKING, 1, 1, encode_entry(octets), 1000)


def test_a_report_says_what_was_set_aside(tmp_path: Path) -> None:
    log = make(tmp_path / "queues/1").open()
    append(log, 20, records=4)
    settle(log, (0, 1))
    append(log, 20, records=3)  # 5 to 7; what follows is the tail
    settle(log, (1, 2), (5, 4))  # 8 is this settlement itself, and no message
    append(log, 20, records=2)  # 9 and 10
    settle(log, (9, 1), (3, 1))
    log.sync()
    log.close()
    filled(tmp_path / "streams/2", EIGHT[:3])
    defined = make(filled(tmp_path / "definitions", EIGHT[:2]).directory).open()
    defined.append(ChunkType.TRACKING, 1, 1, encode_entry(bytes(8)), 1000)
    defined.sync()
    defined.close()
    quarantine = setting_aside(tmp_path)
    quarantine.add("queues/1", 8)
    quarantine.add("streams/2", 2)
    quarantine.add("definitions", 2)
    report = quarantine.finish()
    assert report is not None
    assert report == DivergentReport.load(tmp_path, report.id) == reports(tmp_path)[0]
    octets = [sum(len(octets) for _, octets in chunks_aside(tmp_path, each.path)) for each in report.logs]
    assert report.logs == [
        DivergentLog(
            "queues/1", "queues", "/", "work", 8, 12, chunks=3, octets=octets[0],
            messages=2, settlements=7, settlements_lost=6,
        ),
        DivergentLog("streams/2", "streams", None, None, 2, 6, chunks=2, octets=octets[1], messages=4),
        DivergentLog("definitions", "definitions", None, None, 2, 5, chunks=2, octets=octets[2], definitions=2),
    ]  # fmt: skip
    summary = report.summary()
    assert len(summary.pop("logs")) == 3
    assert summary == {
        "id": "20261121T114500-e5", "at_ms": AT_MS, "from_epoch": 5, "to_epoch": 6, "node_id": "here",
        "leader_id": "there", "leader_uri": "tcp://there:5679", "is_finished": True, "octets": sum(octets),
        "messages": 6, "settlements": 7, "settlements_lost": 6, "damaged": 0, "lost": 0,
        "queues": [
            {"vhost": "/", "queue": "work", "messages": 2},
            {"vhost": None, "queue": None, "messages": 4},
        ],
    }  # fmt: skip


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=6)


@given(st.lists(st.integers(1, 5) | RANGES, min_size=1, max_size=12), st.data())
def test_settlements_are_counted_by_the_messages_that_they_are_of(
    chunks: list[int | list[tuple[int, int]]], data: st.DataObject
) -> None:
    with scratch() as data_dir:
        log = make(data_dir / "queues/1").open()
        for each in chunks:
            if isinstance(each, int):
                append(log, 20, records=each)
            else:
                settle(log, *each)
        log.sync()
        log.close()
        every = [each.header for each in held(log.directory)]
        at = data.draw(st.sampled_from(every)).chunk_id
        messages = {o for h in every if h.type == 0 for o in range(h.chunk_id, h.next_offset)}
        settled = {
            offset
            for header, each in zip(every, chunks, strict=True)
            if header.chunk_id >= at and not isinstance(each, int)
            for first, count in each
            for offset in range(first, first + count)
        } & messages
        log_report = setting_aside(data_dir).add("queues/1", at)
        assert log_report is not None
        assert log_report.messages == sum(offset >= at for offset in messages)
        assert log_report.settlements == len(settled)
        assert log_report.settlements_lost == sum(offset < at for offset in settled)


def test_settlements_that_cannot_be_read_are_damage(tmp_path: Path) -> None:
    log = make(tmp_path / "queues/1").open()
    append(log, 20)
    settle(log, (0, 1))
    log.append(ChunkType.TRACKING, 1, 1, encode_entry(b"no settlement"[:5]), 1000)
    log.sync()
    log.close()
    flip(log.directory, 0, 68 + 48 + 6)
    log_report = setting_aside(tmp_path).add("queues/1")
    assert log_report is not None
    assert (log_report.damaged, log_report.settlements, log_report.chunks) == (2, 0, 3)


@pytest.mark.parametrize("report_id", ["", ".", "..", "../divergent", "20261121T114500-e5/..", "nothing"])
def test_no_other_path_is_a_report(tmp_path: Path, report_id: str) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    quarantine(tmp_path, 6)
    shutil.copy(next((tmp_path / "divergent").glob("*/report.json")), tmp_path / "divergent/report.json")
    with pytest.raises(NotFound, match="there is no report"):
        DivergentReport.load(tmp_path, report_id)


def test_a_report_that_was_tampered_with_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "queues/1", EIGHT)
    report = quarantine(tmp_path, 6)
    assert report is not None
    (directory_of(tmp_path, report.id) / "report.json").write_text('{"id": 5}')
    with pytest.raises(StorageError, match=r"report.json: .*repair the file, or move its directory away"):
        reports(tmp_path)


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "divergent/notes").mkdir(parents=True)
    (tmp_path / "divergent/notes/report.json").write_text("mine")
    assert reports(tmp_path) == []
    filled(tmp_path / "queues/1", EIGHT)
    assert quarantine(tmp_path, 6) is not None
