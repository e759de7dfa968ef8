"""A checksum over a range of a log, by which two nodes compare their chunks.

It covers the chunks' headers, which carry the CRCs of the data: so it is made as fast as headers are read, and finds
a chunk that was replaced by another one. A deep digest reads and checks all octets, trailers too; only a deep one
finds losses of the disk. The digest does not depend on the bounds of segments.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from leveret.model.errors import StorageError
from leveret.storage.inspection.walk import HEADERS_BYTES, Damage, walk
from leveret.storage.segment_file import STEP_BYTES, OnRead, Unreadable
from leveret.wire.chunk import HEADER_BYTES


class Digest(NamedTuple):
    """A digest of the chunks in a range: their number, octets and CRC-32."""

    chunks: int
    octets: int
    crc: int


class RangeGone(StorageError):
    """The range begins before the log does: all records before `first_offset` were dropped."""

    def __init__(self, directory: Path, from_offset: int, first_offset: int) -> None:
        super().__init__(
            f"log {directory}: offset {from_offset} is not held any more; compare from {first_offset} on"
        )
        self.first_offset = first_offset


def digest(
    directory: Path, from_offset: int, to_offset: int, *, deep: bool = False, on_read: OnRead | None = None
) -> Digest:
    """Compute the digest of all chunks from `from_offset` up to `to_offset`, each wholly inside; for a thread.

    Raises:
        Corrupt: a chunk in the range is damaged.
        RangeGone: a part of the range was dropped, perhaps just now.
        StorageError: files cannot be opened.
    """
    chunks = octets = crc = 0
    expected = from_offset
    window_bytes = STEP_BYTES if deep else HEADERS_BYTES
    for found in walk(
        directory, from_offset, to_offset, on_read=on_read, window_bytes=window_bytes, from_disk=deep
    ):
        if isinstance(found, Damage):
            raise found.error(directory)
        header, file, position = found
        if header.chunk_id > expected:
            raise RangeGone(directory, expected, header.chunk_id)
        expected = header.next_offset
        if header.chunk_id < from_offset or header.next_offset > to_offset:
            continue
        what = found.fault() if deep else None
        if what is not None:
            raise found.damage(what).error(directory)
        try:
            crc = file.crc(position, header.chunk_bytes if deep else HEADER_BYTES, crc)
        except Unreadable as error:
            raise found.damage(f"it cannot be read: {error}").error(directory) from error
        chunks += 1
        octets += header.chunk_bytes
    if expected < to_offset:
        raise RangeGone(directory, expected, to_offset)
    return Digest(chunks, octets, crc)
