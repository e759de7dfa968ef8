"""The next chunk behind one that is damaged, so that what reads a segment can go on.

A chunk whose header is whole says where the next one begins, whatever became of its data. What is left of a
damaged header may say it too: then a header stands there. Otherwise octets are looked for that are a header, and
from which headers lead on to a place that is known: one that the segment's summary names, or the segment's end.
They must, for a message may look like chunks. Where none do, all up to such a place is damage.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from leveret.storage.segment import Segment, SegmentState
from leveret.storage.segment_file import SegmentFile
from leveret.storage.summary import Summary
from leveret.wire.chunk import HEADER, HEADER_BYTES, MAGIC, ChunkError

RECORDS_MAX: Final = 1 << 40
"""No segment holds as many."""


class Spot(NamedTuple):
    """A chunk by its offset, and where it is."""

    chunk_id: int
    position: int


class Goal(NamedTuple):
    """Where headers have to lead: to one of these offsets at `position`."""

    ids: range
    position: int

    @property
    def spot(self) -> Spot | None:
        """The chunk there, if it can only be one."""
        return Spot(self.ids.start, self.position) if self.ids.stop == self.ids.start + 1 else None


def next_chunk(file: SegmentFile, damaged: Spot, end: Goal, behind: int) -> Spot | None:
    """What is behind the damaged chunk and before the offset `behind`, or else at `end`; None: that is not known."""
    found = _by_lengths(file, damaged, end)
    if found is not None:
        return found
    known = _summarised(file, damaged)
    goal = end if known is None else Goal(range(known.chunk_id, known.chunk_id + 1), known.position)
    ids = range(damaged.chunk_id + 1, behind if known is None else min(behind, known.chunk_id))
    passed: set[int] = set()
    for start in file.find(_headers_like(ids), damaged.position + 1, goal.position) if ids else ():
        chunk_id = _leads_to(file, start, ids, goal, passed)
        if chunk_id is not None:
            return Spot(chunk_id, start)
    return known


def _by_lengths(file: SegmentFile, damaged: Spot, goal: Goal) -> Spot | None:
    """What stands where the damaged chunk ends, if the lengths in its header are still right."""
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
    return Spot(chunk_id, end) if fits else None


def _summarised(file: SegmentFile, damaged: Spot) -> Spot | None:
    """A chunk further on that the segment's summary knows."""
    summary = Summary.load(Segment(file.directory, file.first_offset, SegmentState.SEALED))
    ids, positions, _ = summary.index if summary else ((), (), ())
    spots = map(Spot, ids, positions)
    return next(
        (each for each in spots if each.chunk_id > damaged.chunk_id and each.position > damaged.position),
        None,
    )


def _headers_like(ids: range) -> re.Pattern[bytes]:
    """What the header of a chunk of one of these offsets looks like."""
    first, last = ids[0].to_bytes(8, "big"), ids[-1].to_bytes(8, "big")
    same = next((n for n in range(8) if first[n] != last[n]), 8)
    # A look ahead: a header may begin inside of what only looks like one.
    return re.compile(
        re.escape(bytes([MAGIC])) + rb"(?=[\x00-\x03].{22}" + re.escape(first[:same]) + rb")", re.DOTALL
    )


def _leads_to(file: SegmentFile, start: int, ids: range, goal: Goal, passed: set[int]) -> int | None:
    """The offset of the chunk whose header stands at `start`, if it is one of `ids` and leads to the goal; else None.

    `passed` are the places of headers that do not lead there.
    """
    places: set[int] = set()
    first_id = -1
    next_id, position = -1, start
    while position < goal.position and position not in passed:
        try:
            header = file.header(position)
        except ChunkError:
            # More is damaged; as long as it was, what is behind it is still where it was.
            found = None if first_id < 0 else _by_lengths(file, Spot(next_id, position), goal)
            if found is None:
                break
        else:
            if first_id < 0:
                first_id = next_id = header.chunk_id
            if header.chunk_id != next_id or first_id not in ids or not header.records:
                break
            found = Spot(header.next_offset, position + header.chunk_bytes)
        places.add(position)
        next_id, position = found
    if position == goal.position and next_id in goal.ids:
        return first_id
    passed |= places
    return None
