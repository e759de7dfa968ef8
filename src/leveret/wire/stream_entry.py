"""A stream's entry as a stored message, so that it travels like one and comes back octet for octet.

A stream keeps what its publishers sent: messages of AMQP 1.0, batches of them, compressed or not, or anything else.
None of that is a stored message (`wire.record`). So an entry is packed into one: no exchange, no routing key, a
content type of its own, and as its body the entry as it stands in the stream's chunk.

On its way back into a stream an entry may be **marked**: it has another content type, and before the entry stand
attributes as in a chunk's trailer, after their length (u32). They name the offset of the entry at its origin, and the
stored offsets of readers (in the origin's numbers) and ids of publishers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

from leveret.wire.chunk import ChunkError
from leveret.wire.record import content_header, decode_message, message_head

CONTENT_TYPE: Final = b"application/x-leveret-stream-entry"
PROPERTIES: Final = b"\x80\x00" + bytes((len(CONTENT_TYPE),)) + CONTENT_TYPE
"""Property flags and list of a packed entry."""
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most octets of a compressed batch that is unpacked (RabbitMQ's limit on an uncompressed one)."""
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Of batches, by their number; the first two are unpacked here."""
_MARKED_TYPE: Final = b"application/x-leveret-marked-stream-entry"
_MARKED: Final = b"\x80\x00" + bytes((len(_MARKED_TYPE),)) + _MARKED_TYPE
_GZIP: Final = 1
_LENGTH: Final = struct.Struct(">I")
_SUB_BATCH: Final = struct.Struct(">BHII")


def pack_entries(data: bytes) -> tuple[bytes, int]:
    """The data of a stream's chunk as a queue's, each entry packed, and the number of entries.

    Raises:
        ChunkError: an entry is cut short.
    """
    parts: list[bytes] = []
    for entry in entries_of(data):
        parts += (_before(len(entry)), entry)
    return b"".join(parts), len(parts) // 2


def unpack_entry(stored: bytes) -> bytes | None:
    """The stream's entry in a stored message, None if the message is not a packed one."""
    before = _before(len(stored) - _HEAD_BYTES)[_LENGTH.size :] if len(stored) >= _HEAD_BYTES else b""
    if not before or not stored.startswith(before):
        return None
    entry = stored[_HEAD_BYTES:]
    return entry if is_entry(entry) else None


def is_entry(octets: bytes) -> bool:
    """Whether the octets are one entry as it stands in a stream's chunk."""
    return len(octets) > 0 and _end_of_entry(octets, 0) == len(octets)


def entries_of(data: bytes) -> Iterator[bytes]:
    """The entries of a stream's chunk as they stand there, lengths included.

    Raises:
        ChunkError: an entry is cut short.
    """
    position, end = 0, len(data)
    while position < end:
        next_position = _end_of_entry(data, position)
        if next_position > end:
            raise ChunkError(f"entry at byte {position} of a stream's chunk is cut short")
        yield data[position:next_position]
        position = next_position


def _end_of_entry(data: bytes, position: int) -> int:
    """The end of the entry at `position` by its own length; beyond `data` if it is cut short."""
    try:
        if data[position] & 0x80:
            return position + _SUB_BATCH.size + int(_SUB_BATCH.unpack_from(data, position)[3])
        return position + _LENGTH.size + int(_LENGTH.unpack_from(data, position)[0])
    except struct.error:
        return len(data) + 1


def messages_of(entry: bytes) -> list[bytes]:
    """The messages of AMQP 1.0 in an entry as it stands in a chunk: one, or those of a batch.

    No messages of a batch whose compression is unknown here, or that cannot be unpacked; and no more than it announces,
    because the offsets behind them are other messages'.
    """
    if not entry[0] & 0x80:
        return [entry[_LENGTH.size :]]
    kind, records, unpacked_bytes, _ = _SUB_BATCH.unpack_from(entry)
    messages = _split(_unpacked(entry[_SUB_BATCH.size :], kind >> 4 & 7, unpacked_bytes))
    return list(islice(messages, records))


def compression_of(entry: bytes) -> str:
    """The compression of a batch."""
    kind = entry[0] >> 4 & 7
    return COMPRESSIONS[kind] if kind < len(COMPRESSIONS) else f"compression {kind}"


def _unpacked(batch: bytes, compression: int, unpacked_bytes: int) -> bytes:
    if compression == 0:
        return batch
    if compression != _GZIP or not 0 < unpacked_bytes <= BATCH_BYTES_MAX:
        return b""
    try:
        return zlib.decompressobj(wbits=31).decompress(batch, unpacked_bytes)
    except zlib.error:
        return b""


def _split(batch: bytes) -> Iterator[bytes]:
    position = 0
    while position + _LENGTH.size <= len(batch):
        (size,) = _LENGTH.unpack_from(batch, position)
        position += _LENGTH.size
        yield batch[position : position + size]
        position += size


@lru_cache(maxsize=1024)
def _before(body_bytes: int) -> bytes:
    """The octets before a body of that size, the length of the whole included."""
    head = message_head(b"", b"", content_header(PROPERTIES, body_bytes))
    return _LENGTH.pack(len(head) + body_bytes) + head


def mark_entry(entry: bytes, attributes: bytes) -> bytes:
    """A stored message that holds an entry and its attributes."""
    body = _LENGTH.pack(len(attributes)) + attributes + entry
    return message_head(b"", b"", content_header(_MARKED, len(body))) + body


def unmark_entry(stored: bytes) -> tuple[bytes, bytes] | None:
    """(entry, attributes) of a stored message, None if the message is not a marked one.

    Raises:
        ChunkError: the entry is cut short.
    """
    if not stored.startswith(_MARKED, _MARK_AT):
        return None
    message = decode_message(stored)
    if message.properties != _MARKED or message.exchange or message.routing_key:
        return None
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(message.body)[0]
    except struct.error:
        start = len(message.body) + 1
    if start > len(message.body):
        raise ChunkError("a marked entry is cut short")
    return message.body[start:], message.body[_LENGTH.size : start]


_HEAD_BYTES: Final = len(_before(0)) - _LENGTH.size
_MARK_AT: Final = len(message_head(b"", b"", content_header(b"", 0)))
