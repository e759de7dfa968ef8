"""storage.log: what was appended is read back, whatever happens to the machine in between."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.storage import log_reader
from leveret.storage.segment import Segment
from leveret.storage.summary import summary_path
from leveret.storage.sync import DirectoryDescriptor, sync_and_close
from leveret.wire.chunk import (
    HEADER_BYTES,
    ChunkType,
    Header,
    decode_chunk,
    encode_attribute,
    encode_entry,
    encode_trailer,
)
from tests.unit.storage.logs import (
    SIZES,
    append,
    append_often,
    contents,
    files,
    make,
    recovered,
    scratch,
    segments,
)

# -- appending and opening again --------------------------------------------------------------


def test_a_new_log_is_empty_and_private(tmp_path: Path) -> None:
    log = make(tmp_path / "a" / "b").open()
    assert (log.first_offset, log.next_offset, log.size_bytes, log.last_timestamp_ms) == (0, 0, 0, 0)
    assert contents(log) == []
    assert log.directory.stat().st_mode & 0o777 == 0o700


def test_a_log_may_begin_at_a_given_offset(tmp_path: Path) -> None:
    log = make(tmp_path).open(first_offset=70)
    assert append(log, 5).chunk_id == 70
    log.close()
    log, _ = recovered(tmp_path)
    assert (log.first_offset, log.next_offset) == (70, 71)


def test_an_appended_chunk_says_who_wrote_it_and_where_it_stands(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    append(log, 10, records=3)
    trailer = encode_trailer(encode_attribute(0, b"publisher", 9))
    header = append(log, 5, trailer=trailer)
    assert (header.chunk_id, header.epoch, header.trailer_bytes) == (3, 4, len(trailer))
    assert log.next_offset == 4
    (_, first), (_, second) = log.read_raw(0, 1 << 20)
    assert decode_chunk(first + second, len(first)).header == header
    assert segments(tmp_path)[0].read_bytes() == first + second


def test_a_given_crc_is_written_as_it_is(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    assert log.append(0, 1, 1, b"data", 0, b"", 77).crc == 77


@pytest.mark.parametrize(
    "sizes", [(), (5,), (3, 0, 4), (100_000, 7, 100_000), (40_000,) * 1_100, (1,) * 3_000]
)
def test_data_in_pieces_are_written_as_if_they_were_joined(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    log, other = make(tmp_path / "pieces").open(), make(tmp_path / "joined").open()
    header = log.append(ChunkType.USER, 1, 1, pieces, 1000)
    assert header == other.append(ChunkType.USER, 1, 1, b"".join(pieces), 1000)
    first, second = (segments(each.directory)[0].read_bytes() for each in (log, other))
    assert first == second
    log.close()
    other.close()


@given(SIZES, st.booleans())
def test_what_was_appended_is_there_when_the_log_is_opened_again(sizes: list[int], durable: bool) -> None:
    with scratch() as directory:
        log = make(directory, durable=durable).open()
        for size in sizes:
            append(log, size, records=1 + size % 3)
        before = contents(log)
        assert [len(data) for _, data in before] == sizes
        end, stamp = log.next_offset, log.last_timestamp_ms
        log.close()
        log, found = recovered(directory)
        assert found == before == contents(log)
        assert (log.next_offset, log.last_timestamp_ms, log.torn_bytes) == (end, stamp, 0)
        log.close()


@given(SIZES, st.data())
def test_a_cut_at_any_byte_of_the_last_segment_opens_to_a_prefix_and_appending_goes_on(
    sizes: list[int], data: st.DataObject
) -> None:
    with scratch() as directory:
        log = make(directory).open()
        for size in sizes:
            append(log, size, records=1 + size % 3)
        log.sync()
        before = contents(log)
        log.close()
        last = segments(directory)[-1]
        cut = data.draw(st.integers(0, last.stat().st_size))
        os.truncate(last, cut)
        log, found = recovered(directory)
        assert found == before[: len(found)]
        assert log.next_offset == (before[len(found)][0] if len(found) < len(before) else log.next_offset)
        assert last.stat().st_size + log.torn_bytes == cut
        append(log, 33)
        append(log, 0)
        after = contents(log)
        assert after[:-2] == found
        log.close()
        log, found = recovered(directory)
        assert (found, log.torn_bytes) == (after, 0)
        log.close()


def test_a_file_of_another_name_is_left_alone(tmp_path: Path) -> None:
    append(make(tmp_path).open(), 5)
    (tmp_path / "00000000000000000000.segment.bak").write_bytes(b"somebody's copy")
    (tmp_path / "x.segment").write_bytes(b"")
    log, found = recovered(tmp_path)
    assert len(found) == 1
    assert len(segments(tmp_path)) == 3
    log.close()


# -- a disk that refuses ----------------------------------------------------------------------


class FaultyDisk:
    """os.pwritev and os.ftruncate that fail when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pwritev, self._ftruncate = os.pwritev, os.ftruncate
        self.room: int | None = None
        self.cuts = True
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "ftruncate", self.ftruncate)

    def pwritev(self, fd: int, buffers: tuple[bytes, ...], position: int) -> int:
        if self.room is None:
            return self._pwritev(fd, buffers, position)
        if self.room == 0:
            raise OSError(28, "No space left on device")
        return os.pwrite(fd, b"".join(buffers)[: self.room], position)

    def ftruncate(self, fd: int, size: int) -> None:
        if not self.cuts:
            raise OSError(5, "Input/output error")
        self._ftruncate(fd, size)


@pytest.mark.parametrize("room", [0, 1, HEADER_BYTES, HEADER_BYTES + 30])
def test_a_full_disk_refuses_the_append_and_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    disk = FaultyDisk(monkeypatch)
    log = make(tmp_path, segment_bytes_max=1000).open()
    append(log, 40)
    before, octets = contents(log), files(tmp_path)
    disk.room = room
    for _ in range(2):
        with pytest.raises(StorageError, match=r"append at offset 1 failed: .*(No space|of 148 octets)"):
            append(log, 100)
    assert (contents(log), files(tmp_path)) == (before, octets)
    disk.room = None
    append(log, 7)
    after = contents(log)
    log.close()
    log, found = recovered(tmp_path)
    assert (found, log.torn_bytes) == (after, 0)


def test_garbage_that_could_not_be_cut_off_never_ends_up_behind_a_shorter_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)
    log = make(tmp_path, segment_bytes_max=1000).open()
    append(log, 40)
    disk.room, disk.cuts = HEADER_BYTES + 90, False
    with pytest.raises(StorageError):
        append(log, 100)
    disk.room = None
    with pytest.raises(StorageError):
        append(log, 1)
    disk.cuts = True
    append(log, 1)
    after = contents(log)
    log.close()
    log, found = recovered(tmp_path)
    assert (found, log.torn_bytes) == (after, 0)


def test_a_segment_that_cannot_be_made_refuses_the_append_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path).open()
    append(log, 250)

    def refuse(segment: Segment) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "fd", refuse)
        for _ in range(2):
            with pytest.raises(StorageError, match="append at offset 1"):
                append(log, 5)
    append(log, 5)
    log.sync()
    log.close()
    log, found = recovered(tmp_path)
    assert [chunk_id for chunk_id, _ in found] == [0, 1]


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be opened"):
        make(tmp_path / "file" / "log").open()


def test_a_failed_duplicate_loses_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(tmp_path).open()
    append(log, 5)

    def refuse(fd: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", refuse)
        with pytest.raises(StorageError, match="cannot be synced"):
            log.unsynced()
    descriptors = log.unsynced()
    assert len(descriptors) == 1
    sync_and_close(descriptors)


def test_what_a_failed_sync_lost_is_not_promised_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path).open()
    append(log, 5)

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError, match="cannot be synced"):
            log.sync()
    # The kernel has reported the loss, and would sync the file now as if there had been none.
    for sync in (log.sync, log.unsynced):
        with pytest.raises(StorageError, match="cannot be synced"):
            sync()
    assert log.synced_offset == 0


def test_descriptors_are_given_back_also_when_the_sync_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path).open()
    append_often(log, 3, 250)
    descriptors = log.unsynced()
    # Three segments, and the directory that has new names: only an fsync is sure to cover all of these.
    assert [isinstance(fd, DirectoryDescriptor) for fd in descriptors] == [False, False, False, True]

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(OSError, match="Input/output"):
        sync_and_close(descriptors)
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_was_never_reported_as_synced_is_due_again(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    append(log, 250)
    for fd in log.unsynced():
        os.close(fd)
    append(log, 250)
    sync_and_close(descriptors := log.unsynced())
    assert len(descriptors) == 3
    assert log.synced_offset == 0
    log.synced()
    assert log.synced_offset == 2
    assert log.unsynced() == []


# -- reading ----------------------------------------------------------------------------------


@given(sizes=SIZES, data=st.data())
def test_a_read_begins_with_the_chunk_that_holds_the_offset(sizes: list[int], data: st.DataObject) -> None:
    with scratch() as directory:
        log = make(directory).open()
        headers = [append(log, size, records=1 + size % 4) for size in sizes]
        offset = data.draw(st.integers(0, log.next_offset))
        bytes_max = data.draw(st.integers(1, 600))
        expected: list[Header] = []
        for header in headers:
            if header.next_offset > offset and sum(h.chunk_bytes for h in expected) < bytes_max:
                expected.append(header)
        assert [chunk.header for chunk in log.read(offset, bytes_max)] == expected
        raw = list(log.read_raw(offset, bytes_max))
        assert [header for header, _ in raw] == expected
        assert [decode_chunk(octets).header for _, octets in raw] == expected
        log.close()


def test_a_read_before_the_oldest_offset_begins_there_and_one_behind_the_end_gives_nothing(
    tmp_path: Path,
) -> None:
    log = make(tmp_path).open(first_offset=10)
    append(log, 5)
    assert [chunk.header.chunk_id for chunk in log.read(3, 1)] == [10]
    assert list(log.read(11, 1)) == []


def test_chunks_larger_than_one_read_come_whole(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=5000).open()
    sizes = [0, 52, 53, 99, 100, 101, 1000, 3]
    for size in sizes:
        append(log, size)
    chunks = [decode_chunk(octets) for _, octets in log.read_raw(0, 1 << 20, ahead=100)]
    assert [len(chunk.data) for chunk in chunks] == sizes


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 4)), min_size=1, max_size=30), st.data())
@settings(max_examples=100)
def test_reads_go_on_where_others_ended(chunks: list[tuple[int, int]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = make(Path(directory), segment_bytes_max=900).open()
        for size, records in chunks:
            log.append(ChunkType.USER, records, records, bytes([size % 251]) * size, 0)
        written = list(log.read(0, 1 << 20))
        for _ in range(20):
            at = data.draw(st.integers(log.first_offset, log.next_offset))
            got = [
                decode_chunk(octets)
                for _, octets in log.read_raw(at, data.draw(st.integers(1, 900)), ahead=64)
            ]
            expected = [chunk for chunk in written if chunk.header.next_offset > max(at, log.first_offset)]
            assert got == expected[: len(got)]
            assert bool(got) == bool(expected)
            if data.draw(st.booleans()):
                log.drop_before(at)
        log.close()


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 4)), min_size=1, max_size=30))
@settings(max_examples=50)
def test_a_chunk_is_found_by_where_it_begins_and_by_nothing_else(chunks: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = make(Path(directory), segment_bytes_max=900).open()
        for number, (size, records) in enumerate(chunks):
            log.append(ChunkType.USER, records, records, bytes([number]) * size, 0)
        begins = {chunk.header.chunk_id: chunk for chunk in log.read(0, 1 << 20)}
        for offset in range(-1, log.next_offset + 1):
            place = log.place_of(offset)
            assert (place is not None) == (offset in begins)
            if place is not None:
                data = bytearray(place.header.data_bytes)
                log.read_data(place, memoryview(data))
                assert (place.header, bytes(data)) == (begins[offset].header, begins[offset].data)
        log.close()


# -- the old end ------------------------------------------------------------------------------


@given(sizes=SIZES, offset=st.integers(0, 15))
def test_only_whole_segments_below_the_offset_go(sizes: list[int], offset: int) -> None:
    with scratch() as directory:
        log = make(directory).open()
        for size in sizes:
            append(log, size)
        log.sync()
        before = contents(log)
        starts = [int(path.name[:20]) for path in segments(directory)]
        dropped = log.drop_before(offset)
        assert dropped == sum(1 for end in starts[1:] if end <= offset)
        assert log.first_offset == starts[dropped]
        assert contents(log) == [one for one in before if one[0] >= log.first_offset]
        assert log.size_bytes == sum(path.stat().st_size for path in segments(directory))
        append(log, 5)
        after = contents(log)
        log.close()
        log, found = recovered(directory)
        assert (found, log.first_offset) == (after, starts[dropped])
        log.close()


@pytest.mark.parametrize("stuck", ["summary", "segment"])
def test_a_segment_of_which_a_part_cannot_be_removed_is_dropped_by_a_later_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    dropped: list[int] = []
    owner: Any = SimpleNamespace(
        dropped=lambda log: dropped.append(log.first_offset),
        **dict.fromkeys(("opened", "appended"), lambda *_: None),
        has_replaced=lambda _: False,
    )
    log = make(tmp_path, segment_bytes_max=1, owner=owner).open()
    append_often(log, 4, 52)
    log.sync()
    before, works = contents(log), Path.unlink
    summaries = [summary_path(path) for path in segments(tmp_path)]
    for each in summaries:
        each.write_bytes(b"")
    last = {"summary": summaries[1], "segment": segments(tmp_path)[2]}[stuck]

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        if path == last:
            raise OSError(5, "Input/output error")
        works(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        for _ in range(2):
            with pytest.raises(StorageError, match="cannot be deleted"):
                log.drop_before(3)
    assert (dropped, log.first_offset, contents(log)) == ([1], 1, before[1:])
    assert log.size_bytes == sum(path.stat().st_size for path in segments(tmp_path))
    assert recovered(tmp_path)[1] == before[1:]
    assert log.drop_before(3) == 2
    assert (dropped, contents(log)) == ([1, 2, 3], before[3:])
    assert not any(each.exists() for each in summaries[:3])


def test_retention_by_size_and_by_age_drops_the_oldest_but_never_the_newest(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=1).open()
    append_often(log, 5, 52)
    log.sync()
    assert log.size_bytes == 500
    assert log.retain(bytes_max=399) == 2
    assert log.first_offset == 2
    assert log.retain(older_than_ms=1003) == 1
    assert log.first_offset == 3
    assert log.retain(bytes_max=0, older_than_ms=10**9) == 1
    assert contents(log)[0][0] == 4
    assert log.retain() == 0


def test_an_age_may_be_that_of_the_file_whatever_is_in_it(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=1).open()
    append_often(log, 5, 52)
    log.sync()
    hour_ago_s = time.time() - 3600
    assert log.retained_from(written_before_ms=int(hour_ago_s * 1000)) == 0, "its chunks are of 1970"
    for path in segments(tmp_path)[:3]:
        os.utime(path, (hour_ago_s - 1, hour_ago_s - 1))
    assert log.retained_from(written_before_ms=int(hour_ago_s * 1000)) == 3
    segments(tmp_path)[0].unlink()
    with pytest.raises(StorageError, match="cannot be examined"):
        log.retained_from(written_before_ms=0)


@pytest.mark.parametrize("segment_bytes_max", [1, 10**9])
def test_an_offset_is_found_by_time(tmp_path: Path, segment_bytes_max: int) -> None:
    log = make(tmp_path, segment_bytes_max=segment_bytes_max).open()
    append_often(log, 3, 10)
    assert [log.offset_at(stamp) for stamp in (0, 1000, 1001, 1002, 1003)] == [0, 0, 1, 2, 3]


def test_an_offset_is_found_by_time_also_before_the_clock_was_set_back(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=100).open()
    for stamp in (1000, 2000, 3000, 10, 20, 30, 40):
        log.append(ChunkType.USER, 1, 1, encode_entry(b"x" * 20), stamp)
    assert len(segments(tmp_path)) > 2
    found = [log.offset_at(stamp) for stamp in (1000, 1500, 3000, 3001)]
    assert found == [0, 1, 2, log.next_offset]
    log.sync()
    log.close()
    assert [make(tmp_path).open().offset_at(stamp) for stamp in (1000, 1500, 3000, 3001)] == found


def test_an_offset_is_found_by_time_among_many_chunks_also_after_a_restart(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for _ in range(200):
        append(log, 2000)  # several steps of the index, each several chunks
    stamps = range(999, 1202)
    wanted = [min(max(stamp - 1000, 0), 200) for stamp in stamps]
    assert [log.offset_at(stamp) for stamp in stamps] == wanted
    log.close()
    again = make(tmp_path).open()
    assert [again.offset_at(stamp) for stamp in stamps] == wanted


def test_a_deleted_log_leaves_only_state_files_that_go_by_themselves(tmp_path: Path) -> None:
    log = make(tmp_path / "log").open()
    append(log, 150)
    (log.directory / "lives.json").write_text("{}")
    (log.directory / "lives.json.new").write_text("{")  # of a crash
    log.delete()
    assert [path.name for path in log.directory.iterdir()] == ["lives.json"]
    (log.directory / "lives.json").unlink()
    log = make(tmp_path / "log").open()
    append(log, 150)
    (log.directory / "something").write_text("")
    with pytest.raises(StorageError, match="cannot be removed"):
        log.delete()


def test_a_deleted_log_leaves_nothing(tmp_path: Path) -> None:
    log = make(tmp_path / "log").open()
    append_often(log, 4, 150)
    log.delete()
    assert not (tmp_path / "log").exists()
    assert log.unsynced() == []
    make(tmp_path / "never opened").delete()


def test_a_copy_of_a_log_is_the_same_log(tmp_path: Path) -> None:
    log = make(tmp_path / "a").open()
    append_often(log, 4, 150)
    log.sync()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert recovered(tmp_path / "b")[1] == contents(log)


def test_extents_are_where_the_chunks_between_two_offsets_stand(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for size in (90, 90, 120, 90, 90, 40):
        append(log, size, 2)
    for first in range(log.next_offset):
        for end in range(first + 1, log.next_offset + 1):
            octets = 0
            for extent in log.extents(first, end):
                octets += extent.size
                assert extent.begin + extent.size <= os.fstat(extent.fd).st_size
                log_reader.uncache([extent])
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(extent.fd)
            # About: the index that tells where chunks stand has steps.
            assert octets <= log.size_bytes - log.bytes_from(end)
    whole = log.extents(0, log.next_offset)
    assert [extent.begin for extent in whole] == [0] * len(segments(tmp_path))
    log_reader.uncache(whole)
    assert log.extents(log.next_offset, log.next_offset + 5) == []
    assert len(contents(log)) == 6
