"""Between a stream's entries (AMQP 1.0) and what AMQP 0-9-1 publishes and consumes (heads and bodies)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from leveret.core.head import Head, Run
from leveret.model.errors import PeerError
from leveret.wire.chunk import ChunkError
from leveret.wire.message10 import (
    OFFSET_HEADER,
    Message091,
    content_header_of,
    decode_message10,
    encode_before_body,
)
from leveret.wire.properties import shortstr
from leveret.wire.record import content_header

BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""A compressed batch that is larger is not unpacked (RabbitMQ's limit on an uncompressed one)."""
_LENGTH: Final = struct.Struct(">I")
_SUB_BATCH: Final = struct.Struct(">BHII")
_GZIP: Final = 1
_OFFSET: Final = struct.Struct(">q")
_OFFSET_PLACE: Final = b"\x7foffset?"
"""Stands for the offset in a header until it is known."""


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
    shape: _Shape | None = None
    for offset, octets in _messages(data, first):
        if offset >= from_offset:
            if shape is None or not shape.fits(octets):
                shape = _Shape(octets, queue)
            runs.append(Run(offset, shape.head(offset), [shape.body_of(octets)]))
    return runs


class _Shape:
    """What neighbouring messages have in common: all before their bodies, and the content header that it makes."""

    def __init__(self, octets: bytes, queue: bytes) -> None:
        """Of a message of AMQP 1.0 in a queue of this name."""
        message = decode_message10(octets)
        self._size = len(octets)
        self._body_bytes = len(message.body)
        self._before = octets[: len(octets) - len(message.body)]
        self._own_body = None if octets.endswith(message.body) else message.body
        self._header = _header_with_offset(message)
        key = queue if message.routing_key is None else message.routing_key.encode()
        self._route = shortstr((message.exchange or "").encode()) + shortstr(key)
        self._is_persistent = message.properties.delivery_mode == 2

    def fits(self, octets: bytes) -> bool:
        """Whether another message differs in its body alone."""
        return len(octets) == self._size and self._own_body is None and octets.startswith(self._before)

    def body_of(self, octets: bytes) -> bytes:
        """The body of a message of this shape."""
        return octets[len(self._before) :] if self._own_body is None else self._own_body

    def head(self, offset: int) -> Head:
        """Its head, at an offset."""
        header = self._header.replace(_OFFSET_PLACE, _OFFSET.pack(offset), 1)
        return Head(b"", self._route, header, self._body_bytes, self._is_persistent)


def _header_with_offset(message: Message091) -> bytes:
    """The content header, with a place for the offset."""
    properties = message.properties
    place = {OFFSET_HEADER: _OFFSET.unpack(_OFFSET_PLACE)[0]}
    properties.headers = {**(properties.headers or {}), **place}
    try:
        return content_header_of(properties, len(message.body))
    except (TypeError, ValueError, struct.error):
        # Names or numbers that AMQP 1.0 can have and 0-9-1 cannot.
        properties.headers = place
        return content_header_of(properties, len(message.body))


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
