"""storage.summary: a start that reads summaries knows what one that reads all messages knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import Corrupt, StorageError
from leveret.storage import summary as summary_module
from leveret.storage.log import Log
from leveret.storage.segment import Segment, SegmentState
from leveret.storage.summary import is_summary, summarise, summary_path
from leveret.wire.chunk import (
    Attribute,
    Chunk,
    ChunkType,
    Header,
    decode_trailer,
    encode_attribute,
    encode_trailer,
)
from tests.unit.storage.logs import append, append_often, contents, files, make, scratch, segments

ReadChunk = tuple[Header, bytes, bytes]
SEQUENCE = encode_trailer(encode_attribute(0, b"publisher", 7))
TRAILERS = [
    b"",
    SEQUENCE,
    encode_trailer(encode_attribute(0, b"another", 8)),
    encode_trailer(encode_attribute(0, b"publisher", 9), encode_attribute(0, b"another", 9)),
    encode_trailer(encode_attribute(0, b"publisher", 10), encode_attribute(Attribute.EXPIRES, b"", 1)),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summarise segments of any size, whatever is notable in them."""
    monkeypatch.setattr(summary_module, "SUMMARY_BYTES_MIN", 0)
    monkeypatch.setattr(summary_module, "NOTABLE_SHARE", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log of three segments, two of them sealed and summarised."""
    made = make(tmp_path / "log").open(with_messages=False)
    for size in (150, 150, 150, 150, 10):
        append(made, size)
    made.sync()
    for path in made.take_sealed():
        summarise(path)
    made.close()
    yield made
    made.close()


def opened_with_chunks(directory: Path, **more: Any) -> tuple[Log, list[ReadChunk]]:
    found: list[ReadChunk] = []

    def on_chunk(chunk: Chunk) -> None:
        found.append((chunk.header, bytes(chunk.data), bytes(chunk.trailer)))

    return make(directory).open(on_chunk, **more), found


def shape(log: Log) -> tuple[object, ...]:
    return (
        log.first_offset, log.next_offset, log.size_bytes, log.user_totals(0),
        log.last_timestamp_ms, log.torn_bytes, log.synced_offset, contents(log),
        [log.offset_at(ms) for ms in range(999, 1100, 7)],
    )  # fmt: skip


def said(trailer: bytes) -> set[int]:
    """The kinds of a trailer's attributes."""
    return {kind for kind, _, _ in decode_trailer(trailer)}


def last_numbers(chunks: list[ReadChunk]) -> list[tuple[bytes, int]]:
    """The last number of each publisher, in the order in which they were last there."""
    last: dict[bytes, int] = {}
    for _, _, trailer in chunks:
        for kind, name, value in decode_trailer(trailer):
            if kind == Attribute.SEQUENCE:
                last.pop(name, None)
                last[name] = value
    return list(last.items())


CHUNKS = st.lists(
    st.tuples(st.integers(0, 150), st.sampled_from([ChunkType.USER, ChunkType.USER, ChunkType.TRACKING]),
              st.sampled_from(TRAILERS)),
    max_size=25,
)  # fmt: skip


@given(CHUNKS, st.data())
def test_opened_by_summaries_a_log_is_the_same_and_tells_all_that_is_notable(
    chunks: list[tuple[int, ChunkType, bytes]], data: st.DataObject
) -> None:
    with scratch() as directory:
        log = make(directory).open(with_messages=False)
        for size, kind, trailer in chunks:
            log.append(kind, 1, 1, bytes(size), 1000 + 3 * log.next_offset, trailer)
        log.sync()
        for path in log.take_sealed():
            if data.draw(st.booleans()):
                summarise(path)
        log.close()
        whole, everything = opened_with_chunks(directory)
        expected = shape(whole)
        whole.close()
        # The first opening without messages writes the summaries that are missing, the second reads all of them.
        for _ in range(2):
            again, found = opened_with_chunks(directory, with_messages=False)
            assert shape(again) == expected
            newest = [chunk for chunk in everything if chunk[0].type == ChunkType.USER][-1:]
            for header, octets, trailer in everything:
                if header.type != ChunkType.USER:
                    assert (header, octets, trailer) in found
                elif (header, octets, trailer) in newest or said(trailer) - {0}:
                    assert any((other, end) == (header, trailer) for other, _, end in found)
            assert last_numbers(found) == last_numbers(everything)
            assert [header.chunk_id for header, _, _ in found] == sorted(
                {header.chunk_id for header, _, _ in found}
            )
            again.close()
        sealed = [path for path in segments(directory) if ".sealed" in path.name]
        assert [path for path in segments(directory) if is_summary(path)] == [*map(summary_path, sealed)]


def test_messages_in_a_summarised_segment_are_not_read_at_start(log: Log) -> None:
    _, found = opened_with_chunks(log.directory, with_messages=False)
    assert [(header.chunk_id, len(data)) for header, data, _ in found] == [(1, 0), (3, 0), (4, 10)]


def test_damage_that_a_start_did_not_see_is_found_by_the_read(log: Log) -> None:
    oldest = segments(log.directory)[0]
    octets = bytearray(oldest.read_bytes())
    octets[100] ^= 1
    oldest.write_bytes(octets)
    opened, _ = opened_with_chunks(log.directory, with_messages=False)
    with pytest.raises(Corrupt, match="CRC of its data"):
        contents(opened)
    with pytest.raises(Corrupt, match="CRC of its data"):
        opened_with_chunks(log.directory)


@pytest.mark.parametrize("octets", [b"", b"abcd", b"abcdefgh" * 20])
def test_a_summary_that_is_none_is_ignored_and_made_again(log: Log, octets: bytes) -> None:
    (first, _) = (path for path in segments(log.directory) if is_summary(path))
    good = first.read_bytes()
    first.write_bytes(octets)
    _, found = opened_with_chunks(log.directory, with_messages=False)
    assert [(header.chunk_id, len(data)) for header, data, _ in found][:2] == [(0, 150), (1, 150)]
    assert first.read_bytes() == good


def test_a_flipped_bit_in_any_octet_of_a_summary_makes_it_none(log: Log) -> None:
    (first, _) = (path for path in segments(log.directory) if is_summary(path))
    good = first.read_bytes()
    for at in range(len(good)):
        octets = bytearray(good)
        octets[at] ^= 1 << at % 8
        first.write_bytes(octets)
        opened, found = opened_with_chunks(log.directory, with_messages=False)
        assert found[0][1] != b""
        assert first.read_bytes() == good
        opened.close()


def test_a_summary_of_a_segment_that_was_cut_is_ignored_and_the_cut_is_damage(log: Log) -> None:
    oldest = segments(log.directory)[0]
    oldest.write_bytes(oldest.read_bytes()[:-1])
    with pytest.raises(Corrupt, match="the file ends"):
        opened_with_chunks(log.directory, with_messages=False)


def test_a_segment_that_was_cut_and_grew_to_its_size_again_has_no_summary_of_what_was_cut_off(
    log: Log,
) -> None:
    """As the copy of a log does whose leader had others in their place."""
    cut = make(log.directory).open(with_messages=False, cut_at=1)
    for size in (150, 10):
        cut.append(ChunkType.USER, 1, 1, bytes(size), 5_000)
    cut.sync()
    cut.close()
    whole, everything = opened_with_chunks(log.directory)
    again, found = opened_with_chunks(log.directory, with_messages=False)
    assert {header for header, _, _ in found} <= {header for header, _, _ in everything}
    assert shape(again) == shape(whole)
    whole.close()
    again.close()


def test_summaries_go_with_their_segments(log: Log) -> None:
    opened, _ = opened_with_chunks(log.directory, with_messages=False)
    assert opened.drop_before(2) == 1
    assert [path.name[:20] for path in segments(log.directory) if is_summary(path)] == [f"{2:020}"]
    opened.delete()
    assert not log.directory.exists()


def test_a_summary_whose_segment_went_first_is_removed_at_the_next_start(log: Log) -> None:
    kept = files(log.directory)
    stray = [log.directory / f"{99:020}.summary", log.directory / f"{0:020}.summary.new"]
    for path in stray:
        path.write_bytes(b"x")
    opened, _ = opened_with_chunks(log.directory, with_messages=False)
    assert files(log.directory) == kept
    stray[0].write_bytes(b"x")
    opened.delete()
    assert not log.directory.exists()


def test_summarising_what_is_gone_makes_nothing(tmp_path: Path) -> None:
    summarise(tmp_path / f"{0:020}.sealed.segment")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_segment_is_not_summarised(log: Log) -> None:
    oldest, summary = segments(log.directory)[:2]
    summary.unlink()
    octets = bytearray(oldest.read_bytes())
    octets[100] ^= 1
    oldest.write_bytes(octets)
    summarise(oldest)
    assert not summary.exists()


def test_a_small_segment_is_not_summarised(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest, summary = segments(log.directory)[:2]
    summary.unlink()
    monkeypatch.setattr(summary_module, "SUMMARY_BYTES_MIN", oldest.stat().st_size + 1)
    summarise(oldest)
    assert not summary.exists()
    monkeypatch.setattr(summary_module, "SUMMARY_BYTES_MIN", oldest.stat().st_size)
    summarise(oldest)
    assert summary.exists()


def test_a_segment_that_is_mostly_settlements_is_not_summarised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary_module, "NOTABLE_SHARE", 2)
    log = make(tmp_path).open(with_messages=False)
    for kind in (ChunkType.USER, ChunkType.USER, ChunkType.TRACKING, ChunkType.TRACKING, ChunkType.USER):
        log.append(kind, 1, 1, bytes(150), 1000)
    log.sync()
    messages, settlements = log.take_sealed()
    summarise(messages)
    summarise(settlements)
    assert summary_path(messages).exists()
    assert not summary_path(settlements).exists()


def test_a_log_that_is_read_whole_at_start_wants_no_summaries(tmp_path: Path) -> None:
    log = make(tmp_path).open()
    append_often(log, 3, 250)
    log.sync()
    assert log.take_sealed() == []


# -- what is missing --------------------------------------------------------------------------


@pytest.mark.parametrize("with_messages", [True, False])
def test_a_newest_segment_that_went_missing_is_told_from_one_that_never_was(
    log: Log, with_messages: bool
) -> None:
    kept = files(log.directory)
    for gone in (1, 2):
        newest = [path for path in segments(log.directory) if not is_summary(path)][-1]
        newest.unlink()
        kept.pop(newest.name)
        kept.pop(summary_path(newest).name, None)
        summary_path(newest).unlink(missing_ok=True)
        with pytest.raises(Corrupt, match="the segment is missing") as caught:
            opened_with_chunks(log.directory, with_messages=with_messages)
        assert (caught.value.offset, caught.value.segment) == (6 - 2 * gone, f"{6 - 2 * gone:020}.segment")
        assert files(log.directory) == kept


def test_a_log_that_must_exist_and_does_not_is_told_and_not_made(tmp_path: Path) -> None:
    for directory in (tmp_path / "gone", tmp_path):
        with pytest.raises(StorageError, match=f"log {directory} is missing"):
            make(directory).open(must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_segments_that_were_never_sealed_are_at_the_next_start(log: Log) -> None:
    for path in segments(log.directory):
        if path.name.endswith(".sealed.segment"):
            path.rename(path.with_name(path.name.replace(".sealed", "")))
    make(log.directory).open().close()
    names = [path.name[20:] for path in segments(log.directory) if not is_summary(path)]
    assert names == [".sealed.segment", ".sealed.segment", ".segment"]


def test_of_a_publisher_s_numbers_the_last_ones_are_noted(tmp_path: Path) -> None:
    log = make(tmp_path).open(with_messages=False)
    for number in range(9):
        trailer = encode_trailer(encode_attribute(Attribute.SEQUENCE, b"publisher", number))
        log.append(ChunkType.USER, 1, 1, b"x", 1000, trailer)
    log.sync()
    sealed = log.take_sealed()
    log.close()
    summarise(sealed[0])
    noted = summary_module.Summary.load(Segment(tmp_path, 0, SegmentState.SEALED))
    assert noted is not None
    assert noted.user_records > len(noted.chunks) == 1
