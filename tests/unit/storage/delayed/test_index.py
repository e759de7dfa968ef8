"""The index of a delayed follower: frames come back with their times, kept files as they were, and go when due."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.delayed.index import (
    NEVER_MS,
    DelayIndex,
    EntryKind,
    FramePart,
    IndexBase,
    IndexedFrame,
    IndexEntry,
)
from leveret.storage.log import Log
from leveret.storage.removed import RemovedFiles
from leveret.wire.chunk import ChunkType, encode_entry

NAME = "queues/0000000000000001"


def begun(directory: Path) -> DelayIndex:
    index = DelayIndex(directory, segment_bytes_max=200)
    index.begin(IndexBase(0, 10, 1000, {NAME: 5}))
    return index


def frame(part: FramePart, *noted: IndexEntry) -> IndexedFrame:
    return IndexedFrame(part, list(noted), 1, 2, 3)


def end(offset: int, name: str = NAME) -> IndexEntry:
    return IndexEntry(EntryKind.END, name, offset)


def queue_log(directory: Path, chunks: int) -> Log:
    log = Log(directory / NAME, epoch=1, segment_bytes_max=300, name=NAME).open()
    for number in range(chunks):
        log.append(ChunkType.USER, 1, 1, encode_entry(b"%d" % number * 100), 1)
        log.sync()
    return log


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_join_counts_as_one_at_its_end(tmp_path: Path) -> None:
    index = begun(tmp_path)
    for part, offset, at_ms in [
        (FramePart.WHOLE, 6, 20),
        (FramePart.OF_JOIN, 7, 30),
        (FramePart.OF_JOIN, 8, 40),
        (FramePart.END_OF_JOIN, 9, 50),
        (FramePart.WHOLE, 10, 60),
        (FramePart.OF_JOIN, 11, 70),
    ]:
        index.append(frame(part, end(offset)), at_ms)
    index.log.sync()
    index.close()
    index = DelayIndex(tmp_path)
    base = index.open()
    assert base == IndexBase(0, 10, 1000, {NAME: 5})
    groups = list(index.groups(0))
    assert [each[:4] for each in groups] == [
        (20, 20, 0, 1),
        (50, 30, 1, 4),
        (60, 60, 4, 5),
        (NEVER_MS, 70, 5, 6),
    ]
    ends = []
    for group in groups:
        base.follow(group)
        ends.append((base.offset, base.at_ms, base.ends[NAME]))
    assert ends == [(1, 20, 6), (4, 50, 9), (5, 60, 10), (6, 60, 11)]
    assert [each.first for each in index.groups(4)] == [4, 5]
    index.close()


def test_ends_follow_what_becomes_of_logs(tmp_path: Path) -> None:
    index = begun(tmp_path)
    index.append(
        frame(FramePart.WHOLE, IndexEntry(EntryKind.TRUNCATED, NAME, 3), end(4), end(1, "a"), end(2, "b")), 20
    )
    index.append(
        frame(FramePart.WHOLE, IndexEntry(EntryKind.GONE, "a"), IndexEntry(EntryKind.DROP, NAME, 2)), 21
    )
    index.append(frame(FramePart.WHOLE, IndexEntry(EntryKind.DELETED, NAME), end(9)), 22)
    index.append(frame(FramePart.WHOLE, IndexEntry(EntryKind.QUARANTINED, "b")), 23)
    base, found = IndexBase(), []
    for group in index.groups(0):
        base.follow(group)
        found.append(dict(base.ends))
    assert found == [{NAME: 4, "a": 1, "b": 2}, {NAME: 4, "b": 2}, {NAME: 9, "b": 2}, {NAME: 9}]
    index.close()


def test_what_destroys_is_on_disk_before_it_is_done(tmp_path: Path) -> None:
    index = begun(tmp_path)
    index.append(frame(FramePart.WHOLE, end(6), IndexEntry(EntryKind.DROP, NAME, 2)), 20)
    assert index.log.synced_offset == 0
    index.append(frame(FramePart.WHOLE, IndexEntry(EntryKind.FILE, "a.json", 0, b"{}")), 21)
    assert index.log.synced_offset == 2
    index.close()


def test_a_log_that_is_deleted_or_cut_comes_back_as_it_was(tmp_path: Path) -> None:
    index, log = begun(tmp_path), queue_log(tmp_path, 9)
    before = files(log.directory)
    segments = sorted(name for name in before if name.endswith("segment"))
    assert len(segments) > 2
    index.keep([(NAME, log, 4)])
    index.append(frame(FramePart.WHOLE, IndexEntry(EntryKind.TRUNCATED, NAME, 4)), 20)
    # The log goes on in the segment before the cut, in its own file.
    for name in segments[1:3]:
        with (log.directory / name).open("r+b") as file:
            file.write(b"other")
    log.delete()
    index.close()
    index = DelayIndex(tmp_path)
    index.open()
    assert index.has_kept(0, NAME)
    assert not index.has_kept(0, "queues/0000000000000002")
    for _ in range(2):
        index.restore(0, NAME, log.directory)
        assert files(log.directory) == before
    restored = Log(log.directory, epoch=1, name=NAME).open()
    assert (restored.first_offset, restored.next_offset) == (0, 9)
    restored.close()
    index.close()


def test_what_was_kept_for_a_frame_that_is_not_there_goes(tmp_path: Path) -> None:
    index, log = begun(tmp_path), queue_log(tmp_path, 1)
    index.keep([(NAME, log, None)])
    index.close()
    index = DelayIndex(tmp_path)
    index.open()
    assert not index.has_kept(0, NAME)
    assert log.directory.exists()
    index.close()


def test_the_caller_never_waits_until_what_was_kept_is_freed(tmp_path: Path) -> None:
    """It has the last names of the files of a deleted log, however large."""
    removed, left = RemovedFiles(tmp_path), list[Path]()
    removed.free = left.append
    index, log = DelayIndex(tmp_path, removed=removed), queue_log(tmp_path, 3)
    index.begin(IndexBase(0, 10, 1000, {NAME: 3}))
    index.keep([(NAME, log, None)])
    index.append(frame(FramePart.WHOLE, IndexEntry(EntryKind.DELETED, NAME)), 1)
    octets = sorted(path.read_bytes() for path in log.directory.iterdir())
    log.delete()
    index.save(IndexBase(1, 1))
    index.forget_before(1)
    assert [sorted(path.read_bytes() for path in kept.iterdir()) for kept in left] == [octets]
    index.remove()
    assert len(left) == 2
    assert not index.directory.exists()


def test_what_no_frame_needs_is_removed(tmp_path: Path) -> None:
    index, log = begun(tmp_path), queue_log(tmp_path, 3)
    for number in range(20):
        if number == 3:
            index.keep([(NAME, log, None)])
        index.append(frame(FramePart.WHOLE, end(number)), number)
    index.log.sync()
    assert not index.has_waste(0)
    assert index.has_waste(4)
    index.save(IndexBase(18, 18))
    index.forget_before(18)
    assert 0 < index.log.first_offset <= 18
    assert not index.has_kept(3, NAME)
    assert os.listdir(log.directory)
    index.close()
    index = DelayIndex(tmp_path)
    assert index.open().offset == 18
    assert [each.first for each in index.groups(18)] == [18, 19]
    index.remove()
    assert not (tmp_path / "delayed").exists()


def test_an_index_with_less_than_its_base_needs_is_damaged(tmp_path: Path) -> None:
    index = begun(tmp_path)
    index.append(frame(FramePart.WHOLE, end(6)), 20)
    index.log.sync()
    index.save(IndexBase(2, 20))
    index.close()
    with pytest.raises(Corrupt, match="frames 0 to 1, and the delay begins at 2"):
        DelayIndex(tmp_path).open()
    for path in (tmp_path / "delayed" / "index").iterdir():
        path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        DelayIndex(tmp_path).open()
    (tmp_path / "delayed" / "base.json").write_text('{"offset": "x"}')
    with pytest.raises(StorageError, match=r"base\.json"):
        DelayIndex(tmp_path).open()


def test_frames_of_something_else_are_damage(tmp_path: Path) -> None:
    index = begun(tmp_path)
    index.log.append(ChunkType.USER, 1, 1, encode_entry(b"a message"), 1)
    with pytest.raises(Corrupt, match="holds no frame of a leader"):
        list(index.groups(0))
    index.close()
