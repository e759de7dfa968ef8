"""The interface of the stream listener to its node; `session.stream.types` has the questions.

All methods are called on the event loop. Long work reports its end by a callback, also on the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from leveret.core.broker.limits import ConnectionRegistry
from leveret.core.queues.counters import Counters
from leveret.core.queues.stream import LogBounds, StreamBatch
from leveret.core.queues.stream_groups import ConsumerGroups
from leveret.model.errors import PreconditionFailed
from leveret.session.stream.types import CollectedLog, SequenceBook, StreamAuthority, StreamBook
from leveret.wire.stream.publish import MessageRun


class ServedLog(LogBounds, Protocol):
    """A log whose durable chunks are served to readers."""

    @property
    def is_closed(self) -> bool:
        """Whether it is gone for good."""

    def read(self, offset: int, bytes_max: int) -> Sequence[bytes | memoryview]:
        """Whole raw chunks (header, data, trailer) from the one that holds `offset`, or else the next.

        In order, all below `committed_offset`, together at most `bytes_max` octets but at least one
        chunk if there is any. A small, blocking file read.

        Raises:
            NotFound: the log was deleted.
            StorageError: what is on disk cannot be served.
        """

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back each time `committed_offset` has risen; return what ends that.

        Also when the log is closed.
        """


class ServedCollection(ServedLog, CollectedLog, Protocol):
    """An outgoing log."""


class StreamHandle(StreamBook, Protocol):
    """A stream of applications: read, published to, offsets stored."""

    @property
    def log(self) -> ServedLog:
        """What is served of it."""

    def publish(self, batch: StreamBatch) -> None:
        """Store a batch; its `done` is called when that is durable, or why it is not, in the order of the calls."""

    def store_offset(self, reference: str, offset: int) -> None:
        """Keep, durably but not at once, how far a reader has come."""


class RecoveryQueue(SequenceBook, Protocol):
    """A queue that takes recovered messages."""

    def append(self, reference: str, runs: list[MessageRun], done: Callable[[], None]) -> None:
        """Store runs of stored messages in order, leaving out ids already stored.

        `done` is called when they are durable, for each call in the order of the calls.

        Raises:
            PreconditionFailed: there are others to come before them, such as those that a full disk refused.
            Refusal, StorageError: they are not stored, and `done` will not be called.
        """


def check_contiguous(queue: str, last: int, runs: Iterable[MessageRun]) -> None:
    """See that runs of recovered messages follow `last`, the id of what is stored, without a gap.

    A publisher has many under way when one of them is refused; were a later one taken, all before it would count as
    there.

    Raises:
        PreconditionFailed: they do not.
    """
    for run in runs:
        if run.first > last + 1:
            raise PreconditionFailed(
                f"queue '{queue}' has recovered messages up to number {last}: those from {run.first} on are not taken "
                "before the ones between"
            )
        last = max(last, run.last)


class StreamHost(StreamAuthority, Protocol):
    """The node."""

    def outgoing_log(self, user: str, vhost: str) -> ServedCollection:
        """NotFound: the vhost is not replicated. AccessRefused: no permission to read."""

    def recovery_queue(self, user: str, vhost: str, queue: str) -> RecoveryQueue:
        """The queue, declared durable when it is missing. AccessRefused: not for this user."""

    def stream(self, vhost: str, name: str) -> StreamHandle:
        """See StreamAuthority."""

    @property
    def connections(self) -> ConnectionRegistry:
        """Who is connected to the node, over any protocol."""

    @property
    def groups(self) -> ConsumerGroups:
        """The groups of subscriptions of which one is active."""

    @property
    def stream_counters(self) -> Counters:
        """Of the messages of all clients of the stream protocol."""

    @property
    def stream_errors(self) -> Counter[int]:
        """How often clients of the stream protocol were sent each code of an error."""

    @property
    def refuses_publishes(self) -> bool:
        """Whether they are, one by one: too few followers are in sync."""

    @property
    def is_blocked(self) -> bool:
        """Whether memory or disk is low: who publishes to streams is not read from."""

    def when_may_change(self, change: Callable[[], None]) -> None:
        """Call once streams may be made and deleted here: now, or soon."""

    def when_durable(self, done: Callable[[], None]) -> None:
        """Call back once every stream that was made or deleted so far is durably so, and all nodes know it."""

    def store_offset(self, vhost: str, reference: str, offset: int) -> None:
        """Keep how far a reader of the outgoing log has come."""
