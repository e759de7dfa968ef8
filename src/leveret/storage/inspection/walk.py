"""Walks the chunks in a log's files, beside the log itself, and goes on behind damage.

A log (`storage.log`) stops at damage, and belongs to the event loop. Comparisons, checks and rescues walk the log's
directory instead, in a thread. Meanwhile the log may be appended to, its segments may be renamed to enter another
state (see `storage.segment`), and the oldest may be deleted. So a walk ends at a given offset, and takes a missing
segment for dropped unless the segment before it is still there. The outcome of a walk is worthless if the log is cut
or deleted meanwhile; whoever cuts or deletes it discards the outcome. `storage.inspection.next_chunk` finds the next
chunk behind damage.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

from leveret.model.errors import Corrupt
from leveret.storage.inspection.next_chunk import RECORDS_MAX, FoundChunk, KnownChunk, next_chunk
from leveret.storage.segment_file import IncompleteChunk, OnRead, SegmentFile, Unreadable, starts
from leveret.wire.chunk import HEADER_BYTES, Attribute, ChunkError, Header, encode_attribute

HEADERS_BYTES: Final = 64 * 1024
"""The octets of one read by a walk that needs headers alone; larger chunks are skipped."""
_OFFSETS_END: Final = 1 << 64
_CHECK_BYTES: Final = 10


class Damage(NamedTuple):
    """Records that cannot be read: from `offset` up to `next_offset`.

    They are, or were, at `position` of the segment that begins at offset `segment`, -1 for behind its end, and take
    `length` octets; None if octets are missing rather than changed.
    """

    segment: int
    offset: int
    next_offset: int
    position: int
    length: int | None
    what: str

    def error(self, directory: Path) -> Corrupt:
        """The error that the log itself would raise."""
        return Corrupt(str(directory), f"{self.segment:020d}", self.offset, self.position, self.what)


class WalkedChunk(NamedTuple):
    """A chunk with a whole header, directly behind the one before.

    `file` can be read until the walk goes on.
    """

    header: Header
    file: SegmentFile
    position: int

    def fault(self) -> str | None:
        """Read data and trailer; return the fault in them, None for none."""
        header, file = self.header, self.file
        middle = self.position + HEADER_BYTES + header.data_bytes
        end = middle + header.trailer_bytes
        try:
            if file.crc(self.position + HEADER_BYTES, header.data_bytes) != header.crc:
                return "CRC of its data does not match"
            if header.trailer_bytes:
                check_at = max(middle, end - _CHECK_BYTES)
                check = encode_attribute(Attribute.CHECK, b"", file.crc(middle, check_at - middle))
                if file.read(check_at, end - check_at) != check:
                    return "check of its trailer does not match"
        except Unreadable as error:
            return f"it cannot be read: {error}"
        return None

    def damage(self, what: str) -> Damage:
        """The whole chunk, as damage."""
        offset, end, size = self.header.chunk_id, self.header.next_offset, self.header.chunk_bytes
        return Damage(self.file.first_offset, offset, end, self.position, size, what)


def walk(
    directory: Path,
    from_offset: int = 0,
    until_offset: int | None = None,
    *,
    on_read: OnRead | None = None,
    window_bytes: int = HEADERS_BYTES,
    from_disk: bool = False,
) -> Generator[WalkedChunk | Damage, None, None]:
    """Yield every chunk from the one that holds `from_offset` on, by its header alone, and the damage between them.

    Ends before `until_offset`, or at the end of the files if that is None, for a log without appends. `window_bytes`
    and `from_disk` are SegmentFile's.

    Raises:
        StorageError: files cannot be opened; their content may be whole.
    """
    held = starts(directory)
    start = max((each for each in held if each <= from_offset), default=held[0] if held else None)
    while start is not None and (until_offset is None or start < until_offset):
        try:
            file = SegmentFile(directory, start, on_read, window_bytes=window_bytes, from_disk=from_disk)
        except FileNotFoundError:
            start = _after(starts(directory), start)
            continue
        try:
            end = yield from _walk_file(file, from_offset, until_offset)
        finally:
            file.close()
        if until_offset is not None and end >= until_offset:
            return
        start = yield from _step_on(directory, start, end, from_offset, until_offset)


def _after(held: list[int], start: int) -> int | None:
    return next((each for each in held if each > start), None)


def _step_on(
    directory: Path, start: int, end: int, from_offset: int, until_offset: int | None
) -> Generator[Damage, None, int | None]:
    """The segment after the one from `start` to `end`; None if that was the last."""
    held = starts(directory)
    after = _after(held, start)
    # The oldest are dropped first: while this segment exists, no later one was dropped.
    if after != end and start in held:
        if after is None and until_offset is not None:
            yield Damage(start, end, until_offset, -1, None, f"the log ends at offset {end}")
        elif after is not None and max(after, end) > from_offset:
            what = f"the next segment starts at offset {after}, this one ends at {end}"
            yield Damage(start, min(after, end), max(after, end), -1, None, what)
    return after


def _walk_file(
    file: SegmentFile, from_offset: int, until_offset: int | None
) -> Generator[WalkedChunk | Damage, None, int]:
    """Yield the chunks and the damage of one segment; return the offset after it."""
    expected, position = file.first_offset, 0
    while (until_offset is None or expected < until_offset) and file.has(position):
        try:
            header = file.header(position)
            if header.chunk_id != expected:
                raise ChunkError(f"chunk id is {header.chunk_id}, expected {expected}")
        except ChunkError as error:
            damage = _damage(file, position, expected, until_offset, error)
            if damage.next_offset > from_offset or damage.next_offset == expected:
                yield damage
            if damage.length is None:
                return damage.next_offset
            expected, position = damage.next_offset, position + damage.length
        else:
            if header.next_offset > from_offset:
                yield WalkedChunk(header, file, position)
            expected, position = header.next_offset, position + header.chunk_bytes
    return expected


def _damage(
    file: SegmentFile, position: int, expected: int, until_offset: int | None, error: ChunkError
) -> Damage:
    """The damage at a position, up to the next chunk or else to the end of the segment."""
    after = _after(starts(file.directory), file.first_offset)
    if after is not None:
        end = KnownChunk(range(after, after + 1), file.size)
    else:
        # Only the log knows the end of its newest segment.
        end = KnownChunk(range(until_offset or expected + 1, _OFFSETS_END), file.size)
    behind = min(each for each in (after, until_offset, expected + RECORDS_MAX) if each is not None)
    found = next_chunk(file, FoundChunk(expected, position), end, behind)
    if found is not None:
        return Damage(file.first_offset, expected, found[0], position, found[1] - position, str(error))
    length = None if isinstance(error, IncompleteChunk) else file.size - position
    return Damage(
        file.first_offset, expected, after or until_offset or expected, position, length, str(error)
    )
