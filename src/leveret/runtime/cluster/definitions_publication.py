"""Changes of definitions that this node decided on, on their way to all others.

In the order in which they were made, and in few transactions: what is decided while one is under way forms the next.
All are on condition that this node still has the definitions lock, so a late one can never undo what the next holder
did. After the last of them every node that lives is asked whether it has taken that revision; only then is it *known*,
and the client that declared something is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from leveret.core.broker.epochs import Epochs
from leveret.core.replication.cluster import ClusterState, Placement, definition_writes, encode
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction, Unchanged
from leveret.core.replication.transactions import parts
from leveret.model import definitions as d
from leveret.runtime.cluster.store import ClusterStore


class _Shared(NamedTuple):
    changes: list[d.Change]
    known: Callable[[], None]


class DefinitionsPublication:
    """See the module."""

    def __init__(
        self,
        store: ClusterStore,
        state: ClusterState,
        epochs: Epochs,
        *,
        lock_condition: Callable[[], Unchanged],
        placed: Callable[[d.Queue], Placement],
        all_have: Callable[[int], Awaitable[None]],
        on_idle: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Share nothing yet.

        Args:
            store: where everybody looks.
            state: what it held.
            epochs: of queues.
            lock_condition: the condition that this node has the definitions lock.
            placed: where a queue that was put is.
            all_have: returns once every node that lives has taken a revision.
            on_idle: told whenever nothing is on its way.
            on_lost: told that this node has not the definitions lock it thought it had, and must begin anew.
        """
        self._store = store
        self._state = state
        self._epochs = epochs
        self._lock_condition = lock_condition
        self._placed = placed
        self._all_have = all_have
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._waiting: list[_Shared] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""
        return self._task is not None

    def share(self, changes: list[d.Change], known: Callable[[], None]) -> None:
        """Tell all nodes; `known` when they have it."""
        self._waiting.append(_Shared(changes, known))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Share no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            shared, self._waiting = self._waiting, []
            try:
                revision = await self._write([change for each in shared for change in each.changes])
            except Exception as error:
                # Whatever it is: what was decided here is nowhere else: only the others' state counts.
                self._on_lost(f"definitions could not be shared: {error}")
                return
            if revision is None:
                self._on_lost("another node may change definitions")
                return
            await self._all_have(revision)
            for each in shared:
                each.known()
        self._task = None
        self._on_idle()

    async def _write(self, changes: list[d.Change]) -> int | None:
        """Write them; the revision of the last one, None if this node may not."""
        keys = self._state.keys
        writes: dict[str, PutKey | DeleteKey] = {}
        for change in changes:
            entity = change.entity if isinstance(change, d.Put) else None
            placed = self._placed(entity) if isinstance(entity, d.Queue) else None
            for write in definition_writes(keys, change, placed):
                # What is deleted and put again is replaced: no node sees a moment without it.
                writes.pop(write.key, None)
                writes[write.key] = write
        last = PutKey(keys.epoch, encode(max(self._epochs.last, self._state.epoch)))
        revision: int | None = 0
        for part in parts(StoreTransaction((self._lock_condition(),), (*writes.values(), last))):
            revision = await self._store.transact(part)
            if revision is None:
                break
        return revision
