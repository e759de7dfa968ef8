"""One segment file of a log: a run of chunks and nothing else.

The file's name is the offset of its first record, 20 digits, and its state. A sparse index (one entry per 64 KiB) is
kept in memory and rebuilt by the scan at start, or taken from a summary.

**What counts as torn.** An append is one `writev`, so power loss leaves a prefix of it, possibly
followed by zeros (the file grew, the data did not arrive). The tail of the *last* segment is torn, and
is cut, when its last chunk has a good header and the file ends before the chunk does, when less than a
header is left, or when all is zero from somewhere inside that chunk to the end of the file; or when it
has a hole, see storage.hole. Anything else that fails a check is damage: it is reported with its place,
and nothing is changed.
"""

from __future__ import annotations

import os
import re
import shutil
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.directory import sync_directory
from leveret.storage.hole import is_hole
from leveret.wire.chunk import HEADER_BYTES, Chunk, ChunkError, ChunkType, Header, decode_header, verify

INDEX_EVERY_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 1024 * 1024
_ZERO_TAIL_BYTES: Final = 64
"""A chunk with a wrong CRC is torn only if at least so many octets at its end, and all behind it, are zero."""

BESIDE: Final = ".own"
"""The suffix of a file that will replace a shared one."""

OnChunk = Callable[[Chunk], None]


class SegmentState(StrEnum):
    """The state of a segment; the value is the end of the file's name. See storage.log."""

    PROVISIONAL = ".segment.new"
    """The end of the segment before it may not be on disk yet."""
    NEWEST = ".segment"
    """Everything before it is on disk."""
    SEALED = ".sealed.segment"
    """It is whole and on disk, and has a successor."""


_NAME: Final = re.compile(rf"(\d{{20}})({'|'.join(map(re.escape, SegmentState))})")


def segment_of(name: str) -> tuple[int, SegmentState] | None:
    """The first offset and the state of the segment in a file of that name; None for any other file."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), SegmentState(match[2])) if match else None


def has_segments(directory: Path) -> bool:
    """Whether there is a log in the directory."""
    return any(map(segment_of, os.listdir(directory)))


class Segment:
    """The positions of chunks in one file; does not interpret the chunks.

    Attributes:
        last: the header of its last chunk; None if it is empty.
        user_records: the number of its messages.
        user_bytes: the octets of these messages, as data of chunks.
        is_used: whether its descriptor was used since the last look of `storage.open_segments`.
    """

    __slots__ = (
        "_fd",
        "_index_ids",
        "_index_positions",
        "_index_tops_ms",
        "_inode",
        "_top_ms",
        "first_offset",
        "is_used",
        "last",
        "last_timestamp_ms",
        "next_offset",
        "path",
        "size",
        "state",
        "user_bytes",
        "user_records",
    )

    def __init__(self, directory: Path, first_offset: int, state: SegmentState = SegmentState.NEWEST) -> None:
        """Describe the file; neither opens nor creates it."""
        self.path = directory / f"{first_offset:020d}{state}"
        self.state = state
        self.user_records = 0
        self.user_bytes = 0
        self.first_offset = first_offset
        self.next_offset = first_offset
        self.size = 0
        self.is_used = False
        self.last_timestamp_ms = 0
        self.last: Header | None = None
        self._fd = -1
        self._inode: tuple[int, int] | None = None
        self._index_ids = array("Q")
        self._index_positions = array("Q")
        # The latest time of the chunks so far: it never falls, even where the times of chunks do.
        self._index_tops_ms = array("Q")
        self._top_ms = 0

    def fd(self) -> int:
        """The file's descriptor, for reading and writing; an empty segment's file is created if missing (mode 0600).

        Raises:
            Corrupt: a segment with chunks has no file. OSError: the disk refuses it.
        """
        if self._fd < 0:
            must_exist = self.state is SegmentState.SEALED or self.size
            try:
                flags = os.O_RDWR | (0 if must_exist else os.O_CREAT) | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o600)
            except FileNotFoundError:
                if must_exist:
                    raise self.missing() from None
                raise
            self._see(os.fstat(self._fd))
        return self._fd

    def _see(self, stat: os.stat_result) -> None:
        """Remember the identity of the file, once it is not empty."""
        inode = stat.st_dev, stat.st_ino
        if self.size and self._inode not in (None, inode):
            self.close()
            raise self.missing()
        self._inode = inode

    def check_file(self) -> None:
        """Check that the written file is still in the directory, where the next start looks for it.

        Raises:
            Corrupt: the file was removed, moved or replaced.
        """
        try:
            self._see(os.stat(self.path))
        except FileNotFoundError:
            raise self.missing() from None

    def missing(self) -> Corrupt:
        """The error for a segment whose file is gone."""
        what = "the file was removed, moved or exchanged while the node ran"
        return Corrupt(str(self.path.parent), self.path.name, self.first_offset, 0, what)

    @property
    def has_fd(self) -> bool:
        """Whether it has an open descriptor."""
        return self._fd >= 0

    def second_fd(self) -> int:
        """Another descriptor of the file, for the caller to close.

        Raises:
            Corrupt: the file is gone. OSError: the system gives none.
        """
        try:
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC) if self._fd < 0 else os.dup(self._fd)
        except FileNotFoundError:
            raise self.missing() from None

    def close(self) -> None:
        """Give the file descriptor back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def unshare(self) -> None:
        """Replace a shared file by a copy, before it is written to. Blocks for the disk if it is shared.

        A node that died between a quarantine (storage.quarantine) and the cut of its log left the file with a second
        name. The quarantined file must not grow or be truncated with the log. Whenever the node dies here, the log
        has one of two equal files.

        Raises:
            OSError: the disk refuses it.
        """
        if os.fstat(self.fd()).st_nlink == 1:
            return
        beside = self.path.with_name(f"{self.path.name}{BESIDE}")
        with open(self.fd(), "rb", closefd=False) as shared, open(beside, "wb", opener=_private) as own:
            shared.seek(0)
            shutil.copyfileobj(shared, own, _READ_BYTES)
            own.flush()
            os.fsync(own.fileno())
        self.close()
        beside.rename(self.path)
        sync_directory(self.path.parent)
        self._inode = None

    def enter(self, state: SegmentState) -> None:
        """Rename the file to enter a state."""
        path = self.path.with_name(f"{self.first_offset:020d}{state}")
        self.path.rename(path)
        self.path, self.state = path, state

    def note(self, header: Header) -> None:
        """Remember a chunk that was written at the end."""
        self._top_ms = max(self._top_ms, header.timestamp_ms)
        positions = self._index_positions
        if not positions or self.size - positions[-1] >= INDEX_EVERY_BYTES:
            self._index_ids.append(header.chunk_id)
            positions.append(self.size)
            self._index_tops_ms.append(self._top_ms)
        self.size += header.chunk_bytes
        self.next_offset = header.next_offset
        self.last_timestamp_ms = header.timestamp_ms
        self.last = header
        if header.type == ChunkType.USER:
            self.user_records += header.records
            self.user_bytes += header.data_bytes

    @property
    def top_ms(self) -> int:
        """The latest time of its chunks; the clock may have been set back behind it.

        A segment with a summary may have a later one behind the last step of its index.
        """
        return max(self._top_ms, self.last_timestamp_ms)

    def written_ms(self) -> int:
        """The time of the last write to the file.

        Raises:
            StorageError: the file is gone.
        """
        try:
            return self.path.stat().st_mtime_ns // 1_000_000
        except OSError as error:
            raise StorageError(f"segment {self.path} cannot be examined: {error}") from error

    def index(self) -> tuple[list[int], list[int], list[int]]:
        """The sparse index: ids, positions and latest times so far."""
        return self._index_ids.tolist(), self._index_positions.tolist(), self._index_tops_ms.tolist()

    def take_index(self, ids: list[int], positions: list[int], tops_ms: list[int]) -> None:
        """Take over an `index`, as if its chunks had been noted."""
        self._index_ids = array("Q", ids)
        self._index_positions = array("Q", positions)
        self._index_tops_ms = array("Q", tops_ms)
        self._top_ms = tops_ms[-1] if tops_ms else 0

    def place_before(self, offset: int) -> tuple[int, int]:
        """Id and position of a chunk at or before the one with `offset`, at most an index step before it."""
        index = bisect_right(self._index_ids, offset) - 1
        return (
            (self._index_ids[index], self._index_positions[index]) if index >= 0 else (self.first_offset, 0)
        )

    def offset_before_time(self, timestamp_ms: int) -> int:
        """The offset of a chunk before the first that is not older than a time, at most an index step before it."""
        index = bisect_left(self._index_tops_ms, timestamp_ms) - 1
        return self._index_ids[index] if index >= 0 else self.first_offset

    def scan(self, on_chunk: OnChunk, *, last: bool, until: int | None = None) -> int:
        """Read and check every chunk before `until`; return the number of octets to cut behind the last whole one.

        Raises:
            Corrupt: a check fails where no torn write explains it.
        """
        length = os.fstat(self.fd()).st_size
        window = _Window(self.fd(), length)
        while self.size < length:
            if until is not None and self.next_offset >= until:
                return length - self.size
            try:
                chunk = self._next_chunk(window, length)
            except ChunkError as error:
                if last and self._is_torn(window.load(self.size, length - self.size)):
                    return length - self.size
                raise Corrupt(
                    str(self.path.parent), self.path.name, self.next_offset, self.size, str(error)
                ) from None
            on_chunk(chunk)
            self.note(chunk.header)
        return 0

    def _is_torn(self, tail: memoryview) -> bool:
        since_ms = self.last_timestamp_ms if self.size else None
        return _is_torn(tail) or is_hole(bytes(tail), self.size, since_ms)

    def _next_chunk(self, window: _Window, length: int) -> Chunk:
        header = decode_header(window.load(self.size, HEADER_BYTES))
        if header.chunk_id != self.next_offset:
            raise ChunkError(f"chunk id is {header.chunk_id}, expected {self.next_offset}")
        missing = self.size + header.chunk_bytes - length
        if missing > 0:
            raise ChunkError(f"the file ends {missing} octets before the chunk does")
        octets = window.load(self.size, header.chunk_bytes)
        middle = HEADER_BYTES + header.data_bytes
        chunk = Chunk(header, octets[HEADER_BYTES:middle], octets[middle:])
        verify(chunk)
        return chunk


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class _Window:
    """The part of a file that a scan reads; not mapped, so that a bad sector is an error instead of a SIGBUS."""

    def __init__(self, fd: int, length: int) -> None:
        self._fd = fd
        self._length = length
        self._view = memoryview(b"")
        self._begin = 0

    def load(self, position: int, size: int) -> memoryview:
        """Up to `size` octets from `position` on."""
        at = position - self._begin
        wanted = min(size, self._length - position)
        if at + wanted > len(self._view):
            count = min(max(size, _READ_BYTES), self._length - position)
            self._view, self._begin, at = memoryview(os.pread(self._fd, count, position)), position, 0
        return self._view[at : at + size]


def _is_torn(tail: memoryview) -> bool:
    """Tell an interrupted append from damage, by all that follows the last whole chunk; see the module."""
    rest = bytes(tail)
    if len(rest) < HEADER_BYTES:
        return True
    try:
        header = decode_header(rest)
    except ChunkError:
        return len(rest.rstrip(b"\0")) < HEADER_BYTES
    if header.chunk_bytes > len(rest):
        return True
    written = len(rest.rstrip(b"\0"))
    return written < header.chunk_bytes and len(rest) - written >= _ZERO_TAIL_BYTES
