"""storage.hole: pages that did not reach the disk cost what was not promised, and rot is still told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import Corrupt
from leveret.storage.hole import PAGE_BYTES, UNSYNCED_MS
from leveret.storage.log import Log
from leveret.wire.chunk import ChunkType
from tests.unit.storage.logs import contents, scratch, segments

SIZES = st.lists(st.sampled_from([0, 30, 500, 4000, 5000, 20_000]), max_size=12)
STEP_MS = 100


def opened(directory: Path) -> Log:
    return Log(directory, epoch=4, segment_bytes_max=1 << 20).open()


def append(log: Log, size: int, *, at_ms: int | None = None, fill: int | None = None) -> None:
    """A chunk; without a `fill` its octets are never zero."""
    data = (
        bytes((log.next_offset + i) % 251 + 1 for i in range(size)) if fill is None else bytes([fill]) * size
    )
    stamp = log.next_offset * STEP_MS if at_ms is None else at_ms
    log.append(ChunkType.USER, 1, 1, data, stamp)


@given(SIZES, SIZES, st.data())
def test_any_pages_of_what_was_not_synced_may_be_missing(
    synced: list[int], unsynced: list[int], data: st.DataObject
) -> None:
    with scratch() as directory:
        log = opened(directory)
        for size in synced:
            append(log, size)
        log.sync()
        promised, end = contents(log), log.size_bytes
        for size in unsynced:
            append(log, size)
        before = contents(log)
        log.close()
        if not before:
            return
        (path,) = segments(directory)
        octets = bytearray(path.read_bytes())
        octets = octets[: data.draw(st.integers(end, len(octets)))]
        pages = range(end - end % PAGE_BYTES, len(octets), PAGE_BYTES)
        for page in data.draw(st.sets(st.sampled_from(pages))) if pages else ():
            gone = slice(max(end, page), min(page + PAGE_BYTES, len(octets)))
            octets[gone] = bytes(gone.stop - gone.start)
        path.write_bytes(octets)
        log = opened(directory)
        found = contents(log)
        assert found == before[: len(found)]
        assert found[: len(promised)] == promised
        append(log, 20)
        assert len(contents(log)) == len(found) + 1
        log.close()


def hollow(directory: Path, sizes: list[int], *, page: int, times_ms: list[int]) -> Path:
    """A log of chunks of these sizes and times, one page of which is zero."""
    log = opened(directory)
    for size, at_ms in zip(sizes, times_ms, strict=True):
        append(log, size, at_ms=at_ms)
    log.close()
    (path,) = segments(directory)
    octets = bytearray(path.read_bytes())
    octets[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(octets)
    return path


def test_a_hole_is_cut_with_all_behind_it_and_counted(tmp_path: Path) -> None:
    path = hollow(tmp_path, [500, 20_000, 500], page=2, times_ms=[0, 1, 2])
    size = path.stat().st_size
    log = opened(tmp_path)
    assert [len(data) for _, data in contents(log)] == [500]
    assert (path.stat().st_size, log.torn_bytes) == (548, size - 548)


@pytest.mark.parametrize("pause_ms", [UNSYNCED_MS, UNSYNCED_MS + 1])
def test_a_missing_page_of_what_was_synced_long_before_the_end_is_damage(
    tmp_path: Path, pause_ms: int
) -> None:
    path = hollow(tmp_path, [500, 20_000, 500], page=2, times_ms=[0, 50_000, 50_000 + pause_ms])
    octets = path.read_bytes()
    if pause_ms > UNSYNCED_MS:
        with pytest.raises(Corrupt, match="CRC of its data"):
            opened(tmp_path)
        assert path.read_bytes() == octets
    else:
        assert len(contents(opened(tmp_path))) == 1


@pytest.mark.parametrize("end_ms", [UNSYNCED_MS, UNSYNCED_MS + 1])
def test_a_chunk_without_its_header_may_be_as_old_as_the_one_before_it(tmp_path: Path, end_ms: int) -> None:
    hollow(tmp_path, [PAGE_BYTES - 48, 5000, 500], page=1, times_ms=[0, end_ms, end_ms])
    if end_ms > UNSYNCED_MS:
        with pytest.raises(Corrupt, match="magic"):
            opened(tmp_path)
    else:
        assert len(contents(opened(tmp_path))) == 1


@pytest.mark.parametrize("kind", ChunkType)
def test_a_log_that_went_on_with_any_kind_of_records_had_been_synced(tmp_path: Path, kind: ChunkType) -> None:
    log = opened(tmp_path)
    for size in (500, 20_000):
        append(log, size, at_ms=0)
    log.append(kind, 1, 1, b"records", UNSYNCED_MS + 1)
    log.close()
    (path,) = segments(tmp_path)
    octets = bytearray(path.read_bytes())
    octets[2 * PAGE_BYTES : 3 * PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(octets)
    with pytest.raises(Corrupt, match="CRC of its data"):
        opened(tmp_path)
    assert path.read_bytes() == octets


def test_a_flipped_bit_before_whole_chunks_is_damage(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for size in (500, 20_000, 500):
        append(log, size)
    log.close()
    (path,) = segments(tmp_path)
    good = path.read_bytes()
    for byte in (10, 500, 560, 700, 9000, 20_500, 20_600, 20_700):
        octets = bytearray(good)
        octets[byte] ^= 8
        path.write_bytes(octets)
        with pytest.raises(Corrupt):
            opened(tmp_path)


def test_a_hole_in_a_sealed_segment_is_damage(tmp_path: Path) -> None:
    log = Log(tmp_path, epoch=4, segment_bytes_max=1000).open()
    append(log, 20_000, at_ms=0)
    append(log, 100, at_ms=0)
    log.sync()
    log.close()
    path = segments(tmp_path)[0]
    octets = bytearray(path.read_bytes())
    octets[PAGE_BYTES : 2 * PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(octets)
    with pytest.raises(Corrupt, match="CRC of its data"):
        opened(tmp_path)
    assert path.read_bytes() == octets
