"""Converts a log's octets of stored messages to the core's runs."""

from __future__ import annotations

import sys
from struct import Struct
from struct import error as StructError
from typing import Final

from leveret.core.queues.head import DEFAULT_TERMS, Head, head_of_octets, terms_of
from leveret.core.queues.messages import Messages, Run, alike
from leveret.wire import properties as props
from leveret.wire.chunk import ChunkError
from leveret.wire.record import body_start, decode_message
from leveret.wire.strides import BULK_MIN, Strides

_HEADER: Final = Struct(">I8xIH")
"""The part of a content header behind its length: the length, the lower half of the body's size, and the flags."""
RUN_COSTS: Final = 8
"""The cost of splitting a run, in messages of one run."""
_HEADER_BYTES_MIN: Final = _HEADER.size


def message_of(entry: bytes) -> tuple[Head, bytes]:
    """Head and body of a stored message, without its length.

    Raises:
        ChunkError: the entry is cut short, or its header has a wrong body size.
    """
    [run] = runs_of(len(entry).to_bytes(4, "big") + entry, 0, 0)
    return run.head, run.bodies[0]


def runs_of(
    data: bytes, first: int, skip_before: int, arrived_ms: int = 0, *, count_max: int = sys.maxsize
) -> list[Run]:
    """The messages of a user chunk's data as runs, from offset `skip_before` on, about as many as `count_max` at most.

    A run counts as `RUN_COSTS` messages more than it has.

    Raises:
        ChunkError: an entry is cut short, or a header has a wrong body size.
    """
    return _Chunk(data, first, arrived_ms).runs(skip_before, count_max)


class _Chunk:
    """A chunk's data while its messages are split."""

    def __init__(self, data: bytes, first: int, arrived_ms: int) -> None:
        self._data = data
        self._offset = first
        self._arrived_ms = arrived_ms
        self._position = 0
        self._runs: list[Run] = []
        self._terms_at: tuple[int, tuple[int | None, int]] | None = None

    def runs(self, skip_before: int, count_max: int) -> list[Run]:
        data, end = self._data, len(self._data)
        while self._offset < skip_before and self._position < end:
            self._position += 4 + int.from_bytes(data[self._position : self._position + 4], "big")
            self._offset += 1
        left = count_max
        while self._position < end and left > 0:
            before = self._offset
            head = self._take_different(left)
            left -= self._offset - before + RUN_COSTS
            if head is not None:
                self._take_alike(head)
        return self._runs

    def _take_different(self, count_max: int) -> Head | None:
        """Take messages of one time to live and priority; return a head if the next messages share it."""
        data, position, end = self._data, self._position, len(self._data)
        routes: list[bytes] = []
        headers: list[bytes] = []
        bodies: list[bytes] = []
        known: dict[bytes, bytes] = {}
        terms: tuple[int | None, int] | None = None
        ahead = self._terms_at
        last, alike_count = b"", 0
        found: Head | None = None
        unpack = _HEADER.unpack_from
        try:
            while position < end and len(bodies) < count_max:
                stop = position + 4 + int.from_bytes(data[position : position + 4], "big")
                start = position + 4
                header_at = start + 1 + data[start]
                header_at += 1 + data[header_at]
                size, body_size, flags = unpack(data, header_at)
                body_at = header_at + 4 + size
                if body_at + body_size != stop or stop > end or size < _HEADER_BYTES_MIN - 4:
                    raise ChunkError(_what_is_wrong(data[start:stop]))
                header = data[header_at:body_at]
                route = data[start:header_at]
                mine: tuple[int | None, int]
                if not flags & props.TERMS:
                    mine = DEFAULT_TERMS
                elif ahead is not None and ahead[0] == position:
                    mine = ahead[1]
                else:
                    mine = terms_of(header[4:])
                if mine != terms:
                    if bodies:
                        # Messages with other terms are a run each: their terms are not looked up twice.
                        self._terms_at = position, mine
                        break
                    terms = mine
                if header == last and route == routes[-1]:
                    alike_count += 1
                    if alike_count >= BULK_MIN:
                        found = head_of_octets(route, header[4:])
                        break
                else:
                    last, alike_count = header, 1
                routes.append(known.setdefault(route, route))
                headers.append(header)
                bodies.append(data[body_at:stop])
                position = stop
        except (IndexError, ValueError, StructError):
            raise ChunkError(_what_is_wrong(data[position + 4 :])) from None
        if bodies:
            expiration_ms, priority = terms or DEFAULT_TERMS
            self._append(
                Messages(routes, headers, bodies, expiration_ms=expiration_ms, priority=priority), position
            )
        return found

    def _take_alike(self, head: Head) -> None:
        """Take the messages with this head, more at a time while they are alike."""
        data, entry = self._data, head.entry
        strides = Strides(entry, head.body_bytes)
        bodies = strides.bodies(data, self._position, len(data))
        position, stride = self._position + len(bodies) * strides.stride, strides.stride
        while data.startswith(entry, position) and position + stride <= len(data):
            bodies.append(data[position + len(entry) : position + stride])
            position += stride
        if bodies:
            self._append(alike(head, bodies), position)

    def _append(self, messages: Messages, position: int) -> None:
        self._runs.append(Run(self._offset, messages, self._arrived_ms))
        self._offset += len(messages)
        self._position = position


def _what_is_wrong(entry: bytes) -> str:
    """The reason why an entry is no stored message."""
    try:
        start = body_start(entry)
    except ChunkError as error:
        return str(error)
    announced = decode_message(entry).header[4:12]
    return (
        f"stored message: its header announces {int.from_bytes(announced, 'big')} octets, "
        f"{len(entry) - start} follow"
    )
