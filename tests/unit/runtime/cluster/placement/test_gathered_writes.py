"""Records that come while a transaction is under way are written together, and one that is refused harms no other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from leveret.core.replication.election import PutKey, StoreTransaction, Unchanged
from leveret.runtime.cluster.membership.store import LeaseLost
from leveret.runtime.cluster.placement.gathered_writes import AT_ONCE, GatheredWrites
from leveret.runtime.coordination.etcd import EtcdRefused


class Store:
    """Notes what is written; a turn of the loop passes before each answer."""

    def __init__(self) -> None:
        self.written: list[list[str]] = []
        self.changed: set[str] = set()
        self.refused: set[str] = set()
        self.is_lost = False

    async def transact(self, transaction: StoreTransaction) -> int | None:
        await asyncio.sleep(0)
        if self.is_lost:
            raise LeaseLost("this test says so")
        keys = [write.key for write in transaction.writes]
        if self.refused & set(keys):
            raise EtcdRefused(3, "this test says so")
        if self.changed & {condition.key for condition in transaction.conditions}:
            return None
        self.written.append(keys)
        return len(self.written)


def record(key: str) -> StoreTransaction:
    return StoreTransaction((Unchanged(key, 1),), (PutKey(key, b"x"),))


async def written(store: Store, *keys: str) -> list[Any]:
    gathered = GatheredWrites(cast(Any, store))
    return await asyncio.gather(*(gathered.transact(record(key)) for key in keys), return_exceptions=True)


async def test_what_comes_together_is_one_transaction() -> None:
    store = Store()
    keys = [f"q{number}" for number in range(AT_ONCE + 2)]
    assert await written(store, *keys) == [1] * AT_ONCE + [2] * 2
    assert store.written == [keys[:AT_ONCE], keys[AT_ONCE:]]


async def test_what_comes_later_waits_for_no_more_than_one_transaction() -> None:
    store = Store()
    gathered = GatheredWrites(cast(Any, store))
    first = asyncio.create_task(gathered.transact(record("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.create_task(gathered.transact(record(key))) for key in "bc"]
    assert [await first, *[await each for each in later]] == [1, 2, 2]
    assert store.written == [["a"], ["b", "c"]]
    assert await gathered.transact(record("d")) == 3


async def test_one_that_is_not_as_it_was_or_is_refused_is_told_so_and_the_others_are_written() -> None:
    store = Store()
    store.changed, store.refused = {"b"}, {"c"}
    a, b, c, d = await written(store, *"abcd")
    assert (a, b, d) == (1, None, 2)
    assert isinstance(c, EtcdRefused)
    assert store.written == [["a"], ["d"]]


async def test_without_the_lease_all_are_told() -> None:
    store = Store()
    store.is_lost = True
    assert [type(each) for each in await written(store, *"ab")] == [LeaseLost, LeaseLost]


async def test_who_does_not_wait_any_more_costs_nobody_else() -> None:
    store = Store()
    gathered = GatheredWrites(cast(Any, store))
    a, b = (asyncio.create_task(gathered.transact(record(key))) for key in "ab")
    await asyncio.sleep(0)
    a.cancel()
    with pytest.raises(asyncio.CancelledError):
        await a
    assert await b == 1
