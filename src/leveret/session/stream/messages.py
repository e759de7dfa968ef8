"""Converts between a stream's entries (AMQP 1.0) and AMQP 0-9-1's messages (heads and bodies)."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

from leveret.core.queues.head import head_of_octets
from leveret.core.queues.messages import Messages, Run
from leveret.model.errors import PeerError
from leveret.wire import properties, tables
from leveret.wire.chunk import ChunkError
from leveret.wire.message10 import (
    OFFSET_HEADER,
    Message091,
    Shape10,
    content_header_within,
    encode_before_body,
)
from leveret.wire.properties import shortstr
from leveret.wire.record import content_header
from leveret.wire.stream_entry import messages_of

KEPT_HEADER_BYTES_MAX: Final = 1024
"""The longest header whose encoding is kept: a publisher may send a thousand of 128 KiB, none of which repeats."""
_LENGTH: Final = struct.Struct(">I")
_SUB_BATCH: Final = struct.Struct(">BHII")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_PLACE: Final = b"\x7foffset?"
"""Replaces the offset in a header until it is known."""
_OTHER_PLACE: Final = b"\x70OTHERS!"


def entries_of(gathered: list[Messages]) -> list[bytes]:
    """Published messages in the form of a stream's chunk."""
    return [
        b"".join((before, body))
        for messages in gathered
        for head, bodies in messages.by_head()
        for before in (_before_body(head.route, head.header, head.body_bytes),)
        for body in bodies
    ]


def _before_body(route: bytes, header: bytes, body_bytes: int) -> bytes:
    """An entry up to its body: length, sections, the head of the data section."""
    encode = _kept if len(header) <= KEPT_HEADER_BYTES_MAX else _encoded
    return encode(route, header, body_bytes)


@lru_cache(maxsize=1024)
def _kept(route: bytes, header: bytes, body_bytes: int) -> bytes:
    return _encoded(route, header, body_bytes)


def _encoded(route: bytes, header: bytes, body_bytes: int) -> bytes:
    exchange_end = 1 + route[0]
    exchange, key = (
        route[1:exchange_end].decode(errors="replace"),
        route[exchange_end + 1 :].decode(errors="replace"),
    )
    try:
        before = encode_before_body(exchange, key, header, body_bytes)
    except PeerError:
        # Malformed properties were never read before; the body is stored without them.
        before = encode_before_body(exchange, key, content_header(b"\0\0", body_bytes), body_bytes)
    return _LENGTH.pack(len(before) + body_bytes) + before


def runs_of(
    data: bytes,
    first: int,
    from_offset: int,
    queue: bytes,
    *,
    count_max: int = sys.maxsize,
    octets_max: int = sys.maxsize,
) -> list[Run]:
    """The messages of a chunk's data for a consumer by 0-9-1, from an offset on; each has its own in a header.

    At most `count_max` of them, and up to the one that reaches `octets_max`: a chunk of a megabyte may hold a thousand
    times as much in compressed batches.

    Messages without an exchange come from the default exchange, with the queue's name as their key.

    Raises:
        ChunkError: an entry is cut short.
    """
    routes: list[bytes] = []
    headers: list[bytes] = []
    bodies: list[bytes] = []
    offsets: list[int] = []
    shape: _Shape | None = None
    for offset, octets in _messages(data, first, from_offset):
        if offset >= from_offset:
            if len(offsets) >= count_max or octets_max <= 0:
                break
            octets_max -= len(octets)
            if shape is None or not shape.fits(octets):
                shape = _Shape(octets, queue)
            offsets.append(offset)
            routes.append(shape.route)
            headers.append(shape.header(offset))
            bodies.append(shape.body_of(octets))
    messages = Messages(routes, headers, bodies)
    starts = [at for at, offset in enumerate(offsets) if not at or offset != offsets[at - 1] + 1]
    return [
        Run(offsets[start], messages, 0, start, stop) for start, stop in pairwise([*starts, len(offsets)])
    ]


def last_offset_of(messages: Messages) -> int | None:
    """The offset of the last of a stream's messages, from its header; None if it has none."""
    head = messages.head or head_of_octets(b"\0\0", messages.headers[-1][4:])
    headers = tables.split(properties.split(head.header).get(properties.HEADERS, b""))
    value = headers.get(OFFSET_HEADER.encode())
    return None if value is None else _OFFSET.unpack(value[1:])[0]


class _Shape(Shape10):
    """The common part of neighbouring messages, and the content header made from it."""

    def __init__(self, octets: bytes, queue: bytes) -> None:
        """Take the shape of an AMQP 1.0 message in the queue of this name."""
        super().__init__(octets)
        message = self.message
        header, at = _header_with_offset(message)
        self._before_offset = len(header).to_bytes(4, "big") + header[:at]
        self._after_offset = header[at + _OFFSET.size :]
        key = queue if message.routing_key is None else message.routing_key.encode()
        self.route = shortstr((message.exchange or "").encode()) + shortstr(key)

    def header(self, offset: int) -> bytes:
        """The content header at an offset, behind its length."""
        return self._before_offset + _OFFSET.pack(offset) + self._after_offset


def _header_with_offset(message: Message091) -> tuple[bytes, int]:
    """The content header, with a placeholder for the offset, and its position."""
    header = _header_with(message, _OFFSET_PLACE)
    if header.count(_OFFSET_PLACE) == 1:
        return header, header.index(_OFFSET_PLACE)
    # The publisher wrote the same octets somewhere: with another placeholder only its own place differs.
    other, begin, end = _header_with(message, _OTHER_PLACE), 0, len(header)
    while begin < end:
        middle = (begin + end) // 2
        if header[begin : middle + 1] == other[begin : middle + 1]:
            begin = middle + 1
        else:
            end = middle
    return header, begin


def _header_with(message: Message091, octets: bytes) -> bytes:
    found = message.properties
    place = {OFFSET_HEADER: _OFFSET.unpack(octets)[0]}
    found.headers = {**(found.headers or {}), **place}
    return content_header_within(found, len(message.body), place)


def _messages(data: bytes, first: int, from_offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, message), also those of batches unless their compression is unknown.

    Batches that end before `from_offset` are left out.
    """
    position, offset = 0, first
    while position < len(data):
        try:
            if data[position] & 0x80:
                _, records, _, size = _SUB_BATCH.unpack_from(data, position)
                size += _SUB_BATCH.size
                if offset + records > from_offset:
                    yield from enumerate(messages_of(data[position : position + size]), offset)
                offset += records
            else:
                (size,) = _LENGTH.unpack_from(data, position)
                position += _LENGTH.size
                yield offset, data[position : position + size]
                offset += 1
        except struct.error:
            raise ChunkError(f"entry at byte {position} of a stream's chunk is cut short") from None
        position += size
