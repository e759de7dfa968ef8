"""runtime.cluster.membership.definitions_lock: a node takes the definitions lock, and hands it over."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from leveret.core.broker.definitions_lock import DefinitionsLock
from leveret.core.replication.cluster import ClusterKeys, ClusterState, encode
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction
from leveret.runtime.cluster.membership.definitions_lock import DefinitionsLockHolder
from leveret.runtime.coordination.etcd import EtcdRefused
from leveret.testing.network.waiting import until

KEYS = ClusterKeys.under("/test")


class Store:
    """An etcd of one key: each transaction is done, and is known to the node at once."""

    def __init__(self, state: ClusterState) -> None:
        self.done: list[StoreTransaction] = []
        self.refused = 0
        """The number of the next transactions to refuse."""
        self._state = state

    async def transact(self, transaction: StoreTransaction) -> int:
        if self.refused:
            self.refused -= 1
            raise EtcdRefused(8, "etcdserver: mvcc: database space exceeded")
        self.done.append(transaction)
        revision = len(self.done)
        for write in transaction.writes:
            if write.key == KEYS.definitions_lock:
                self._state.definitions_lock = None if isinstance(write, DeleteKey) else "a"
                self._state._modified[KEYS.definitions_lock] = 0 if isinstance(write, DeleteKey) else revision
        return revision


async def test_a_node_keeps_the_lock_while_its_changes_are_on_their_way_and_gives_it_to_who_wants_it_then() -> (
    None
):
    state = ClusterState(KEYS)
    store = Store(state)
    holder = DefinitionsLockHolder(cast(Any, store), state, "a")
    is_busy = True
    lock = DefinitionsLock()
    holder.serve(lock, lambda: is_busy)
    running = asyncio.create_task(holder.run())
    await asyncio.wait_for(holder.fetched(), 5)
    assert (lock.is_here, store.done[0].writes[0]) == (
        True,
        PutKey(KEYS.definitions_lock, encode("a"), leased=True),
    )
    state.definitions_lock_wanted = frozenset({"b"})
    for _ in range(3):
        holder.check()
        await asyncio.sleep(0.01)
    assert (lock.is_here, len(store.done)) == (True, 1)
    is_busy = False
    with holder.pinned():
        holder.check()
        await asyncio.sleep(0.01)
        assert (lock.is_here, len(store.done)) == (True, 1)
    await until(lambda: len(store.done) == 2)
    assert (lock.is_here, store.done[1].writes) == (False, (DeleteKey(KEYS.definitions_lock),))
    running.cancel()


async def test_a_lock_that_etcd_refused_to_take_back_is_handed_over_once_it_does() -> None:
    state = ClusterState(KEYS)
    store = Store(state)
    holder = DefinitionsLockHolder(cast(Any, store), state, "a")
    lock = DefinitionsLock()
    holder.serve(lock)
    running = asyncio.create_task(holder.run())
    await asyncio.wait_for(holder.fetched(), 5)
    store.refused = 2
    state.definitions_lock_wanted = frozenset({"b"})
    holder.check()
    await until(lambda: state.definitions_lock is None)
    assert (store.refused, lock.is_here, holder.is_here) == (0, False, False)
    running.cancel()


async def test_a_check_wakes_nobody_while_there_is_nothing_to_take_or_to_hand_over() -> None:
    """Each node checks twenty times a second."""
    state = ClusterState(KEYS)
    holder = DefinitionsLockHolder(cast(Any, Store(state)), state, "a")
    holder.check()
    assert not holder._wake.is_set()
    holder.want()
    holder._wake.clear()
    holder.check()
    assert holder._wake.is_set()
