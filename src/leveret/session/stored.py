"""Stored messages and the queue's heads and runs: the step between a log's octets and the core."""

from __future__ import annotations

import sys
from struct import iter_unpack
from typing import Final

from leveret.core.queues.head import Head, Run, make_head
from leveret.wire.chunk import ChunkError
from leveret.wire.record import body_start, decode_message

HEADS_MAX: Final = 4096
BULK_FIRST: Final = 16
BULK_GROWTH: Final = 8
"""Messages that are taken apart at once, at first, and how many times as many when those had one head."""
HEADS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of all that are known, so that large headers, each another, are not all kept."""


class Heads:
    """Heads by the octets before a body, so that messages read back share them as they did before."""

    def __init__(self) -> None:
        """Know none yet."""
        self._known: dict[bytes, Head] = {}
        self._known_bytes = 0

    def of_entry(self, entry: bytes) -> tuple[Head, bytes]:
        """Head and body of a stored message, without its length.

        Raises:
            ChunkError: the entry is cut short, or its header lies about the body's size.
        """
        start = body_start(entry)
        head = self._head(len(entry).to_bytes(4, "big") + entry[:start], entry)
        return head, entry[start:]

    def _head(self, key: bytes, entry: bytes) -> Head:
        found = self._known.get(key)
        if found is None:
            message = decode_message(entry)
            found = make_head(message.exchange, message.routing_key, message.header)
            if found.body_bytes != len(message.body):
                raise ChunkError(
                    f"stored message: its header announces {found.body_bytes} octets, {len(message.body)} follow"
                )
            self._known_bytes += len(key)
            if len(self._known) >= HEADS_MAX or self._known_bytes > HEADS_BYTES_MAX:
                self._known.clear()
                self._known_bytes = len(key)
            self._known[key] = found
        return found

    def runs(
        self, data: bytes, first: int, skip_before: int, arrived_ms: int = 0, *, runs_max: int = sys.maxsize
    ) -> list[Run]:
        """The messages of a user chunk's data as runs, from offset `skip_before` on, `runs_max` of these at most.

        Raises:
            ChunkError: an entry is cut short.
        """
        runs: list[Run] = []
        head: Head | None = None
        position, offset, end = 0, first, len(data)
        while offset < skip_before and position < end:
            position += 4 + int.from_bytes(data[position : position + 4], "big")
            offset += 1
        while position < end and len(runs) < runs_max:
            bodies = _alike(head, data, position) if head is not None else []
            if head is None or not bodies:
                size = int.from_bytes(data[position : position + 4], "big")
                head, body = self.of_entry(data[position + 4 : position + 4 + size])
                bodies = [body]
            position += len(bodies) * (len(head.entry) + head.body_bytes)
            if runs and runs[-1].head is head:
                runs[-1].bodies += bodies
            else:
                runs.append(Run(offset, head, bodies, arrived_ms))
            offset += len(bodies)
        return runs


def _alike(head: Head, data: bytes, position: int) -> list[bytes]:
    """The bodies of the messages with this head from `position` on, ever more at a time while they are like that."""
    entry, size = head.entry, head.body_bytes
    stride = len(entry) + size
    bodies: list[bytes] = []
    step = BULK_FIRST
    while count := min(step, (len(data) - position) // stride):
        stop = position + count * stride
        if not data.startswith(entry, stop - stride):
            break
        messages = iter_unpack(f"{len(entry)}s{size}s", memoryview(data)[position:stop])
        found = [body for before, body in messages if before == entry]
        if len(found) < count:
            break
        bodies += found
        position = stop
        step *= BULK_GROWTH
    while data.startswith(entry, position):
        bodies.append(data[position + len(entry) : position + stride])
        position += stride
    return bodies
