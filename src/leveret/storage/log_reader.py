"""Reads a log by offset, by time or from its end, chunk by chunk, as octets or parsed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.open_segments import OpenSegments, storage_error
from leveret.storage.segment import Segment, SegmentState
from leveret.wire.chunk import (
    HEADER_BYTES,
    Attribute,
    Chunk,
    ChunkError,
    Header,
    decode_header,
    decode_trailer,
    verify,
    verify_trailer,
)

READ_BYTES: Final = 256 * 1024
NOTHING_BESIDE: Final[Mapping[int, int]] = MappingProxyType({})
"""No segment has octets stored elsewhere."""
_ENDS_MAX: Final = 64
"""The number of reads whose ends are remembered: an index step of small chunks is hundreds of them."""


class Extent(NamedTuple):
    """Octets of a segment, with a descriptor of their own."""

    fd: int
    begin: int
    size: int


class SegmentExtent(NamedTuple):
    """A segment: its offsets, its size in octets, the number of its messages, and their octets."""

    first_offset: int
    next_offset: int
    size: int
    user_records: int
    user_bytes: int


def uncache(extents: list[Extent]) -> None:
    """Release the page cache of durable extents, and close their descriptors.

    Otherwise a file that is written once and not read again soon takes memory from all others. Each of its pages must
    be found first, which costs the writer more than the write.
    """
    for fd, begin, size in extents:
        with suppress(OSError):
            os.posix_fadvise(fd, begin, size, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class LogReader:
    """The segments of a log, in order, for any number of readers.

    Attributes:
        directory: the directory of the segments.
    """

    def __init__(self, directory: Path, open_segments: OpenSegments | None = None) -> None:
        """No segments yet."""
        self.directory = directory
        self._open_segments = OpenSegments() if open_segments is None else open_segments
        self._segments: list[Segment] = []
        self._ends: dict[int, tuple[Segment, int]] = {}

    @property
    def first_offset(self) -> int:
        """The oldest offset in the log."""
        return self._segments[0].first_offset

    @property
    def newest_segment(self) -> int:
        """First offset of the newest segment."""
        return self._segments[-1].first_offset

    @property
    def newest_bytes(self) -> int:
        """Octets of the newest segment."""
        return self._segments[-1].size

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._segments[-1].next_offset

    @property
    def extents_of_segments(self) -> list[SegmentExtent]:
        """The extents of the segments, oldest first."""
        return [
            SegmentExtent(each.first_offset, each.next_offset, each.size, each.user_records, each.user_bytes)
            for each in self._segments
        ]

    @property
    def size_bytes(self) -> int:
        """Octets of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp of the newest chunk, 0 when there is none."""
        return max((segment.last_timestamp_ms for segment in self._segments[-2:]), default=0)

    @property
    def has_descriptors(self) -> bool:
        """Whether a descriptor was opened since `open` or `close`."""
        return any(segment.has_fd for segment in self._segments)

    def close(self) -> None:
        """Close all descriptors, without syncing appended chunks."""
        for segment in self._segments:
            self._close_segment(segment)

    def _fd(self, segment: Segment) -> int:
        """The descriptor of a segment; it may be closed again when descriptors run short."""
        if segment.has_fd:
            segment.is_used = True
            return segment.fd()
        return self._open_segments.open(self, segment)

    def _close_segment(self, segment: Segment) -> None:
        segment.close()
        self._open_segments.closed(segment)

    def is_due(self, segment: Segment) -> bool:
        """Whether a segment has octets that no fdatasync has covered."""
        return False

    def sync_and_close(self, segment: Segment) -> None:
        """Close a segment's descriptor, after a sync if one is due."""
        self._close_segment(segment)

    def retained_from(
        self,
        *,
        before: int = 0,
        bytes_max: int | None = None,
        older_than_ms: int | None = None,
        written_before_ms: int | None = None,
        beside: Mapping[int, int] = NOTHING_BESIDE,
    ) -> int:
        """The begin of the log without segments that hold only records before `before`, or are beyond a size or an age.

        The age of a segment is that of its last chunk, by the chunk's own time or by the time of its writing here.

        Raises:
            StorageError: a segment is gone.
        """
        size = self.size_bytes + sum(beside.get(each.first_offset, 0) for each in self._segments)
        for segment, after in pairwise(self._segments):
            is_due = (
                segment.next_offset <= before
                or (bytes_max is not None and size > bytes_max)
                or (older_than_ms is not None and segment.last_timestamp_ms < older_than_ms)
                or (written_before_ms is not None and segment.written_ms() < written_before_ms)
            )
            if not is_due or after.state is SegmentState.PROVISIONAL:
                return segment.first_offset
            size -= segment.size + beside.get(segment.first_offset, 0)
        return self.newest_segment

    def bytes_from(self, offset: int) -> int:
        """The size of the records from an offset on; up to an index step too large."""
        whole = [segment for segment in self._segments if segment.next_offset > offset]
        if not whole:
            return 0
        first = whole[0]
        before = first.place_before(offset)[1] if offset > first.first_offset else 0
        return sum(segment.size for segment in whole) - before

    def user_totals(self, offset: int) -> tuple[int, int]:
        """The number of messages, settled or not, from the segment with that offset on, and their octets."""
        segments = [segment for segment in self._segments if segment.next_offset > offset]
        return sum(each.user_records for each in segments), sum(each.user_bytes for each in segments)

    def extents(self, first: int, end: int) -> list[Extent]:
        """The extents that hold the chunks from `first` up to `end`, and a little more.

        The caller closes the descriptors.

        Raises:
            StorageError: a segment cannot be opened.
        """
        found: list[Extent] = []
        try:
            for segment in self._segments:
                if segment.first_offset < end and first < segment.next_offset:
                    begin = segment.place_before(max(first, segment.first_offset))[1]
                    stop = segment.size if end >= segment.next_offset else segment.place_before(end)[1]
                    if begin < stop:
                        found.append(Extent(segment.second_fd(), begin, stop - begin))
        except OSError as error:
            for extent in found:
                os.close(extent.fd)
            raise storage_error(error, f"log {self.directory}: cannot be opened") from error
        return found

    def segment_with(self, offset: int) -> int:
        """The first offset of the segment that holds an offset.

        While a log is being opened, among the segments read so far.
        """
        return self._segments[self._segment_index(offset)].first_offset

    def segment_before(self, offset: int) -> int | None:
        """The first offset of the segment that holds the record before an offset; None if there is none."""
        if not self.first_offset < offset <= self.next_offset:
            return None
        return self._segments[self._segment_index(offset - 1)].first_offset

    def offset_at(self, timestamp_ms: int) -> int:
        """The offset of the first chunk that is not older than a time; the end of the log if all are older.

        Raises:
            Corrupt: a chunk on the way cannot be read back.
        """
        for segment in self._segments:
            if segment.top_ms >= timestamp_ms:
                for found in self._walk_segment(segment, segment.offset_before_time(timestamp_ms)):
                    if found.header.timestamp_ms >= timestamp_ms:
                        return found.header.chunk_id
        return self.next_offset

    def read(self, offset: int, bytes_max: int, *, check: bool = False) -> Iterator[Chunk]:
        """Yield chunks from the one that holds `offset` on, at least one if there is any.

        Stops after the chunk that reaches `bytes_max`. An offset before `first_offset` starts there.

        Raises:
            Corrupt: a chunk cannot be read back.
        """
        for found in self._walk(offset, bytes_max):
            chunk = found.chunk
            if check:
                self._verify(chunk, found)
            yield chunk

    def read_raw(
        self, offset: int, bytes_max: int, *, ahead: int = READ_BYTES
    ) -> Iterator[tuple[Header, bytes]]:
        """As `read`, but each chunk as its octets, header to trailer, unparsed and unchecked.

        A read that goes on at this one's end, or at its last chunk, needs no search. `ahead`: octets to read at once.
        """
        found = None
        try:
            for found in self._walk(offset, bytes_max, ahead):
                yield found.header, found.octets
        finally:
            if found is not None:
                self._note_end(found)

    def _note_end(self, found: _Found) -> None:
        header, segment = found.header, found.segment
        self._ends[header.chunk_id] = segment, found.position
        self._ends[header.next_offset] = segment, found.position + header.chunk_bytes
        while len(self._ends) > _ENDS_MAX:
            del self._ends[next(iter(self._ends))]

    def read_segments(self, offset: int, bytes_max: int) -> Iterator[tuple[int, Header, bytes]]:
        """As `read_raw`, verified, each chunk with the first offset of its segment, as `append_raw` takes it.

        Raises:
            StorageError: a chunk cannot be read back.
        """
        for found in self._walk(offset, bytes_max):
            self._verify(found.chunk, found)
            yield found.segment.first_offset, found.header, found.octets

    def place_of(self, offset: int) -> ChunkPosition | None:
        """The position of the chunk that begins at an offset; None if there is none.

        Raises:
            StorageError: its header cannot be read back.
        """
        if not self.first_offset <= offset < self.next_offset:
            return None
        segment = self._segments[self._segment_index(offset)]
        chunk_id, position = segment.place_before(offset)
        while True:
            head = self._pread(segment, chunk_id, position, HEADER_BYTES, HEADER_BYTES)
            header = self._header(head, 0, segment, chunk_id, position)
            if header.next_offset > offset:
                return ChunkPosition(header, segment, position) if chunk_id == offset else None
            chunk_id, position = header.next_offset, position + header.chunk_bytes

    def read_data(self, place: ChunkPosition, into: memoryview) -> None:
        """Read the data of a chunk into a buffer of that size, and check it.

        Raises:
            Corrupt: the data differ from the written ones. StorageError: they cannot be read back.
        """
        header, segment, position = place
        try:
            count = os.preadv(self._fd(segment), [into], position + HEADER_BYTES)
        except OSError as error:
            raise self._unreadable(segment, position, error) from error
        if count < len(into):
            raise self._corrupt(
                segment, header.chunk_id, position, f"{count} of {len(into)} octets of data are there"
            )
        if crc32(into) != header.crc:
            raise self._corrupt(segment, header.chunk_id, position, "CRC of its data does not match")

    def ends_before_begin(self) -> dict[int, int]:
        """By epoch, the offset behind its last chunk before `first_offset`, as far as the first chunk tells.

        The trailer of a segment's first chunk has the ends of earlier epochs (core.queues.chunk_epochs). Those of the
        chunk's own epoch, if there were any, ended where the log begins. Reads no data; a log that was closed is closed
        again.

        Raises:
            Corrupt: the chunk cannot be read back.
        """
        is_idle = not self.has_descriptors
        try:
            place = self.place_of(self.first_offset)
            return {} if place is None else self._ends_in(place)
        finally:
            if is_idle:
                self.close()

    def _ends_in(self, place: ChunkPosition) -> dict[int, int]:
        header, segment, position = place
        ends = {header.epoch: header.chunk_id}
        if header.trailer_bytes:
            at, size = position + HEADER_BYTES + header.data_bytes, header.trailer_bytes
            trailer = self._pread(segment, header.chunk_id, at, size, size)
            try:
                verify_trailer(trailer)
                for kind, name, value in decode_trailer(trailer):
                    if kind == Attribute.EPOCH_END:
                        ends[int.from_bytes(name)] = value
            except ChunkError as error:
                raise self._corrupt(segment, header.chunk_id, position, str(error)) from None
        return ends

    def headers_before(self, before: int, count: int) -> list[tuple[Header, bytes]]:
        """The headers, parsed and as octets, of at most `count` chunks that begin before an offset, newest first.

        Reads no more than an index step beyond them. A log that was closed is closed again, because callers read
        thousands of logs.

        Raises:
            Corrupt: a chunk on the way cannot be read back.
        """
        is_idle = not self.has_descriptors
        try:
            return self._headers_before(before, count)
        finally:
            if is_idle:
                self.close()

    def _headers_before(self, before: int, count: int) -> list[tuple[Header, bytes]]:
        found: list[tuple[Header, bytes]] = []
        for segment in reversed(self._segments):
            end = min(before, segment.next_offset)
            while end > segment.first_offset and len(found) < count:
                start, _ = segment.place_before(end - 1)
                step: list[tuple[Header, bytes]] = []
                for header, buffer, at, _, _ in self._walk_segment(segment, start):
                    if header.chunk_id >= end:
                        break
                    step.append((header, buffer[at : at + HEADER_BYTES]))
                found += reversed(step)
                end = start
        return found[:count]

    def _walk(self, offset: int, bytes_max: int, ahead: int = READ_BYTES) -> Iterator[_Found]:
        offset = max(offset, self.first_offset)
        total = 0
        for index in range(self._segment_index(offset), len(self._segments)):
            for found in self._walk_segment(self._segments[index], offset, ahead):
                yield found
                total += found.header.chunk_bytes
                if total >= bytes_max:
                    return

    def _segment_index(self, offset: int) -> int:
        for index in range(len(self._segments) - 1, 0, -1):
            if self._segments[index].first_offset <= offset:
                return index
        return 0

    def _walk_segment(self, segment: Segment, offset: int, ahead: int = READ_BYTES) -> Iterator[_Found]:
        known, position = self._ends.get(offset, (None, 0))
        chunk_id, position = (offset, position) if known is segment else segment.place_before(offset)
        end = segment.size
        buffer, base = b"", position
        while position < end:
            at = position - base
            need = HEADER_BYTES
            if len(buffer) - at >= HEADER_BYTES:
                header = self._header(buffer, at, segment, chunk_id, position)
                need = header.chunk_bytes
            if len(buffer) - at < need:
                buffer, base = self._pread(segment, chunk_id, position, need, ahead), position
                continue
            if header.next_offset > offset:
                yield _Found(header, buffer, at, segment, position)
            chunk_id, position = header.next_offset, position + need

    def _pread(
        self, segment: Segment, chunk_id: int, position: int, need: int, ahead: int = READ_BYTES
    ) -> bytes:
        """At least the `need` octets at `position`, where that chunk begins.

        Up to `ahead` of them if there are as many.
        """
        wanted = min(max(ahead, need), segment.size - position)
        try:
            buffer = os.pread(self._fd(segment), wanted, position)
        except OSError as error:
            raise self._unreadable(segment, position, error) from error
        if len(buffer) < max(wanted, need):
            raise self._corrupt(segment, chunk_id, position, f"{len(buffer)} of {need} octets are there")
        return buffer

    def _header(self, buffer: bytes, at: int, segment: Segment, chunk_id: int, position: int) -> Header:
        try:
            header = decode_header(buffer[at : at + HEADER_BYTES])
        except ChunkError as error:
            raise self._corrupt(segment, chunk_id, position, str(error)) from None
        if header.chunk_id != chunk_id:
            raise self._corrupt(segment, chunk_id, position, f"chunk id is {header.chunk_id}")
        return header

    def _verify(self, chunk: Chunk, found: _Found) -> None:
        try:
            verify(chunk)
        except ChunkError as error:
            raise self._corrupt(found.segment, chunk.header.chunk_id, found.position, str(error)) from None

    def _unreadable(self, segment: Segment, position: int, error: OSError) -> StorageError:
        where = f"log {self.directory}: segment {segment.path.name} cannot be read at byte {position}"
        return storage_error(error, where)

    def _corrupt(self, segment: Segment, offset: int, position: int, what: str) -> Corrupt:
        return Corrupt(str(self.directory), segment.path.name, offset, position, what)


class ChunkPosition(NamedTuple):
    """A chunk that begins at `position` of its segment."""

    header: Header
    segment: Segment
    position: int


class _Found(NamedTuple):
    """A chunk inside a read: at `at` in `buffer`, at `position` in its segment."""

    header: Header
    buffer: bytes
    at: int
    segment: Segment
    position: int

    @property
    def octets(self) -> bytes:
        """The chunk, header to trailer."""
        return self.buffer[self.at : self.at + self.header.chunk_bytes]

    @property
    def chunk(self) -> Chunk:
        """The chunk, parsed and unchecked."""
        header, start = self.header, self.at + HEADER_BYTES
        middle = start + header.data_bytes
        return Chunk(header, self.buffer[start:middle], self.buffer[middle : middle + header.trailer_bytes])
