"""Holes: pages of an unfinished append that did not reach the disk although later ones did.

What is appended between two syncs may be written by the kernel in any order of its pages, so power loss
can leave whole chunks behind one that is missing in part. Nothing of that was promised; but was it the
power, or did chunks rot that had been synced? No mark on disk can tell for certain: whatever says "synced
up to here" could itself only be relied on after another sync, before each confirm. So it is told by looks:

- a page that did not arrive is zero, to its end, from its begin or from the end of what had been written
  to it before, which is where the first chunk begins that is not whole;
- a round of syncs lasts no longer than UNSYNCED_MS: had the log gone on for longer after the damaged chunk,
  then that chunk had been synced, and is damage.

A flipped bit, a cut in the middle or octets of another file do not look so. What does: a disk that lost a
synced page of the last seconds of a log's life, and a flipped bit in one of those chunks when it holds a
page of zeros. As with a torn tail that ends in zeros, these are cut, with a warning that says how much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from leveret.wire.chunk import HEADER_BYTES, MAGIC, Chunk, ChunkError, decode_chunk, decode_header

PAGE_BYTES: Final = 4096
UNSYNCED_MS: Final = 10_000
_BEGIN: Final = re.compile(re.escape(bytes([MAGIC])) + rb"[\x00-\x02]", re.DOTALL)


def is_hole(tail: bytes, position: int, since_ms: int | None) -> bool:
    """Whether the chunk that begins `tail`, at `position` in its file, is not whole for a page that never arrived.

    `since_ms` is the time of the chunk before it, None if there is none.
    """
    try:
        header = decode_header(tail)
        length = header.chunk_bytes
        since_ms = header.timestamp_ms
    except ChunkError:
        length = HEADER_BYTES
    if not _misses_page(tail, position, length):
        return False
    times_ms = [chunk.header.timestamp_ms for chunk in _chunks(tail)]
    if since_ms is not None:
        times_ms.append(since_ms)
    return not times_ms or max(times_ms) - min(times_ms) <= UNSYNCED_MS


def _misses_page(tail: bytes, position: int, length: int) -> bool:
    """Whether a page of the file that the first `length` octets of `tail` touch is zero, as far as it is in `tail`."""
    end = min(length, len(tail))
    first = position - position % PAGE_BYTES
    for page in range(first, position + end, PAGE_BYTES):
        octets = tail[max(0, page - position) : page + PAGE_BYTES - position]
        if not octets.rstrip(b"\0"):
            return True
    return False


def _chunks(tail: bytes) -> Iterator[Chunk]:
    """Whole chunks anywhere in it."""
    at = 0
    view = memoryview(tail)
    while (found := _BEGIN.search(tail, at)) is not None:
        try:
            chunk = decode_chunk(view, found.start())
        except ChunkError:
            at = found.start() + 1
        else:
            yield chunk
            at = found.start() + chunk.header.chunk_bytes
