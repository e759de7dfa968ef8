"""Holes: pages of an unfinished append that did not reach the disk although later ones did.

The kernel may write the pages of appends between two syncs in any order, so power loss can leave whole chunks behind
a chunk that is missing in part. None of these chunks was promised. But did the power fail, or did synced chunks rot?
No mark on disk answers that for certain: a mark "synced up to here" would itself need another sync before each
confirm. So a hole is recognised by its looks:

- a page that did not arrive is zero up to its end, from its begin or from the end of the octets that were written to
  it before, which is the begin of the first chunk that is not whole;
- a round of syncs lasts no longer than UNSYNCED_MS: if the log went on for longer behind the chunk, the chunk had been
  synced, and is damaged.

A flipped bit, a cut in the middle or octets of another file do not look like a hole. Two kinds of damage do: a lost
synced page of a log's last seconds, and a flipped bit in one of those chunks when it holds a page of zeros. As with a
torn tail that ends in zeros, these are cut, with a warning that names the size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from leveret.wire.chunk import HEADER_BYTES, MAGIC, Chunk, ChunkError, ChunkType, decode_chunk, decode_header

PAGE_BYTES: Final = 4096
UNSYNCED_MS: Final = 10_000
_BEGIN: Final = re.compile(re.escape(bytes([MAGIC])) + b"[" + re.escape(bytes(ChunkType)) + b"]")


def is_hole(tail: bytes, position: int, since_ms: int | None) -> bool:
    """Whether the chunk at the begin of `tail`, at `position` in its file, misses a page that never arrived.

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
    """Yield the whole chunks anywhere in the octets."""
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
