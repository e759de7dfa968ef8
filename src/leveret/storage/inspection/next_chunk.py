"""Finds the next chunk behind a damaged one, so that a reader of the segment can go on.

A chunk whose header is whole gives the begin of the next one, whatever happened to its data. A damaged header may
still have the right length: then a header stands at that position. Otherwise octets are searched for a header from
which further headers lead to a known position: one in the segment's summary, or the segment's end. They must lead
there, because a message may look like chunks. If no header does, everything up to the known position is damage.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from leveret.storage.segment import Segment, SegmentState
from leveret.storage.segment_file import SegmentFile
from leveret.storage.summary import Summary
from leveret.wire.chunk import HEADER, HEADER_BYTES, MAGIC, ChunkError, ChunkType

RECORDS_MAX: Final = 1 << 40
"""No segment holds as many."""


class FoundChunk(NamedTuple):
    """A chunk: its offset and its position."""

    chunk_id: int
    position: int


class KnownChunk(NamedTuple):
    """The known chunk that headers must lead to: one of the offsets `ids`, at `position`."""

    ids: range
    position: int

    @property
    def spot(self) -> FoundChunk | None:
        """The chunk there, if only one offset is possible."""
        return FoundChunk(self.ids.start, self.position) if self.ids.stop == self.ids.start + 1 else None


def next_chunk(file: SegmentFile, damaged: FoundChunk, end: KnownChunk, behind: int) -> FoundChunk | None:
    """The chunk behind the damaged one and before the offset `behind`, or else the one at `end`; None if unknown."""
    found = _by_lengths(file, damaged, end)
    if found is not None:
        return found
    known = _summarised(file, damaged)
    goal = end if known is None else KnownChunk(range(known.chunk_id, known.chunk_id + 1), known.position)
    ids = range(damaged.chunk_id + 1, behind if known is None else min(behind, known.chunk_id))
    passed: set[int] = set()
    for start in file.find(_headers_like(ids), damaged.position + 1, goal.position) if ids else ():
        chunk_id = _leads_to(file, start, ids, goal, passed)
        if chunk_id is not None:
            return FoundChunk(chunk_id, start)
    return known


def _by_lengths(file: SegmentFile, damaged: FoundChunk, goal: KnownChunk) -> FoundChunk | None:
    """The chunk at the end of the damaged one, if the lengths in the damaged header are still right."""
    octets = file.readable(damaged.position, HEADER_BYTES)
    if len(octets) < HEADER_BYTES:
        return None
    *_, data_bytes, trailer_bytes, _, _, _ = HEADER.unpack(octets)
    end = damaged.position + HEADER_BYTES + data_bytes + trailer_bytes
    if end == goal.position:
        return goal.spot
    try:
        chunk_id = file.header(end).chunk_id
    except ChunkError:
        return None
    fits = damaged.chunk_id < chunk_id < min(goal.ids.stop, damaged.chunk_id + RECORDS_MAX)
    return FoundChunk(chunk_id, end) if fits else None


def _summarised(file: SegmentFile, damaged: FoundChunk) -> FoundChunk | None:
    """The next chunk in the segment's summary."""
    summary = Summary.load(Segment(file.directory, file.first_offset, SegmentState.SEALED))
    ids, positions, _ = summary.index if summary else ((), (), ())
    spots = map(FoundChunk, ids, positions)
    return next(
        (each for each in spots if each.chunk_id > damaged.chunk_id and each.position > damaged.position),
        None,
    )


def _headers_like(ids: range) -> re.Pattern[bytes]:
    """A pattern for the header of a chunk with one of these offsets."""
    first, last = ids[0].to_bytes(8, "big"), ids[-1].to_bytes(8, "big")
    same = next((n for n in range(8) if first[n] != last[n]), 8)
    # A look-ahead, because a header may begin inside octets that only look like a header.
    kinds = b"[" + re.escape(bytes(ChunkType)) + b"]"
    return re.compile(
        re.escape(bytes([MAGIC])) + b"(?=" + kinds + b".{22}" + re.escape(first[:same]) + b")", re.DOTALL
    )


def _leads_to(file: SegmentFile, start: int, ids: range, goal: KnownChunk, passed: set[int]) -> int | None:
    """The offset of the chunk whose header is at `start`, if it is in `ids` and leads to the goal; else None.

    `passed` are the positions of headers that do not lead there.
    """
    places: set[int] = set()
    first_id = -1
    next_id, position = -1, start
    while position < goal.position and position not in passed:
        try:
            header = file.header(position)
        except ChunkError:
            # More is damaged; the chunks behind the damage still have their positions.
            found = None if first_id < 0 else _by_lengths(file, FoundChunk(next_id, position), goal)
            if found is None:
                break
        else:
            if first_id < 0:
                first_id = next_id = header.chunk_id
            if header.chunk_id != next_id or first_id not in ids or not header.records:
                break
            found = FoundChunk(header.next_offset, position + header.chunk_bytes)
        places.add(position)
        next_id, position = found
    if position == goal.position and next_id in goal.ids:
        return first_id
    passed |= places
    return None
