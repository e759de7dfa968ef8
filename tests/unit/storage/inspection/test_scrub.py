"""storage.inspection.scrub: what the disk lost is found, and given back from a copy, or nothing is written at all."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.storage.inspection.scrub import Scrub, repair
from leveret.storage.inspection.walk import Damage
from leveret.storage.log import Log
from leveret.storage.segment_file import STEP_BYTES
from leveret.wire.chunk import HEADER_BYTES, encode_header
from tests.unit.storage.logs import append, files, make, scratch, segments
from tests.unit.storage.places import CHUNKS, TRAILER, Chunks, filled, flip, held, overwrite, segment_path

EIGHT: Chunks = [(90, 2, True)] * 8
"""Two chunks a segment."""


def scrubbed(log: Log) -> list[Damage]:
    return list(Scrub(log.directory, log.next_offset))


def octets_of(copy: dict[str, bytes], damage: Damage) -> bytes:
    """What another node has in the place of damage in a whole segment."""
    (octets,) = [octets for name, octets in copy.items() if int(name[:20]) == damage.segment]
    end = len(octets) if damage.length is None else damage.position + damage.length
    return octets[damage.position : end]


def refused(log: Log, offset: int, octets: bytes) -> str:
    """Why a repair wrote nothing."""
    before = files(log.directory)
    with pytest.raises(StorageError) as caught:
        repair(log.directory, offset, octets)
    assert files(log.directory) == before
    return str(caught.value)


# -- finding ----------------------------------------------------------------------------------


@given(CHUNKS)
def test_a_whole_log_has_no_damage_and_all_of_it_is_read(chunks: Chunks) -> None:
    with scratch() as directory:
        log = filled(directory, chunks)
        steps: list[int] = []
        scrub = Scrub(directory, log.next_offset, on_read=steps.append)
        assert list(scrub) == []
        assert (scrub.chunks, scrub.octets) == (len(chunks), log.size_bytes)
        assert sum(steps) >= log.size_bytes


def test_a_scrub_counts_what_is_whole(tmp_path: Path) -> None:
    log = filled(tmp_path, EIGHT)
    third = held(tmp_path)[2]
    flip(tmp_path, 4, 60)
    scrub = Scrub(tmp_path, log.next_offset)
    (damage,) = scrub
    assert damage[:5] == third.damage()
    assert (scrub.chunks, scrub.octets) == (7, log.size_bytes - third.header.chunk_bytes)


def test_a_scrub_ends_where_the_log_is_not_on_disk_for_sure(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    for segment in (4, 12):
        flip(tmp_path, segment, 60)
    assert [damage.offset for damage in Scrub(tmp_path, 12)] == [4]


def test_damage_is_told_as_the_log_would_tell_it(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    flip(tmp_path, 4, 60)
    (damage,) = Scrub(tmp_path, 16)
    error = damage.error(tmp_path)
    assert (error.log, error.offset, error.byte) == (str(tmp_path), 4, 0)
    assert "CRC of its data does not match" in str(error)


def test_what_is_not_synced_yet_is_not_looked_at(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=10_000).open()
    append(log, 50)
    end = log.next_offset
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(b"half of a chunk")
    assert list(Scrub(tmp_path, end)) == []
    log.close()


# -- mending ----------------------------------------------------------------------------------


@given(CHUNKS, st.data())
def test_whatever_was_damaged_is_as_before_once_it_is_mended(chunks: Chunks, data: st.DataObject) -> None:
    with scratch() as directory:
        log = filled(directory, chunks)
        copy = files(directory)
        for _ in range(data.draw(st.integers(1, 3))):
            name = data.draw(st.sampled_from(sorted(copy)))
            octets = bytearray((directory / name).read_bytes())
            begin = data.draw(st.integers(0, len(octets) - 1))
            size = data.draw(st.integers(1, len(octets) - begin))
            octets[begin : begin + size] = data.draw(st.sampled_from([b"\0", b"\xff", b"P"])) * size
            (directory / name).write_bytes(octets)
        for damage in scrubbed(log):
            repair(directory, damage.offset, octets_of(copy, damage))
        assert files(directory) == copy
        assert scrubbed(log) == []


@given(CHUNKS, st.data())
def test_a_segment_that_was_cut_short_is_completed(chunks: Chunks, data: st.DataObject) -> None:
    with scratch() as directory:
        log = filled(directory, [*chunks, (150, 1, False), (150, 1, False)])
        copy = files(directory)
        path = data.draw(st.sampled_from(segments(directory)[:-1]))
        length = data.draw(st.integers(0, path.stat().st_size - 1))
        os.truncate(path, length)
        (damage,) = scrubbed(log)
        if damage.position < 0:
            # Nothing says what ended there, a segment or a part of one.
            assert "segment starts at offset" in refused(log, damage.offset, copy[path.name][length:])
        else:
            repair(directory, damage.offset, octets_of(copy, damage))
            assert files(directory) == copy


def test_the_end_of_the_newest_segment_is_not_mended_for_the_log_writes_there(tmp_path: Path) -> None:
    log = filled(tmp_path, EIGHT)
    copy = files(tmp_path)
    path = segments(tmp_path)[-1]
    os.truncate(path, path.stat().st_size - 1)
    (damage,) = scrubbed(log)
    octets = octets_of(copy, damage)
    assert "the file ends 1 octets before the chunk does" in refused(log, damage.offset, octets)


def test_a_chunk_of_many_steps_is_mended(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    log.append(0, 1, 1, b"x" * (2 * STEP_BYTES + 5), 0, TRAILER)
    append(log, 10)
    log.sync()
    log.close()
    copy = files(tmp_path)
    flip(tmp_path, 0, 2 * STEP_BYTES)
    (damage,) = scrubbed(log)
    repair(tmp_path, 0, octets_of(copy, damage))
    assert files(tmp_path) == copy


def test_a_log_may_be_appended_to_while_it_is_mended(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=10_000).open()
    append(log, 50)
    append(log, 50)
    whole = segment_path(tmp_path, 0).read_bytes()
    overwrite(tmp_path, 0, 98, bytes(60))
    appended = False

    def on_read(octets: int) -> None:
        nonlocal appended
        if not appended:
            append(log, 50)
            appended = True

    repair(tmp_path, 1, whole[98:], on_read=on_read)
    assert segment_path(tmp_path, 0).read_bytes()[:196] == whole
    assert scrubbed(log) == []
    assert log.next_offset == 3
    log.close()


@pytest.mark.parametrize("written", range(0, 167, 15))
def test_mending_that_was_cut_off_half_way_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    log = filled(tmp_path, EIGHT)
    copy = files(tmp_path)
    overwrite(tmp_path, 4, 0, bytes(167))
    (damage,) = scrubbed(log)
    pwrite = os.pwrite

    class Killed(BaseException):
        pass

    def dies(fd: int, octets: memoryview, position: int) -> int:
        pwrite(fd, octets[:written], position)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", dies)
        with pytest.raises(Killed):
            repair(tmp_path, damage.offset, octets_of(copy, damage))
    (again,) = scrubbed(log)
    assert again[:5] == damage[:5]
    repair(tmp_path, again.offset, octets_of(copy, again))
    assert files(tmp_path) == copy


# -- what is not written ----------------------------------------------------------------------


def test_octets_that_are_not_what_was_lost_are_refused(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", EIGHT)
    copy = files(log.directory)
    header = held(log.directory)[2].header
    flip(log.directory, 4, 60)
    (damage,) = scrubbed(log)
    good = octets_of(copy, damage)
    assert "the chunks that the other side sent are damaged" in refused(log, 4, b"")
    assert "the chunks that the other side sent are damaged" in refused(log, 4, good[:-1])
    assert "the chunks that the other side sent are damaged" in refused(log, 4, good + b"x")
    assert "the chunks that the other side sent are damaged" in refused(
        log, 4, good[:60] + b"\xff" + good[61:]
    )
    assert "the other side sent chunk 4 for it, not 5" in refused(log, 5, good)
    neighbour = copy["00000000000000000004.sealed.segment"][167:]
    assert "the other side sent more than the damaged chunk" in refused(log, 4, good + neighbour)
    other = make(tmp_path / "other").open(first_offset=4)
    other.append(0, 1, 2, bytes(90), header.timestamp_ms, TRAILER)
    other.close()
    (theirs,) = files(other.directory).values()
    assert len(theirs) == len(good)
    assert "differs from that of the other side's chunk" in refused(log, 4, theirs)


def test_what_does_not_fill_a_hole_exactly_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", EIGHT)
    copy = files(log.directory)["00000000000000000004.sealed.segment"]
    overwrite(log.directory, 4, 0, bytes(HEADER_BYTES))
    overwrite(log.directory, 4, 167, bytes(HEADER_BYTES))
    assert "there is no chunk behind the 167 octets" in refused(log, 4, copy[:167])
    assert "the damage begins at offset 4" in refused(log, 6, copy[167:])
    for records, size in ((3, 286), (5, 286)):
        octets = a_chunk(tmp_path / f"{records}", 4, records, size)
        assert "the other side's chunks do not fit the rest of the segment" in refused(log, 4, octets)
    assert "there is no chunk behind the 333 octets" in refused(
        log, 4, a_chunk(tmp_path / "short", 4, 4, 285)
    )
    repair(log.directory, 4, copy)
    assert scrubbed(log) == []


def a_chunk(directory: Path, offset: int, records: int, size: int) -> bytes:
    """One of 48 octets more than that."""
    log = make(directory).open(first_offset=offset)
    log.append(0, 1, records, bytes(size), 1000)
    log.close()
    return b"".join(files(directory).values())


def test_what_would_leave_other_offsets_behind_it_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", EIGHT)
    overwrite(log.directory, 4, 0, bytes(HEADER_BYTES))
    octets = a_chunk(tmp_path / "other", 4, 1, 167 - HEADER_BYTES)
    assert "chunk 6 is behind the 167 octets of the other side, which end at offset 5" in refused(
        log, 4, octets
    )


def test_a_message_that_looks_like_a_chunk_does_not_keep_the_chunk_around_it_from_being_mended(
    tmp_path: Path,
) -> None:
    """Its header is gone, and from the message on headers lead to the next segment."""
    log = make(tmp_path / "log", segment_bytes_max=150).open()
    message = b"x" * 60 + a_chunk(tmp_path / "message", 2, 1, 20)
    log.append(0, 1, 3, message, 1000)
    append(log, 10)
    log.sync()
    log.close()
    copy = files(log.directory)
    overwrite(log.directory, 0, 0, bytes(HEADER_BYTES))
    (damage,) = scrubbed(log)
    assert (damage.offset, damage.next_offset, damage.length) == (0, 2, 48 + 60)
    repair(log.directory, 0, copy["00000000000000000000.sealed.segment"])
    assert files(log.directory) == copy


def test_what_is_whole_is_left_alone(tmp_path: Path) -> None:
    log = filled(tmp_path, EIGHT)
    whole = files(tmp_path)["00000000000000000004.sealed.segment"]
    assert "the chunk is whole" in refused(log, 4, whole[:167])
    assert "the log ends at offset 16" in refused(log, 16, encode_header(0, 1, 1, 0, 4, 16, 0, 0))
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    assert "it is not in the log any more" in refused(log, 4, whole[:167])


def test_a_missing_segment_is_not_mended_chunk_by_chunk(tmp_path: Path) -> None:
    log = filled(tmp_path, EIGHT)
    path = segments(tmp_path)[1]
    octets = path.read_bytes()
    path.unlink()
    assert "the next segment starts at offset 8" in refused(log, 4, octets)


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, EIGHT)
    copy = files(tmp_path)
    flip(tmp_path, 4, 60)
    (damage,) = scrubbed(log)

    def fail(fd: int, octets: memoryview, position: int) -> int:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StorageError, match=r"cannot be mended at offset 4: .*read-only"):
        repair(tmp_path, 4, octets_of(copy, damage))


def test_a_disk_that_gives_other_octets_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path, EIGHT)
    copy = files(tmp_path)
    flip(tmp_path, 4, 60)
    (damage,) = scrubbed(log)
    pwrite = os.pwrite

    def lies(fd: int, octets: memoryview, position: int) -> int:
        return pwrite(fd, bytes(octets[:60]) + b"\0" + bytes(octets[61:]), position)

    monkeypatch.setattr(os, "pwrite", lies)
    with pytest.raises(StorageError, match="the disk gives back other octets"):
        repair(tmp_path, 4, octets_of(copy, damage))


def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, EIGHT)
    copy = files(tmp_path)
    flip(tmp_path, 4, 60)
    (damage,) = scrubbed(log)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, octets, at: pwrite(fd, octets[:7], at))
    repair(tmp_path, 4, octets_of(copy, damage))
    assert files(tmp_path) == copy
