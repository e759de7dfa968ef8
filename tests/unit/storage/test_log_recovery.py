"""storage.log after a crash: a torn tail is cut, everything promised is there, all other damage is told."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import Corrupt
from leveret.storage.sync import sync_and_close
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.wire.chunk import HEADER_BYTES, ChunkType, Header, encode_attribute, encode_entry, encode_trailer
from tests.unit.storage.logs import (
    SIZES,
    append,
    attempt,
    contents,
    files,
    make,
    recovered,
    scratch,
    segments,
)

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


class WrittenLog:
    """A log whose group commit is played by hand, and which of its records a loss of power must leave."""

    def __init__(self, directory: Path) -> None:
        self.log = make(directory).open()
        self.durable_end = 0
        self._descriptors: list[int] = []
        self._at_begin: int | None = None

    def play(self, what: str, size: int) -> None:
        if what == "append":
            append(self.log, size)
        elif what == "begin" and self._at_begin is None:
            self._descriptors = self.log.unsynced()
            self._at_begin = self.log.next_offset
        elif what == "end" and self._at_begin is not None:
            sync_and_close(self._descriptors)
            self.log.synced()
            self.durable_end, self._at_begin = self._at_begin, None

    def end(self) -> None:
        if self._at_begin is not None:
            for fd in self._descriptors:
                os.close(fd)
        self.log.close()


@given(power_losses(), st.integers(0, 1 << 32))
def test_power_loss_leaves_a_prefix_with_all_that_was_promised(
    steps: list[tuple[str, int]], seed: int
) -> None:
    with scratch() as place:
        directory = place.parent / "left"
        with SimulatedDisk(place.parent) as disk:
            written = WrittenLog(place)
            for step in steps:
                written.play(*step)
            before = contents(written.log)
            written.end()
            disk.power_lost(place, directory, random.Random(seed))
        log, found = recovered(directory)
        assert found == before[: len(found)]
        assert log.next_offset >= written.durable_end
        append(log, 20)
        after = contents(log)
        log.close()
        log, again = recovered(directory)
        assert again == after == [*found, after[-1]]
        log.close()


@pytest.mark.parametrize("defers", [True, False])
def test_a_directory_that_a_killed_process_made_is_not_taken_for_durable(
    tmp_path: Path, *, defers: bool
) -> None:
    """A recovery asks for the ends of all queues' logs, which makes their directories, long before it fills them."""
    home = tmp_path / "home"
    home.mkdir()
    with SimulatedDisk(tmp_path) as disk:
        make(home / "queues" / "log").open(defer_names=True).close()
        log = make(home / "queues" / "log").open(defer_names=defers)
        append(log, 50)
        log.sync()
        assert disk.durable(home, "queues/log")
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
    assert [stat.S_ISDIR(os.fstat(fd).st_mode) for fd in descriptors] == [False, True]
    sync_and_close(descriptors)
    log.synced()
    assert [path.name for path in segments(tmp_path)] == [f"{0:020}.sealed.segment", f"{2:020}.segment"]
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


def test_opened_without_sync_what_a_killed_process_left_is_due_to_be(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for size in (150, 150, 10):
        append(log, size)
    log.close()
    log = make(tmp_path).open(sync=False)
    assert log.synced_offset == 0
    assert [path.name[20:] for path in segments(tmp_path)] == [".segment", ".segment.new"]
    sync_and_close(descriptors := log.unsynced())
    # Two segments; the log's directory, and the two above it: none of their names may be durable.
    assert len(descriptors) == 5
    log.synced()
    assert log.synced_offset == 3
    assert [path.name[20:] for path in segments(tmp_path)] == [".sealed.segment", ".segment"]


def test_every_name_is_durable_before_a_chunk_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}"))))
    log = make(tmp_path / "a" / "b").open()
    assert synced == [tmp_path, tmp_path / "a"]
    append(log, 1)
    assert synced[2:] == [tmp_path / "a" / "b"]
    make(tmp_path / "c", durable=False).open()
    assert len(synced) == 3


def test_a_log_that_was_opened_and_not_used_yet_holds_no_descriptor(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for _ in range(4):
        append(log, 150)
    log.close()
    before = set(os.listdir("/proc/self/fd"))
    log, _ = recovered(tmp_path)
    assert set(os.listdir("/proc/self/fd")) == before
    append(log, 10)
    assert len(contents(log)) == 5
    log.close()


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
        segment = next(
            path for path in reversed(segments(directory)) if int(path.name[:20]) <= header.chunk_id
        )
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


# -- cut by its owner -------------------------------------------------------------------------


@given(sizes=SIZES, data=st.data())
def test_cut_at_a_chunk_a_log_is_what_was_before_it_whatever_followed(
    sizes: list[int], data: st.DataObject
) -> None:
    with scratch() as directory:
        log = make(directory).open()
        for size in sizes:
            append(log, size)
            if data.draw(st.booleans()):
                log.sync()
        before = contents(log)
        log.close()
        at = data.draw(st.integers(0, len(sizes)))
        newest = segments(directory)[-1]
        if int(newest.name[:20]) >= at:
            newest.write_bytes(b"rot")
        log = make(directory).open(cut_at=at)
        assert contents(log) == before[:at]
        assert (log.next_offset, log.synced_offset) == (at, at)
        append(log, 20)
        after = contents(log)
        log.close()
        log, found = recovered(directory)
        assert found == after
        log.close()


def test_a_log_whose_first_chunk_is_cut_off_begins_where_it_began(tmp_path: Path) -> None:
    log = make(tmp_path).open(first_offset=7)
    append(log, 250)
    append(log, 250)
    log.sync()
    log.close()
    log = make(tmp_path).open(cut_at=7)
    assert (log.first_offset, log.next_offset, contents(log)) == (7, 7, [])
    assert [path.name for path in segments(tmp_path)] == [f"{7:020}.segment"]


def test_what_is_before_the_cut_must_be_whole(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    for _ in range(4):
        append(log, 250)
    log.sync()
    log.close()
    oldest = segments(tmp_path)[0]
    octets = bytearray(oldest.read_bytes())
    octets[100] ^= 1
    oldest.write_bytes(octets)
    before = files(tmp_path)
    with pytest.raises(Corrupt):
        make(tmp_path).open(cut_at=3)
    assert {name: octets for name, octets in files(tmp_path).items() if name in before} == before
