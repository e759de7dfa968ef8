"""The types between a stream session and its runtime: questions, state, effects, codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from leveret.core.queues.stream import LogBounds, StreamBatch
from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LedElsewhere,
    LeveretError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    StorageError,
    Unsupported,
)
from leveret.session.certificate import TlsPeer
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.site_order import LogCoverage
from leveret.wire.staged_segment import LogEnd
from leveret.wire.stream.codec import Code, Response
from leveret.wire.stream.publish import MessageRun

CODES: Final[dict[type[LeveretError], Code]] = {
    AccessRefused: Code.ACCESS_REFUSED,
    AuthenticationFailed: Code.AUTHENTICATION_FAILURE,
    InvalidCommand: Code.PRECONDITION_FAILED,
    LedElsewhere: Code.STREAM_NOT_AVAILABLE,
    NotAllowed: Code.PRECONDITION_FAILED,
    NotFound: Code.STREAM_DOES_NOT_EXIST,
    PreconditionFailed: Code.PRECONDITION_FAILED,
    ResourceLocked: Code.ACCESS_REFUSED,
    StorageError: Code.STREAM_NOT_AVAILABLE,
    Unsupported: Code.PRECONDITION_FAILED,
}


def code_of(error: LeveretError) -> Code:
    """The response code for a refusal, or for a log that cannot be served."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), Code.INTERNAL_ERROR)


Operation = Literal["configure", "write", "read"]


class UpstreamSite(Protocol):
    """The cluster that this node belongs to, as downstreams see it: each node has outgoing logs of its own."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""

    @property
    def label(self) -> str:
        """This node's label (wire.log_name)."""

    def labels(self) -> list[str]:
        """The labels of all nodes, this one's among them."""

    def place(self, vhost: str, label: str, *, tls: bool) -> tuple[str, int] | None:
        """Host and port of a node's stream listener; None for this node.

        Raises:
            LedElsewhere: the node does not run, and leads queues of the vhost that are collected.
            NotFound: it does not run, and nobody misses it; or there is no such node.
        """


class SequenceBook(Protocol):
    """The recovered messages of a queue."""

    def last_sequence(self, reference: str) -> int:
        """The last publishing id stored under `reference`, 0 when there is none."""


class StagedBook(SequenceBook, Protocol):
    """A queue that takes in staged segments (wire.staged_segment)."""

    def end(self) -> LogEnd:
        """The end of the queue's log. NotFound, PreconditionFailed: it takes none. StorageError: it is damaged."""


class StreamBook(SequenceBook, Protocol):
    """A stream's log, publishers and readers."""

    @property
    def is_replica(self) -> bool:
        """Whether another node leads the stream, and has publishers' ids and readers' offsets."""

    @property
    def is_readable(self) -> bool:
        """Whether this node has a copy, for readers."""

    @property
    def is_writable(self) -> bool:
        """Whether the stream has a leader, here or elsewhere."""

    @property
    def log(self) -> LogBounds:
        """The served log."""

    def stored_offset(self, reference: str) -> int | None:
        """The offset that a reader stored last, at the leader."""


class StreamPlaces(NamedTuple):
    """Host and port, for clients, of the nodes with a stream; `leader` is None if it does not run."""

    leader: tuple[str, int] | None
    replicas: tuple[tuple[str, int], ...] = ()


class CollectedLog(LogBounds, Protocol):
    """An outgoing log."""

    @property
    def log_id(self) -> int:
        """The log's name: a log that replaces it has another one."""

    @property
    def writer(self) -> int:
        """Drawn at each opening by a node, to tell logs of different writers apart."""

    @property
    def missing_messages(self) -> int:
        """The number of messages that its queues hold and that retention has dropped from it."""

    @property
    def has_stopped(self) -> bool:
        """Whether no more is committed before a restart."""

    @property
    def uncollected(self) -> int:
        """About the number of records of its queues that it lacks, because a disk refused them."""

    @property
    def catching_up_records(self) -> int:
        """About the number of records of its queues that it has yet to copy, such as after another node's loss."""

    @property
    def confirms_waiting(self) -> int:
        """The number of publishers' confirms that wait until downstreams have what it holds (`remote-dc-confirm`)."""


class StreamAuthority(Protocol):
    """Answers a session's questions at once; the peer gets its refusals as codes."""

    @property
    def node_name(self) -> str:
        """This node."""

    @property
    def site(self) -> UpstreamSite | None:
        """The cluster that this node belongs to; None for a single node."""

    @property
    def is_downstream(self) -> bool:
        """Whether this node follows another one: before a promotion, no downstream may read its outgoing logs."""

    @property
    def advertised_host(self) -> str:
        """This node's host for clients."""

    @property
    def advertised_port(self) -> int:
        """This node's port for clients."""

    @property
    def advertised_tls_host(self) -> str:
        """This node's host for clients with TLS."""

    @property
    def advertised_tls_port(self) -> int:
        """This node's port for clients with TLS."""

    @property
    def mechanisms(self) -> Sequence[str]:
        """SASL mechanisms on offer."""

    def external_user(self, tls: TlsPeer, from_loopback: bool) -> str:
        """The user that a TLS client's certificate names, or AuthenticationFailed."""

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """The user's name, or AuthenticationFailed."""

    def open_vhost(self, user: str, vhost: str) -> None:
        """NotFound, AccessRefused."""

    def check(self, user: str, vhost: str, operation: Operation, name: str) -> None:
        """AccessRefused: the user may not do that to the stream or exchange `name`."""

    def stream(self, vhost: str, name: str) -> StreamBook:
        """NotFound: no such stream. StorageError: its log is damaged. LedElsewhere: its leader is not known."""

    def places_of(self, vhost: str, name: str, *, tls: bool) -> StreamPlaces:
        """The nodes that lead a stream and have everything of it.

        NotFound: no such stream. StorageError: its log is damaged.
        """

    @property
    def may_change(self) -> bool:
        """Whether streams may be made and deleted at once; otherwise the definitions lock is needed first."""

    def create_stream(self, user: str, vhost: str, name: str, arguments: Mapping[str, str]) -> bool:
        """Make it; False if an equal one exists. AccessRefused.

        PreconditionFailed: another one exists, or invalid arguments.
        """

    def delete_stream(self, user: str, vhost: str, name: str) -> None:
        """NotFound: no such stream. AccessRefused."""

    def create_super_stream(
        self, user: str, vhost: str, name: str, partitions: Mapping[str, str], arguments: Mapping[str, str]
    ) -> bool:
        """Make exchange and streams, of (stream: binding key); as `create_stream`, all or nothing."""

    def delete_super_stream(self, user: str, vhost: str, name: str) -> None:
        """NotFound: no such super stream. AccessRefused."""

    def partitions(self, vhost: str, super_stream: str) -> list[str]:
        """The streams of a super stream in order. NotFound: no such super stream."""

    def route(self, vhost: str, super_stream: str, routing_key: str) -> list[str]:
        """The streams that a routing key leads to. NotFound: no such super stream."""

    def outgoing_log(self, user: str, vhost: str) -> CollectedLog:
        """NotFound: the vhost is not replicated. AccessRefused: no permission to read."""

    def log_coverage(self, user: str, vhost: str) -> LogCoverage:
        """As `outgoing_log`: how it stands."""

    def may_recover(self, user: str) -> bool:
        """Whether the user may publish recovered messages."""

    def recovery_queue(self, user: str, vhost: str, queue: str) -> SequenceBook:
        """AccessRefused: the user may not recover. NotFound."""

    def staged_queue(self, user: str, vhost: str, queue: str) -> StagedBook:
        """As `recovery_queue`, for segments."""

    def query_offset(self, vhost: str, reference: str) -> int | None:
        """The offset stored last by a reader of the outgoing log."""


class StreamConnectionState(Enum):
    """The state of a connection."""

    START = "start"
    GREETED = "greeted"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    TUNED = "tuned"
    OPEN = "running"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Subscription:
    """A peer's subscription to a log: chunks from `next_offset` up to `until`, while it has credit.

    Attributes:
        whole: whether it gets chunks of every type with their trailers.
        filters: if not empty, only chunks with a message of one of these values.
        match_unfiltered: with filters, whether messages without a value match.
        group: the name of its group with a single active consumer, empty without one.
        partition: index of the stream in the super stream that the group reads.
        active: false while it waits for its turn in the group.
        properties: the client's properties.
        consumed: the number of messages sent to it.
    """

    stream: str
    next_offset: int
    credit: int
    whole: bool
    until: int | None
    filters: frozenset[bytes] = frozenset()
    match_unfiltered: bool = False
    group: str = ""
    partition: int | None = None
    active: bool = True
    properties: dict[str, str] = field(default_factory=dict)
    consumed: int = 0

    @property
    def wanting(self) -> bool:
        """Whether a chunk may be delivered now."""
        return self.active and self.credit > 0 and (self.until is None or self.next_offset < self.until)


@dataclass(slots=True, eq=False)
class StreamPublisher:
    """A peer's right to publish to a queue (recovery) or a stream under a reference.

    Attributes:
        is_staged: whether it publishes announcements of staged segments.
        is_cut: whether its stream was taken from it, so that nothing of it is stored any more.
        published, confirmed, errored: the numbers of received, stored and refused messages.
    """

    number: int
    reference: str
    queue: str
    to_stream: bool = False
    is_staged: bool = False
    is_cut: bool = False
    published: int = 0
    confirmed: int = 0
    errored: int = 0


@dataclass(slots=True, eq=False)
class Append:
    """Store these runs of stored messages in order, then call `StreamSession.stored`."""

    publisher: StreamPublisher
    runs: list[MessageRun]
    octets: int

    @property
    def ids(self) -> list[int]:
        """The publishing ids to confirm: one a run."""
        return [run.last for run in self.runs]


@dataclass(slots=True)
class AskSequence:
    """Answer this request with the last number of a publisher, which the leader of its stream or queue knows.

    Attributes:
        of_stream: whether it publishes to a stream; otherwise it recovers messages of a queue.
    """

    correlation: int
    reference: str
    queue: str
    of_stream: bool = False


@dataclass(slots=True, eq=False)
class StoreBatch:
    """Store a batch in the publisher's stream, then call `StreamSession.stored`."""

    publisher: StreamPublisher
    batch: StreamBatch
    octets: int

    @property
    def ids(self) -> list[int]:
        """The publishing ids."""
        return list(self.batch.ids)


@dataclass(slots=True)
class KeepOffset:
    """Store the offset of the reader `reference`."""

    reference: str
    offset: int
    stream: str = OUTGOING_STREAM


@dataclass(slots=True)
class AskOffset:
    """Ask the leader of a stream for a reader's offset, then call `StreamSession.offset_found`."""

    correlation: int
    stream: str
    reference: str


@dataclass(slots=True)
class Subscribed:
    """Read the log for this subscription while it exists, and handle its group."""

    number: int


@dataclass(slots=True)
class Declared:
    """Watch this stream for a publisher while there is one."""

    stream: str


@dataclass(slots=True)
class SteppedDown:
    """This subscription has stopped, as asked: its group may continue."""

    number: int


@dataclass(slots=True)
class ChangeStreams:
    """Call `StreamSession.change` with it once this node may make and delete streams."""

    apply: Callable[[], None]


@dataclass(slots=True)
class SendResponse:
    """Pass this to `StreamSession.answer` once all changes are durable."""

    response: Response


Effect: TypeAlias = (
    Append
    | AskSequence
    | StoreBatch
    | KeepOffset
    | AskOffset
    | Subscribed
    | Declared
    | SteppedDown
    | ChangeStreams
    | SendResponse
)
