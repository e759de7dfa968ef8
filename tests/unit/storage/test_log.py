"""storage.log: what was appended is read back, whatever happens to the machine in between."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import Corrupt, StorageError
from leveret.storage import log as log_module
from leveret.storage.log import Log, sync_descriptors
from leveret.wire.chunk import (
    HEADER_BYTES,
    Chunk,
    ChunkType,
    Header,
    decode_chunk,
    encode_attribute,
    encode_entry,
    encode_trailer,
)

MEMORY = Path("/dev/shm")
SEGMENT_BYTES = 200
SIZES = st.lists(st.integers(0, 150), min_size=1, max_size=12)
Written = tuple[int, bytes]


def make(directory: Path, segment_bytes_max: int = SEGMENT_BYTES, **more: Any) -> Log:
    return Log(directory, epoch=4, segment_bytes_max=segment_bytes_max, **more)


def append(log: Log, size: int, records: int = 1, trailer: bytes = b"") -> Header:
    """Append a chunk of `size` octets, none of them zero, that differ from chunk to chunk."""
    data = bytes((log.next_offset + i) % 251 + 1 for i in range(size))
    return log.append(ChunkType.USER, 1, records, data, 1000 + log.next_offset, trailer)


def contents(log: Log) -> list[Written]:
    return [(chunk.header.chunk_id, bytes(chunk.data)) for chunk in log.read(0, 1 << 30, check=True)]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def recovered(directory: Path) -> tuple[Log, list[Written]]:
    """A log opened again, and what its scan found."""
    found: list[Written] = []

    def on_chunk(chunk: Chunk) -> None:
        found.append((chunk.header.chunk_id, bytes(chunk.data)))

    return make(directory).open(on_chunk), found


def attempt(directory: Path) -> tuple[Corrupt | None, Log, list[Written]]:
    """As `recovered`, with the damage found if there is any."""
    try:
        return None, *recovered(directory)
    except Corrupt as error:
        return error, make(directory), []


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one example of Hypothesis: in memory if it can be, where an fsync costs nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name) / "log"


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


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


# -- power loss -------------------------------------------------------------------------------


@st.composite
def power_losses(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Appends and rounds of group commit: ("append", octets), ("begin", 0), ("end", 0)."""
    return draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("append"), st.integers(0, 150)),
                st.tuples(st.sampled_from(["begin", "end"]), st.just(0)),
            ),
            max_size=25,
        )
    )


class Disk:
    """A log whose group commit is played by hand, and what of its files power loss must leave."""

    def __init__(self, directory: Path) -> None:
        self.log = make(directory).open()
        self.synced_bytes: dict[int, int] = {}
        self.durable_end = 0
        self._descriptors: list[int] = []
        self._at_begin: tuple[dict[int, int], int] | None = None

    def play(self, what: str, size: int) -> None:
        if what == "append":
            append(self.log, size)
        elif what == "begin" and self._at_begin is None:
            self._descriptors = self.log.unsynced()
            self._at_begin = (self._sizes(), self.log.next_offset)
        elif what == "end" and self._at_begin is not None:
            sync_descriptors(self._descriptors)
            self.log.synced()
            self.synced_bytes, self.durable_end = self._at_begin
            self._at_begin = None

    def end(self) -> None:
        if self._at_begin is not None:
            for fd in self._descriptors:
                os.close(fd)
        self.log.close()

    def _sizes(self) -> dict[int, int]:
        return {int(path.name[:20]): path.stat().st_size for path in segments(self.log.directory)}


def lose_power(disk: Disk, data: st.DataObject) -> None:
    """Of what was not synced leave any part of each file, or zeros in its place."""
    for path in segments(disk.log.directory):
        synced, size = disk.synced_bytes.get(int(path.name[:20]), 0), path.stat().st_size
        cut = data.draw(st.integers(synced, size))
        os.truncate(path, cut)
        if size - cut >= 64 and data.draw(st.booleans()):
            os.truncate(path, size)


@given(power_losses(), st.data())
def test_power_loss_leaves_a_prefix_with_all_that_was_promised(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    with scratch() as directory:
        disk = Disk(directory)
        for step in steps:
            disk.play(*step)
        before = contents(disk.log)
        disk.end()
        lose_power(disk, data)
        log, found = recovered(directory)
        assert found == before[: len(found)]
        assert log.next_offset >= disk.durable_end
        append(log, 20)
        after = contents(log)
        log.close()
        log, again = recovered(directory)
        assert again == after == [*found, after[-1]]
        log.close()


def test_a_segment_whose_predecessor_is_not_synced_is_provisional(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    append(log, 150)
    append(log, 150)
    log.sync()
    append(log, 150)
    append(log, 150)
    names = [path.name for path in segments(tmp_path)]
    assert names == [f"{0:020}.segment", f"{2:020}.segment.new"]
    descriptors = log.unsynced()
    assert len(descriptors) == 1
    sync_descriptors(descriptors)
    log.synced()
    assert [path.name for path in segments(tmp_path)] == [f"{0:020}.segment", f"{2:020}.segment"]
    assert contents(log)[-1][0] == 3


def test_a_torn_segment_takes_provisional_ones_with_it(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for _ in range(6):
        append(log, 150)
    assert len(segments(tmp_path)) == 3
    before = contents(log)
    log.close()
    first = segments(tmp_path)[0]
    os.truncate(first, first.stat().st_size - 1)
    rest = sum(path.stat().st_size for path in segments(tmp_path)[1:])
    log, found = recovered(tmp_path)
    assert found == before[:1]
    assert log.torn_bytes == HEADER_BYTES + 149 + rest
    assert segments(tmp_path) == [first]


def test_a_killed_process_leaves_provisional_segments_that_count(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for _ in range(6):
        append(log, 150)
    before = contents(log)
    log.close()
    log, found = recovered(tmp_path)
    assert found == before
    assert [path.suffix for path in segments(tmp_path)] == [".segment"] * 3


def test_the_oldest_segment_stays_while_the_next_is_provisional(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for _ in range(4):
        append(log, 150)
    assert log.drop_before(4) == 0
    assert log.retain(bytes_max=0) == 0
    log.sync()
    assert log.drop_before(4) == 1


def test_opening_makes_durable_what_a_killed_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path).open()
    append(log, 150)
    append(log, 150)
    append(log, 10)
    log.close()
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    log, _ = recovered(tmp_path)
    assert [Path(name).name[:20] for name in synced] == [f"{0:020}", f"{2:020}"]


def test_every_name_is_durable_before_a_chunk_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}"))))
    log = make(tmp_path / "a" / "b").open()
    assert synced == [tmp_path, tmp_path / "a"]
    append(log, 1)
    assert synced[2:] == [tmp_path / "a" / "b"]
    make(tmp_path / "c", durable=False).open()
    assert len(synced) == 3


# -- damage -----------------------------------------------------------------------------------


def small_log(directory: Path) -> list[tuple[Path, int, Header]]:
    """A log of two segments, three chunks: (segment, position, header) of each."""
    log = make(directory, segment_bytes_max=100).open()
    entry = encode_entry(b"\1\2\3")
    log.append(ChunkType.USER, 2, 2, entry + entry, 5, encode_trailer(encode_attribute(0, b"p", 3)))
    log.append(ChunkType.TRACKING, 1, 1, entry, 6)
    log.append(ChunkType.USER, 1, 1, entry, 7, encode_trailer(encode_attribute(17, b"", 9)))
    log.sync()
    places: list[tuple[Path, int, Header]] = []
    for header, _ in log.read_raw(0, 1 << 20):
        segment = next(path for path in reversed(segments(directory)) if int(path.stem) <= header.chunk_id)
        places.append((segment, sum(h.chunk_bytes for s, _, h in places if s == segment), header))
    log.close()
    return places


def test_every_flipped_bit_is_found_with_its_log_offset_and_byte_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    places = small_log(tmp_path)
    assert len({segment for segment, _, _ in places}) == 2
    intact = files(tmp_path)
    for segment, position, header in places:
        for bit in range(8 * header.chunk_bytes):
            octets = bytearray(intact[segment.name])
            octets[position + bit // 8] ^= 1 << bit % 8
            segment.write_bytes(octets)
            with pytest.raises(Corrupt) as caught:
                make(tmp_path).open()
            error = caught.value
            assert (error.log, error.offset, error.byte) == (str(tmp_path), header.chunk_id, position)
            assert error.segment == segment.name
            assert segment.read_bytes() == octets
        segment.write_bytes(intact[segment.name])
    assert files(tmp_path) == intact
    assert [header for _, _, header in places] == [
        chunk.header for chunk in make(tmp_path).open().read(0, 1 << 20)
    ]


@given(sizes=SIZES, data=st.data())
def test_a_flipped_bit_anywhere_is_damage_or_a_cut_of_nothing_but_the_last_chunk(
    sizes: list[int], data: st.DataObject
) -> None:
    with scratch() as directory:
        log = make(directory).open()
        for size in sizes:
            append(log, size)
        log.sync()
        before = contents(log)
        log.close()
        path = data.draw(st.sampled_from(segments(directory)))
        octets = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(octets) - 1))
        octets[bit // 8] ^= 1 << bit % 8
        path.write_bytes(octets)
        intact = files(directory)
        error, log, found = attempt(directory)
        if error is not None:
            assert error.byte <= bit // 8
            assert error.segment == path.name
            assert files(directory) == intact
        else:
            # A last chunk without data may end in a zero of its check: then it looks like an unwritten one.
            assert sizes[-1] == 0
            assert (found, log.torn_bytes) == (before[:-1], HEADER_BYTES)
            log.close()


@pytest.mark.parametrize("cut", [1, 60, 200])
def test_a_truncated_middle_segment_is_damage(tmp_path: Path, cut: int) -> None:
    log = make(tmp_path).open()
    for _ in range(6):
        append(log, 150)
    log.sync()
    log.close()
    middle = segments(tmp_path)[1]
    os.truncate(middle, middle.stat().st_size - cut)
    before = files(tmp_path)
    with pytest.raises(Corrupt, match="nothing was changed"):
        make(tmp_path).open()
    assert files(tmp_path) == before


def test_a_missing_segment_is_damage_at_the_place_where_the_next_begins(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for _ in range(6):
        append(log, 150)
    log.sync()
    log.close()
    segments(tmp_path)[1].unlink()
    before = files(tmp_path)
    with pytest.raises(Corrupt, match="starts at offset 4, the one before it ends at 2") as caught:
        make(tmp_path).open()
    assert (caught.value.offset, caught.value.byte) == (2, 0)
    assert files(tmp_path) == before


@given(zeros=st.integers(1, 10_000), kept=st.integers(0, 150))
def test_a_tail_of_zeros_is_cut_at_the_last_whole_chunk(zeros: int, kept: int) -> None:
    with scratch() as directory:
        log = make(directory).open()
        append(log, 40)
        append(log, 100)
        path = segments(directory)[0]
        log.close()
        first = HEADER_BYTES + 40
        os.truncate(path, first + min(kept, HEADER_BYTES + 100 - 64))
        os.truncate(path, first + HEADER_BYTES + 100 + zeros)
        log, found = recovered(directory)
        assert [len(data) for _, data in found] == [40]
        assert path.stat().st_size == first
        append(log, 100)
        assert len(contents(log)) == 2
        log.close()


def test_damage_that_comes_while_the_log_is_open_is_found_by_the_read(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=1 << 20).open()
    headers = [append(log, 100, records=2) for _ in range(3)]
    (path,) = segments(tmp_path)
    intact = path.read_bytes()
    second = headers[0].chunk_bytes
    for byte in (second + 3, second + HEADER_BYTES + 7):
        octets = bytearray(intact)
        octets[byte] ^= 4
        path.write_bytes(octets)
        with pytest.raises(Corrupt) as caught:
            list(log.read(0, 1 << 20, check=True))
        error = caught.value
        assert (error.log, error.segment, error.offset, error.byte) == (str(tmp_path), path.name, 2, second)
    path.write_bytes(intact[: second + 60])
    with pytest.raises(Corrupt, match="octets are there"):
        list(log.read(0, 1 << 20))
    path.write_bytes(intact[:second] + intact[2 * second :] + intact[:second])
    with pytest.raises(Corrupt, match="chunk id is 4"):
        list(log.read(0, 1 << 20))


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

    def refuse(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "_fsync_directory", refuse)
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
    sync_descriptors(descriptors)


def test_descriptors_are_given_back_also_when_the_sync_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path).open()
    for _ in range(3):
        append(log, 250)
    descriptors = log.unsynced()
    assert len(descriptors) == 3
    assert log.unsynced() == []

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(OSError, match="Input/output"):
        sync_descriptors(descriptors)
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


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


def test_chunks_larger_than_one_read_come_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_READ_BYTES", 100)
    log = make(tmp_path, segment_bytes_max=5000).open()
    sizes = [0, 52, 53, 99, 100, 101, 1000, 3]
    for size in sizes:
        append(log, size)
    assert [len(data) for _, data in contents(log)] == sizes


# -- the old end ------------------------------------------------------------------------------


@given(sizes=SIZES, offset=st.integers(0, 15))
def test_only_whole_segments_below_the_offset_go(sizes: list[int], offset: int) -> None:
    with scratch() as directory:
        log = make(directory).open()
        for size in sizes:
            append(log, size)
        log.sync()
        before = contents(log)
        starts = [int(path.stem) for path in segments(directory)]
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


def test_retention_by_size_and_by_age_drops_the_oldest_but_never_the_newest(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=1).open()
    for _ in range(5):
        append(log, 52)
    log.sync()
    assert log.size_bytes == 500
    assert log.retain(bytes_max=399) == 2
    assert log.first_offset == 2
    assert log.retain(older_than_ms=1003) == 1
    assert log.first_offset == 3
    assert log.retain(bytes_max=0, older_than_ms=10**9) == 1
    assert contents(log)[0][0] == 4
    assert log.retain() == 0


def test_an_offset_is_found_by_time(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=1).open()
    for _ in range(3):
        append(log, 10)
    assert [log.offset_at(stamp) for stamp in (0, 1000, 1001, 1002, 1003)] == [0, 0, 1, 2, 3]


def test_a_deleted_log_leaves_nothing(tmp_path: Path) -> None:
    log = make(tmp_path / "log").open()
    for _ in range(4):
        append(log, 150)
    log.delete()
    assert not (tmp_path / "log").exists()
    assert log.unsynced() == []
    make(tmp_path / "never opened").delete()


def test_a_copy_of_a_log_is_the_same_log(tmp_path: Path) -> None:
    log = make(tmp_path / "a").open()
    for _ in range(4):
        append(log, 150)
    log.sync()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert recovered(tmp_path / "b")[1] == contents(log)
