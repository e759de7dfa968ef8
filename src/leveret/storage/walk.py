"""Chunks where they stand in a log's files, read beside the log itself, and on behind what is damaged.

A log (`storage.log`) stops at damage, and belongs to the event loop. Who compares, checks or rescues what a
log holds walks its directory instead, in a thread. Meanwhile the log may be appended to, its segments may
change their names (that is a state, see `storage.segment`) and the oldest may be deleted: a walk goes up to
an offset that it was given, never looks at what is behind it, and takes a segment that is gone for dropped
unless the one before it is still there. A log that is cut or deleted during a walk is not what the walk says
it is; whoever does that throws the outcome away.

**Behind damage.** A chunk whose header is whole says where the next one begins, whatever became of its data.
Otherwise the next chunk is looked for: octets that are a header, of an offset that fits, from which headers
lead on to a place that is known: one that the segment's summary names, or the segment's end. A message may
look like chunks, that is why they must. When none does, as more is damaged before that place, all up to one
that the summary names is damage; without a summary the header is taken that leads furthest.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

from leveret.model.errors import Corrupt
from leveret.storage.segment import Segment, State
from leveret.storage.segment_file import CutShort, OnRead, SegmentFile, Unreadable, starts
from leveret.storage.summary import Summary
from leveret.wire.chunk import HEADER_BYTES, MAGIC, Attribute, ChunkError, Header, encode_attribute

HEADERS_BYTES: Final = 64 * 1024
"""Read at once by a walk that wants headers alone; chunks that are larger are stepped over."""
_RECORDS_MAX: Final = 1 << 40
"""No segment holds as many."""
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


class Place(NamedTuple):
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
) -> Generator[Place | Damage, None, None]:
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
                directory, start, on_read or _unheard, window_bytes=window_bytes, from_disk=from_disk
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


def _unheard(octets: int) -> None:
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
) -> Generator[Place | Damage, None, int]:
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
                yield Place(header, file, position)
            expected, position = header.next_offset, position + header.chunk_bytes
    return expected


def _damage(
    file: SegmentFile, position: int, expected: int, until_offset: int | None, error: ChunkError
) -> Damage:
    """The damage that begins there, up to the next chunk or else to the end of the segment."""
    after = _after(starts(file.directory), file.first_offset)
    found = _next_chunk(file, position, expected, after)
    length: int | None
    if found is not None:
        next_offset, length = found[0], found[1] - position
    else:
        next_offset = after or until_offset or expected
        length = None if isinstance(error, CutShort) else file.size - position
    return Damage(file.first_offset, expected, next_offset, position, length, str(error))


# -- looking for the next chunk -------------------------------------------------------------------


def _next_chunk(file: SegmentFile, position: int, expected: int, after: int | None) -> tuple[int, int] | None:
    """Offset and position of the first chunk behind the one of offset `expected`, which is not whole.

    `after` is where the next segment begins, None if there is none.
    """
    known = _summarised(file, position, expected)
    end_id, end = known or (after, file.size)
    pattern = _headers_like(expected + 1, expected + _RECORDS_MAX if end_id is None else end_id)
    best: tuple[int, int] | None = None
    reached = position
    passed: set[int] = set()
    for start in file.find(pattern, position + 1, end):
        if start in passed:
            continue
        chunk_id, last_id, last = _chain(file, start, end, passed)
        if not expected < chunk_id < last_id or (end_id is not None and (last_id > end_id or last > end)):
            continue
        if last == end and end_id in (None, last_id):
            return chunk_id, start
        if last > reached:
            best, reached = (chunk_id, start), last
    return known or best


def _summarised(file: SegmentFile, position: int, expected: int) -> tuple[int, int] | None:
    """A chunk further on that the segment's summary knows."""
    summary = Summary.load(Segment(file.directory, file.first_offset, State.SEALED))
    ids, positions, _ = summary.index if summary else ((), (), ())
    places = zip(ids, positions, strict=True)
    return next(((chunk_id, at) for chunk_id, at in places if at > position and chunk_id > expected), None)


def _headers_like(low: int, high: int) -> re.Pattern[bytes]:
    """What the header of a chunk looks like whose offset is from `low` to `high`."""
    first, last = low.to_bytes(8, "big"), min(high, (1 << 64) - 1).to_bytes(8, "big")
    same = next((n for n in range(8) if first[n] != last[n]), 8)
    # A look ahead: a header may begin inside of what only looks like one.
    return re.compile(
        re.escape(bytes([MAGIC])) + rb"(?=[\x00-\x02].{22}" + re.escape(first[:same]) + rb")", re.DOTALL
    )


def _chain(file: SegmentFile, position: int, end: int, passed: set[int]) -> tuple[int, int, int]:
    """Follow headers from `position`: the first's offset, and the offset and position after the last before `end`.

    `passed` has the places of all headers of all chains; a chain that meets one ends there, as that one did not
    lead to the end.
    """
    first_id = next_id = -1
    while position < end and position not in passed:
        try:
            header = file.header(position)
        except ChunkError:
            break
        if next_id not in (-1, header.chunk_id):
            break
        if next_id == -1:
            first_id = header.chunk_id
        passed.add(position)
        next_id, position = header.next_offset, position + header.chunk_bytes
    return first_id, next_id, position
