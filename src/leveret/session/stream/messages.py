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
from leveret.wire.message10 import OFFSET_HEADER, MessageReader, Shape10, encode_before_body
from leveret.wire.properties import shortstr
from leveret.wire.record import content_header
from leveret.wire.stream_entry import messages_of

_LENGTH: Final = struct.Struct(">I")
_SUB_BATCH: Final = struct.Struct(">BHII")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_NAME: Final = OFFSET_HEADER.encode()
_READER: Final = MessageReader((_OFFSET_NAME, tables.long_integer(0)))
"""Gives each message the header of its offset as the last of its headers, which ends with the octets of the offset."""


def entries_of(gathered: list[Messages]) -> list[bytes]:
    """Published messages in the form of a stream's chunk."""
    return [
        b"".join((before, body))
        for messages in gathered
        for route, header, bodies in messages.by_route()
        for before in (_before_body(route, header, len(bodies[0])),)
        for body in bodies
    ]


def _before_body(route: bytes, header: bytes, body_bytes: int) -> bytes:
    """An entry up to its body: length, sections, the head of the data section."""
    behind = 1 + route[0]
    exchange, key = route[1:behind], route[behind + 1 :]
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
    value = headers.get(_OFFSET_NAME)
    return None if value is None else _OFFSET.unpack(value[1:])[0]


class _Shape(Shape10):
    """The common part of neighbouring messages, and the content header made from it."""

    def __init__(self, octets: bytes, queue: bytes) -> None:
        """Take the shape of an AMQP 1.0 message in the queue of this name."""
        super().__init__(octets, _READER)
        exchange, key, found, headers_end, _ = self.message
        header = content_header(found, self.body_bytes)
        at = len(header) - len(found) + headers_end
        self._before_offset = len(header).to_bytes(4, "big") + header[: at - _OFFSET.size]
        self._after_offset = header[at:]
        self.route = _route(exchange or b"", queue if key is None else key)

    def header(self, offset: int) -> bytes:
        """The content header at an offset, behind its length."""
        return self._before_offset + _OFFSET.pack(offset) + self._after_offset


@lru_cache(maxsize=1024)
def _route(exchange: bytes, key: bytes) -> bytes:
    """Exchange and routing key as two short strings; those of an application repeat."""
    return shortstr(exchange) + shortstr(key)


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
