"""Reads all of a log again, to find losses of the disk while a copy still exists, and repairs them.

A scrub reads from the disk instead of the page cache, and does not fill the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from leveret.model.errors import StorageError
from leveret.storage.begin import begin_of
from leveret.storage.inspection.walk import Damage, WalkedChunk, walk
from leveret.storage.log_recovery import stray
from leveret.storage.segment_file import STEP_BYTES, OnRead, SegmentFile, open_segment, starts
from leveret.wire.chunk import HEADER_BYTES, ChunkError, Header, decode_chunk


class Scrub:
    """Reads and checks one log's chunks before an offset; iterate over it for the damage, in a thread.

    Attributes:
        chunks: the number of whole chunks so far.
        octets: the size of these chunks.
    """

    def __init__(
        self,
        directory: Path,
        until_offset: int | None,
        *,
        on_read: OnRead | None = None,
        name: str = "",
    ) -> None:
        """`until_offset` is the log's `synced_offset`, up to which it is on disk; None for a log that is not open.

        With the log's `name`, foreign segments and missing first segments are damage too.
        """
        self.chunks = 0
        self.octets = 0
        self._directory = directory
        self._until_offset = until_offset
        self._on_read = on_read
        self._name = name

    def __iter__(self) -> Iterator[Damage]:
        """Yield damage as it is found. Raises StorageError if files cannot be opened."""
        if self._name and (missing := _missing_in_front(self._directory)) is not None:
            yield missing
        before: Header | None = None
        for found in walk(
            self._directory,
            0,
            self._until_offset,
            on_read=self._on_read,
            window_bytes=STEP_BYTES,
            from_disk=True,
        ):
            if isinstance(found, Damage):
                before = None
                yield found
                continue
            what = found.fault() or self._stray(found, before) or None
            before = found.header
            if what is not None:
                yield found.damage(what)
                continue
            self.chunks += 1
            self.octets += found.header.chunk_bytes

    def _stray(self, place: WalkedChunk, before: Header | None) -> str:
        """The reason why a segment with a whole first chunk does not belong to this log; empty if it does."""
        header, middle = place.header, place.position + HEADER_BYTES + place.header.data_bytes
        if place.position or not self._name or not header.trailer_bytes:
            return ""
        if before is not None and before.next_offset != header.chunk_id:
            # The segments in between were dropped meanwhile.
            before = None
        return stray(place.file.read(middle, header.trailer_bytes), self._name, before)


def _missing_in_front(directory: Path) -> Damage | None:
    """The missing first records of a log, by its begin file."""
    found: tuple[int, int] | None = None
    # A drop writes the begin first, then removes files: names that were read in between are read again.
    for _ in range(2):
        begin, held = begin_of(directory), starts(directory)
        if begin is None or not held or held[0] <= begin or found not in (None, (begin, held[0])):
            return None
        found = begin, held[0]
    assert found is not None
    what = f"the log is to begin at offset {found[0]}: segments in front of this one were removed"
    return Damage(found[1], *found, -1, None, what)


def repair(directory: Path, offset: int, octets: bytes, *, on_read: OnRead | None = None) -> None:
    """Replace the damage from `offset` on by chunks from another copy of the log; blocks for the disk.

    `octets` are all damaged chunks, header to trailer. They replace damage only, so a crash half-way leaves damage in
    the same place. The log may be appended to meanwhile, but not cut or deleted.

    Raises:
        StorageError: the chunks are not whole, are others, or do not fit; or the disk refuses or loses them.
    """
    try:
        end = _end_of(octets, offset)
        segment, position = _place_for(directory, offset, end, octets, on_read)
        fd = open_segment(directory, segment, os.O_RDWR)
        try:
            kept = _write(fd, position, octets)
        finally:
            os.close(fd)
    except _RepairRefused as error:
        raise StorageError(f"log {directory}: not mended at offset {offset}: {error}") from error
    except OSError as error:
        raise StorageError(f"log {directory}: cannot be mended at offset {offset}: {error}") from error
    if not kept:
        raise StorageError(
            f"log {directory}: mended at offset {offset}, but the disk gives back other octets; replace it"
        )


class _RepairRefused(Exception):
    """The reason why nothing is written."""


def _end_of(octets: bytes, offset: int) -> int:
    """The offset after these chunks, which begin at `offset`."""
    view = memoryview(octets)
    position = 0
    try:
        while position < len(octets) or not octets:
            header = decode_chunk(view, position).header
            if header.chunk_id != offset:
                raise _RepairRefused(f"the other side sent chunk {header.chunk_id} for it, not {offset}")
            position, offset = position + header.chunk_bytes, header.next_offset
    except ChunkError as error:
        raise _RepairRefused(f"the chunks that the other side sent are damaged: {error}") from error
    return offset


def _place_for(
    directory: Path, offset: int, end: int, octets: bytes, on_read: OnRead | None
) -> tuple[int, int]:
    """Segment and position of the damage that these octets, of records from `offset` to `end`, will replace."""
    with closing(walk(directory, offset, end, on_read=on_read, from_disk=True)) as found:
        first = next(found, None)
        if first is None:
            raise _RepairRefused("it is not in the log any more")
        if isinstance(first, Damage):
            _fit_hole(directory, first, offset, end, len(octets))
            return first.segment, first.position
        if first.file.read(first.position, HEADER_BYTES) != octets[:HEADER_BYTES]:
            raise _RepairRefused("its header is whole, and differs from that of the other side's chunk")
        if first.header.chunk_bytes != len(octets):
            raise _RepairRefused("the other side sent more than the damaged chunk")
        if first.fault() is None:
            raise _RepairRefused("the chunk is whole")
        return first.file.first_offset, first.position


def _fit_hole(directory: Path, hole: Damage, offset: int, end: int, size: int) -> None:
    """Check that the damage has the given size: behind it is the next chunk, or the segment's end.

    The walk's own guess of the end does not count, because a message may look like a chunk.
    """
    if hole.position < 0:
        raise _RepairRefused(hole.what)
    if hole.offset != offset:
        raise _RepairRefused(f"the damage begins at offset {hole.offset}")
    stop = hole.position + size
    with closing(SegmentFile(directory, hole.segment, window_bytes=HEADER_BYTES)) as file:
        if not file.has(stop):
            after = next((start for start in starts(directory) if start > hole.segment), None)
            # The log alone knows the end of its newest segment, because it goes on writing there.
            if after != end and (after is not None or stop != file.size):
                raise _RepairRefused(
                    f"the other side's chunks do not fit the rest of the segment: {hole.what}"
                )
            return
        try:
            header = file.header(stop)
        except ChunkError as error:
            raise _RepairRefused(
                f"there is no chunk behind the {size} octets of the other side: {error}"
            ) from error
    if header.chunk_id != end:
        raise _RepairRefused(
            f"chunk {header.chunk_id} is behind the {size} octets of the other side, which end at offset {end}"
        )


def _write(fd: int, position: int, octets: bytes) -> bool:
    """Write the octets, read them back from the disk, and return whether they are the same."""
    view = memoryview(octets)
    written = 0
    while written < len(octets):
        written += os.pwrite(fd, view[written:], position + written)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return all(
        os.pread(fd, STEP_BYTES, position + at)[: len(octets) - at] == octets[at : at + STEP_BYTES]
        for at in range(0, len(octets), STEP_BYTES)
    )
