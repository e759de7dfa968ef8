"""Chunks where they stand in a log's files, read beside the log itself, and on behind what is damaged.

A log (`storage.log`) stops at damage, and belongs to the event loop. Who compares, checks or rescues what a
log holds walks its directory instead: in a thread, by `pread` on descriptors of its own, at most a mebibyte
at a time, each told to `on_read`, which may wait there, or raise to end the walk. Meanwhile the log may be
appended to, its segments may change their names (only a state, see `storage.segment`) and the oldest may be
deleted: a walk goes up to an offset that was given, never looks at what is behind it, and takes a segment that
is gone for dropped unless the one before it is still there. A log that is cut or deleted during a walk is not
what the walk says; whoever does that throws the outcome away.

**Behind damage.** A chunk whose header is whole says where the next one begins, whatever became of its data.
Otherwise the next chunk is looked for: octets that are a header, with an offset that fits, from which a chain
of headers leads to a place that is known: an entry of the segment's summary, or its end. Messages may look
like chunks, so the chain matters; where a segment is damaged twice, the longest chain is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from isal.isal_zlib import crc32

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.segment import Segment, State
from leveret.storage.summary import Summary
from leveret.wire.chunk import HEADER_BYTES, MAGIC, Attribute, ChunkError, Header, decode_header, encode_attribute

STEP_BYTES: Final = 1024 * 1024
HEADERS_BYTES: Final = 64 * 1024
"""What is read at once by a walk that wants headers alone: chunks that are larger are stepped over."""
_ID_RANGE: Final = 1 << 40
"""No segment holds as many records."""
_PAGE_BYTES: Final = 4096
_CHECK_BYTES: Final = 10
_NAME: Final = re.compile(rf"(\d{{20}})(?:{'|'.join(map(re.escape, State))})")

OnRead: TypeAlias = Callable[[int], None]
"""Told how many octets were just read."""


class Damage(NamedTuple):
    """What cannot be read: records from `offset` up to `next_offset`, at `position` in the segment that begins at
    offset `segment`. `length` is that of the hole, None if no octets stand for what is missing."""

    segment: int
    offset: int
    next_offset: int
    position: int
    length: int | None
    what: str

    def error(self, directory: Path) -> Corrupt:
        """As the log itself would report it."""
        return Corrupt(str(directory), f"{self.segment:020d}", self.offset, self.position, self.what)


class Place(NamedTuple):
    """A chunk with a whole header that fits what is before it; `file` can be read until the walk goes on."""

    header: Header
    file: SegmentFile
    position: int

    def octets(self) -> Iterator[memoryview]:
        """The chunk, header to trailer, in pieces. Raises OSError."""
        return self.file.pieces(self.position, self.header.chunk_bytes)

    def fault(self) -> str | None:
        """Read data and trailer; what is wrong with them, None if nothing is."""
        header, file = self.header, self.file
        middle = self.position + HEADER_BYTES + header.data_bytes
        end = middle + header.trailer_bytes
        try:
            if file.crc(self.position + HEADER_BYTES, header.data_bytes) != header.crc:
                return "CRC of its data does not match"
            if header.trailer_bytes:
                covered = max(0, header.trailer_bytes - _CHECK_BYTES)
                check = encode_attribute(Attribute.CHECK, b"", file.crc(middle, covered))
                if file.read(middle + covered, end - middle - covered) != check:
                    return "check of its trailer does not match"
        except OSError as error:
            return f"it cannot be read: {error}"
        return None

    def damage(self, what: str) -> Damage:
        """The chunk as a damaged one."""
        header = self.header
        return Damage(
            self.file.first_offset,
            header.chunk_id,
            header.next_offset,
            self.position,
            header.chunk_bytes,
            what,
        )


class SegmentFile:
    """One segment, opened for reading whatever state it is in; it may lose its name meanwhile.

    Attributes:
        size: octets in it, as far as was looked.
    """

    def __init__(
        self, directory: Path, first_offset: int, on_read: OnRead, *, window_bytes: int, from_disk: bool
    ) -> None:
        """Open it; `from_disk`: what memory holds of it is not trusted, and left as little as it was found.

        Raises:
            FileNotFoundError: it is gone, or never was.
            StorageError: it may not be opened.
        """
        self.directory = directory
        self.first_offset = first_offset
        self.path, self._fd = _open(directory, first_offset)
        self._on_read = on_read
        self._window_bytes = window_bytes
        self._from_disk = from_disk
        self._window = memoryview(b"")
        self._begin = 0
        self.size = os.fstat(self._fd).st_size
        if from_disk:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def ends_at(self, position: int) -> bool:
        """Whether nothing stands at and behind `position`; looks again whether the file grew."""
        if position >= self.size:
            self.size = os.fstat(self._fd).st_size
        return position >= self.size

    def read(self, position: int, size: int) -> memoryview:
        """Those octets, all of them.

        Raises:
            OSError: they are not there, or the disk cannot read them.
        """
        at = position - self._begin
        if at < 0 or at + size > len(self._window):
            self._window, self._begin, at = memoryview(self._load(position, size)), position, 0
            if len(self._window) < size:
                raise OSError(f"{len(self._window)} of {size} octets are there")
        return self._window[at : at + size]

    def _load(self, position: int, size: int) -> bytes:
        try:
            return self._pread(position, max(size, self._window_bytes))
        except OSError:
            # What is asked for may be good, and only what is behind it bad.
            return self._pread(position, size)

    def _pread(self, position: int, size: int) -> bytes:
        octets = os.pread(self._fd, size, position)
        if self._from_disk:
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)
        self._on_read(len(octets))
        return octets

    def pieces(self, position: int, size: int) -> Iterator[memoryview]:
        """The octets in pieces of at most a mebibyte. Raises OSError as `read`."""
        end = position + size
        while position < end:
            piece = self.read(position, min(STEP_BYTES, end - position))
            yield piece
            position += len(piece)

    def crc(self, position: int, size: int, crc: int = 0) -> int:
        """CRC-32 of the octets, and of what `crc` is that of before them. Raises OSError as `read`."""
        for piece in self.pieces(position, size):
            crc = crc32(piece, crc)
        return crc

    def header(self, position: int) -> Header:
        """The header there, of a chunk that is in the file as a whole.

        Raises:
            ChunkError: there is none.
        """
        try:
            header = decode_header(self.read(position, HEADER_BYTES))
        except OSError as error:
            raise ChunkError(f"its header cannot be read: {error}") from error
        missing = position + header.chunk_bytes - self.size
        if missing > 0 and self.ends_at(position + header.chunk_bytes - 1):
            raise _CutShort(f"the file ends {missing} octets before the chunk does")
        return header

    def find(self, pattern: re.Pattern[bytes], position: int, end: int) -> Iterator[int]:
        """Where the pattern, which is no longer than a header, begins from `position` on and before `end`."""
        while position < end:
            octets = self._readable(position, min(STEP_BYTES, end - position) + HEADER_BYTES)
            for match in pattern.finditer(octets):
                if match.start() < min(STEP_BYTES, end - position):
                    yield position + match.start()
            position += STEP_BYTES

    def _readable(self, position: int, size: int) -> bytes:
        """What is there; zeros for pages that the disk cannot read."""
        try:
            return self._pread(position, size)
        except OSError:
            pages = range(position, position + size, _PAGE_BYTES)
            return b"".join([self._page(page, min(_PAGE_BYTES, position + size - page)) for page in pages])

    def _page(self, position: int, size: int) -> bytes:
        try:
            return self._pread(position, size)
        except OSError:
            return bytes(size)


class _CutShort(ChunkError):
    """Its file ends before the chunk does."""


def starts(directory: Path) -> list[int]:
    """First offsets of the log's segments, in order; none if it is gone.

    Raises:
        StorageError: the directory may not be read.
    """
    found: set[int] = set()
    try:
        # A name that changes while names are read may be missed: not twice.
        for _ in range(2):
            found.update(int(match[1]) for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise StorageError(f"log {directory}: cannot be read: {error}") from error
    return sorted(found)


def _open(directory: Path, first_offset: int, flags: int = os.O_RDONLY) -> tuple[Path, int]:
    # States are tried in the order that a segment has them; twice, for one that was cut is the newest again.
    for state in (*State, *State):
        path = directory / f"{first_offset:020d}{state}"
        try:
            return path, os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(
                f"log {directory}: segment {path.name} cannot be opened: {error}"
            ) from error
    raise FileNotFoundError(f"log {directory}: there is no segment {first_offset:020d}")


def open_to_write(directory: Path, first_offset: int) -> int:
    """A descriptor to write to that segment in place; the caller's to close. Raises as SegmentFile."""
    return _open(directory, first_offset, os.O_RDWR)[1]


def walk(
    directory: Path,
    from_offset: int = 0,
    until_offset: int | None = None,
    *,
    on_read: OnRead | None = None,
    window_bytes: int = HEADERS_BYTES,
    from_disk: bool = False,
) -> Iterator[Place | Damage]:
    """Every chunk from the one that holds `from_offset` on, header checked, and what is not readable as one.

    Before `until_offset`: all there is without one, for a log that nobody appends to.

    Raises:
        StorageError: files cannot be opened, which says nothing of what is in them.
    """
    held = starts(directory)
    start = max((each for each in held if each <= from_offset), default=held[0] if held else None)
    while start is not None and (until_offset is None or start < until_offset):
        try:
            file = SegmentFile(
                directory, start, on_read or _unheard, window_bytes=window_bytes, from_disk=from_disk
            )
        except FileNotFoundError:
            start = _after(directory, start)
            continue
        try:
            end = yield from _walk_file(file, from_offset, until_offset)
        finally:
            file.close()
        if until_offset is not None and end >= until_offset:
            return
        start = yield from _step_on(directory, start, end, until_offset)


def _unheard(octets: int) -> None:
    """Nobody waits."""


def _after(directory: Path, start: int) -> int | None:
    return min((each for each in starts(directory) if each > start), default=None)


def _step_on(
    directory: Path, start: int, end: int, until_offset: int | None
) -> Iterator[Damage] | Iterator[int | None]:
    raise NotImplementedError
