"""storage.inspection.walk: every chunk is found where it stands, whatever happens to the files, around damage too."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.storage import summary as summary_module
from leveret.storage.inspection.walk import Damage, WalkedChunk, walk
from leveret.storage.segment_file import STEP_BYTES
from leveret.storage.summary import summarise
from leveret.wire.chunk import HEADER_BYTES, encode_header
from tests.unit.storage.logs import append, make, scratch, segments
from tests.unit.storage.places import (
    CHUNKS,
    TRAILER,
    Chunks,
    Held,
    filled,
    flip,
    held,
    overwrite,
    segment_path,
    walked,
)

EIGHT: Chunks = [(90, 2, True)] * 8
"""Two chunks a segment: the tests damage them by number."""


# -- whole logs -------------------------------------------------------------------------------


@given(CHUNKS, st.data())
def test_a_walk_finds_the_chunks_of_a_range_and_no_others(chunks: Chunks, data: st.DataObject) -> None:
    with scratch() as directory:
        end = filled(directory, chunks, first_offset=7).next_offset
        first = data.draw(st.integers(0, end + 2))
        until = data.draw(st.none() | st.integers(0, end))
        expected = [
            each
            for each in held(directory)
            if each.header.next_offset > first and (until is None or each.header.chunk_id < until)
        ]
        assert walked(directory, first, until) == expected


def test_a_log_that_is_not_there_has_no_chunks(tmp_path: Path) -> None:
    assert walked(tmp_path / "none", 0, 5) == []
    (tmp_path / "file").write_bytes(b"")
    assert walked(tmp_path / "file") == []


def test_files_that_cannot_be_opened_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, EIGHT)

    def refuse(*args: object, **more: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"cannot be opened: .*too many open files"):
        walked(tmp_path)


def test_a_large_chunk_is_read_in_steps_and_stepped_over(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    log.append(0, 1, 1, bytes(3 * STEP_BYTES + 5), 0, TRAILER)
    append(log, 10)
    log.close()
    steps: list[int] = []
    faults = [
        found.fault() for found in walk(tmp_path, on_read=steps.append) if isinstance(found, WalkedChunk)
    ]
    assert faults == [None, None]
    assert max(steps) <= STEP_BYTES
    assert sum(steps) >= 3 * STEP_BYTES
    steps.clear()
    assert len(list(walk(tmp_path, on_read=steps.append))) == 2
    assert sum(steps) < STEP_BYTES


def test_whoever_is_told_of_reads_may_end_the_walk(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)

    def stop(octets: int) -> None:
        raise InterruptedError

    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(InterruptedError):
        list(walk(tmp_path, on_read=stop))
    assert set(os.listdir("/proc/self/fd")) == before


# -- damage -----------------------------------------------------------------------------------


def found_in(directory: Path, until: int) -> tuple[list[Held], list[Damage]]:
    """Whole chunks, checked, and damage."""
    whole, damaged = [], []
    for found in walk(directory, 0, until):
        if isinstance(found, Damage):
            damaged.append(found)
        elif what := found.fault():
            damaged.append(found.damage(what))
        else:
            whole.append(Held(found.header, found.file.first_offset, found.position))
    return whole, damaged


@given(CHUNKS, st.data())
def test_a_flipped_bit_anywhere_damages_its_chunk_and_no_other(chunks: Chunks, data: st.DataObject) -> None:
    with scratch() as directory:
        end = filled(directory, chunks).next_offset
        every = held(directory)
        hit = data.draw(st.sampled_from(every))
        at = data.draw(st.integers(0, hit.header.chunk_bytes - 1))
        flip(directory, hit.segment, hit.position + at, data.draw(st.integers(0, 7)))
        whole, (damage,) = found_in(directory, end)
        assert whole == [each for each in every if each != hit]
        assert damage[:5] == hit.damage()


@given(CHUNKS, st.data())
def test_headers_flipped_at_several_places_hide_only_their_own_chunks(
    chunks: Chunks, data: st.DataObject
) -> None:
    with scratch() as directory:
        end = filled(directory, chunks).next_offset
        every = held(directory)
        hit = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
        for each in hit:
            # All but the lengths: those of one header may be lost, see the next test.
            flip(
                directory, each.segment, each.position + data.draw(st.sampled_from([*range(36), 44, 45, 47]))
            )
        whole, damaged = found_in(directory, end)
        assert whole == [each for each in every if each not in hit]
        # Neighbours in one segment may be one hole; together the holes are what was hit.
        assert sum(damage.length or 0 for damage in damaged) == sum(each.header.chunk_bytes for each in hit)
        assert sum(damage.next_offset - damage.offset for damage in damaged) == sum(
            each.header.records for each in hit
        )


@given(CHUNKS, st.data())
def test_headers_destroyed_hide_no_more_than_what_is_between_two_of_them_in_one_segment(
    chunks: Chunks, data: st.DataObject
) -> None:
    with scratch() as directory:
        end = filled(directory, chunks).next_offset
        every = held(directory)
        hit = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
        for each in hit:
            overwrite(directory, each.segment, each.position, bytes(HEADER_BYTES))
        whole, damaged = found_in(directory, end)
        hidden = [each for each in every if each not in whole]
        assert all(each in every for each in whole)
        assert {damage.segment for damage in damaged} == {each.segment for each in hit}
        for damage in damaged:
            places = [each.position for each in hit if each.segment == damage.segment]
            inside = [
                each for each in hidden
                if each.segment == damage.segment and damage.offset <= each.header.chunk_id < damage.next_offset
            ]  # fmt: skip
            assert min(places) <= inside[0].position <= inside[-1].position <= max(places)
            assert damage.length == sum(each.header.chunk_bytes for each in inside)
            assert damage.next_offset == inside[-1].header.next_offset


@given(CHUNKS, st.data())
def test_a_segment_that_was_cut_short_lacks_what_was_cut_and_no_more(
    chunks: Chunks, data: st.DataObject
) -> None:
    with scratch() as directory:
        end = filled(directory, chunks).next_offset
        every = held(directory)
        path = data.draw(st.sampled_from(segments(directory)))
        length = data.draw(st.integers(0, path.stat().st_size - 1))
        os.truncate(path, length)
        segment = int(path.name[:20])
        gone = [e for e in every if e.segment == segment and e.position + e.header.chunk_bytes > length]
        whole, (damage,) = found_in(directory, end)
        assert whole == [each for each in every if each not in gone]
        assert (damage.offset, damage.next_offset) == (gone[0].header.chunk_id, gone[-1].header.next_offset)
        assert (damage.segment, damage.length) == (segment, None)
        assert damage.position == (gone[0].position if length > gone[0].position else -1)


def test_a_missing_segment_is_damage_and_what_follows_is_found(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    every = held(tmp_path)
    segments(tmp_path)[1].unlink()
    whole, (damage,) = found_in(tmp_path, 16)
    assert whole == every[:2] + every[4:]
    assert damage[:5] == (0, 4, 8, -1, None)
    assert "next segment starts at offset 8" in damage.what


def test_a_missing_end_is_damage_up_to_where_the_log_has_to_go(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    segments(tmp_path)[-1].unlink()
    *_, damage = walked(tmp_path, 0, 16)
    assert damage[:5] == (8, 12, 16, -1, None)
    assert all(isinstance(found, Held) for found in walked(tmp_path))


def test_segments_that_overlap_are_damage(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    path = segment_path(tmp_path, 4)
    path.rename(tmp_path / f"{3:020d}.segment")
    damaged = [found for found in walked(tmp_path, 0, 16) if isinstance(found, Damage)]
    assert damaged[0][:5] == (0, 3, 4, -1, None)


def test_damage_before_the_range_is_not_of_it(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    every = held(tmp_path)
    overwrite(tmp_path, 0, 0, bytes(HEADER_BYTES))
    assert walked(tmp_path, 2, 16) == every[1:]
    assert walked(tmp_path, 1, 16)[0][:5] == every[0].damage()


def forged(chunk_id: int, records: int, data_bytes: int) -> bytes:
    """A chunk as a message may hold it."""
    return encode_header(0, 1, records, 1000, 4, chunk_id, 0, data_bytes) + bytes(data_bytes)


IN_A_MESSAGE = {
    "chunks that follow each other": b"".join(forged(chunk_id, 1, 40) for chunk_id in range(2, 8)),
    "a chunk, and more": forged(2, 1, 40) + b"x" * 30,
    "a chunk that is cut short": forged(2, 1, 40)[:60],
    "a chunk of an earlier offset, to the end": forged(0, 2, 40),
    "a chunk of this offset, to the end": forged(1, 1, 40),
    "a chunk without records, to the end": forged(2, 0, 40),
    "a chunk that goes on behind the end": forged(2, 1, 140),
    "a chunk of a later offset": forged(900, 1, 40),
    "headers inside of headers": (b"P" * 50 + forged(2, 1, 0)) * 3,
}


@pytest.mark.parametrize("message", IN_A_MESSAGE.values(), ids=IN_A_MESSAGE)
@pytest.mark.parametrize("is_newest", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("lost", [range(24, 25), range(HEADER_BYTES)])
def test_a_message_that_looks_like_chunks_is_not_taken_for_one(
    tmp_path: Path, message: bytes, is_newest: bool, is_last: bool, lost: range
) -> None:
    log = make(tmp_path, segment_bytes_max=10_000).open()
    append(log, 50)
    log.append(0, 1, 1, message, 1000)
    if not is_last:
        append(log, 50)
        append(log, 50)
    if not is_newest:
        log.roll()
        append(log, 50)
    log.sync()
    log.close()
    every = held(tmp_path)
    overwrite(tmp_path, 0, every[1].position + lost.start, b"\xff" * len(lost))
    whole, (damage,) = found_in(tmp_path, log.next_offset)
    assert whole == [every[0], *every[2:]]
    assert damage[:5] == every[1].damage()


def test_another_chunk_in_the_place_of_one_is_damage(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    every = held(tmp_path)
    octets = segment_path(tmp_path, 8).read_bytes()
    overwrite(tmp_path, 4, 0, octets[:167])
    whole, (damage,) = found_in(tmp_path, 16)
    assert whole == [each for each in every if each != every[2]]
    assert damage[:5] == every[2].damage()
    assert damage.what == "chunk id is 8, expected 4"


def test_in_the_newest_segment_headers_lead_to_where_the_walk_ends_and_beyond(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    every = held(tmp_path)
    overwrite(tmp_path, 12, 0, bytes(HEADER_BYTES))
    newest = segment_path(tmp_path, 12)
    with newest.open("ab") as file:
        file.write(forged(16, 1, 40) + forged(17, 1, 40))
    whole, (damage,) = found_in(tmp_path, 16)
    assert whole == [each for each in every if each != every[6]]
    assert damage[:5] == every[6].damage()
    assert [each for each in walked(tmp_path) if each in every] == whole
    # Half of a chunk is just being written: that is no place that is known.
    os.truncate(newest, newest.stat().st_size - 1)
    whole, (damage,) = found_in(tmp_path, 16)
    assert whole == every[:6]
    assert damage[:4] == (12, 12, 16, 0)


def test_a_summary_knows_places_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_module, "SUMMARY_BYTES_MIN", 0)
    log = make(tmp_path / "log", segment_bytes_max=340_000).open(with_messages=False)
    for _ in range(6):
        log.append(0, 1, 1, b"x" * 70_000, 1000)
    log.sync()
    (sealed,) = log.take_sealed()
    log.close()
    every = held(log.directory)
    copied = tmp_path / "copied"
    shutil.copytree(log.directory, copied)
    summarise(sealed)
    for directory in (log.directory, copied):
        for each in (every[1], every[3]):
            overwrite(directory, 0, each.position, bytes(HEADER_BYTES))
    whole, _ = found_in(copied, log.next_offset)
    assert whole == [every[0], *every[4:]]
    whole, damaged = found_in(log.directory, log.next_offset)
    assert [damage[:5] for damage in damaged] == [every[1].damage(), every[3].damage()]
    assert whole == [every[0], every[2], *every[4:]]


@pytest.mark.parametrize("hit", range(8))
@pytest.mark.parametrize("at", [0, 60])
def test_what_the_disk_cannot_read_is_damage_of_the_chunk_that_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hit: int, at: int
) -> None:
    filled(tmp_path, EIGHT)
    every = held(tmp_path)
    bad = segment_path(tmp_path, every[hit].segment).stat().st_ino
    monkeypatch.setattr(os, "pread", failing_pread(bad, every[hit].position + at))
    whole, (damage,) = found_in(tmp_path, 16)
    assert whole == [each for each in every if each != every[hit]]
    assert damage.offset == every[hit].header.chunk_id
    assert "cannot be read" in damage.what


def failing_pread(inode: int, position: int) -> Callable[[int, int, int], bytes]:
    """As of a disk with one octet of a file that it cannot read."""
    pread = os.pread

    def fails(fd: int, size: int, at: int) -> bytes:
        if os.fstat(fd).st_ino == inode and at <= position < at + size:
            raise OSError(errno.EIO, "input/output error")
        return pread(fd, size, at)

    return fails


# -- logs that live ---------------------------------------------------------------------------


def during(directory: Path, what: Callable[[], object], at: int, until: int) -> list[Held | Damage]:
    """A walk with something happening to the log after the chunk of number `at`."""
    found = []
    for number, each in enumerate(walk(directory, 0, until)):
        if number == at:
            what()
        found.append(
            each if isinstance(each, Damage) else Held(each.header, each.file.first_offset, each.position)
        )
    return found


@pytest.mark.parametrize("at", range(8))
def test_segments_may_change_their_names_during_a_walk(tmp_path: Path, at: int) -> None:
    log = make(tmp_path).open()
    for size, records, _ in EIGHT:
        append(log, size, records, TRAILER)
    every = held(tmp_path)
    assert [path.suffixes for path in segments(tmp_path)][1:] == [[".segment", ".new"]] * 3
    assert during(tmp_path, log.sync, at, 16) == every
    log.close()


@pytest.mark.parametrize("at", range(8))
def test_the_oldest_segments_may_be_dropped_during_a_walk(tmp_path: Path, at: int) -> None:
    filled(tmp_path, EIGHT)
    log = make(tmp_path).open()
    every = held(tmp_path)
    found = during(tmp_path, lambda: log.drop_before(12), at, 16)
    # The rest of the segment that is open, then what is left.
    assert found == [each for each in every if each.segment <= every[at].segment or each.segment >= 12]
    log.close()


@pytest.mark.parametrize("at", range(8))
def test_a_walk_does_not_look_at_what_is_appended_meanwhile(tmp_path: Path, at: int) -> None:
    filled(tmp_path, EIGHT)
    every = held(tmp_path)

    def go_on() -> None:
        with segment_path(tmp_path, 12).open("ab") as file:
            file.write(b"half of a chunk that is just being written")

    assert during(tmp_path, go_on, at, 16) == every


def test_a_walk_may_be_ahead_of_what_it_has_seen_of_the_newest_segment(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=10_000).open()
    append(log, 50)

    def go_on() -> None:
        append(log, 50)
        append(log, 50)

    assert during(tmp_path, go_on, 0, 3) == held(tmp_path)
    log.close()
