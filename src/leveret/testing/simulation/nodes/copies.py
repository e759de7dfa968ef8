"""Compares copies of one log at several nodes, chunk by chunk.

A copy may begin at another offset than its leader, and its segments may begin at other offsets. From the first common
offset on, it has the same chunks, octet by octet, once no chunk is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from leveret.wire.chunk import HEADER_BYTES, ChunkError, decode_header


def difference(leader: Path, copy: Path, logs: Iterable[str]) -> str:
    """Return a text about the first difference of a copy from its leader; empty without one.

    Args:
        leader: the data directory of the leader.
        copy: the data directory of the copy.
        logs: the paths of the logs below a data directory.
    """
    for log in logs:
        theirs, ours = _chunks(leader / log), _chunks(copy / log)
        if not theirs and not ours:
            continue
        first = max(min(theirs, default=0), min(ours, default=0))
        for offset in sorted({each for each in (*theirs, *ours) if each >= first}):
            if theirs.get(offset) != ours.get(offset):
                return (
                    f"{log} at offset {offset}: {_words(theirs.get(offset))} at {leader.parent.name}, "
                    f"{_words(ours.get(offset))} at {copy.parent.name}"
                )
    return ""


def _chunks(log: Path) -> dict[int, bytes]:
    """Return the whole chunks of a log by their offsets."""
    found: dict[int, bytes] = {}
    for path in log.glob("*.segment"):
        octets = path.read_bytes()
        at = 0
        while at + HEADER_BYTES <= len(octets):
            try:
                header = decode_header(octets[at : at + HEADER_BYTES])
            except ChunkError:
                break  # The rest of the file is preallocated.
            found[header.chunk_id] = octets[at : at + header.chunk_bytes]
            at += header.chunk_bytes
    return found


def _words(chunk: bytes | None) -> str:
    if chunk is None:
        return "no chunk"
    header = decode_header(chunk[:HEADER_BYTES])
    return f"{header.records} records of epoch {header.epoch:x} in {len(chunk)} octets"
