"""The read-only view of a follower: queues and definitions as of the last appended chunk.

The view serves no client and starts no change. The component that appends to the tree's logs reports each chunk
(`replayed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Set
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.core.queues import queue_types
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.runtime.logs.definitions_store import (
    DefinitionsStore,
    policy_failed,
    refresh_policies,
    take_over,
)
from leveret.runtime.logs.log_home import take_down
from leveret.runtime.logs.log_store import LogStore, log_name
from leveret.runtime.process.work_slices import in_slices, others_first, time_slice
from leveret.storage.log import Log
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.tree import Tree
from leveret.wire.chunk import Chunk

_PART_BYTES: Final = 256 * 1024
_READ_AGAIN_S: Final = 1.0
_BEGIN_S: Final = 0.02
"""The duration of the first step: all queues of most nodes are read in it."""


class ReadOnlyView:
    """See the module."""

    def __init__(self, tree: Tree, broker: Broker, stores: LogStore, definitions: DefinitionsStore) -> None:
        """Show nothing yet."""
        self._tree = tree
        self._broker = broker
        self._stores = stores
        self._definitions = definitions
        self._queues: dict[str, Queue] = {}
        self._again: set[str] = set()
        self._reading: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None

    def begin(self, expected: Set[str] | None, *, in_turns: bool = False) -> None:
        """Read all stored data; `expected` are the logs that are a loss if they are missing, None for all.

        With `in_turns`, thousands of queues take several turns of the loop: the leader's confirms may wait for acks of
        this node. A queue that was not read yet is shown without messages.
        """
        self._stores.show(expected)
        self._definitions.restore(self._broker)
        left = iter(list(self._broker.queues.values()))
        is_over = time_slice(_BEGIN_S) if in_turns else bool
        for queue in left:
            self._recover(queue)
            if is_over():
                self._beginning = asyncio.get_running_loop().create_task(self._recover_all(left))
                break
        if in_turns:
            self._refresh_policies()
        else:
            refresh_policies(self._broker, lambda: False, policy_failed)
            self._quieten()

    async def _recover_all(self, queues: Iterator[Queue]) -> None:
        await others_first()
        async for queue in in_slices(queues):
            self._recover(queue)

    def _recover(self, queue: Queue) -> None:
        """Read a queue's log, up to its present end; `replayed` takes what is appended from then on."""
        name = log_name(queue)
        if name in self._queues or self._broker.queues.get(queue.key) is not queue:
            return
        try:
            self._stores.recover(queue)
        except OutOfDescriptors as error:
            # What is shown is read again after the next join.
            take_down(queue, error)
        self._queues[name] = queue
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

    def show_again(self, name: str) -> None:
        """Read a queue's log again, because what was shown of it may be gone, or there is more in front of it."""
        if name in self._queues:
            self._again.add(name)
            if self._reading is None or self._reading.done():
                self._reading = asyncio.get_running_loop().create_task(self._read_again())

    def close(self) -> None:
        """Read nothing any more."""
        for task in (self._beginning, self._reading):
            if task is not None:
                task.cancel()

    async def _read_again(self) -> None:
        while self._again:
            name = self._again.pop()
            before = self._queues.get(name)
            if before is None:
                continue
            queue = queue_types.make_queue(before.definition, self._stores.read)
            has_read = await self._read(queue, name)
            if not has_read or self._queues.get(name) is not before or name in self._again:
                self._stores.forget(queue)
                continue
            self._stores.forget(before)
            self._queues[name] = queue
            self._broker.replace_queue(queue)
            self._quieten()

    async def _read(self, queue: Queue, name: str) -> bool:
        """Give a queue what its log holds, a part at a time, and all of it at the end; False if the log is gone."""
        at = 0
        while (log := self._tree.logs.get(name)) is not None:
            try:
                for chunk in log.read(max(at, log.first_offset), _PART_BYTES):
                    self._stores.replayed(queue, log, chunk)
                    at = chunk.header.next_offset
            except OutOfDescriptors:
                await asyncio.sleep(_READ_AGAIN_S)
                continue
            except StorageError:
                # Whoever needs it finds it damaged.
                return False
            if at >= log.next_offset or not log.size_bytes:
                return True
            await asyncio.sleep(0)
        return False

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
        if refresh_policies(self._broker, time_slice(), policy_failed):
            asyncio.get_running_loop().call_soon(self._refresh_policies)
        self._quieten()

    def _show_new(self, queue: Queue | None) -> None:
        """Show a new queue. Its first messages may arrive before its definition: a flush appends definitions last.

        At a node that catches up all of its log may be here.
        """
        if queue is None or log_name(queue) in self._queues:
            return
        self._queues[log_name(queue)] = queue
        log = self._tree.logs.get(log_name(queue))
        if log is not None and log.size_bytes > _PART_BYTES:
            self.show_again(log_name(queue))
        elif log is not None:
            for chunk in log.read(0, _PART_BYTES):
                self._stores.replayed(queue, log, chunk)

    def _quieten(self) -> None:
        """Drop the effects of changes: the leader executes them."""
        broker = self._broker
        for due in (broker.changes, broker.deleted, broker.dirty, broker.replication_changes):
            due.clear()
