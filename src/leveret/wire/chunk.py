"""Chunks: the records that one flush appended, in the one format of disk, link, stream delivery and Spark.

RabbitMQ's stream (Osiris) layout, big endian. `header check` uses the three octets that Osiris
reserves, so a header can be trusted before its data has been read; network readers ignore it.

    0      1      2         4          8           16      24         32     36         40
    +------+------+---------+----------+-----------+-------+----------+------+----------+---------+
    | 0x50 | type | entries | records  | timestamp | epoch | chunk id | crc  | data     | trailer |
    |      |      | u16     | u32      | ms, i64   | u64   | u64      | u32  | length   | length  |
    +------+------+---------+----------+-----------+-------+----------+------+----------+---------+
    44      45             48                    48+data                   48+data+trailer
    +-------+--------------+---------------------+---------------------------+
    | bloom | header check | data: entries       | trailer: attributes       |
    | 0     | u24          | u32 length, octets  | u8 type, u8 n, n, u64     |
    +-------+--------------+---------------------+---------------------------+

`chunk id` is the offset of the first record; record *i* has offset chunk id + *i*. `crc` is CRC-32
of the data alone, as in Osiris; a trailer that is not empty ends in a `CHECK` attribute, the CRC-32
of the trailer before it. So every bit of a chunk is covered by one of the three checks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from leveret.model.errors import PeerError

MAGIC: Final = 0x50
HEADER: Final = struct.Struct(">BBHIqQQIIIBBH")
_CHECKED: Final = struct.Struct(">BBHIqQQIIIB")
"""The part of a header that its check covers."""
HEADER_BYTES: Final = 48
ENTRIES_MAX: Final = 0xFFFF
PIECE_BYTES_MIN: Final = 32 * 1024
"""The average size from which the pieces of a chunk's data are not joined."""
PIECES_MAX: Final = 1000
"""Linux takes 1,024 pieces in one write."""
_LENGTH: Final = struct.Struct(">I")
_MARKED: Final = struct.Struct(">QQqQ")
_VALUE: Final = struct.Struct(">Q")
_CHECK_BYTES: Final = 10


class ChunkType(IntEnum):
    """The kind of records in a chunk."""

    USER = 0
    """Messages."""
    TRACKING = 1
    """Settlements (of a queue's log), stored offsets (of a stream)."""
    SNAPSHOT = 2
    """A state that makes all earlier tracking superfluous."""
    RELOCATION = 3
    """Unsettled messages of a queue's log, stored again at the offsets that they have; see wire.relocation."""


class Attribute(IntEnum):
    """Types of the entries of a trailer; 0 to 2 are Osiris's own."""

    SEQUENCE = 0
    """name = publisher reference, value = its last publishing id in this chunk."""
    OFFSET = 1
    TIMESTAMP = 2
    QUEUE_EPOCH = 16
    """name = the queue that an outgoing chunk was copied from, value = that queue's epoch."""
    QUEUE_OFFSET = 17
    """value = offset in that queue of the chunk's first record; name = the queue's type, if the chunk has messages."""
    EXPIRES = 18
    """no name, value 1: messages of the chunk have a time to live of their own."""
    BY_REFERENCE = 19
    """no name, value = CRC and length of the data, 32 bits each, which stands in the queue's log: never sent."""
    LOG = 20
    """Of a segment's first chunk: name = the log's name, value = the seal of the chunk before it, 0 for none."""
    EPOCH_END = 21
    """name = an epoch, 8 octets; value = where the log ended when the last chunk of that epoch was appended."""
    RETURNED = 22
    """name = an offset of the same log and a count of offsets, 8 and 4 octets; value = how often each came back."""
    ENDED = 23
    """no name, value 1: a settlement record of an outgoing log ends the queue that it belongs to."""
    DIED = 24
    """name = offsets of the same log, as in RETURNED; value = the reason of their death, until they are settled."""
    FILTER = 32
    """name = a filter value among the messages, empty for those without one; value 1 with no name: any."""
    CHECK = 127
    """value = CRC-32 of the trailer before this attribute."""


class ChunkError(PeerError):
    """These octets are not a whole, undamaged chunk."""


class Header(NamedTuple):
    """A chunk's 48 octets; `chunk_id` is its first offset, `next_offset` the one after its last."""

    type: int
    entries: int
    records: int
    timestamp_ms: int
    epoch: int
    chunk_id: int
    crc: int
    data_bytes: int
    trailer_bytes: int

    @property
    def next_offset(self) -> int:
        """The offset that follows the last record."""
        return self.chunk_id + self.records

    @property
    def chunk_bytes(self) -> int:
        """Length of the whole chunk, header to trailer."""
        return HEADER_BYTES + self.data_bytes + self.trailer_bytes


class Chunk(NamedTuple):
    """A whole chunk: header, data (entries) and trailer, undecoded."""

    header: Header
    data: bytes | memoryview
    trailer: bytes | memoryview


def encode_header(
    kind: int,
    entries: int,
    records: int,
    timestamp_ms: int,
    epoch: int,
    chunk_id: int,
    crc: int,
    data_bytes: int,
    trailer_bytes: int = 0,
) -> bytes:
    """The 48 octets before the data, header check included."""
    head = _CHECKED.pack(
        MAGIC, kind, entries, records, timestamp_ms, epoch, chunk_id, crc, data_bytes, trailer_bytes, 0
    )
    return head + (crc32(head) & 0xFFFFFF).to_bytes(3, "big")


def decode_header(buffer: bytes | memoryview, position: int = 0) -> Header:
    """Read and check 48 octets.

    Raises:
        ChunkError: fewer octets, another magic, or the header check fails.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise ChunkError(f"chunk header{_place(position)}: {len(buffer) - position} of 48 octets are there")
    magic, kind, entries, records, stamp, epoch, chunk_id, crc, data, trailer, _, high, low = (
        HEADER.unpack_from(buffer, position)
    )
    if magic != MAGIC:
        raise ChunkError(f"chunk header{_place(position)}: magic is 0x{magic:02x}, not 0x{MAGIC:02x}")
    if crc32(buffer[position : position + 45]) & 0xFFFFFF != high << 16 | low:
        raise ChunkError(f"chunk header{_place(position)}: its check does not match")
    return Header(kind, entries, records, stamp, epoch, chunk_id, crc, data, trailer)


def decode_chunk(buffer: bytes | memoryview, position: int = 0, *, check: bool = True) -> Chunk:
    """Read the chunk that starts at `position`; slices share `buffer` when it is a memoryview.

    Raises:
        ChunkError: the buffer ends before the chunk does, or a check fails.
    """
    header = decode_header(buffer, position)
    start = position + HEADER_BYTES
    middle = start + header.data_bytes
    end = middle + header.trailer_bytes
    if len(buffer) < end:
        raise ChunkError(
            f"chunk{_place(position)}: {len(buffer) - position} of {header.chunk_bytes} octets are there"
        )
    chunk = Chunk(header, buffer[start:middle], buffer[middle:end])
    if check:
        verify(chunk, position)
    return chunk


def verify(chunk: Chunk, position: int = 0) -> None:
    """Check data and trailer against their CRCs.

    Raises:
        ChunkError: a bit differs.
    """
    if crc32(chunk.data) != chunk.header.crc:
        raise ChunkError(f"chunk {chunk.header.chunk_id}{_place(position)}: CRC of its data does not match")
    try:
        verify_trailer(chunk.trailer)
    except ChunkError as error:
        raise ChunkError(f"chunk {chunk.header.chunk_id}{_place(position)}: {error}") from None


def verify_trailer(trailer: bytes | memoryview) -> None:
    """Check a trailer against its CRC.

    Raises:
        ChunkError: a bit differs.
    """
    if len(trailer):
        check = encode_attribute(Attribute.CHECK, b"", crc32(trailer[:-_CHECK_BYTES]))
        if bytes(trailer[-_CHECK_BYTES:]) != check:
            raise ChunkError("check of its trailer does not match")


def _place(position: int) -> str:
    """The place of a chunk in its buffer, for an error text; empty at the begin of the buffer."""
    return f" at byte {position}" if position else ""


def in_few_pieces(data: bytes | list[bytes]) -> tuple[list[bytes], int]:
    """The data of a chunk in pieces that one write takes, large ones without a copy, and the octets of all."""
    if isinstance(data, bytes):
        return [data], len(data)
    data_bytes = sum(map(len, data))
    are_large = data_bytes >= len(data) * PIECE_BYTES_MIN and len(data) <= PIECES_MAX
    return data if are_large else [b"".join(data)], data_bytes


def crc_of(pieces: list[bytes]) -> int:
    """The CRC-32 of data in pieces."""
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    return crc


def fingerprint_of(header: Header) -> int:
    """Return a number that identifies a chunk for holders of nothing else of it: 62 bits, never 0.

    It does not cover the chunk's octets, because a chunk may stand somewhere without its data.
    """
    said = _MARKED.pack(header.epoch, header.chunk_id, header.timestamp_ms, header.records)
    return int.from_bytes(blake2b(said, digest_size=8).digest()) >> 2 | 1


def seal_of(header: Header) -> int:
    """Return a number that identifies a chunk and its octets: the CRC of its data and one of its header; never 0."""
    return header.crc << 32 | crc32(encode_header(*header)) or 1


def log_of_trailer(trailer: bytes | memoryview) -> tuple[str, int] | None:
    """The log named by a segment's first chunk, and the seal of the chunk before; None if the trailer names none.

    Raises:
        ChunkError: the trailer ends inside an attribute.
    """
    for kind, name, value in decode_trailer(trailer):
        if kind == Attribute.LOG:
            return name.decode(errors="replace"), value
    return None


def with_log(trailer: bytes, name: str, seal: int) -> bytes:
    """A trailer that begins with the log's name and the seal of the chunk before, and goes on as given."""
    return encode_trailer(
        encode_attribute(Attribute.LOG, name.encode(), seal), *([trailer[:-_CHECK_BYTES]] if trailer else [])
    )


def encode_attribute(kind: int, name: bytes, value: int) -> bytes:
    """One entry of a trailer; `name` has at most 255 octets."""
    return bytes((kind, len(name))) + name + _VALUE.pack(value)


def encode_trailer(*attributes: bytes) -> bytes:
    """Close a trailer with its check; no attributes, no trailer."""
    if not attributes:
        return b""
    body = b"".join(attributes)
    return body + encode_attribute(Attribute.CHECK, b"", crc32(body))


def decode_trailer(trailer: bytes | memoryview) -> Iterator[tuple[int, bytes, int]]:
    """Yield (type, name, value) of each attribute, the check left out.

    Raises:
        ChunkError: the trailer ends inside an attribute.
    """
    position = 0
    while position < len(trailer):
        try:
            kind, size = trailer[position], trailer[position + 1]
            (value,) = _VALUE.unpack_from(trailer, position + 2 + size)
        except (IndexError, struct.error):
            raise ChunkError(f"trailer ends inside an attribute at byte {position}") from None
        if kind != Attribute.CHECK:
            yield kind, bytes(trailer[position + 2 : position + 2 + size]), value
        position += 10 + size


def split_entries(data: bytes | memoryview) -> list[bytes]:
    """The bodies of a chunk's simple entries, in order, copied.

    Raises:
        ChunkError: an entry is longer than what is left, or is a sub-batch.
    """
    view = memoryview(data)
    entries: list[bytes] = []
    position, end = 0, len(view)
    unpack = _LENGTH.unpack_from
    while position < end:
        if end - position < 4:
            raise ChunkError(f"entry at byte {position} of the data: its length is cut short")
        (size,) = unpack(view, position)
        position += 4
        if size & 0x8000_0000 or position + size > end:
            raise ChunkError(f"entry at byte {position - 4} of the data: length {size} does not fit")
        entries.append(bytes(view[position : position + size]))
        position += size
    return entries


def encode_entry(body: bytes) -> bytes:
    """A simple entry: its length (31 bits), then the body."""
    return _LENGTH.pack(len(body)) + body
