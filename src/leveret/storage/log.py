"""A log: a directory of segment files, appended to, read by offset, cut at the old end.

Order of an append, and why: one `writev` puts header, data and trailer behind the last chunk, so a
crash leaves a prefix of the chunk and never a hole before it; nothing is promised until `fdatasync`,
which the group commit runs off the event loop on duplicates of the descriptors from `unsynced()`
(data *and* length; a new segment's directory entry is fsynced when it is made, before its first
chunk). A failed or short write is cut off again at once, so a later append never lands behind
garbage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from isal.isal_zlib import crc32

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.segment import OnChunk, Segment
from leveret.wire.chunk import HEADER_BYTES, Chunk, ChunkError, Header, decode_header, encode_header, verify

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 256 * 1024


class Log:
    """Chunks in order of offset; one writer, any number of readers in the same process.

    Attributes:
        directory: where the segments are.
        epoch: stamped into each chunk that is appended.
        first_offset: first offset that is still held.
        next_offset: offset that the next record gets.
        torn_bytes: octets of an unfinished append that `open` cut off.
    """

    def __init__(self, directory: Path, *, epoch: int, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        """Describe a log; call `open` before anything else."""
        self.directory = directory
        self.epoch = epoch
        self.segment_bytes_max = segment_bytes_max
        self.torn_bytes = 0
        self._segments: list[Segment] = []
        self._unsynced: list[Segment] = []

    def open(self, on_chunk: OnChunk | None = None, *, first_offset: int = 0) -> Log:
        """Make the directory or recover what is in it, handing every whole chunk to `on_chunk`.

        Raises:
            Corrupt: damage that no torn write explains; the files are left as they are.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        starts = sorted(int(path.stem) for path in self.directory.glob("*.segment"))
        for start in starts or [first_offset]:
            self._recover(start, on_chunk or _ignore, last=start == (starts or [start])[-1])
        return self

    def _recover(self, start: int, on_chunk: OnChunk, *, last: bool) -> None:
        segment = Segment(self.directory, start)
        if self._segments and self._segments[-1].next_offset != start:
            before = self._segments[-1]
            raise Corrupt(
                str(self.directory), segment.path.name, before.next_offset, 0,
                f"segment starts at offset {start}, the one before it ends at {before.next_offset}",
            )  # fmt: skip
        self._segments.append(segment)
        if not segment.path.exists():
            return
        torn = segment.scan(on_chunk, last=last)
        if torn:
            self.torn_bytes = torn
            os.ftruncate(segment.fd(), segment.size)
            os.fdatasync(segment.fd())
        if not last:
            segment.close()

    @property
    def first_offset(self) -> int:
        """The oldest offset that is held."""
        return self._segments[0].first_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments[-1].next_offset

    @property
    def starts_segment(self) -> bool:
        """Whether the next chunk is the first of its segment."""
        newest = self._segments[-1]
        return newest.size == 0 or newest.size >= self.segment_bytes_max

    @property
    def size_bytes(self) -> int:
        """Octets of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp of the newest chunk, 0 when there is none."""
        return max((segment.last_timestamp_ms for segment in self._segments[-2:]), default=0)

    def append(
        self,
        kind: int,
        entries: int,
        records: int,
        data: bytes,
        timestamp_ms: int,
        trailer: bytes = b"",
        crc: int | None = None,
    ) -> Header:
        """Write one chunk behind the last; durable only once what `unsynced` gave has been fdatasynced.

        Raises:
            StorageError: the disk refused it; the log is as it was before.
        """
        segment = self._segments[-1]
        if segment.size >= self.segment_bytes_max:
            segment = self._roll()
        if crc is None:
            crc = crc32(data)
        chunk_id = segment.next_offset
        header = Header(
            kind, entries, records, timestamp_ms, self.epoch, chunk_id, crc, len(data), len(trailer)
        )
        head = encode_header(*header)
        try:
            if segment.size == 0:
                _fsync_new_file(segment)
            written = os.pwritev(segment.fd(), (head, data, trailer), segment.size)
            if written != header.chunk_bytes:
                raise OSError(28, f"{written} of {header.chunk_bytes} octets written")
        except OSError as error:
            self._cut_back(segment)
            raise StorageError(
                f"log {self.directory}: append at offset {chunk_id} failed: {error}"
            ) from error
        if not self._unsynced or self._unsynced[-1] is not segment:
            self._unsynced.append(segment)
        segment.note(header)
        return header

    def _roll(self) -> Segment:
        segment = Segment(self.directory, self.next_offset)
        self._segments.append(segment)
        return segment

    def _cut_back(self, segment: Segment) -> None:
        try:
            os.ftruncate(segment.fd(), segment.size)
        except OSError:
            # What is behind the end stays; the next append overwrites it from the same position.
            return

    def unsynced(self) -> list[int]:
        """Duplicates of the descriptors that an fdatasync must cover; the caller closes them."""
        segments, self._unsynced = self._unsynced, []
        return [os.dup(segment.fd()) for segment in segments]

    def sync(self) -> None:
        """Make all appended chunks durable, here and now."""
        sync_descriptors(self.unsynced())

    def read(self, offset: int, bytes_max: int, *, check: bool = False) -> Iterator[Chunk]:
        """Yield chunks from the one that holds `offset` on, at least one if there is any.

        Stops after the chunk that reaches `bytes_max`. An offset before `first_offset` starts there.

        Raises:
            Corrupt: a chunk can not be read back.
        """
        for header, buffer, at in self._walk(offset, bytes_max):
            middle = at + HEADER_BYTES + header.data_bytes
            chunk = Chunk(
                header, buffer[at + HEADER_BYTES : middle], buffer[middle : at + header.chunk_bytes]
            )
            if check:
                self._verify(chunk)
            yield chunk

    def read_raw(self, offset: int, bytes_max: int) -> Iterator[tuple[Header, bytes]]:
        """As `read`, but each chunk as its octets, header to trailer, unparsed and unchecked."""
        for header, buffer, at in self._walk(offset, bytes_max):
            yield header, buffer[at : at + header.chunk_bytes]

    def _walk(self, offset: int, bytes_max: int) -> Iterator[tuple[Header, bytes, int]]:
        offset = max(offset, self.first_offset)
        total = 0
        for index in range(self._segment_index(offset), len(self._segments)):
            for found in self._walk_segment(self._segments[index], offset):
                yield found
                total += found[0].chunk_bytes
                if total >= bytes_max:
                    return

    def _segment_index(self, offset: int) -> int:
        for index in range(len(self._segments) - 1, 0, -1):
            if self._segments[index].first_offset <= offset:
                return index
        return 0

    def _walk_segment(self, segment: Segment, offset: int) -> Iterator[tuple[Header, bytes, int]]:
        position, end = segment.position_before(offset), segment.size
        buffer, base = b"", position
        while position < end:
            at = position - base
            need = HEADER_BYTES
            if len(buffer) - at >= HEADER_BYTES:
                header = self._header(buffer, at, segment, position)
                need = header.chunk_bytes
            if len(buffer) - at < need:
                wanted = min(max(_READ_BYTES, need), end - position)
                buffer, base = os.pread(segment.fd(), wanted, position), position
                if len(buffer) < wanted:
                    raise Corrupt(
                        str(self.directory), segment.path.name, offset, position, "the file was cut short"
                    )
                continue
            position += need
            if header.next_offset > offset:
                yield header, buffer, at

    def _header(self, buffer: bytes, at: int, segment: Segment, position: int) -> Header:
        try:
            return decode_header(buffer, at)
        except ChunkError as error:
            raise Corrupt(str(self.directory), segment.path.name, -1, position, str(error)) from None

    def _verify(self, chunk: Chunk) -> None:
        try:
            verify(chunk)
        except ChunkError as error:
            raise Corrupt(str(self.directory), "", chunk.header.chunk_id, -1, str(error)) from None

    def drop_before(self, offset: int) -> int:
        """Delete whole segments, oldest first, that hold nothing at or after `offset`; return how many.

        The newest segment stays, so the next offset is always known from a file name.
        """
        dropped = 0
        while len(self._segments) > 1 and self._segments[0].next_offset <= offset:
            self._drop_oldest()
            dropped += 1
        return dropped

    def retain(self, *, bytes_max: int | None = None, older_than_ms: int | None = None) -> int:
        """Delete oldest segments beyond a size or an age; return how many."""
        dropped = 0
        while len(self._segments) > 1 and (
            (bytes_max is not None and self.size_bytes > bytes_max)
            or (older_than_ms is not None and self._segments[0].last_timestamp_ms < older_than_ms)
        ):
            self._drop_oldest()
            dropped += 1
        return dropped

    def _drop_oldest(self) -> None:
        segment = self._segments[0]
        segment.close()
        segment.path.unlink(missing_ok=True)
        del self._segments[0]
        if segment in self._unsynced:
            self._unsynced.remove(segment)

    def offset_at(self, timestamp_ms: int) -> int:
        """First offset of the first segment that reaches `timestamp_ms` (then read on from there)."""
        for segment in self._segments:
            if segment.last_timestamp_ms >= timestamp_ms:
                return segment.first_offset
        return self.next_offset

    def close(self) -> None:
        """Give all descriptors back; appended chunks are not synced by this."""
        for segment in self._segments:
            segment.close()

    def delete(self) -> None:
        """Close the log and remove its directory."""
        self.close()
        for path in self.directory.glob("*.segment"):
            path.unlink(missing_ok=True)
        if self.directory.exists():
            self.directory.rmdir()


def sync_descriptors(descriptors: list[int]) -> None:
    """Make durable what `Log.unsynced` gave, and close it; runs in any thread."""
    try:
        for fd in descriptors:
            os.fdatasync(fd)
    finally:
        for fd in descriptors:
            os.close(fd)


def _fsync_new_file(segment: Segment) -> None:
    """Make a new segment's directory entry durable before its first chunk can be promised."""
    segment.fd()
    directory = os.open(segment.path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _ignore(chunk: Chunk) -> None:
    """Recover without looking at the chunks."""
