"""Records of type RELOCATION: unsettled messages of a queue's log, stored a second time behind all others.

A chunk of this type is one record, and has an offset of its own, at which there is no message. The messages in it
keep their offsets, by which consumers, settlements and downstreams know them, and their times of arrival:

    block, one or more:
    +--------------+-----------+---------------+---------------+----------------------------------------+
    | first offset | messages  | timestamp     | length        | the messages, as entries (wire.record) |
    | u64          | u32       | ms, i64       | u32           | of so many octets                      |
    +--------------+-----------+---------------+---------------+----------------------------------------+

The messages of a block have offsets one after the other; blocks are in the order of their offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from leveret.wire.chunk import ChunkError, encode_entry

_BLOCK: Final = struct.Struct(">QIqI")
_LENGTH_BYTES: Final = 4


class RelocatedBlock(NamedTuple):
    """Messages with one timestamp, from the offset `first` on; `data` are their entries."""

    first: int
    messages: int
    timestamp_ms: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset behind the last message."""
        return self.first + self.messages


def encode_relocation(blocks: Iterable[RelocatedBlock]) -> bytes:
    """The data of a chunk that holds these blocks: one entry."""
    parts = []
    for first, messages, timestamp_ms, data in blocks:
        parts += [_BLOCK.pack(first, messages, timestamp_ms, len(data)), data]
    return encode_entry(b"".join(parts))


def decode_relocation(data: bytes | memoryview) -> Iterator[RelocatedBlock]:
    """The blocks in the data of a chunk.

    Raises:
        ChunkError: a block is cut short.
    """
    position = _LENGTH_BYTES
    while position < len(data):
        start = position + _BLOCK.size
        if start > len(data):
            raise ChunkError(f"relocated block at byte {position} of the data is cut short")
        first, messages, timestamp_ms, size = _BLOCK.unpack_from(data, position)
        position = start + size
        if position > len(data):
            raise ChunkError(f"relocated block of {size} octets at byte {start} of the data does not fit")
        yield RelocatedBlock(first, messages, timestamp_ms, bytes(data[start:position]))
