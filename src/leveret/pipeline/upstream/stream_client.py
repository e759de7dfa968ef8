"""The pipeline's side of the stream protocol: a blocking client for Spark's Python workers.

    with connect(endpoints, vhost="/", username=..., password=...) as client:
        end = client.stats(OUTGOING_STREAM)["committed_offset"]
        for raw in client.fetch(OUTGOING_STREAM, start, end):     # whole chunks, checked
            ...
        client.store_offset(cluster, OUTGOING_STREAM, end)

One thread uses a client. After a `ConnectionLost` it is closed for good: make a new one and resume.
"""

from __future__ import annotations

import itertools
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from isal.isal_zlib import crc32

from leveret.model.errors import (
    InvalidCommand,
    LeveretError,
    NotAllowed,
    NotFound,
    PeerError,
    PreconditionFailed,
    Refusal,
    StorageError,
)
from leveret.model.host_port import host_and_port
from leveret.pipeline.jobs.tls import reason_of
from leveret.pipeline.upstream.stream_connection import REFUSALS, ConnectionLost, StreamConnection, is_deliver
from leveret.wire.chunk import HEADER, HEADER_BYTES, MAGIC, ChunkError, Header, decode_chunk
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.staged_segment import STAGED_STREAM_PREFIX
from leveret.wire.stream.codec import Code, StreamCommand
from leveret.wire.stream.commands import (
    Credit,
    CreditResponse,
    DeclarePublisher,
    DeclarePublisherResponse,
    DeletePublisher,
    DeletePublisherResponse,
    Metadata,
    MetadataResponse,
    MetadataUpdate,
    Partitions,
    PartitionsResponse,
    PublishConfirm,
    PublishError,
    QueryOffset,
    QueryOffsetResponse,
    QueryPublisherSequence,
    QueryPublisherSequenceResponse,
    StoreOffset,
    StreamStats,
    StreamStatsResponse,
    Subscribe,
    SubscribeResponse,
    Unsubscribe,
    UnsubscribeResponse,
)
from leveret.wire.stream.fields import OffsetSpec, OffsetType, StreamMetadata
from leveret.wire.stream.publish import MessageRun, run_head

CREDIT: Final = 256
"""The chunks in flight. TCP bounds the octets; the credit has to outlast a round trip to a far site."""
UNCONFIRMED_MAX: Final = 1024
"""The runs of messages in flight. Their confirms must fit into the sockets' buffers."""
PUBLISHERS_MAX: Final = 256

Endpoint: TypeAlias = tuple[str, int]


class StreamPlace(NamedTuple):
    """The code of a stream's state, and `host:port` of its leader; empty if it has none now."""

    code: int
    endpoint: str


class UpstreamUnreachable(LeveretError):
    """No endpoint answers."""


class GapError(LeveretError):
    """The requested records are no longer retained: `first_missing` up to `first_retained`."""

    def __init__(self, stream: str, first_missing: int, first_retained: int) -> None:
        super().__init__(
            f"stream {stream}: offsets {first_missing} to {first_retained - 1} are gone, the first "
            f"one retained is {first_retained}; the transferred records can be promoted. To follow again, raise the "
            "upstream's retention, then run delete_all_data_on_standby_replication_cluster here and "
            "delete_internal_streams_on_standby_replication_upstream_cluster there, which collects the queues' "
            "messages again"
        )
        self.first_missing = first_missing
        self.first_retained = first_retained


def parse_endpoint(text: str) -> Endpoint:
    """Split `host:port`; an IPv6 host may be in brackets.

    Raises:
        InvalidCommand: the port is missing, or is none.
    """
    found = host_and_port(text)
    if found is None:
        raise InvalidCommand(f"endpoint '{text[:100]}' is not host:port")
    return found


def connect(
    endpoints: Sequence[str | Endpoint],
    *,
    vhost: str,
    username: str,
    password: str,
    timeout_s: float = 10,
    tls: ssl.SSLContext | None = None,
) -> StreamClient:
    """A client of the first endpoint that answers; `timeout_s` is for each; with TLS if `tls` is given.

    Raises:
        UpstreamUnreachable: none answers; the text has the reason for each. AuthenticationFailed, AccessRefused: the
            first one that answers refuses the login.
    """
    reasons = []
    for endpoint in endpoints:
        try:
            host, port = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        except InvalidCommand as error:
            # Nodes of an upstream tell endpoints, too: one that is none must not keep the others from being tried.
            reasons.append(str(error))
            continue
        try:
            return StreamClient(
                host, port, vhost=vhost, username=username, password=password, timeout_s=timeout_s, tls=tls
            )
        except OSError as error:
            reasons.append(f"{host}:{port}: {reason_of(error)}")
        except ConnectionLost as error:
            reasons.append(f"{host}:{port}: {error}")
    raise UpstreamUnreachable("no endpoint answers: " + ("; ".join(reasons) or "the list is empty"))


class StreamClient:
    """Reads logs, stores offsets and publishes over one connection; raises the errors of `StreamConnection`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        vhost: str,
        username: str,
        password: str,
        timeout_s: float = 10,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.connection = StreamConnection(
            host, port, vhost=vhost, username=username, password=password, timeout_s=timeout_s, tls=tls
        )
        self.connection.on_command = self._on_command
        self._vhost = vhost
        self._subscriptions = itertools.cycle(range(256))
        self._publishers: dict[int, RecoveryPublisher] = {}

    def stats(self, stream: str) -> dict[str, int]:
        """Bounds of a stream: `first_chunk_id`, `committed_chunk_id`, and Leveret's additions.

        Raises:
            NotFound: there is no such stream.
            NotAllowed: the server is older than this command (RabbitMQ 3.11).
        """
        link = self.connection
        if not self._serves_stats:
            raise NotAllowed(f"{link.peer} is version {link.server_version} and has no stream statistics")
        return link.request(StreamStats(link.next_id(), stream), StreamStatsResponse).statistics

    def metadata(self, streams: list[str]) -> list[StreamMetadata]:
        """The existence of streams: code `OK`, or another one."""
        link = self.connection
        return link.request(Metadata(link.next_id(), streams), MetadataResponse).streams

    def partitions(self, super_stream: str) -> list[str]:
        """The streams of a super stream.

        Raises:
            NotFound: there is no such super stream.
        """
        link = self.connection
        return link.request(Partitions(link.next_id(), super_stream), PartitionsResponse).streams

    def places(self, streams: list[str]) -> dict[str, StreamPlace]:
        """By stream, the code of its state, and the endpoint of its leader."""
        link = self.connection
        response = link.request(Metadata(link.next_id(), streams), MetadataResponse)
        nodes = {node.reference: f"{node.host}:{node.port}" for node in response.brokers}
        return {each.stream: StreamPlace(each.code, nodes.get(each.leader, "")) for each in response.streams}

    def fetch(
        self, stream: str, start: int, end: int, *, most: int = 0, log_id: int = 0, writer: int = 0
    ) -> Iterator[memoryview]:
        """Yield in order the chunks with `start` <= chunk id < `end`: header, data, trailer, all checked.

        If an outgoing log has committed more by now, the end is there instead, but at `most`.

        The caller may keep them; adjacent ones are in one block of memory, of some 16 MB. The iterator waits for an
        `end` that the stream has not reached yet, up to the client's timeout from one chunk to the next. No other
        request may be made before it is exhausted or closed. `log_id` and `writer` are the log's name and writer at
        the server (`stats`), each 0 for any.

        Raises:
            GapError: offsets from `start` on are no longer retained.
            PreconditionFailed: there is another log by now, in which these offsets may name other records.
            ChunkError: a chunk is damaged.
            NotFound: there is no such stream, or it was deleted meanwhile.
            ConnectionLost: no chunk came within the timeout.
        """
        if start >= end:
            return
        link = self.connection
        if self._serves_stats:
            stats = self.stats(stream)
            meant = {"log_id": log_id, "writer": writer}
            if any(value and stats.get(name, 0) != value for name, value in meant.items()):
                raise PreconditionFailed(
                    f"{link.peer}: {stream} is another log than the one that was begun with, or another writer's"
                )
            if (first := stats["first_chunk_id"]) > start:
                raise GapError(stream, start, first)
            end = max(end, min(most, stats.get("committed_offset", 0)))
        subscription = next(self._subscriptions)
        properties = {"chunk_selector": "all", "leveret.until": str(end)}
        offset = OffsetSpec(OffsetType.OFFSET, start)
        request = Subscribe(link.next_id(), subscription, stream, offset, CREDIT, properties)
        link.request(request, SubscribeResponse)
        gone = False
        try:
            with link.side_by_side():
                yield from self._chunks(stream, subscription, start, end)
        except NotFound:
            gone = True
            raise
        finally:
            if not link.closed and not gone:
                link.request(Unsubscribe(link.next_id(), subscription), UnsubscribeResponse)

    def store_offset(self, reference: str, stream: str, offset: int) -> None:
        """Report to the server that the reader `reference` has everything before `offset`; it does not answer."""
        self.connection.send(StoreOffset(reference, stream, offset).encode())

    def query_offset(self, reference: str, stream: str) -> int | None:
        """The offset stored last under `reference`."""
        link = self.connection
        response = link.exchange(QueryOffset(link.next_id(), reference, stream), QueryOffsetResponse)
        if response.code == Code.NO_OFFSET:
            return None
        link.check(response)
        return response.offset

    def declare_publisher(self, reference: str, stream: str) -> RecoveryPublisher:
        """Begin or continue publishing under `reference`; up to 256 publishers at a time.

        Raises:
            AccessRefused, NotFound: no permission, or no such stream.
            PreconditionFailed: the queue would not keep recovered messages.
        """
        link = self.connection
        free = next((number for number in range(PUBLISHERS_MAX) if number not in self._publishers), None)
        if free is None:
            raise NotAllowed(f"{link.peer}: {PUBLISHERS_MAX} publishers are declared already, close one")
        try:
            link.request(DeclarePublisher(link.next_id(), free, reference, stream), DeclarePublisherResponse)
        except PreconditionFailed as error:
            queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
            raise PreconditionFailed(
                f"{error}: queue '{queue}' in vhost '{self._vhost}' is not durable, or exclusive, there: it would not "
                "keep recovered messages; delete it, and recover again, which makes it as it was at the upstream"
            ) from error

        def ask() -> int:
            query = QueryPublisherSequence(link.next_id(), reference, stream)
            return link.request(query, QueryPublisherSequenceResponse).sequence

        taken = ask if stream.startswith(STAGED_STREAM_PREFIX) else None
        publisher = RecoveryPublisher(link, free, ask(), lambda: self._publishers.pop(free), taken)
        self._publishers[free] = publisher
        return publisher

    def close(self) -> None:
        """Send a close and drop the connection; a second call does nothing."""
        self.connection.close()

    def __enter__(self) -> StreamClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _serves_stats(self) -> bool:
        return self.connection.server_version >= (3, 11)

    def _on_command(self, command: StreamCommand) -> None:
        match command:
            case PublishConfirm() if publisher := self._publishers.get(command.publisher):
                publisher.confirmed(command.publishing_ids)
            case PublishError() if publisher := self._publishers.get(command.publisher):
                code = command.failures[0].code if command.failures else Code.INTERNAL_ERROR
                ids = ", ".join(str(each.publishing_id) for each in command.failures[:3])
                # Other publishers' messages are none of its business.
                publisher.refused(
                    self.connection.refusal(code, f"messages up to number {ids} (its log says why)")
                )

    def _chunks(self, stream: str, subscription: int, start: int, end: int) -> Iterator[memoryview]:
        """Yield the chunks of a subscription; each one gives a credit back."""
        expected, received = start, 0
        while expected < end:
            raw = self._next_chunk(stream, subscription)
            received += 1
            if received % (CREDIT // 2) == 0:
                self.connection.send(Credit(subscription, CREDIT // 2).encode())
            header = self._check_chunk(raw)
            if header.next_offset <= expected:
                continue
            if header.chunk_id > expected:
                raise GapError(stream, expected, header.chunk_id)
            expected = header.next_offset
            if header.chunk_id >= start:
                yield raw

    def _next_chunk(self, stream: str, subscription: int) -> memoryview:
        link = self.connection
        while True:
            frame = link.next_frame()
            if is_deliver(frame):
                if frame[4] == subscription:
                    return frame[5:]
                continue
            command = link.receive(frame)
            if isinstance(command, MetadataUpdate) and command.stream == stream:
                refusal = REFUSALS.get(command.code, NotFound)
                raise refusal(f"stream {stream} at {link.peer} went away (code {command.code})")
            if isinstance(command, CreditResponse):
                raise PeerError(f"{link.peer} declines credit with code {command.code}")

    def _check_chunk(self, raw: memoryview) -> Header:
        """The header of a chunk; checks that only Leveret writes are verified only for Leveret."""
        peer = self.connection.peer
        if self.connection.is_leveret:
            header = decode_chunk(raw).header
        elif len(raw) < HEADER_BYTES or raw[0] != MAGIC:
            raise ChunkError(f"{peer} sent {len(raw)} octets that are no chunk")
        else:
            header = Header._make(HEADER.unpack_from(raw)[1:10])
            if crc32(raw[HEADER_BYTES : HEADER_BYTES + header.data_bytes]) != header.crc:
                raise ChunkError(f"chunk {header.chunk_id} from {peer}: CRC of its data does not match")
        if header.chunk_bytes != len(raw) or header.records == 0:
            raise ChunkError(f"chunk {header.chunk_id} from {peer}: its lengths do not add up")
        return header


class RecoveryPublisher:
    """Publishes messages to one queue, each at most once despite repetitions; made by `declare_publisher`.

    Attributes:
        last_sequence: the server's last id for the reference; publishing continues after it.
    """

    def __init__(
        self,
        connection: StreamConnection,
        number: int,
        last_sequence: int,
        forget: Callable[[], object],
        taken: Callable[[], int] | None = None,
    ) -> None:
        """`taken` asks for the number of the last message that is there, for a publisher of segments."""
        self.last_sequence = self._there = last_sequence
        self._taken = taken
        self._connection = connection
        self._number = number
        self._forget = forget
        self._sent: deque[tuple[int, int]] = deque()
        self._early: set[int] = set()
        self._refusal: Refusal | None = None

    def publish(self, run: MessageRun) -> None:
        """Send stored messages, in ascending order of ids; waits while too many runs are unconfirmed.

        Raises:
            Refusal: the server refused some of them.
            ConnectionLost: unconfirmed messages may or may not be stored; a new publisher finds out.
        """
        self._check()
        while len(self._sent) >= UNCONFIRMED_MAX:
            self._connection.await_command(StreamCommand)
            self._check()
        self._sent.append((run.first, run.last))
        self._connection.send(run_head(self._number, run), run.data)

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Wait until every sent id up to `up_to` is durable at the server.

        A segment may take long, with those of many queues appended in turns: the time begins anew while messages come.

        Raises:
            Refusal: the server refused some of them.
            ConnectionLost: that took longer than `timeout_s`.
            StorageError: a segment took longer, and the connection goes on.
        """
        link = self._connection
        deadline = time.monotonic() + timeout_s
        while self._sent and self._sent[0][0] <= up_to:
            self._check()
            if (left := deadline - time.monotonic()) <= 0:
                self._check_grown(timeout_s)
                deadline = time.monotonic() + timeout_s
            elif self._taken is None or link.comes_within(left):
                link.set_timeout(left)
                link.await_command(StreamCommand)
        link.set_timeout()
        self._there = max(self._there, up_to)

    def _check_grown(self, timeout_s: float) -> None:
        """Check that the queue has got messages since the last look, after a time without a confirm."""
        link, before = self._connection, self._there
        late = f"{len(self._sent)} runs of messages are unconfirmed after {timeout_s} s"
        if self._taken is None:
            link.lose(late)
        link.set_timeout()
        self._there = self._taken()
        if self._sent and self._there <= before:
            raise StorageError(f"{link.peer}: {late}, and no message came since number {before}")

    def close(self) -> None:
        """Free the publisher's number; unconfirmed messages stay unconfirmed."""
        self._forget()
        link = self._connection
        link.request(DeletePublisher(link.next_id(), self._number), DeletePublisherResponse)

    def refused(self, refusal: Refusal) -> None:
        """Note that the server refused some messages; called by the client."""
        self._refusal = refusal

    def _check(self) -> None:
        """Raise the server's refusal of some messages."""
        if self._refusal is not None:
            self._connection.set_timeout()
            raise self._refusal

    def confirmed(self, publishing_ids: list[int]) -> None:
        """Note durable runs, by the id of their last message; called by the client."""
        self._early.update(publishing_ids)
        while self._sent and self._sent[0][1] in self._early:
            self._early.remove(self._sent.popleft()[1])
