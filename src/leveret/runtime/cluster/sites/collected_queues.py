"""The incarnations under which a cluster collects its queues for a standby, stored in etcd."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from leveret.core.queues.queue import Queue
from leveret.core.replication.cluster import CollectedQueue, Placement, encode
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction
from leveret.model.definitions import QueueKey
from leveret.model.errors import LeveretError, StorageError
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.wire.incarnation import next_count

logger = logging.getLogger(__name__)

WRITTEN_AT_ONCE: Final = 100
COUNTS_MAX: Final = 16
"""The number of earlier incarnations that a new leader ends once more; those before ended long ago."""


class CollectedQueues:
    """runtime.collecting.shared_incarnations.SharedIncarnations."""

    def __init__(self, member: ClusterMember, records: Mapping[QueueKey, Placement]) -> None:
        """`records` has the placements of queues that this node has followed."""
        self._member = member
        self._records = records
        self._forgetting: set[asyncio.Task[None]] = set()

    def counts(self, epoch: int) -> Sequence[int]:
        """See SharedIncarnations."""
        found = self._member.state.collected.get(epoch)
        return found.counts if found is not None else ()

    async def prepare(self, queue: Queue, count: int, *, renumbers: bool) -> None:
        """See SharedIncarnations."""
        known = self._member.state.collected.get(queue.epoch)
        before = known or CollectedQueue((count,))
        placement = self._records.get(queue.key)
        lost = placement.lost.term if placement is not None and placement.lost is not None else 0
        if renumbers or lost > before.lost:
            counts = (*before.counts, next_count(before.counts[-1], renumbers=True))
            await self._write({queue.epoch: CollectedQueue(counts[-COUNTS_MAX:], lost)})
        elif known is None and count:
            await self._write({queue.epoch: before})

    async def renew(self, queues: Iterable[Queue]) -> None:
        """See SharedIncarnations."""
        ended: dict[int, CollectedQueue] = {}
        for queue in queues:
            before = self._member.state.collected.get(queue.epoch) or CollectedQueue((0,))
            counts = (*before.counts, next_count(before.counts[-1], renumbers=False))
            ended[queue.epoch] = CollectedQueue(counts[-COUNTS_MAX:], before.lost)
        epochs = list(ended)
        for begin in range(0, len(epochs), WRITTEN_AT_ONCE):
            await self._write({epoch: ended[epoch] for epoch in epochs[begin : begin + WRITTEN_AT_ONCE]})

    def forget(self, epochs: Iterable[int]) -> None:
        """See SharedIncarnations."""
        known = [epoch for epoch in epochs if epoch in self._member.state.collected]
        if known:
            task = asyncio.get_running_loop().create_task(self._delete(known))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _delete(self, epochs: list[int]) -> None:
        keys = self._member.state.keys
        try:
            for begin in range(0, len(epochs), WRITTEN_AT_ONCE):
                some = epochs[begin : begin + WRITTEN_AT_ONCE]
                deletes = tuple(DeleteKey(keys.collected(epoch)) for epoch in some)
                await self._member.store.transact(StoreTransaction((), deletes))
        except LeveretError as error:
            logger.info("collected_queues_not_forgotten queues=%d error=%s", len(epochs), error)

    async def _write(self, found: Mapping[int, CollectedQueue]) -> None:
        keys = self._member.state.keys
        puts = tuple(PutKey(keys.collected(epoch), encode(each)) for epoch, each in found.items())
        try:
            await self._member.transact(StoreTransaction((), puts))
        except LeveretError as error:
            raise StorageError(f"etcd did not take the incarnations of collected queues: {error}") from error
