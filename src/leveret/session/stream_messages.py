"""Between a stream's entries (AMQP 1.0) and what AMQP 0-9-1 publishes and consumes (heads and bodies)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from leveret.core.head import Head, Run
from leveret.model.errors import PeerError
from leveret.wire.amqp091 import is_persistent, shortstr
from leveret.wire.chunk import ChunkError
from leveret.wire.message10 import (
    OFFSET_HEADER,
    Message091,
    content_header_of,
    decode_message10,
    encode_before_body,
)
from leveret.wire.record import content_header

BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""A compressed batch that is larger is not unpacked (RabbitMQ's limit on an uncompressed one)."""
_LENGTH: Final = struct.Struct(">I")
_SUB_BATCH: Final = struct.Struct(">BHII")
_GZIP: Final = 1


def entries_of(gathered: list[tuple[Head, list[bytes]]]) -> list[bytes]:
    """Published messages as they stand in a stream's chunk."""
    return [
        b"".join((before, body))
        for head, bodies in gathered
        for before in (_before_body(head.route, head.header, head.body_bytes),)
        for body in bodies
    ]


@lru_cache(maxsize=1024)
def _before_body(route: bytes, header: bytes, body_bytes: int) -> bytes:
    """An entry up to its body: length, sections, the head of the data section."""
    exchange_end = 1 + route[0]
    exchange, key = (
        route[1:exchange_end].decode(errors="replace"),
        route[exchange_end + 1 :].decode(errors="replace"),
    )
    try:
        before = encode_before_body(exchange, key, header, body_bytes)
    except PeerError:
        # Properties that do not parse went by unread so far; the body is worth keeping without them.
        before = encode_before_body(exchange, key, content_header(b"\0\0", body_bytes), body_bytes)
    return _LENGTH.pack(len(before) + body_bytes) + before


def runs_of(data: bytes, first: int, from_offset: int, queue: bytes) -> list[Run]:
    """The messages of a chunk's data for a consumer by 0-9-1, from an offset on; each has its own in a header.

    Messages of nobody's exchange come from the default exchange with the name of the queue as their key.

    Raises:
        ChunkError: an entry is cut short.
    """
    runs = []
    for offset, body in _messages(data, first):
        if offset >= from_offset:
            message = decode_message10(body)
            runs.append(Run(offset, _head(message, offset, queue), [message.body]))
    return runs


def _head(message: Message091, offset: int, queue: bytes) -> Head:
    properties = message.properties
    properties.headers = {**(properties.headers or {}), OFFSET_HEADER: offset}
    try:
        header = content_header_of(properties, len(message.body))
    except (TypeError, ValueError, struct.error):
        # Names or numbers that AMQP 1.0 can have and 0-9-1 cannot.
        properties.headers = {OFFSET_HEADER: offset}
        header = content_header_of(properties, len(message.body))
    exchange = (message.exchange or "").encode()
    key = queue if message.routing_key is None else message.routing_key.encode()
    route = shortstr(exchange) + shortstr(key)
    return Head(b"", route, header, len(message.body), is_persistent(header))


def _messages(data: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """(offset, message) of every message, those of batches too unless they are compressed in a way not known."""
    position, offset = 0, first
    while position < len(data):
        try:
            if data[position] & 0x80:
                kind, records, unpacked_bytes, size = _SUB_BATCH.unpack_from(data, position)
                position += _SUB_BATCH.size
                batch = _unpacked(data[position : position + size], kind >> 4 & 7, unpacked_bytes)
                yield from enumerate(_split(batch), offset)
                offset += records
            else:
                (size,) = _LENGTH.unpack_from(data, position)
                position += _LENGTH.size
                yield offset, data[position : position + size]
                offset += 1
        except struct.error:
            raise ChunkError(f"entry at byte {position} of a stream's chunk is cut short") from None
        position += size


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
