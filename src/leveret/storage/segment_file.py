"""Reads a segment's file beside its log: in a thread, by `pread` on a descriptor of its own.

At most a mebibyte is read at a time and reported to `on_read`, which may wait, or raise to end the reading.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from isal.isal_zlib import crc32

from leveret.model.errors import StorageError
from leveret.storage.segment import SegmentState, segment_of
from leveret.wire.chunk import HEADER_BYTES, ChunkError, Header, decode_header

STEP_BYTES: Final = 1024 * 1024
_PAGE_BYTES: Final = 4096

OnRead: TypeAlias = Callable[[int], None]
"""Called with the number of octets that were just read."""


class Unreadable(StorageError):
    """Octets are missing, or the disk cannot read them."""


class IncompleteChunk(ChunkError):
    """The file ends before the chunk does."""


class SegmentFile:
    """One segment in any state; the file may be renamed or removed meanwhile.

    Attributes:
        size: the file's size when it was last checked.
    """

    def __init__(
        self,
        directory: Path,
        first_offset: int,
        on_read: OnRead | None = None,
        *,
        window_bytes: int = STEP_BYTES,
        from_disk: bool = False,
    ) -> None:
        """Open the file, to read at least `window_bytes` at once.

        With `from_disk`, reads bypass the page cache and do not fill it.

        Raises:
            FileNotFoundError: the file does not exist.
            StorageError: the file may not be opened.
        """
        self.directory = directory
        self.first_offset = first_offset
        self.fd = open_segment(directory, first_offset)
        self._on_read = on_read or _ignore
        self._window_bytes = window_bytes
        self._from_disk = from_disk
        self._window = memoryview(b"")
        self._begin = 0
        self.size = os.fstat(self.fd).st_size
        if from_disk:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def has(self, position: int) -> bool:
        """Whether there is an octet at `position`; checks the size again if there was none."""
        if position >= self.size:
            self.size = os.fstat(self.fd).st_size
        return position < self.size

    def read(self, position: int, size: int) -> memoryview:
        """All `size` octets at `position`.

        Raises:
            Unreadable: some of them cannot be read.
        """
        at = position - self._begin
        if at < 0 or at + size > len(self._window):
            self._window, self._begin, at = memoryview(self._load(position, size)), position, 0
            if len(self._window) < size:
                raise Unreadable(f"{len(self._window)} of {size} octets are there")
        return self._window[at : at + size]

    def _load(self, position: int, size: int) -> bytes:
        try:
            return self._pread(position, max(size, self._window_bytes))
        except Unreadable:
            # The requested octets may be good, and only the following ones bad.
            return self._pread(position, size)

    def _pread(self, position: int, size: int) -> bytes:
        try:
            octets = os.pread(self.fd, size, position)
        except OSError as error:
            raise Unreadable(str(error)) from error
        if self._from_disk:
            os.posix_fadvise(self.fd, position, size, os.POSIX_FADV_DONTNEED)
        self._on_read(len(octets))
        return octets

    def pieces(self, position: int, size: int) -> Iterator[memoryview]:
        """The octets in pieces of at most a mebibyte. Raises Unreadable."""
        end = position + size
        while position < end:
            piece = self.read(position, min(STEP_BYTES, end - position))
            yield piece
            position += len(piece)

    def crc(self, position: int, size: int, crc: int = 0) -> int:
        """The CRC-32 of those octets, continuing from `crc`. Raises Unreadable."""
        for piece in self.pieces(position, size):
            crc = crc32(piece, crc)
        return crc

    def header(self, position: int) -> Header:
        """The header at `position` of a chunk that is wholly in the file.

        Raises:
            ChunkError: there is no such chunk.
        """
        if not self.has(position + HEADER_BYTES - 1):
            raise IncompleteChunk(f"the file ends {max(0, self.size - position)} octets into a header")
        try:
            header = decode_header(self.read(position, HEADER_BYTES))
        except Unreadable as error:
            raise ChunkError(f"its header cannot be read: {error}") from error
        end = position + header.chunk_bytes
        if not self.has(end - 1):
            raise IncompleteChunk(f"the file ends {end - self.size} octets before the chunk does")
        return header

    def find(self, pattern: re.Pattern[bytes], position: int, end: int) -> Iterator[int]:
        """Yield the positions of a pattern, which is no longer than a header, from `position` up to `end`."""
        while position < end:
            count = min(STEP_BYTES, end - position)
            for match in pattern.finditer(self.readable(position, count + HEADER_BYTES)):
                if match.start() < count:
                    yield position + match.start()
            position += count

    def readable(self, position: int, size: int) -> bytes:
        """The octets at a position; zeros for pages that the disk cannot read."""
        try:
            return self._pread(position, size)
        except Unreadable:
            pages = range(position, min(position + size, self.size), _PAGE_BYTES)
            return b"".join([self._page(page, min(_PAGE_BYTES, position + size - page)) for page in pages])

    def _page(self, position: int, size: int) -> bytes:
        try:
            return self._pread(position, size)
        except Unreadable:
            return bytes(size)


def starts(directory: Path) -> list[int]:
    """First offsets of a log's segments, in order; none if the log is gone.

    Raises:
        StorageError: the directory may not be read.
    """
    found: set[int] = set()
    try:
        # One pass can miss a file that is renamed meanwhile; a second one does not.
        for _ in range(2):
            found.update(each[0] for each in map(segment_of, os.listdir(directory)) if each)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise StorageError(f"log {directory}: cannot be read: {error}") from error
    return sorted(found)


def open_segment(directory: Path, first_offset: int, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the segment that begins at this offset, for the caller to close.

    Raises:
        FileNotFoundError: there is no such segment.
        StorageError: the file may not be opened.
    """
    # In the order of a segment's states; twice, because a cut makes a segment the newest again.
    for state in (*SegmentState, *SegmentState):
        path = directory / f"{first_offset:020d}{state}"
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"log {directory}: segment {path.name} cannot be opened: {error}") from error
    raise FileNotFoundError(f"log {directory}: no segment begins at offset {first_offset}")


def _ignore(octets: int) -> None:
    """Do nothing."""
