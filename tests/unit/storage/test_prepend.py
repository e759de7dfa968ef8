"""A segment that is taken in front of a log, as a mirror does that gets the newest first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.storage.log import Log
from tests.unit.storage.logs import append, contents, make, recovered


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
    with pytest.raises(StorageError, match="cannot stand in front"):
        tail.prepend(heads[1])

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(StorageError, match="cannot be taken in"):
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
