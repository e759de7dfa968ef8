"""Counts the records at the end of a log before they are cut off; see storage.quarantine."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Final

from leveret.storage.inspection.walk import Damage, WalkedChunk, walk
from leveret.storage.quarantine.report import DivergentLog
from leveret.storage.segment_file import Unreadable, starts
from leveret.wire.chunk import HEADER_BYTES, ChunkError, ChunkType
from leveret.wire.record import decode_settlements
from leveret.wire.relocation import decode_relocation

_MERGE_AT: Final = 64 * 1024
_ENTRY_BYTES: Final = 4


def contents(directory: Path, path: str) -> DivergentLog | None:
    """Count all readable records of the log at `path`, which is in `directory`; None if there is no segment.

    Raises:
        StorageError: files cannot be opened.
    """
    first = next(iter(starts(directory)), None)
    if first is None:
        return None
    log = DivergentLog(path, path.partition("/")[0], None, None, first, first)
    count(directory, log, None, directory)
    return log


def count(directory: Path, log: DivergentLog, until: int | None, quarantined: Path) -> None:
    """Count the records of the log in `directory` from `log.from_offset` on. Reads headers and settlements only.

    For a log that is appended to, `until` ends the range. Records behind it are read from the directory
    `quarantined`, because the log may have grown since its segments were copied there.

    Raises:
        StorageError: files cannot be opened.
    """
    settled, relocated = _Settled(), _Settled()
    log.has_relocated = log.kind == "queues" and starts(directory)[:1] == [log.from_offset]
    for found in walk(directory, log.from_offset, until):
        if isinstance(found, Damage):
            log.damaged += 1
            log.next_offset = max(log.next_offset, found.next_offset)
            continue
        header = found.header
        log.chunks += 1
        log.octets += header.chunk_bytes
        log.next_offset = header.next_offset
        if header.type == ChunkType.TRACKING and log.kind == "queues":
            log.damaged += not _take(settled, found)
        elif header.type == ChunkType.RELOCATION and log.has_relocated:
            log.damaged += not _take_relocated(relocated, found, log.from_offset)
        elif header.type == ChunkType.USER and log.kind == "definitions":
            log.definitions += header.records
        elif header.type == ChunkType.USER and log.kind in ("queues", "streams"):
            log.messages += header.records
    if until is not None and log.is_lost:
        log.settled_to = _settled_behind(quarantined, settled, log.next_offset)
    log.messages += relocated.count(0, log.from_offset)
    if settled.first is not None:
        log.settlements += settled.count_both(relocated)
        _count_settled(directory, log, settled)


def _settled_behind(directory: Path, settled: _Settled, start: int) -> int:
    """Add the settlements of the remaining chunks; return the offset behind them."""
    end = start
    for found in walk(directory, start):
        if isinstance(found, WalkedChunk):
            end = found.header.next_offset
            if found.header.type == ChunkType.TRACKING:
                _take(settled, found)
    return end


def _take(settled: _Settled, place: WalkedChunk) -> bool:
    """Add the settlements of a chunk; return whether they could be read."""
    if place.fault() is not None:
        return False
    start, size = place.position + HEADER_BYTES + _ENTRY_BYTES, place.header.data_bytes - _ENTRY_BYTES
    try:
        for _, first, number in decode_settlements(place.file.read(start, size)):
            settled.add(first, first + number)
    except (ChunkError, Unreadable):
        return False
    return True


def _take_relocated(relocated: _Settled, place: WalkedChunk, before: int) -> bool:
    """Add the messages before an offset that a chunk holds; return whether it could be read."""
    if place.fault() is not None:
        return False
    try:
        data = place.file.read(place.position + HEADER_BYTES, place.header.data_bytes)
        for block in decode_relocation(data):
            if block.first < before:
                relocated.add(block.first, min(block.end, before))
    except (ChunkError, Unreadable):
        return False
    return True


def _count_settled(directory: Path, log: DivergentLog, settled: _Settled) -> None:
    """Count the settled messages: a range may also cover settlement records, and dropped messages."""
    for found in walk(directory, settled.first or 0, log.next_offset):
        if isinstance(found, WalkedChunk) and found.header.type == ChunkType.USER:
            number = settled.count(found.header.chunk_id, found.header.next_offset)
            log.settlements += number
            if found.header.chunk_id < log.from_offset:
                log.settlements_lost += number


class _Settled:
    """Ranges of offsets, in any order at first."""

    def __init__(self) -> None:
        self._new: list[tuple[int, int]] = []
        self._starts = array("Q")
        self._ends = array("Q")

    def add(self, first: int, end: int) -> None:
        self._new.append((first, end))
        if len(self._new) >= _MERGE_AT:
            self._merge()

    @property
    def first(self) -> int | None:
        """The lowest offset, None if it is empty."""
        self._merge()
        return self._starts[0] if self._starts else None

    def count(self, first: int, end: int) -> int:
        """The number of offsets from `first` up to `end` that it holds."""
        self._merge()
        starts, ends = self._starts, self._ends
        at = bisect_right(ends, first)
        total = 0
        while at < len(starts) and starts[at] < end:
            total += min(end, ends[at]) - max(first, starts[at])
            at += 1
        return total

    def count_both(self, other: _Settled) -> int:
        """The number of offsets that both hold."""
        other._merge()
        return sum(self.count(first, end) for first, end in zip(other._starts, other._ends, strict=True))

    def _merge(self) -> None:
        if not self._new:
            return
        every = sorted([*zip(self._starts, self._ends, strict=True), *self._new])
        self._new = []
        self._starts, self._ends = array("Q"), array("Q")
        for first, end in every:
            if self._ends and first <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(first)
                self._ends.append(end)
