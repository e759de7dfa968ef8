"""storage.segment: what counts as a torn append, and what as damage."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from leveret.model.errors import Corrupt
from leveret.storage.segment import INDEX_EVERY_BYTES, Segment, SegmentState
from leveret.wire.chunk import HEADER_BYTES, Chunk, decode_header, encode_header


def chunk(chunk_id: int, data: bytes, records: int = 1) -> bytes:
    return encode_header(0, records, records, 1000 + chunk_id, 1, chunk_id, crc32(data), len(data)) + data


def written(directory: Path, octets: bytes) -> Segment:
    segment = Segment(directory, 5)
    segment.path.write_bytes(octets)
    return segment


def seen(segment: Segment, *, last: bool = True) -> tuple[list[bytes], int]:
    """(data of every chunk, octets of torn tail) of a scan."""
    found: list[bytes] = []

    def on_chunk(one: Chunk) -> None:
        found.append(bytes(one.data))

    try:
        return found, segment.scan(on_chunk, last=last)
    finally:
        segment.close()


ONE = chunk(5, b"a" * 100)
TWO = chunk(6, b"b" * 100)


def test_a_segment_is_named_after_its_first_offset(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 5)
    assert segment.path.name == "00000000000000000005.segment"
    assert not segment.path.exists()
    assert Segment(tmp_path, 5, SegmentState.PROVISIONAL).path.name == "00000000000000000005.segment.new"


def test_a_segment_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 0)
    segment.fd()
    segment.close()
    assert segment.path.stat().st_mode & 0o777 == 0o600


def test_a_scan_hands_out_every_chunk_and_knows_the_end(tmp_path: Path) -> None:
    segment = written(tmp_path, ONE + TWO)
    assert seen(segment) == ([b"a" * 100, b"b" * 100], 0)
    assert (segment.next_offset, segment.size, segment.last_timestamp_ms) == (7, len(ONE + TWO), 1006)


def test_an_empty_segment_is_whole(tmp_path: Path) -> None:
    segment = written(tmp_path, b"")
    assert seen(segment) == ([], 0)
    assert (segment.next_offset, segment.size) == (5, 0)


@pytest.mark.parametrize("cut", range(1, len(TWO)))
def test_a_last_chunk_that_the_file_ends_in_is_torn(tmp_path: Path, cut: int) -> None:
    segment = written(tmp_path, ONE + TWO[:cut])
    assert seen(segment) == ([b"a" * 100], cut)
    assert segment.size == len(ONE)


@pytest.mark.parametrize(
    "tail",
    [
        bytes(1),
        bytes(48),
        bytes(5000),
        TWO[:20] + bytes(5000),
        TWO[:60] + bytes(len(TWO) - 60),
        TWO[:60] + bytes(len(TWO) - 60 + 5000),
    ],
    ids=["one zero", "a header of zeros", "zeros", "in the header", "in the data", "through two chunks"],
)
def test_zeros_from_inside_the_first_bad_chunk_to_the_end_are_torn(tmp_path: Path, tail: bytes) -> None:
    assert seen(written(tmp_path, ONE + tail)) == ([b"a" * 100], len(tail))


@pytest.mark.parametrize(
    "tail",
    [
        b"\1" + TWO[1:],
        TWO[:-1] + b"\0",
        TWO[:-1] + b"c",
        TWO[:60] + bytes(len(TWO) - 60) + TWO,
        bytes(200) + TWO,
        chunk(9, b"b" * 100),
        b"\1" * 300,
    ],
    ids=["magic", "one zero", "last octet", "hole in a chunk", "hole", "offset jumps", "garbage"],
)
def test_anything_else_that_fails_a_check_is_damage_with_its_place(tmp_path: Path, tail: bytes) -> None:
    segment = written(tmp_path, ONE + tail)
    with pytest.raises(Corrupt) as caught:
        seen(segment)
    error = caught.value
    assert (error.log, error.segment, error.offset, error.byte) == (
        str(tmp_path),
        segment.path.name,
        6,
        len(ONE),
    )
    for part in (str(tmp_path), segment.path.name, f"byte {len(ONE)}", "offset 6"):
        assert part in str(error)
    assert segment.path.read_bytes() == ONE + tail


@pytest.mark.parametrize("tail", [TWO[:60], bytes(5000), TWO[:60] + bytes(len(TWO) - 60)])
def test_a_segment_that_is_not_the_last_is_never_torn(tmp_path: Path, tail: bytes) -> None:
    segment = written(tmp_path, ONE + tail)
    with pytest.raises(Corrupt):
        seen(segment, last=False)


def test_a_place_is_found_at_most_an_index_step_before_its_chunk(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 5)
    places = {}
    for chunk_id in range(5, 500, 3):
        header = decode_header(chunk(chunk_id, b"x" * 10_000, records=3))
        places[chunk_id] = segment.size
        segment.note(header)
    for offset in range(5, segment.next_offset):
        chunk_id, position = segment.place_before(offset)
        own = 5 + (offset - 5) // 3 * 3
        assert (
            places[chunk_id] == position <= places[own] < position + INDEX_EVERY_BYTES + 10_000 + HEADER_BYTES
        )
    assert segment.place_before(0) == (5, 0)
