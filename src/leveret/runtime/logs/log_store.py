"""The logs of all queues: each kind of log has a store of its own, chosen by the queue's `log_kind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from leveret.core.queues.messages import Run
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.log_home import LogHome, directory_of
from leveret.runtime.logs.queue_store import OnAppend, QueueStore
from leveret.runtime.logs.stream_store import StreamStore
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.chunk import Chunk


def log_name(queue: Queue) -> str:
    """What the log of a durable queue is called in the tree (storage.tree)."""
    return f"{queue.log_kind}/{directory_of(queue.epoch)}"


def queue_log_name(epoch: int) -> str:
    """What the log of a queue that is no stream is called, in the tree of every node of a cluster."""
    return f"{Queue.log_kind}/{directory_of(epoch)}"


def epoch_of(name: str) -> int:
    """The epoch of the queue whose log is called that."""
    return int(name.rpartition("/")[2], 16)


class QueueStoring(Protocol):
    """Where the queues of one kind are kept."""

    def append_messages(self, queue: Any) -> None:
        """Append what the queue gathered. Raises StorageError."""

    def append_settlements(self, queue: Any) -> None:
        """Append what else the queue has to remember. Raises StorageError."""

    def delete(self, queue: Any) -> None:
        """Remove a deleted queue's log. Raises StorageError."""


class QueueLogs(QueueStoring, Protocol):
    """What the engine and the node need of a store."""

    on_append: OnAppend


class KindStore(QueueStoring, Protocol):
    """The logs of one kind of queue that this node has."""

    on_append: OnAppend
    home: LogHome

    def log(self, queue: Any) -> Log:
        """See LogStore, as all of these."""

    def read(self, queue: Any, offset: int) -> list[Run]:
        """The core's Reader."""

    def oldest_timestamp_ms(self, queue: Any) -> int | None:
        """When the oldest message arrived."""

    def recover(self, queue: Any) -> None:
        """Give a queue what its log holds."""

    def replayed(self, queue: Any, log: Log, chunk: Chunk) -> None:
        """A chunk was appended by the node that serves the queue."""

    def forget(self, queue: Any) -> None:
        """A queue that another node serves is gone."""

    def step_down(self, queue: Any) -> None:
        """Another node serves the queue from now on."""

    def queue_of(self, log: Log) -> Queue | None:
        """Whose log it is."""

    def remove_orphans(self, epochs: set[int], named: set[int]) -> None:
        """Delete logs of no queue."""

    def close(self) -> None:
        """Close every log."""


class LogStore:
    """See the module.

    Attributes:
        queues: all that are no streams.
        streams: streams.
        forwarding: queues that other nodes lead; None on a node alone, which has none.
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
        """Ask and tell who keeps the epochs of queues that have a log, so that a missing one is noticed."""
        for home in self._homes:
            home.has_log, home.record_existence = has_log, record_existence
            home.record_existence_once_synced = record_existence_once_synced

    @property
    def on_append(self) -> OnAppend:
        """Told of every chunk that was appended."""
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
            StorageError: it is damaged, or the disk refuses it.
        """
        return self._kinds[queue.log_kind].log(queue)

    def oldest_timestamp_ms(self, queue: Queue) -> int | None:
        """When the oldest message that the queue still holds arrived, None for an empty queue."""
        return self._kinds[queue.log_kind].oldest_timestamp_ms(queue)

    def recover(self, queue: Queue) -> None:
        """Give a queue what its log holds."""
        self._kinds[queue.log_kind].recover(queue)

    def show(self) -> None:
        """These queues are another node's to serve: recover them only to be counted, and follow with `replayed`."""
        self.queues.replays = {}

    def replayed(self, queue: Queue, log: Log, chunk: Chunk) -> None:
        """A chunk was appended to the log of a queue that another node serves."""
        self._kinds[queue.log_kind].replayed(queue, log, chunk)

    def forget(self, queue: Queue) -> None:
        """A queue that another node serves is gone."""
        self._kinds[queue.log_kind].forget(queue)

    def step_down(self, queue: Queue) -> None:
        """Another node serves the queue from now on; its log stays where it is."""
        self._kinds[queue.log_kind].step_down(queue)

    def queue_of(self, log: Log) -> Queue | None:
        """Whose log it is, of the queues that this node serves."""
        if self.queues.replays is not None:
            return None
        return self.queues.queue_of(log) or self.streams.queue_of(log)

    def names_there(self) -> dict[str, set[str]]:
        """By kind, the directories of logs that are there, where one was made or has gone since this was asked last.

        For a thread. Raises StorageError.
        """
        return {home.directory.name: home.names() for home in self._homes if home.has_changed()}

    def gone(self, there: dict[str, set[str]]) -> list[Log]:
        """Logs of queues that are open, and whose directories are not among these, nor anywhere."""
        found = []
        for name, log in self._tree.logs.items():
            kind, _, directory = name.partition("/")
            if directory not in there.get(kind, {directory}) and not log.directory.exists():
                found.append(log)
        return found

    def delete(self, queue: Queue) -> None:
        """See QueueStoring."""
        if queue.is_remote and self.forwarding is not None:
            self.forwarding.delete(queue)
        else:
            self._kinds[queue.log_kind].delete(queue)

    def has_logs(self) -> bool:
        """Whether there is a log of any durable queue."""
        return any(home.has_logs() for home in self._homes)

    def epochs(self) -> set[int]:
        """Of all logs that are there, whosever they are."""
        return set().union(*(home.epochs() for home in self._homes))

    def remove_orphans(self, epochs: set[int], named: set[int]) -> None:
        """Delete logs whose queue is none of these `epochs`, but not yet those that are `named`."""
        for store in self._kinds.values():
            store.remove_orphans(epochs, named)

    def close(self) -> None:
        """Close every log."""
        for store in self._kinds.values():
            store.close()
