"""Logs on disk for the tests of what walks them: filled, read plainly, damaged at a place."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from leveret.storage.inspection.walk import Damage, WalkedChunk, walk
from leveret.storage.log import Log
from leveret.wire.chunk import Header, decode_chunk, encode_attribute, encode_trailer
from tests.unit.storage.logs import append, make

TRAILER = encode_trailer(encode_attribute(0, b"publisher", 7))
CHUNKS = st.lists(st.tuples(st.integers(0, 150), st.integers(1, 5), st.booleans()), min_size=1, max_size=12)
"""Of each: octets of data, records, whether it has a trailer."""
Chunks = list[tuple[int, int, bool]]


class Held(NamedTuple):
    """A chunk, by reading the files from their begin to their end, and where it stands."""

    header: Header
    segment: int
    position: int

    def damage(self) -> tuple[int, ...]:
        header = self.header
        return self.segment, header.chunk_id, header.next_offset, self.position, header.chunk_bytes


def filled(directory: Path, chunks: Chunks, *, first_offset: int = 0) -> Log:
    """A log of these chunks, synced, its descriptors given back."""
    log = make(directory).open(first_offset=first_offset)
    for size, records, has_trailer in chunks:
        append(log, size, records, TRAILER if has_trailer else b"")
    log.sync()
    log.close()
    return log


def held(directory: Path) -> list[Held]:
    found = []
    for path in sorted(directory.glob("*.segment*")):
        octets, position = path.read_bytes(), 0
        while position < len(octets):
            header = decode_chunk(octets, position).header
            found.append(Held(header, int(path.name[:20]), position))
            position += header.chunk_bytes
    return found


def segment_path(directory: Path, segment: int) -> Path:
    (path,) = directory.glob(f"{segment:020d}*.segment*")
    return path


def overwrite(directory: Path, segment: int, position: int, octets: bytes) -> None:
    with segment_path(directory, segment).open("r+b") as file:
        file.seek(position)
        file.write(octets)


def flip(directory: Path, segment: int, position: int, bit: int = 0) -> None:
    octets = segment_path(directory, segment).read_bytes()
    overwrite(directory, segment, position, bytes([octets[position] ^ 1 << bit]))


def walked(directory: Path, from_offset: int = 0, until_offset: int | None = None) -> list[Held | Damage]:
    """What a walk finds; of chunks what `held` says of them."""
    return [
        Held(found.header, found.file.first_offset, found.position)
        if isinstance(found, WalkedChunk)
        else found
        for found in walk(directory, from_offset, until_offset)
    ]
