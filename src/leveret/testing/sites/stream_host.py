"""A fake node in memory with the interfaces that the stream listener uses.

`served_log_contract` and `recovery_queue_contract` check the promises on which the listener relies. The tests run them
on this fake and on the real logs and queues.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from isal.isal_zlib import crc32

from leveret.core.broker.limits import ConnectionRegistry
from leveret.core.queues.counters import Counters
from leveret.core.queues.stream import StreamBatch
from leveret.core.queues.stream_groups import ConsumerGroups
from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    LeveretError,
    NotFound,
    PreconditionFailed,
    Refusal,
)
from leveret.runtime.clients.stream_host import RecoveryQueue, ServedLog, StagedQueue, check_contiguous
from leveret.session.certificate import TlsPeer
from leveret.session.stream.types import Operation, StreamPlaces, UpstreamSite
from leveret.wire.chunk import (
    Attribute,
    ChunkType,
    decode_header,
    encode_attribute,
    encode_entry,
    encode_header,
    encode_trailer,
)
from leveret.wire.site_order import LogCoverage
from leveret.wire.stream.publish import MessageRun

QUEUE_EPOCH: Final = 7
Octets: TypeAlias = bytes
"""`bytes` inside a class that has a property of this name."""


def make_chunk(
    chunk_id: int,
    bodies: Sequence[bytes],
    *,
    kind: ChunkType = ChunkType.USER,
    timestamp_ms: int = 0,
    queue: bytes = b"q",
    queue_offset: int | None = None,
) -> bytes:
    """Return a raw chunk of an outgoing log, with its trailer."""
    data = b"".join(map(encode_entry, bodies))
    trailer = encode_trailer(
        encode_attribute(Attribute.QUEUE_EPOCH, queue, QUEUE_EPOCH),
        encode_attribute(Attribute.QUEUE_OFFSET, b"", chunk_id if queue_offset is None else queue_offset),
    )
    count = len(bodies)
    header = encode_header(
        kind, count, count, timestamp_ms, 1, chunk_id, crc32(data), len(data), len(trailer)
    )
    return header + data + trailer


LOG_ID: Final = 7
"""The default id of a log."""


class FakeServedLog:
    """An outgoing log whose every chunk is durable as soon as it is appended."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._chunks: list[Octets] = []
        self._stamps: list[int] = []
        self._next_offset = 0
        self._callbacks: list[Callable[[], None]] = []
        self.fails_with: Exception | None = None
        self.reads = 0
        self.log_id = LOG_ID
        self.writer = 1
        self.missing_messages = 0
        self.has_stopped = False
        self.uncollected = self.catching_up_records = self.confirms_waiting = 0

    def append(
        self, bodies: Sequence[Octets], *, kind: ChunkType = ChunkType.USER, timestamp_ms: int = 0
    ) -> Octets:
        """Append one chunk, call the readers' callbacks, and return the chunk."""
        chunk = make_chunk(self._next_offset, bodies, kind=kind, timestamp_ms=timestamp_ms)
        self._ids.append(self._next_offset)
        self._chunks.append(chunk)
        self._stamps.append(timestamp_ms)
        self._next_offset += len(bodies)
        for callback in list(self._callbacks):
            callback()
        return chunk

    def retain_from(self, chunk_id: int) -> None:
        """Drop the chunks before this one, as retention does."""
        kept = bisect_left(self._ids, chunk_id)
        del self._ids[:kept], self._chunks[:kept], self._stamps[:kept]

    def replace(self, chunk_id: int, chunk: Octets) -> None:
        """Replace the octets of a chunk, as a failing disk does."""
        self._chunks[self._ids.index(chunk_id)] = chunk

    is_closed = False
    ended = NotFound("it was deleted")

    @property
    def readers(self) -> int:
        """The number of registered callbacks."""
        return len(self._callbacks)

    @property
    def first_offset(self) -> int:
        """The first retained offset."""
        return self._ids[0] if self._ids else self._next_offset

    @property
    def committed_offset(self) -> int:
        """The offset after the last one."""
        return self._next_offset

    @property
    def end_offset(self) -> int:
        """The same as `committed_offset`, because every chunk is durable."""
        return self._next_offset

    @property
    def last_chunk_id(self) -> int:
        """The id of the last chunk, or -1."""
        return self._ids[-1] if self._ids else -1

    @property
    def last_timestamp_ms(self) -> int:
        """The time of the last chunk, or 0."""
        return self._stamps[-1] if self._stamps else 0

    @property
    def bytes(self) -> int:
        """The number of retained octets."""
        return sum(map(len, self._chunks))

    def read(self, offset: int, bytes_max: int) -> list[Octets]:
        """See ServedLog. Raises `fails_with` if it is set."""
        self.reads += 1
        if self.fails_with is not None:
            raise self.fails_with
        if offset >= self._next_offset:
            return []
        first = max(bisect_right(self._ids, offset) - 1, 0)
        chunks: list[Octets] = []
        for chunk in self._chunks[first:]:
            bytes_max -= len(chunk)
            if chunks and bytes_max < 0:
                break
            chunks.append(chunk)
        return chunks

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset of the first chunk that is not older; the log's end if all chunks are older."""
        index = bisect_left(self._stamps, timestamp_ms)
        return self._ids[index] if index < len(self._ids) else self._next_offset

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See ServedLog."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)


class FakeStream(FakeServedLog):
    """A stream of applications; every chunk is durable at once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_replica = False
        self.is_readable = self.is_writable = True
        self.groups = ConsumerGroups()
        self.sequences: dict[str, int] = {}
        self.offsets: dict[str, int] = {}

    @property
    def log(self) -> FakeServedLog:
        """See StreamHandle."""
        return self

    def last_sequence(self, reference: str) -> int:
        """Return the last publishing id of a reference, 0 for none."""
        return self.sequences.get(reference, 0)

    def stored_offset(self, reference: str) -> int | None:
        """Return the stored offset of a reference, None for none."""
        return self.offsets.get(reference)

    def publish(self, batch: StreamBatch) -> None:
        """Append a batch as one chunk."""
        self.append([entry[4:] for entry in batch.entries])
        asyncio.get_running_loop().call_soon(batch.done, None)

    def store_offset(self, reference: str, offset: int) -> None:
        """Store the offset of a reference."""
        self.offsets[reference] = offset

    def ask_offset(self, reference: str, then: Callable[[int | LeveretError | None], None]) -> None:
        """Call `then` with the stored offset at once."""
        then(self.offsets.get(reference))

    def ask_sequence(self, reference: str, then: Callable[[int | LeveretError | None], None]) -> None:
        """Call `then` with the last publishing id at once."""
        then(self.last_sequence(reference))


class FakeRecoveryQueue:
    """A queue that stores recovered messages; between `hold` and `release` none of them becomes durable.

    Attributes:
        stored: (publishing id, stored message) in the order in which they were stored.
    """

    def __init__(self) -> None:
        self.stored: list[tuple[int, bytes]] = []
        self.refuses_with: Refusal | None = None
        self._sequences: dict[str, int] = {}
        self._waiting: list[Callable[[], None]] | None = None

    def last_sequence(self, reference: str) -> int:
        """Return the last publishing id of a reference, 0 for none."""
        return self._sequences.get(reference, 0)

    def ask_sequence(
        self, reference: str, found: Callable[[int], None], failed: Callable[[LeveretError], None]
    ) -> None:
        """See RecoveryQueue."""
        found(self.last_sequence(reference))

    def append(
        self,
        reference: str,
        runs: list[MessageRun],
        done: Callable[[], None],
        failed: Callable[[LeveretError], None] = lambda error: None,
    ) -> None:
        """See RecoveryQueue. Raises `refuses_with` if it is set."""
        if self.refuses_with is not None:
            raise self.refuses_with
        check_contiguous("", self.last_sequence(reference), runs)
        for publishing_id, body in (message for run in runs for message in run.messages()):
            if publishing_id > self.last_sequence(reference):
                self._sequences[reference] = publishing_id
                self.stored.append((publishing_id, body))
        if self._waiting is None:
            asyncio.get_running_loop().call_soon(done)
        else:
            self._waiting.append(done)

    def hold(self) -> None:
        """Let no message become durable until `release`."""
        self._waiting = []

    def release(self) -> None:
        """Let the held messages and all later ones become durable."""
        waiting, self._waiting = self._waiting or [], None
        for done in waiting:
            done()


@dataclass
class FakeStreamHost:
    """Users, vhosts, logs and queues; a test sets the fields."""

    passwords: dict[str, str] = field(default_factory=lambda: {"guest": "guest", "standby": "secret"})
    administrators: set[str] = field(default_factory=lambda: {"guest"})
    vhosts: set[str] = field(default_factory=lambda: {"/", "plain"})
    logs: dict[str, FakeServedLog] = field(default_factory=lambda: {"/": FakeServedLog()})
    unreadable: set[tuple[str, str]] = field(default_factory=set)
    queues: dict[tuple[str, str], FakeRecoveryQueue] = field(default_factory=dict)
    streams: dict[tuple[str, str], FakeStream] = field(default_factory=dict)
    super_streams: dict[str, dict[str, str]] = field(default_factory=dict)
    refused: set[tuple[str, str, str]] = field(default_factory=set)
    connections: ConnectionRegistry = field(default_factory=ConnectionRegistry)
    offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    downstreams: Counter[tuple[str, str]] = field(default_factory=Counter)
    node_name: str = "leveret@test"
    site: UpstreamSite | None = None
    is_downstream: bool = False
    advertised_host: str = "127.0.0.1"
    advertised_port: int = 0
    advertised_tls_host: str = "tls.example"
    advertised_tls_port: int = 0
    mechanisms: tuple[str, ...] = ("PLAIN",)
    is_blocked: bool = False
    refuses_publishes: bool = False
    stream_counters: Counters = field(default_factory=Counters)
    stream_errors: Counter[int] = field(default_factory=Counter)
    may_change: bool = True
    changes: list[Callable[[], None]] = field(default_factory=list)
    elsewhere: dict[tuple[str, str], StreamPlaces] = field(default_factory=dict)

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """Return the name if the password is right; guest may connect from loopback only."""
        if self.passwords.get(username) != password or (username == "guest" and not from_loopback):
            raise AuthenticationFailed(f"user '{username}' - invalid credentials")
        return username

    def external_user(self, tls: TlsPeer, from_loopback: bool) -> str:
        """Return the user with the name of the certificate's subject."""
        return self._known(tls.subject or "")

    def _known(self, name: str) -> str:
        if name not in self.passwords:
            raise AuthenticationFailed(f"user '{name}' - invalid credentials")
        return name

    def open_vhost(self, user: str, vhost: str) -> None:
        """Allow every user every existing vhost."""
        if vhost not in self.vhosts:
            raise NotFound(f"vhost {vhost} not found")

    def check(self, user: str, vhost: str, operation: Operation, name: str) -> None:
        """Allow every operation that is not in `refused` as (user, operation, name)."""
        if (user, operation, name) in self.refused:
            raise AccessRefused(f"user '{user}' may not {operation} '{name}'")

    def staged_queue(self, user: str, vhost: str, queue: str) -> StagedQueue:
        """Refuse staged segments, because no queue here has a log; so recoveries publish their messages."""
        raise NotFound(f"queue '{queue}' in vhost '{vhost}' has no log")

    def stream(self, vhost: str, name: str) -> FakeStream:
        """Return the stream."""
        if (vhost, name) not in self.streams:
            raise NotFound(f"no stream '{name}'")
        return self.streams[vhost, name]

    def places_of(self, vhost: str, name: str, *, tls: bool) -> StreamPlaces:
        """Return the places in `elsewhere`, else this node."""
        if (vhost, name) in self.elsewhere:
            return self.elsewhere[vhost, name]
        self.stream(vhost, name)
        here = (self.advertised_host, self.advertised_port)
        return StreamPlaces((self.advertised_tls_host, self.advertised_tls_port) if tls else here)

    def when_may_change(self, change: Callable[[], None]) -> None:
        """Append the change to `changes`; the test calls it."""
        self.changes.append(change)

    def create_stream(self, user: str, vhost: str, name: str, arguments: Mapping[str, str]) -> bool:
        """Make a stream, unless its length is no number; return whether it is new."""
        if not arguments.get("max-length-bytes", "0").isdecimal():
            raise PreconditionFailed("max-length-bytes is no number")
        self.check(user, vhost, "configure", name)
        exists = (vhost, name) in self.streams
        self.streams.setdefault((vhost, name), FakeStream())
        return not exists

    def delete_stream(self, user: str, vhost: str, name: str) -> None:
        """Delete a stream."""
        self.check(user, vhost, "configure", name)
        del self.streams[self._key(vhost, name)]

    def _key(self, vhost: str, name: str) -> tuple[str, str]:
        self.stream(vhost, name)
        return vhost, name

    def create_super_stream(
        self, user: str, vhost: str, name: str, partitions: Mapping[str, str], arguments: Mapping[str, str]
    ) -> bool:
        """Make a super stream and its partitions; return whether it is new."""
        if name in self.super_streams:
            return False
        self.super_streams[name] = dict(partitions)
        for stream in partitions:
            self.create_stream(user, vhost, stream, arguments)
        return True

    def delete_super_stream(self, user: str, vhost: str, name: str) -> None:
        """Delete a super stream and its partitions."""
        self.check(user, vhost, "configure", name)
        for stream in self.super_streams.pop(name):
            self.delete_stream(user, vhost, stream)

    def partitions(self, vhost: str, super_stream: str) -> list[str]:
        """Return the partitions in the order of their creation."""
        if super_stream not in self.super_streams:
            raise NotFound(f"no super stream '{super_stream}'")
        return list(self.super_streams[super_stream])

    def route(self, vhost: str, super_stream: str, routing_key: str) -> list[str]:
        """Return the partitions with exactly this routing key."""
        self.partitions(vhost, super_stream)
        return [each for each, key in self.super_streams[super_stream].items() if key == routing_key]

    def when_durable(self, done: Callable[[], None]) -> None:
        """Call `done` in the next turn of the loop."""
        asyncio.get_running_loop().call_soon(done)

    def outgoing_log(self, user: str, vhost: str) -> FakeServedLog:
        """Return the vhost's log."""
        if (user, vhost) in self.unreadable:
            raise AccessRefused(f"user '{user}' may not read the outgoing log of vhost '{vhost}'")
        if vhost not in self.logs:
            raise NotFound(f"vhost '{vhost}' has no outgoing log")
        return self.logs[vhost]

    def log_coverage(self, user: str, vhost: str) -> LogCoverage:
        """Return how the vhost's log stands, which leads all queues."""
        log = self.outgoing_log(user, vhost)
        return LogCoverage(log.writer, log.committed_offset, 0, 0)

    def may_recover(self, user: str) -> bool:
        """Return whether the user is one of `administrators`."""
        return user in self.administrators

    def recovery_queue(self, user: str, vhost: str, queue: str) -> FakeRecoveryQueue:
        """Return the queue; make it if it is missing."""
        if not self.may_recover(user):
            raise AccessRefused(f"user '{user}' may not recover messages: not an administrator")
        return self.queues.setdefault((vhost, queue), FakeRecoveryQueue())

    def store_offset(self, vhost: str, reference: str, offset: int) -> None:
        """Store the offset of a reference."""
        self.offsets[vhost, reference] = offset

    def downstream_came(self, vhost: str, reference: str) -> None:
        """Add a connection of a downstream."""
        self.downstreams[vhost, reference] += 1

    def downstream_left(self, vhost: str, reference: str) -> None:
        """Remove a connection of a downstream."""
        self.downstreams[vhost, reference] -= 1

    def query_offset(self, vhost: str, reference: str) -> int | None:
        """Return the stored offset of a reference, None for none."""
        return self.offsets.get((vhost, reference))


def served_log_contract(served: ServedLog) -> None:
    """Check the promises on which the listener relies. `served` must hold at least three chunks, and be idle."""
    chunks = served.read(served.first_offset, 1 << 40)
    headers = [decode_header(chunk) for chunk in chunks]
    assert len(chunks) >= 3, "the contract needs three chunks to look at"
    assert headers[0].chunk_id == served.first_offset
    assert [each.next_offset for each in headers[:-1]] == [each.chunk_id for each in headers[1:]]
    assert headers[-1].chunk_id == served.last_chunk_id
    assert headers[-1].next_offset == served.committed_offset
    assert headers[-1].timestamp_ms == served.last_timestamp_ms
    assert [each.chunk_bytes for each in headers] == list(map(len, chunks)), "each item is one whole chunk"
    assert sum(map(len, chunks)) <= served.bytes
    for header, chunk in zip(headers, chunks, strict=True):
        assert served.read(header.chunk_id, 1) == [chunk], "at least one chunk, however small the limit"
        assert served.read(header.next_offset - 1, 1) == [chunk], "the chunk that holds the offset"
    assert served.read(served.first_offset, len(chunks[0]) + len(chunks[1])) == chunks[:2]
    assert served.read(served.committed_offset, 1 << 20) == []
    assert served.offset_at(0) == served.first_offset
    assert served.offset_at(served.last_timestamp_ms + 1) == served.committed_offset


async def recovery_queue_contract(queue: RecoveryQueue) -> None:
    """Check the promises on which recovery relies. `queue` must have no other publisher."""
    stored: list[int] = []
    reference = "recovery.contract"
    everything = asyncio.Event()
    assert queue.last_sequence(reference) == 0
    queue.append(reference, [MessageRun.of(1, [b"a", b"b"])], lambda: stored.append(2))
    queue.append(reference, [MessageRun.of(2, [b"b", b"c"])], lambda: stored.append(3))
    queue.append(reference, [MessageRun.of(1, [b"a"])], everything.set)
    assert stored == [], "nothing is durable within the call"
    await asyncio.wait_for(everything.wait(), 10)
    assert stored == [2, 3], "in the order of the calls"
    assert queue.last_sequence(reference) == 3
    assert queue.last_sequence("recovery.other") == 0
    for runs in ([MessageRun.of(5, [b"e"])], [MessageRun.of(4, [b"d"]), MessageRun.of(6, [b"f"])]):
        try:
            queue.append(reference, runs, everything.clear)
        except PreconditionFailed:
            continue
        raise AssertionError("taken with a gap in front")
    assert queue.last_sequence(reference) == 3, "nothing of what leaves a gap"
