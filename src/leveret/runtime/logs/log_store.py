"""The logs of all queues: each kind of log has a store of its own, chosen by the queue's `log_kind`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from typing import Any, Protocol

from leveret.core.queues.messages import Run
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.rules.validation import STREAM, queue_type
from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.log_home import LogHome, directory_of, record_nothing
from leveret.runtime.logs.queue_store import OnAppend, QueueStore
from leveret.runtime.logs.stream_store import StreamStore
from leveret.storage.log import Log
from leveret.storage.segment import has_segments
from leveret.storage.tree import Tree
from leveret.wire.chunk import Chunk

logger = logging.getLogger(__name__)


def log_name(queue: Queue) -> str:
    """The name of a durable queue's log in the tree (storage.tree), on every node of a cluster."""
    return log_name_of(queue.definition)


def log_name_of(definition: d.Queue) -> str:
    """The same, of the queue with this definition."""
    kind = Stream.log_kind if queue_type(definition.arguments) == STREAM else Queue.log_kind
    return f"{kind}/{directory_of(definition.epoch)}"


def epoch_of(name: str) -> int:
    """The epoch of the queue whose log has this name."""
    return int(name.rpartition("/")[2], 16)


def is_gone(log: Log) -> bool:
    """Whether a log's directory is gone; a disk that does not say so has not removed it."""
    try:
        return not log.directory.exists()
    except OSError as error:
        logger.error("log_not_watched log=%s error=%s", log.directory, error)
        return False


class QueueStoring(Protocol):
    """The store of the queues of one kind."""

    def append_messages(self, queue: Any) -> None:
        """Append the queue's gathered messages. Raises StorageError."""

    def append_settlements(self, queue: Any) -> None:
        """Append the queue's settlements and other records. Raises StorageError."""

    def delete(self, queue: Any) -> None:
        """Remove a deleted queue's log. Raises StorageError."""


class QueueLogs(QueueStoring, Protocol):
    """A store as the engine and the node use it."""

    on_append: OnAppend


class KindStore(QueueStoring, Protocol):
    """This node's logs of one kind of queue."""

    on_append: OnAppend
    home: LogHome

    def log(self, queue: Any) -> Log:
        """See LogStore, as for all of these."""

    def read(self, queue: Any, offset: int) -> list[Run]:
        """The core's Reader."""

    def oldest_timestamp_ms(self, queue: Any) -> int | None:
        """The arrival time of the oldest message."""

    def recover(self, queue: Any) -> None:
        """Restore a queue from its log."""

    def replayed(self, queue: Any, log: Log, chunk: Chunk) -> None:
        """Take a chunk appended by the node that serves the queue."""

    def forget(self, queue: Any) -> None:
        """Forget a deleted queue that another node served."""

    def step_down(self, queue: Any) -> None:
        """Hand the queue over: another node serves it from now on."""

    def begin_segment(self, queue: Any) -> int:
        """Begin a segment with a chunk without messages; return its offset."""

    def queue_of(self, log: Log) -> Queue | None:
        """The queue of a log."""

    def remove_orphans(self, epochs: set[int], named: set[int]) -> None:
        """Delete logs without a queue."""

    def close(self) -> None:
        """Close every log."""


class LogStore:
    """See the module.

    Attributes:
        queues: the store of queues other than streams.
        streams: the store of streams.
        forwarding: the store of queues that other nodes lead; None on a single node.
    """

    def __init__(
        self, tree: Tree, commit: GroupCommit, clock_ms: Callable[[], int], segment_bytes_max: int
    ) -> None:
        """See QueueStore and StreamStore."""
        self.queues = QueueStore(tree, commit, clock_ms, segment_bytes_max)
        self.streams = StreamStore(tree, commit, clock_ms, segment_bytes_max)
        self.forwarding: QueueStoring | None = None
        self._kinds: Mapping[str, KindStore] = {Queue.log_kind: self.queues, Stream.log_kind: self.streams}
        self._tree = tree
        self._homes = (self.queues.home, self.streams.home)

    def use_existence_records(
        self,
        has_log: Callable[[int], bool],
        record_existence: Callable[[int], None],
        record_existence_once_synced: Callable[[int], None],
    ) -> None:
        """Set the functions that keep the epochs of queues with a log, so that a missing log is noticed."""
        for home in self._homes:
            home.has_log, home.record_existence = has_log, record_existence
            home.record_existence_once_synced = record_existence_once_synced

    @property
    def on_append(self) -> OnAppend:
        """Called with every appended chunk."""
        return self.queues.on_append

    @on_append.setter
    def on_append(self, on_append: OnAppend) -> None:
        self.queues.on_append = self.streams.on_append = on_append

    def append_messages(self, queue: Queue) -> None:
        """See QueueStoring."""
        if queue.is_remote and self.forwarding is not None:
            self.forwarding.append_messages(queue)
        else:
            self._kinds[queue.log_kind].append_messages(queue)

    def append_settlements(self, queue: Queue) -> None:
        """See QueueStoring."""
        if queue.is_remote and self.forwarding is not None:
            self.forwarding.append_settlements(queue)
        else:
            self._kinds[queue.log_kind].append_settlements(queue)

    def read(self, queue: Queue, offset: int) -> list[Run]:
        """The core's Reader."""
        return self._kinds[queue.log_kind].read(queue, offset)

    def log(self, queue: Queue) -> Log:
        """The queue's log.

        Raises:
            StorageError: the log is damaged, or the disk refuses it.
        """
        return self._kinds[queue.log_kind].log(queue)

    def oldest_timestamp_ms(self, queue: Queue) -> int | None:
        """The arrival time of the queue's oldest message, None for an empty queue."""
        return self._kinds[queue.log_kind].oldest_timestamp_ms(queue)

    def recover(self, queue: Queue) -> None:
        """Restore a queue from its log."""
        self._kinds[queue.log_kind].recover(queue)

    def show(self, expected: Set[str] | None) -> None:
        """Recover queues for their counts only, because another node serves them; `replayed` follows it.

        That node also marks the queues that have a log: here nothing may be appended but what it sends. `expected` are
        the logs that are a loss if they are missing; None for all marked ones.
        """
        self.queues.replays = {}
        for home in self._homes:
            home.record_existence = home.record_existence_once_synced = record_nothing
            if expected is not None:
                home.expect_only(expected)

    def replayed(self, queue: Queue, log: Log, chunk: Chunk) -> None:
        """Take a chunk appended to the log of a queue that another node serves."""
        self._kinds[queue.log_kind].replayed(queue, log, chunk)

    def forget(self, queue: Queue) -> None:
        """Forget a deleted queue that another node served."""
        self._kinds[queue.log_kind].forget(queue)

    def step_down(self, queue: Queue) -> None:
        """Hand the queue over to another node; its log stays in its place."""
        self._kinds[queue.log_kind].step_down(queue)

    def begin_segment(self, queue: Queue) -> int:
        """Begin a segment of the queue's log with a chunk without messages; return its offset.

        Raises:
            StorageError: the disk refused it.
        """
        return self._kinds[queue.log_kind].begin_segment(queue)

    def home_of(self, name: str) -> LogHome:
        """The directory that has the log of this name."""
        return self._kinds[name.partition("/")[0]].home

    def queue_of(self, log: Log) -> Queue | None:
        """The queue of a log, among the queues that this node serves."""
        if self.queues.replays is not None:
            return None
        return self.queues.queue_of(log) or self.streams.queue_of(log)

    def names_there(self) -> dict[str, set[str]]:
        """The names of the logs' directories, by kind, for kinds with changes since the last call.

        For a thread. Raises StorageError.
        """
        try:
            return {home.directory.name: home.names() for home in self._homes if home.has_changed()}
        except StorageError:
            for home in self._homes:
                home.look_again()
            raise

    def gone(self, there: dict[str, set[str]]) -> list[Log]:
        """The open logs of queues whose directories are not among these, nor anywhere else."""
        found = []
        for name, log in self._tree.logs.items():
            kind, _, directory = name.partition("/")
            if directory not in there.get(kind, {directory}) and is_gone(log):
                found.append(log)
        return found

    def delete(self, queue: Queue) -> None:
        """See QueueStoring."""
        if queue.is_remote and self.forwarding is not None:
            self.forwarding.delete(queue)
        else:
            self._kinds[queue.log_kind].delete(queue)

    def has_logs(self) -> bool:
        """Whether any durable queue has a log."""
        return any(home.has_logs() for home in self._homes)

    def missing(self, marked: Iterable[int], expected: Set[str] | None) -> set[int]:
        """The epochs among these whose log is not here, neither open nor on disk; see `show` for `expected`."""
        return {
            epoch
            for epoch in marked
            if not any(self._is_here(home, epoch) for home in self._homes)
            and (expected is None or any(home.name(epoch) in expected for home in self._homes))
        }

    def _is_here(self, home: LogHome, epoch: int) -> bool:
        if home.name(epoch) in self._tree.logs:
            return True
        with suppress(FileNotFoundError, NotADirectoryError):
            return has_segments(home.place(epoch))
        return False

    def epochs(self) -> set[int]:
        """The epochs of all existing logs."""
        return set().union(*(home.epochs() for home in self._homes))

    def remove_orphans(self, epochs: set[int], named: set[int]) -> None:
        """Delete logs whose queue is in neither set; those in `named` alone stay while they are needed."""
        for store in self._kinds.values():
            store.remove_orphans(epochs, named)

    def close(self) -> None:
        """Close every log."""
        for store in self._kinds.values():
            store.close()
