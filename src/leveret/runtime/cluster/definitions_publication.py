"""Publishes this node's changes of definitions to all other nodes.

Changes keep their order and travel in few transactions: changes made during one transaction form the next. Every
transaction requires that this node still has the definitions lock, so a late one can never undo a change of the
next holder. After the last transaction, every living node is asked whether it has applied that revision. Only then
is the change *known*, and the client gets its reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from leveret.core.broker.broker import Broker
from leveret.core.replication.cluster import (
    WITH_CONNECTIONS,
    Placement,
    are_of_one_queue,
    definition_writes,
    encode,
)
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction
from leveret.core.replication.transactions import parts
from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.coordination.etcd import EtcdRefused

logger = logging.getLogger(__name__)

_EXHAUSTED: Final = 8
"""gRPC's code of an etcd that has no room left (NOSPACE), or too many requests."""
_RETRY_S: Final = 0.5


class _Shared(NamedTuple):
    changes: list[d.Change]
    known: Callable[[], None]


class DefinitionsPublication:
    """See the module."""

    def __init__(
        self,
        member: ClusterMember,
        broker: Broker,
        placed: Callable[[d.Queue], Placement],
        unrecorded: Callable[[d.Queue], None] = lambda queue: None,
    ) -> None:
        """Publish nothing yet.

        `placed` returns the placement of a queue whose definition was put. `unrecorded` is called with a queue whose
        placement nobody asks for again: it was put and deleted before either was written, or this node has seen the
        revision of its record.
        """
        self._member = member
        self._broker = broker
        self._placed = placed
        self._unrecorded = unrecorded
        self._waiting: list[_Shared] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether another node may lack a change of this node."""
        broker = self._broker
        return self._task is not None or bool(broker.shared) or bool(broker.changes_in_flight)

    def share(self, changes: list[d.Change], known: Callable[[], None]) -> None:
        """Publish changes to all nodes; `known` is called when each has them."""
        self._waiting.append(_Shared(changes, known))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Publish no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                shared, self._waiting = self._waiting, []
                revision = await self._write([change for each in shared for change in each.changes])
                if revision is None:
                    self._member.lost("another node may change definitions")
                    return
                await self._member.all_have(revision)
                for each in shared:
                    self._forget_placements(each.changes, revision)
                    each.known()
        except Exception as error:
            # Whatever the error is: other nodes may lack these changes, and only the others' state counts.
            is_bug = not isinstance(error, LeveretError)
            logger.error("definitions_not_shared error=%s", error, exc_info=is_bug)
            self._member.lost(f"definitions could not be shared: {error}")
            return
        self._task = None
        self._member.definitions_lock.check()

    def _forget_placements(self, changes: list[d.Change], revision: int) -> None:
        """Note that the records of queues were written; a record whose end came with it has told this node nothing."""
        if self._member.state.revision >= revision:
            for change in changes:
                if isinstance(change, d.Put) and isinstance(change.entity, d.Queue):
                    self._unrecorded(change.entity)

    async def _write(self, changes: list[d.Change]) -> int | None:
        """Write the changes; return the revision of the last one, or None if this node lost the lock."""
        member, state = self._member, self._member.state
        keys = state.keys
        writes: dict[tuple[str, int], PutKey | DeleteKey] = {}
        put: dict[tuple[str, ...], d.Queue] = {}
        ended = 0
        for change in changes:
            entity = change.entity if isinstance(change, d.Put) else None
            placed = None
            if isinstance(entity, d.Queue):
                placed, put[entity.key] = self._placed(entity), entity
            elif isinstance(change, d.Delete) and change.kind == "queues" and change.key in put:
                self._unrecorded(put.pop(change.key))
            for write in definition_writes(keys, change, placed):
                # A delete and a put of one key become one put: no node sees a moment without the entity. A put that
                # replaces a put keeps its place: later puts may need the entity.
                place = write.key, ended
                if not (isinstance(write, PutKey) and isinstance(writes.get(place), PutKey)):
                    writes.pop(place, None)
                writes[place] = write
            if isinstance(change, d.Delete) and change.kind in WITH_CONNECTIONS:
                # This deletion ends connections, and all that is in a vhost, at all nodes: so a later put of a key that
                # was written before comes in another transaction.
                ended += 1
                put.clear()
        last = PutKey(keys.epoch, encode(max(self._broker.epochs.last, state.epoch)))
        revision: int | None = 0
        whole = StoreTransaction((member.definitions_lock.lock_condition,), (*writes.values(), last))
        for part in parts(whole, belong_together=partial(are_of_one_queue, keys)):
            revision = await self._written(part)
            if revision is None:
                break
        return revision

    async def _written(self, part: StoreTransaction) -> int | None:
        """Write a part, also if etcd has no room, or too much to do, for a while: the clients wait for that long."""
        is_reported = False
        while True:
            try:
                return await self._member.store.transact(part)
            except EtcdRefused as error:
                if error.code != _EXHAUSTED:
                    raise
                if not is_reported:
                    logger.error("definitions_not_shared error=%s action=retry", error)
                is_reported = True
                await asyncio.sleep(_RETRY_S)
