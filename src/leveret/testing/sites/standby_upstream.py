"""An upstream of the warm standby in memory: its queues' chunks go to an outgoing log, which a real listener serves.

    upstream = StandbyUpstream()
    upstream.publish("/", "q", [b"m0", b"m1"])
    upstream.settle("/", "q", [(0, 1)])
    with upstream.serving() as port: ...

`unsettled` returns the messages that a promotion must recover, computed message by message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from isal.isal_zlib import crc32
from pamqp import header

from leveret.runtime.clients.stream_listener import StreamListener
from leveret.runtime.sockets.tls import ListenerTls
from leveret.testing.applications.contents import content_of, for_pamqp
from leveret.testing.sites.stream_host import FakeRecoveryQueue, FakeServedLog, FakeStreamHost
from leveret.wire.chunk import (
    Attribute,
    ChunkType,
    decode_header,
    encode_attribute,
    encode_entry,
    encode_header,
    encode_trailer,
)
from leveret.wire.record import Settlement, content_header, encode_settlements, message_head

_KINDS: Final = 499
"""The number of different properties; messages with one body have the same ones."""
_TRANSIENT: Final = 0.2
_BEFORE_PROPERTIES_BYTES: Final = 12
"""In a content header: the class, the weight, and the size of the body."""


def outgoing_chunk(
    chunk_id: int,
    queue: str,
    epoch: int,
    queue_offset: int,
    bodies: Sequence[bytes],
    kind: ChunkType,
    at_ms: int,
    queue_type: str = "",
    positions: Sequence[tuple[Attribute, bytes, int]] = (),
) -> bytes:
    """Return a raw chunk as a node copies it: its data as in the queue's log, its identity in the trailer.

    With the stored positions of a stream's readers and publishers, if there are any.
    """
    data = b"".join(map(encode_entry, bodies))
    trailer = encode_trailer(
        encode_attribute(Attribute.QUEUE_EPOCH, queue.encode(), epoch),
        encode_attribute(Attribute.QUEUE_OFFSET, queue_type.encode(), queue_offset),
        *(encode_attribute(*each) for each in positions),
    )
    count = len(bodies)
    return (
        encode_header(kind, count, count, at_ms, 1, chunk_id, crc32(data), len(data), len(trailer))
        + data
        + trailer
    )


def stored_message(
    body: bytes, exchange: bytes = b"", routing_key: bytes = b"", properties: bytes | None = None
) -> bytes:
    """Return a message's entry; without `properties` it has some that follow from its body."""
    if properties is None:
        properties = _octets_of(crc32(body) % _KINDS)
    return message_head(exchange, routing_key, content_header(properties, len(body))) + body


def properties_for(body: bytes) -> dict[str, Any]:
    """Return the properties that `stored_message` gives a message with this body (testing.applications.contents)."""
    return content_of(crc32(body) % _KINDS, transient=_TRANSIENT).properties


@cache
def _octets_of(number: int) -> bytes:
    """Return the flags and values of a content header."""
    properties = for_pamqp(content_of(number, transient=_TRANSIENT).properties)
    return bytes(header.ContentHeader(0, 0, properties).marshal()[_BEFORE_PROPERTIES_BYTES:])


class FakeOutgoingLog(FakeServedLog):
    """A served log to which copies of queues' chunks are appended."""

    def append_copy(
        self,
        queue: str,
        epoch: int,
        offset: int,
        bodies: Sequence[bytes],
        kind: ChunkType,
        at_ms: int,
        queue_type: str = "",
        positions: Sequence[tuple[Attribute, bytes, int]] = (),
    ) -> bytes:
        """Append a copy of a queue's chunk; return the copy."""
        chunk = outgoing_chunk(
            self._next_offset, queue, epoch, offset, bodies, kind, at_ms, queue_type, positions
        )
        self._ids.append(self._next_offset)
        self._chunks.append(chunk)
        self._stamps.append(at_ms)
        self._next_offset = decode_header(chunk).next_offset
        for callback in list(self._callbacks):
            callback()
        return chunk


@dataclass
class QueueLog:
    """One incarnation of a queue.

    Attributes:
        messages: the stored messages by offset, in order.
        settled: the offsets of settled messages.
        copies: the chunks in the outgoing log, kept to be copied again: offset, bodies, type, time.
    """

    epoch: int
    next_offset: int = 0
    messages: dict[int, bytes] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    copies: list[tuple[int, list[bytes], ChunkType, int]] = field(default_factory=list)


class StandbyUpstream:
    """Queues, outgoing logs and a stream listener. A recovery can publish to it as well."""

    def __init__(self, vhosts: Sequence[str] = ("/",)) -> None:
        self.logs = {vhost: FakeOutgoingLog() for vhost in vhosts}
        self.host = FakeStreamHost(vhosts=set(vhosts), logs=dict(self.logs))
        self.incarnations: dict[tuple[str, str], list[QueueLog]] = {}
        self.now_ms = 1_700_000_000_000
        self.types: dict[tuple[str, str], str] = {}

    def publish(self, vhost: str, queue: str, messages: Sequence[bytes]) -> None:
        """Append one chunk of stored messages."""
        incarnation = self._incarnation(vhost, queue)
        incarnation.messages.update(enumerate(messages, incarnation.next_offset))
        self._append(vhost, queue, list(messages), ChunkType.USER)

    def settle(self, vhost: str, queue: str, ranges: Sequence[tuple[int, int]], reason: int = 0) -> None:
        """Append one settlement record of (first, count) ranges."""
        incarnation = self._incarnation(vhost, queue)
        for first, count in ranges:
            incarnation.settled.update(range(first, first + count))
        body = encode_settlements([Settlement(reason, first, count) for first, count in ranges])
        self._append(vhost, queue, [body], ChunkType.TRACKING)

    def begin_incarnation(self, vhost: str, queue: str) -> None:
        """Delete the queue if it exists, and declare it again."""
        incarnations = self.incarnations.setdefault((vhost, queue), [])
        if incarnations:
            self.settle(vhost, queue, [(0, incarnations[-1].next_offset)], reason=2)
        incarnations.append(QueueLog(epoch=100 + len(self.incarnations) * 10 + len(incarnations)))

    def copy_again(self, vhost: str, queue: str, last: int) -> None:
        """Append the last chunks of a queue once more, as a node may do after a restart."""
        incarnation = self._incarnation(vhost, queue)
        for offset, bodies, kind, at_ms in incarnation.copies[-last:]:
            type_ = self._type_of(vhost, queue, kind)
            self.logs[vhost].append_copy(queue, incarnation.epoch, offset, bodies, kind, at_ms, type_)

    def unsettled(self, vhost: str, queue: str) -> list[bytes]:
        """Return the messages that must be recovered, in order."""
        return [
            message
            for incarnation in self.incarnations.get((vhost, queue), [])
            for offset, message in incarnation.messages.items()
            if offset not in incarnation.settled
        ]

    def recovered(self, vhost: str, queue: str) -> list[bytes]:
        """Return the messages that a recovery has published here."""
        return [body for _, body in self.host.queues.get((vhost, queue), FakeRecoveryQueue()).stored]

    @contextmanager
    def serving(self, port: int = 0, tls: ListenerTls | None = None) -> Iterator[int]:
        """Serve on loopback for the block, with TLS or without; cut every connection at its end."""
        loop = asyncio.new_event_loop()
        listener = StreamListener(self.host)
        thread = threading.Thread(target=loop.run_forever, name="upstream")
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(listener.start("127.0.0.1", port, tls), loop).result(10)
            self._loop = loop
            yield listener.ports[0]
        finally:
            asyncio.run_coroutine_threadsafe(_cut(listener), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()
            self._loop = None

    _loop: asyncio.AbstractEventLoop | None = None

    def _type_of(self, vhost: str, queue: str, kind: ChunkType) -> str:
        return self.types.get((vhost, queue), "") if kind == ChunkType.USER else ""

    def _incarnation(self, vhost: str, queue: str) -> QueueLog:
        if (vhost, queue) not in self.incarnations:
            self.begin_incarnation(vhost, queue)
        return self.incarnations[vhost, queue][-1]

    def _append(self, vhost: str, queue: str, bodies: list[bytes], kind: ChunkType) -> None:
        incarnation = self._incarnation(vhost, queue)
        offset, incarnation.next_offset = incarnation.next_offset, incarnation.next_offset + len(bodies)
        incarnation.copies.append((offset, bodies, kind, self.now_ms))
        append = self.logs[vhost].append_copy
        type_ = self._type_of(vhost, queue, kind)
        arguments = (queue, incarnation.epoch, offset, bodies, kind, self.now_ms, type_)
        self.now_ms += 1
        if self._loop is None:
            append(*arguments)
        else:
            done = threading.Event()
            self._loop.call_soon_threadsafe(append, *arguments)
            self._loop.call_soon_threadsafe(done.set)
            done.wait(10)


async def _cut(listener: StreamListener) -> None:
    for connection in listener.connections:
        connection.abort()
    await listener.stop()
