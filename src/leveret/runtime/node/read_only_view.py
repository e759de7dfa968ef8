"""The read-only view of a follower: queues and definitions as of the last appended chunk.

The view serves no client and starts no change. The component that appends to the tree's logs reports each chunk
(`replayed`).
"""

from __future__ import annotations

import asyncio
import sys

from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.runtime.logs.definitions_store import DefinitionsStore, take_over
from leveret.runtime.logs.log_store import LogStore, log_name
from leveret.runtime.process.work_slices import time_slice
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.chunk import Chunk


class ReadOnlyView:
    """See the module."""

    def __init__(self, tree: Tree, broker: Broker, stores: LogStore, definitions: DefinitionsStore) -> None:
        """Show nothing yet."""
        self._tree = tree
        self._broker = broker
        self._stores = stores
        self._definitions = definitions
        self._queues: dict[str, Queue] = {}

    def begin(self) -> None:
        """Read all stored data."""
        self._stores.show()
        self._definitions.restore(self._broker)
        for queue in self._broker.queues.values():
            self._stores.recover(queue)
            self._queues[log_name(queue)] = queue
        self._broker.refresh_policies()
        self._quieten()

    def queue_of(self, name: str) -> Queue | None:
        """Return the queue whose log has that name in the tree."""
        return self._queues.get(name)

    def shows_old_damage(self) -> bool:
        """Return whether a queue is shown as down whose log was fetched again since."""
        return any(
            queue.damage is not None and name in self._tree.logs for name, queue in self._queues.items()
        )

    def replayed(self, name: str, log: Log, chunk: Chunk) -> None:
        """Take a chunk that was appended to the log of that name in the tree."""
        if name == "definitions":
            self._replay_definitions(chunk)
        elif name in self._queues:
            self._stores.replayed(self._queues[name], log, chunk)

    def _replay_definitions(self, chunk: Chunk) -> None:
        for change in self._definitions.replayed(chunk):
            take_over(self._broker, change)
            match change:
                case d.Put(d.Queue() as definition):
                    self._show_new(self._broker.queues.get(definition.key))
        for queue in self._broker.deleted:
            self._stores.forget(queue)
            self._queues.pop(log_name(queue), None)
        self._refresh_policies()

    def _refresh_policies(self) -> None:
        """Apply the changed policies to the queues, some at a time: the leader waits for acks meanwhile."""
        if self._broker.refresh_policies(time_slice()):
            asyncio.get_running_loop().call_soon(self._refresh_policies)
        self._quieten()

    def _show_new(self, queue: Queue | None) -> None:
        """Show a new queue. Its first messages may arrive before its definition: a flush appends definitions last."""
        if queue is None or log_name(queue) in self._queues:
            return
        self._queues[log_name(queue)] = queue
        log = self._tree.logs.get(log_name(queue))
        if log is not None:
            for chunk in log.read(0, sys.maxsize):
                self._stores.replayed(queue, log, chunk)

    def _quieten(self) -> None:
        """Drop the effects of changes: the leader executes them."""
        broker = self._broker
        for due in (broker.changes, broker.deleted, broker.dirty, broker.replication_changes):
            due.clear()
