"""Records of single queues, written together: those that arrive during a transaction form the next one.

A node that stops hands over thousands of queues, and no node serves a queue between the end of its hand-over here and
the write of its record. With one transaction for each queue, a queue would wait for all queues before it.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from leveret.core.replication.election import StoreTransaction
from leveret.runtime.cluster.membership.store import ClusterStore
from leveret.runtime.coordination.etcd import EtcdRefused

AT_ONCE: Final = 40
"""The number of queues whose records one transaction writes: etcd takes 128 conditions or writes."""


class _Waiting(NamedTuple):
    transaction: StoreTransaction
    revision: asyncio.Future[int | None]


class GatheredWrites:
    """See the module."""

    def __init__(self, store: ClusterStore) -> None:
        """Wait for the first record."""
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def transact(self, transaction: StoreTransaction) -> int | None:
        """See ClusterStore.transact; until this returns, no other call may write the same key."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(transaction, loop.create_future())
        self._waiting.append(waiting)
        if self._writing is None or self._writing.done():
            self._writing = loop.create_task(self._write_all())
        return await waiting.revision

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            try:
                await self._write(batch)
            except BaseException as error:
                for each in batch:
                    _fail(each, error)
                if not isinstance(error, Exception):
                    for each in self._waiting:
                        _fail(each, error)
                    raise

    async def _write(self, batch: list[_Waiting]) -> None:
        """Write a batch together, or, if etcd declines, one by one: a failed condition affects only its own queue."""
        conditions = dict.fromkeys(condition for each in batch for condition in each.transaction.conditions)
        writes = tuple(write for each in batch for write in each.transaction.writes)
        try:
            revision = await self._store.transact(StoreTransaction(tuple(conditions), writes))
        except EtcdRefused:
            if len(batch) == 1:
                raise
            revision = None
        if revision is None and len(batch) > 1:
            for each in batch:
                try:
                    await self._write([each])
                except EtcdRefused as error:
                    _fail(each, error)
            return
        for each in batch:
            if not each.revision.done():
                each.revision.set_result(revision)


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if waiting.revision.done():
        return
    if isinstance(error, asyncio.CancelledError):
        waiting.revision.cancel()
    else:
        waiting.revision.set_exception(error)
