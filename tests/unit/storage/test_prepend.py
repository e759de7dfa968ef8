"""A segment that is taken in front of a log, as a mirror does that gets the newest first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.storage.log import Log
from leveret.wire.chunk import Header
from tests.unit.storage.logs import append, contents, make, recovered, segments


def parts(directory: Path) -> tuple[Log, list[Log]]:
    """A log that begins late, and the segments that belong in front of it, newest first, each a log of its own."""
    whole = make(directory / "whole").open()
    for size in (90, 90, 120, 90, 90, 90, 40):
        append(whole, size, 2)
    starts = sorted({segment for segment, _, _ in whole.read_segments(0, 1 << 30)})
    made = {start: make(directory / f"{start}").open(first_offset=start) for start in starts}
    for segment, header, octets in whole.read_segments(0, 1 << 30):
        made[segment].append_raw(header, octets, segment)
    for log in made.values():
        log.sync()
    whole.close()
    return made[starts[-1]], [made[start] for start in reversed(starts[:-1])]


def test_a_log_grows_at_its_old_end_and_is_whole_after_every_crash(tmp_path: Path) -> None:
    tail, heads = parts(tmp_path)
    whole = contents(make(tmp_path / "whole").open())
    assert len(heads) >= 2
    for head in heads:
        assert whole[-len(contents(tail)) :] == contents(tail)
        tail.prepend(head)
        assert recovered(tail.directory)[1] == contents(tail)
        assert not head.directory.exists() or not list(head.directory.iterdir())
    assert contents(tail) == whole
    append(tail, 50)
    assert tail.drop_before(tail.next_offset) == len(heads)


def test_an_empty_log_that_gets_a_head_is_whole_after_a_crash(tmp_path: Path) -> None:
    _, heads = parts(tmp_path)
    log = make(tmp_path / "new").open(first_offset=heads[0].next_offset)
    expected = contents(heads[0])
    log.prepend(heads[0])
    assert contents(log) == expected
    again, found = recovered(log.directory)
    assert found == expected
    assert again.next_offset == log.next_offset


def test_what_does_not_fit_is_refused_and_a_disk_that_refuses_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail, heads = parts(tmp_path)
    before = contents(tail)
    with pytest.raises(StorageError) as refused:
        tail.prepend(heads[1])
    assert str(refused.value) == (
        f"log {tail.directory}: {segments(heads[1].directory)[0]}, with offsets {heads[1].first_offset} to "
        f"{heads[1].next_offset}, does not fit before offset {tail.first_offset}: delete {heads[1].directory}, it will "
        "be copied again"
    )

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(StorageError, match="cannot be taken in"):
            tail.prepend(heads[0])
    with monkeypatch.context() as patch:
        patch.setattr("leveret.storage.log.sync_directory", lambda path: refuse(path, path))
        with pytest.raises(
            StorageError, match=f"{heads[0].directory}.* cannot be taken in.*; it stays there"
        ):
            tail.prepend(heads[0])
    assert contents(tail) == before
    assert len(os.listdir(heads[0].directory)) == 1
    tail.prepend(heads[0])
    assert contents(tail)[-len(before) :] == before


def test_where_the_segment_before_an_offset_begins(tmp_path: Path) -> None:
    log = make(tmp_path).open(first_offset=10)
    assert log.segment_before(10) is log.segment_before(11) is None
    for size in (90, 90, 120):
        append(log, size, 2)
    starts = sorted({segment for segment, _, _ in log.read_segments(0, 1 << 30)})
    assert len(starts) == 2
    for offset in range(11, log.next_offset + 1):
        assert log.segment_before(offset) == max(start for start in starts if start < offset)
    assert log.segment_before(log.next_offset + 1) is None


def rolled_back(directory: Path) -> tuple[Log, list[tuple[int, Header, bytes]], Log]:
    """A copy that has what its leader has, before a segment that the leader does not begin there after all."""
    leader = make(directory / "leader").open()
    for _ in range(3):
        append(leader, 40)
    chunks = [
        (segment, header, bytes(octets)) for segment, header, octets in leader.read_segments(0, 1 << 30)
    ]
    assert {segment for segment, _, _ in chunks} == {0}
    head = make(directory / "head").open()
    for segment, header, octets in chunks[:2]:
        head.append_raw(header, octets, segment)
    head.sync()
    copy = make(directory / "copy").open(first_offset=head.next_offset)
    copy.prepend(head)
    return copy, chunks, leader


def test_a_copy_goes_on_where_its_leader_does_that_began_no_segment_after_all(tmp_path: Path) -> None:
    copy, chunks, leader = rolled_back(tmp_path)
    segment, header, octets = chunks[2]
    copy.append_raw(header, octets, segment)
    assert contents(copy) == contents(leader)
    copy.sync()
    names = [path.name for path in segments(copy.directory)]
    assert names == [path.name for path in segments(leader.directory)]
    assert recovered(copy.directory)[1] == contents(leader)
    append(copy, 40)
    copy.sync()
    assert [path.name.partition(".")[2] for path in segments(copy.directory)] == ["sealed.segment", "segment"]


@pytest.mark.parametrize("step", ["rename", "unlink"])
def test_a_copy_that_ends_between_is_whole_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    copy, chunks, leader = rolled_back(tmp_path)
    segment, header, octets = chunks[2]
    before, removed = contents(copy), Path.unlink

    def refuse(self: Path, *wanted: object, **more: object) -> None:
        if step == "rename" or not self.name.endswith(".summary"):
            raise OSError(5, "Input/output error")
        removed(self, missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(Path, step, refuse)
        with pytest.raises(StorageError, match="cannot be removed"):
            copy.append_raw(header, octets, segment)
    assert contents(copy) == before
    again, found = recovered(copy.directory)
    assert found == before
    for log in (again, copy):
        log.close()
    again = make(copy.directory).open()
    again.append_raw(header, octets, segment)
    assert contents(again) == contents(leader)
