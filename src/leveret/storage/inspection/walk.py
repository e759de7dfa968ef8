"""Chunks where they stand in a log's files, read beside the log itself, and on behind what is damaged.

A log (`storage.log`) stops at damage, and belongs to the event loop. Who compares, checks or rescues what a
log holds walks its directory instead, in a thread. Meanwhile the log may be appended to, its segments may
change their names (that is a state, see `storage.segment`) and the oldest may be deleted: a walk goes up to
an offset that it was given, never looks at what is behind it, and takes a segment that is gone for dropped
unless the one before it is still there. A log that is cut or deleted during a walk is not what the walk says
it is; whoever does that throws the outcome away. How it goes on behind damage: see `storage.inspection.next_chunk`.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

from leveret.model.errors import Corrupt
from leveret.storage.inspection.next_chunk import RECORDS_MAX, Goal, Spot, next_chunk
from leveret.storage.segment_file import CutShort, OnRead, SegmentFile, Unreadable, starts
from leveret.wire.chunk import HEADER_BYTES, Attribute, ChunkError, Header, encode_attribute

HEADERS_BYTES: Final = 64 * 1024
"""Read at once by a walk that wants headers alone; chunks that are larger are stepped over."""
_OFFSETS_END: Final = 1 << 64
_CHECK_BYTES: Final = 10


class Damage(NamedTuple):
    """Records that cannot be read: from `offset` up to `next_offset`.

    They stand, or stood, at `position` of the segment that begins at offset `segment`, -1 for behind its end, in
    `length` octets; None if octets are missing and not just other ones.
    """

    segment: int
    offset: int
    next_offset: int
    position: int
    length: int | None
    what: str

    def error(self, directory: Path) -> Corrupt:
        """As the log itself would report it."""
        return Corrupt(str(directory), f"{self.segment:020d}", self.offset, self.position, self.what)


class WalkedChunk(NamedTuple):
    """Where a chunk is: its header is whole, and what is before it ends where it begins.

    `file` can be read until the walk goes on.
    """

    header: Header
    file: SegmentFile
    position: int

    def fault(self) -> str | None:
        """What is wrong with its data and trailer, which are read for it; None: nothing."""
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
        """All of it, as damage."""
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
    """Every chunk from the one that holds `from_offset` on, by its header alone, and what is not readable as one.

    Ends before `until_offset`; without one, where the files do: for a log that nobody appends to. `window_bytes`
    and `from_disk` are as of SegmentFile.

    Raises:
        StorageError: files cannot be opened, which says nothing of what is in them.
    """
    held = starts(directory)
    start = max((each for each in held if each <= from_offset), default=held[0] if held else None)
    while start is not None and (until_offset is None or start < until_offset):
        try:
            file = SegmentFile(
                directory, start, on_read or _ignore, window_bytes=window_bytes, from_disk=from_disk
            )
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


def _ignore(octets: int) -> None:
    """Nobody waits."""


def _after(held: list[int], start: int) -> int | None:
    return next((each for each in held if each > start), None)


def _step_on(
    directory: Path, start: int, end: int, from_offset: int, until_offset: int | None
) -> Generator[Damage, None, int | None]:
    """The segment after the one that began at `start` and ended at `end`; None if that was the last."""
    held = starts(directory)
    after = _after(held, start)
    # The oldest are dropped first: as long as this one is there, nothing behind it was dropped.
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
    """What is in one segment; returns the offset after it."""
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
    """The damage that begins there, up to the next chunk or else to the end of the segment."""
    after = _after(starts(file.directory), file.first_offset)
    if after is not None:
        end = Goal(range(after, after + 1), file.size)
    else:
        # Only the log knows where its newest segment has to end.
        end = Goal(range(until_offset or expected + 1, _OFFSETS_END), file.size)
    behind = min(each for each in (after, until_offset, expected + RECORDS_MAX) if each is not None)
    found = next_chunk(file, Spot(expected, position), end, behind)
    if found is not None:
        return Damage(file.first_offset, expected, found[0], position, found[1] - position, str(error))
    length = None if isinstance(error, CutShort) else file.size - position
    return Damage(
        file.first_offset, expected, after or until_offset or expected, position, length, str(error)
    )
