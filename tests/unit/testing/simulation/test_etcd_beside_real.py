"""The simulated etcd beside a real one: the same calls have the same results, errors and reports."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

import httpx
import pytest

from leveret.config.uris import Endpoints
from leveret.core.replication.election import (
    DeleteKey,
    Holds,
    PutKey,
    StoredValue,
    StoreTransaction,
    Unchanged,
)
from leveret.runtime.coordination.etcd import Etcd, EtcdCompacted, EtcdRefused, WatchEvents
from leveret.testing.servers import etcd
from leveret.testing.servers.etcd import EtcdCluster
from leveret.testing.simulation.etcd.client import SimulatedEtcdClient
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.etcd.state import OPERATIONS_MAX
from leveret.testing.simulation.machine.loop import VirtualLoop

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available())),
]

ALL: Final = "k/"
KEYS: Final = ("k/a", "k/a/1", "k/a/2", "k/a/10", "k/b", "k/b/é", "k/c")
VALUES: Final = (b"", b"x", b"y")
CALLS: Final = 150
WATCHES: Final = 20
LEASE_S: Final = 2
LEASE_OVER_S: Final = 4.0

Compact = Callable[[int], Awaitable[None]]


class Caller:
    """Makes random calls, and writes down what comes of each; leases go by the order in which they were granted."""

    def __init__(self, client: Any, compact: Compact, seed: int) -> None:
        self.client, self.compact, self.chance = client, compact, random.Random(seed)
        self.leases: list[int] = []
        self.found: list[object] = []
        self.entries: dict[str, StoredValue] = {}
        self.revision = self.compacted = 0

    async def play(self) -> list[object]:
        calls = (
            self.transact,
            self.transact,
            self.transact,
            self.read,
            self.grant,
            self.end,
            self.keep,
            self.forget,
        )
        for _ in range(CALLS):
            try:
                if self.chance.random() < 0.7:
                    await self.read()
                result = await self.chance.choice(calls)()
            except EtcdRefused as error:
                result = ("refused", error.code)
            self.found.append(result)
        await self.let_a_lease_end()
        for revision in sorted(self.chance.sample(range(self.revision), min(WATCHES, self.revision))):
            self.found.append(await self.watch(ALL, revision))
        self.found.append(await self.watch("k/a/", self.revision - 1))
        return self.found

    async def transact(self) -> object:
        chance = self.chance
        lease = chance.randrange(len(self.leases) + 1)
        count = OPERATIONS_MAX if chance.random() < 0.02 else chance.randrange(4)
        writes = tuple(self.write() for _ in range(count))
        if count == OPERATIONS_MAX:
            writes = tuple(PutKey(f"k/c/{number}", b"") for number in range(count + chance.randrange(2)))
        transaction = StoreTransaction(tuple(self.condition() for _ in range(chance.randrange(3))), writes)
        return await self.client.transact(transaction, [0, *self.leases][lease])

    def write(self) -> PutKey | DeleteKey:
        chance, key = self.chance, self.chance.choice(KEYS)
        if chance.random() < 0.3:
            return DeleteKey(key, chance.random() < 0.5)
        return PutKey(key, chance.choice(VALUES), chance.random() < 0.5)

    def condition(self) -> Unchanged | Holds:
        """One that holds, mostly."""
        key = self.chance.choice(KEYS)
        entry = self.entries.get(key) if self.chance.random() < 0.9 else StoredValue(b"x", 3, 0)
        if self.chance.random() < 0.7:
            return Unchanged(key, entry.modified if entry else 0)
        return Holds(key, entry.value if entry else b"")

    async def read(self) -> object:
        self.revision, entries = await self.client.read(ALL)
        self.entries = dict(entries)
        assert await self.client.read("k/a/") == (
            self.revision,
            {key: entry for key, entry in entries.items() if key.startswith("k/a/")},
        )
        return [
            (key, value, modified, self.place(lease), created)
            for key, (value, modified, lease, created) in self.entries.items()
        ]

    async def grant(self) -> object:
        lease = await self.client.grant(self.chance.choice((0, 1, 60, 90)) or 30)
        self.leases.append(lease.id)
        if lease.ttl_s == LEASE_S:
            # One that may end meanwhile, as a real etcd takes time.
            await self.client.revoke(lease.id)
        return lease.ttl_s

    async def end(self) -> object:
        return await self.client.revoke(self.a_lease())

    async def keep(self) -> object:
        return await self.client.keep_alive(self.a_lease())

    async def forget(self) -> object:
        if self.chance.random() < 0.8:
            return None
        revision = self.chance.randint(1, self.revision + 1)
        await self.compact(revision)
        return ("forgotten", revision)

    async def let_a_lease_end(self) -> None:
        """All its keys go in one revision, which the watches report."""
        lease = await self.client.grant(LEASE_S)
        keys = tuple(PutKey(key, b"", True) for key in ("k/b", "k/a/2", "k/a/1"))
        await self.client.transact(StoreTransaction((), keys), lease.id)
        await asyncio.sleep(LEASE_OVER_S)
        self.found.append(await self.client.keep_alive(lease.id))
        self.revision = (await self.client.read(ALL)).revision

    async def watch(self, prefix: str, revision: int) -> list[WatchEvents] | str:
        """What is reported from a revision up to the latest."""
        seen: list[WatchEvents] = []
        try:
            async with aclosing(self.client.watch(prefix, revision)) as batches:
                async for batch in batches:
                    seen.append(batch)
                    if batch.revision >= self.revision:
                        break
        except EtcdCompacted:
            return "compacted"
        return seen

    def a_lease(self) -> int:
        """One that may be over, or never was."""
        return self.chance.choice([7, *self.leases[-5:]])

    def place(self, lease: int) -> int:
        return self.leases.index(lease) if lease else -1


@pytest.fixture(scope="module")
def real() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        yield cluster


async def beside_real(cluster: EtcdCluster, seed: int) -> list[object]:
    def compact(revision: int) -> None:
        try:
            cluster.members[0].ask("kv/compaction", revision=revision)
        except httpx.HTTPStatusError as error:
            raise EtcdRefused(error.response.json()["code"], "") from error

    client = Etcd(Endpoints().parse(cluster.setting), 5)
    try:
        return await Caller(client, lambda revision: asyncio.to_thread(compact, revision), seed).play()
    finally:
        await client.close()


async def simulated(seed: int) -> list[object]:
    simulation = SimulatedEtcd(asyncio.get_running_loop(), random.Random(seed))
    simulation.use_here()

    async def compact(revision: int) -> None:
        simulation.compact(revision)

    return await Caller(SimulatedEtcdClient(Endpoints().parse("http://127.0.0.1:1"), 5), compact, seed).play()


def test_random_calls_have_the_results_that_a_real_etcd_gives(real: EtcdCluster) -> None:
    seed = int(os.environ.get("SEED", "19"))
    print("seed", seed)
    expected = asyncio.run(beside_real(real, seed))
    found = VirtualLoop(random.Random(1)).run_until_complete(simulated(seed))
    for number, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        assert ours == theirs, (seed, number)
