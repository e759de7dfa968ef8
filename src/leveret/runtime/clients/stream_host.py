"""The interface of the stream listener to its node; `session.stream.types` has the questions.

All methods are called on the event loop. Long work reports its end by a callback, also on the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from leveret.core.broker.limits import ConnectionRegistry
from leveret.core.queues.counters import Counters
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import LogBounds, StreamBatch
from leveret.core.queues.stream_groups import GroupMember
from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.session.stream.types import CollectedLog, SequenceBook, StagedBook, StreamAuthority, StreamBook
from leveret.wire.staged_segment import StagedSegment
from leveret.wire.stream.publish import MessageRun

OffsetFound = Callable[[int | LeveretError | None], None]
"""Takes a reader's stored offset, None for none, or why it is not known."""


class ServedLog(LogBounds, Protocol):
    """A log whose durable chunks are served to readers."""

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for good."""

    @property
    def ended(self) -> LeveretError:
        """Why, for readers."""

    def read(self, offset: int, bytes_max: int) -> Sequence[bytes | memoryview]:
        """Read whole raw chunks (header, data, trailer) from the one that holds `offset`, or else the next.

        In order, all below `committed_offset`, together at most `bytes_max` octets but at least one
        chunk if there is any. A small, blocking file read.

        Raises:
            NotFound: the log was deleted.
            StorageError: the log on disk cannot be served.
        """

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back each time `committed_offset` has risen; return a function that ends this.

        The closing of the log also calls back.
        """


class ServedCollection(ServedLog, CollectedLog, Protocol):
    """An outgoing log."""


class StreamHandle(StreamBook, Protocol):
    """A stream of applications: for reading, publishing, and storing offsets."""

    @property
    def log(self) -> ServedLog:
        """Its served log."""

    def publish(self, batch: StreamBatch) -> None:
        """Store a batch; its `done` is called when it is durable, or with the error, in the order of the calls."""

    def store_offset(self, reference: str, offset: int) -> None:
        """Store a reader's offset, durably but not at once."""

    def ask_offset(self, reference: str, then: OffsetFound) -> None:
        """Call back with the offset that a reader stored last, which another node may have, or with the error."""

    def ask_sequence(self, reference: str, then: OffsetFound) -> None:
        """Call back with the last publishing id of a publisher, as `ask_offset`; 0 for none."""

    @property
    def groups(self) -> StreamGroups:
        """The groups of subscriptions with a single active consumer, at the leader."""


class StreamGroups(Protocol):
    """The groups of a stream's subscriptions; core.queues.stream_groups.ConsumerGroups has those of a leader."""

    def join(self, key: tuple[str, str, str], member: GroupMember, partition: int | None) -> object:
        """See ConsumerGroups."""

    def leave(self, key: tuple[str, str, str], member: GroupMember) -> None:
        """See ConsumerGroups."""

    def stepped_down(self, key: tuple[str, str, str], member: GroupMember) -> None:
        """See ConsumerGroups."""


class StreamReplicating(Protocol):
    """The copies of streams that other nodes lead."""

    def handle(self, queue: Queue) -> StreamHandle:
        """A stream that another node leads: for publishing, and for reading if this node has a copy."""

    def nodes(self, queue: Queue) -> Sequence[str]:
        """The nodes that run and have everything of a stream, beside its leader."""


class RecoveryQueue(SequenceBook, Protocol):
    """A queue that takes recovered messages."""

    def ask_sequence(
        self, reference: str, found: Callable[[int], None], failed: Callable[[LeveretError], None]
    ) -> None:
        """Call back with the last publishing id stored under `reference`, now or once the queue's leader has told.

        Raises:
            LeveretError: it is not known; neither is called.
        """

    def append(
        self,
        reference: str,
        runs: list[MessageRun],
        done: Callable[[], None],
        failed: Callable[[LeveretError], None] = ...,
    ) -> None:
        """Store runs of stored messages in order, without ids already stored.

        `done` is called when they are durable, for each call in the order of the calls; or `failed`, if another node
        that leads the queue does not store them.

        Raises:
            PreconditionFailed: earlier messages are missing, such as some that a full disk refused. Refusal,
                StorageError: they are not stored, and `done` will not be called.
        """


def check_contiguous(queue: str, last: int, runs: Iterable[MessageRun]) -> None:
    """Check that runs of recovered messages follow `last`, the last stored id, without a gap.

    A publisher has many messages in flight when one of them is refused; if a later one were taken, all before it
    would count as stored.

    Raises:
        PreconditionFailed: there is a gap.
    """
    for run in runs:
        if run.first > last + 1:
            raise PreconditionFailed(
                f"queue '{queue}' has recovered messages up to number {last}: those from {run.first} on are not taken "
                "before the ones between"
            )
        last = max(last, run.last)


class StagedQueue(StagedBook, Protocol):
    """A queue that takes in staged segments."""

    def take_in(
        self,
        reference: str,
        announced: StagedSegment,
        done: Callable[[], None],
        failed: Callable[[LeveretError], None],
    ) -> None:
        """Take a segment in, in the order of the calls; `done` once its messages are durable, or `failed`."""


class StreamHost(StreamAuthority, Protocol):
    """The node, as the stream listener uses it."""

    def outgoing_log(self, user: str, vhost: str) -> ServedCollection:
        """NotFound: the vhost is not replicated. AccessRefused: no permission to read."""

    def recovery_queue(self, user: str, vhost: str, queue: str) -> RecoveryQueue:
        """The queue, declared durable when it is missing. AccessRefused: the user has no permission."""

    def staged_queue(self, user: str, vhost: str, queue: str) -> StagedQueue:
        """As `recovery_queue`, for segments."""

    def stream(self, vhost: str, name: str) -> StreamHandle:
        """See StreamAuthority."""

    @property
    def connections(self) -> ConnectionRegistry:
        """The node's connections, of all protocols."""

    @property
    def stream_counters(self) -> Counters:
        """The message counters of all clients of the stream protocol."""

    @property
    def stream_errors(self) -> Counter[int]:
        """The number of errors sent to clients of the stream protocol, by code."""

    @property
    def refuses_publishes(self) -> bool:
        """Whether publishes are refused, one by one, because too few followers are in sync."""

    @property
    def is_blocked(self) -> bool:
        """Whether memory or disk is low, so that publishers to streams are not read from."""

    def when_may_change(self, change: Callable[[], None]) -> None:
        """Call back once streams may be made and deleted here: now, or soon."""

    def when_durable(self, done: Callable[[], None]) -> None:
        """Call back once all streams made or deleted so far are durably so, and known to all nodes."""

    def store_offset(self, vhost: str, reference: str, offset: int) -> None:
        """Store the offset of a reader of the outgoing log."""

    def downstream_came(self, vhost: str, reference: str) -> None:
        """Note that a connection begins to report offsets as this reader."""

    def downstream_left(self, vhost: str, reference: str) -> None:
        """Note that such a connection is gone."""
