"""The summary of a sealed segment, from which a start recovers without reading the messages.

Beside a sealed segment of some size is a file of the same number, `.summary`. It holds the segment's sparse index and
totals, and its **notable** chunks: all chunks without messages, the last one with messages, and those with a trailer;
messages without their data. A trailer that only has numbers of publishers is left out if later ones have newer numbers
of all these publishers: each message of a numbering publisher may be a chunk of its own. A thread writes the file once
the segment is sealed. It is never synced, because it is only a help: if it is missing, torn or of another size, the
segment is read instead. The CRC of a message that the start did not read is checked when the message is read.

    crc-32 of the rest, 4 octets, big endian | msgpack of `Summary`
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from leveret.model.errors import StorageError
from leveret.storage.segment import OnChunk, Segment, SegmentState
from leveret.wire.chunk import Attribute, Chunk, ChunkType, decode_header, decode_trailer, encode_header

SUMMARY_BYTES_MIN: Final = 4 * 1024 * 1024
"""A smaller segment is read as fast as its summary would be made."""
NOTABLE_SHARE: Final = 4
"""A segment has no summary if more than one part in so many is notable; then it is read."""
_SUFFIX: Final = ".summary"
_Kept = tuple[bytes, bytes, bytes]
"""Header, data and trailer of a chunk."""


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """The content of a summary; `chunks` are headers, data and trailers."""

    size: int
    next_offset: int
    last_timestamp_ms: int
    user_records: int
    user_bytes: int
    index: tuple[list[int], list[int], list[int]]
    chunks: list[_Kept]

    @classmethod
    def load(cls, segment: Segment) -> Summary | None:
        """The segment's summary; None if there is none that fits the segment."""
        try:
            octets = summary_path(segment.path).read_bytes()
            size = segment.path.stat().st_size
        except OSError:
            return None
        if int.from_bytes(octets[:4], "big") != crc32(octets[4:]):
            return None
        try:
            summary = msgspec.msgpack.decode(octets[4:], type=cls)
        except msgspec.DecodeError:
            return None
        return summary if summary.size == size else None

    def give(self, segment: Segment, on_chunk: OnChunk) -> None:
        """Give the segment the results of a scan, and `on_chunk` the notable chunks."""
        segment.size = self.size
        segment.next_offset = self.next_offset
        segment.last_timestamp_ms = self.last_timestamp_ms
        segment.user_records = self.user_records
        segment.user_bytes = self.user_bytes
        segment.take_index(*self.index)
        for head, data, trailer in self.chunks:
            segment.last = decode_header(head)
            on_chunk(Chunk(segment.last, data, trailer))


class SummaryBuilder:
    """Collects the content of a summary from a scan."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._chunks: list[_Kept] = []
        self._last: Chunk | None = None
        self._numbered: dict[bytes, Chunk] = {}

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk of the segment."""
        is_user = chunk.header.type == ChunkType.USER
        if is_user and not chunk.trailer:
            self._last = Chunk(chunk.header, b"", b"")
            return
        if not is_user:
            self._chunks.append(_kept(chunk, bytes(chunk.data)))
            return
        self._last = None
        publishers = _publishers(chunk.trailer)
        if not publishers:
            self._chunks.append(_kept(chunk, b""))
            return
        noted = Chunk(chunk.header, b"", bytes(chunk.trailer))
        for publisher in publishers:
            self._numbered[publisher] = noted

    def save(self, segment: Segment) -> None:
        """Write the summary of a scanned segment, if it is worthwhile and the disk permits it."""
        if segment.size < SUMMARY_BYTES_MIN:
            return
        found = {*self._chunks, *(_kept(chunk, b"") for chunk in self._numbered.values())}
        if sum(sum(map(len, kept)) for kept in found) * NOTABLE_SHARE > segment.size:
            return
        if self._last is not None:
            found.add(_kept(self._last, b""))
        summary = Summary(
            segment.size,
            segment.next_offset,
            segment.last_timestamp_ms,
            segment.user_records,
            segment.user_bytes,
            segment.index(),
            sorted(found, key=_chunk_id),
        )
        octets = msgspec.msgpack.encode(summary)
        path = summary_path(segment.path)
        beside = path.with_name(f"{path.name}.new")
        with suppress(OSError):
            beside.write_bytes(crc32(octets).to_bytes(4, "big") + octets)
            beside.rename(path)


def _kept(chunk: Chunk, data: bytes) -> _Kept:
    return encode_header(*chunk.header), data, bytes(chunk.trailer)


def _publishers(trailer: bytes | memoryview) -> list[bytes]:
    """The publishers whose numbers a trailer has; none if it has anything else, too."""
    found = []
    for kind, name, _ in decode_trailer(trailer):
        if kind != Attribute.SEQUENCE:
            return []
        found.append(name)
    return found


def _chunk_id(kept: _Kept) -> int:
    return decode_header(kept[0]).chunk_id


def summarise(path: Path) -> None:
    """Write the summary of the sealed segment at `path`; for a thread. The segment may be removed meanwhile.

    A segment that was taken in has its summary from the scan that checked it, unless the log appended to it.
    """
    segment = Segment(path.parent, int(path.name[:20]), SegmentState.SEALED)
    notable = SummaryBuilder()
    try:
        if path.stat().st_size >= SUMMARY_BYTES_MIN and Summary.load(segment) is None:
            segment.scan(notable.add, last=False)
            notable.save(segment)
    except (OSError, StorageError):
        # The segment is gone, or damaged: then the next start reads it and reports that.
        return
    finally:
        segment.close()


def summary_path(segment: Path) -> Path:
    """The path of a segment's summary."""
    return segment.with_name(f"{segment.name[:20]}{_SUFFIX}")


def rename_with_summary(segment: Path, target: Path) -> None:
    """Rename a segment, and then its summary, if it has one: a segment without a summary is as good. Raises OSError."""
    segment.rename(target)
    with suppress(OSError):
        summary_path(segment).rename(summary_path(target))


def is_summary(path: Path) -> bool:
    """Whether the file is a summary, finished or not."""
    return path.name.endswith((_SUFFIX, f"{_SUFFIX}.new"))
