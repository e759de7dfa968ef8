"""storage.inspection.digest: equal if, and only if, two logs hold the same chunks in a range."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leveret.model.errors import Corrupt
from leveret.storage.inspection.digest import Digest, RangeGone, digest
from leveret.storage.segment_file import STEP_BYTES
from leveret.wire.chunk import HEADER_BYTES
from tests.unit.storage.logs import make, scratch
from tests.unit.storage.places import CHUNKS, Chunks, filled, flip, held, overwrite

EIGHT: Chunks = [(90, 2, True)] * 8
"""Two chunks a segment."""


@given(CHUNKS, st.integers(1, 600), st.booleans(), st.data())
def test_the_same_chunks_have_the_same_digest_in_whatever_segments(
    chunks: Chunks, segment_bytes_max: int, deep: bool, data: st.DataObject
) -> None:
    with scratch() as directory:
        log = filled(directory / "a", chunks)
        copy = make(directory / "b", segment_bytes_max=segment_bytes_max).open()
        for chunk in log.read(0, 1 << 30):
            head = chunk.header
            copy.append(
                head.type,
                head.entries,
                head.records,
                bytes(chunk.data),
                head.timestamp_ms,
                bytes(chunk.trailer),
            )
        log.close()
        copy.close()
        first = data.draw(st.integers(0, log.next_offset))
        end = data.draw(st.integers(first, log.next_offset))
        found = digest(directory / "a", first, end, deep=deep)
        assert found == digest(directory / "b", first, end, deep=deep)
        inside = [
            each.header
            for each in held(directory / "a")
            if each.header.chunk_id >= first and each.header.next_offset <= end
        ]
        assert found[:2] == (len(inside), sum(header.chunk_bytes for header in inside))


@given(CHUNKS, CHUNKS)
def test_other_chunks_have_another_digest(some: Chunks, others: Chunks) -> None:
    assume(some != others)
    with scratch() as directory:
        end = min(
            filled(directory / name, chunks).next_offset for name, chunks in (("a", some), ("b", others))
        )
        alike = [
            [each.header for each in held(directory / name) if each.header.next_offset <= end]
            for name in ("a", "b")
        ]
        is_same = digest(directory / "a", 0, end) == digest(directory / "b", 0, end)
        assert is_same == (alike[0] == alike[1])


def test_an_empty_range_has_the_digest_of_nothing(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    assert digest(tmp_path, 4, 4) == digest(tmp_path, 4, 5) == Digest(0, 0, 0)
    assert digest(tmp_path / "none", 0, 0) == Digest(0, 0, 0)


@given(CHUNKS, st.data())
def test_a_flipped_bit_is_met_by_a_deep_one_wherever_it_is(chunks: Chunks, data: st.DataObject) -> None:
    with scratch() as directory:
        end = filled(directory, chunks).next_offset
        before = digest(directory, 0, end)
        hit = data.draw(st.sampled_from(held(directory)))
        at = data.draw(st.integers(0, hit.header.chunk_bytes - 1))
        flip(directory, hit.segment, hit.position + at, data.draw(st.integers(0, 7)))
        with pytest.raises(Corrupt) as caught:
            digest(directory, 0, end, deep=True)
        assert caught.value.offset == hit.header.chunk_id
        if at < HEADER_BYTES:
            with pytest.raises(Corrupt):
                digest(directory, 0, end)
        else:
            assert digest(directory, 0, end) == before


def test_damage_outside_the_range_does_not_matter(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    before = digest(tmp_path, 2, 12, deep=True)
    overwrite(tmp_path, 0, 0, bytes(60))
    overwrite(tmp_path, 12, 0, bytes(60))
    assert digest(tmp_path, 2, 12, deep=True) == before


def test_a_trailer_counts_only_in_a_deep_one_and_data_by_its_crc_in_both(tmp_path: Path) -> None:
    for name, data, trailer in (("a", b"x", b""), ("b", b"y", b""), ("c", b"x", b"trailer")):
        log = make(tmp_path / name).open()
        log.append(0, 1, 1, data, 0, trailer)
        log.close()
    assert digest(tmp_path / "a", 0, 1)[:2] == digest(tmp_path / "b", 0, 1)[:2]
    assert len({digest(tmp_path / name, 0, 1) for name in "abc"}) == 3


def test_a_range_that_was_dropped_is_told_from_a_difference(tmp_path: Path) -> None:
    log = filled(tmp_path, EIGHT)
    log.drop_before(8)
    with pytest.raises(RangeGone, match="offset 2 is not held any more; compare from 8 on") as caught:
        digest(tmp_path, 2, 16)
    assert caught.value.first_offset == 8
    assert digest(tmp_path, 8, 16).chunks == 4
    shutil.rmtree(tmp_path)
    with pytest.raises(RangeGone):
        digest(tmp_path, 8, 16)


@pytest.mark.parametrize("deep", [False, True])
def test_a_range_that_is_dropped_meanwhile_is_told_as_well(tmp_path: Path, deep: bool) -> None:
    filled(tmp_path, EIGHT)
    log = make(tmp_path).open()

    def drop(octets: int) -> None:
        log.drop_before(12)

    with pytest.raises(RangeGone, match="offset 4 is not held any more; compare from 12 on"):
        digest(tmp_path, 0, 16, deep=deep, on_read=drop)
    log.close()


def test_a_log_that_ends_too_early_is_damaged(tmp_path: Path) -> None:
    filled(tmp_path, EIGHT)
    with pytest.raises(Corrupt, match="the log ends at offset 16"):
        digest(tmp_path, 0, 17)


def test_what_the_disk_cannot_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, EIGHT)

    def fail(fd: int, size: int, position: int) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(Corrupt, match="its header cannot be read"):
        digest(tmp_path, 0, 16)


def test_headers_are_read_without_what_is_between_them(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes_max=1 << 30).open()
    for _ in range(5):
        log.append(0, 1, 1, bytes(STEP_BYTES), 0)
    log.close()
    steps: list[int] = []
    digest(tmp_path, 0, 5, on_read=steps.append)
    assert sum(steps) < STEP_BYTES
    steps.clear()
    digest(tmp_path, 0, 5, deep=True, on_read=steps.append)
    assert sum(steps) > 5 * STEP_BYTES
    assert max(steps) <= STEP_BYTES
