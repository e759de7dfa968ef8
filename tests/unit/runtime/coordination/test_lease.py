"""A lease is relied on for as long as etcd cannot have ended it, by this node's clock."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from leveret.core.replication.election import MARGIN
from leveret.runtime.coordination.lease import KeptLease
from leveret.testing.network.waiting import until

TTL_S = 2.0
TRIP_S = 0.5


class SlowEtcd:
    """An etcd whose answers take half a second of the lease's clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.kept = 0
        self.is_held = asyncio.Event()

    async def grant(self, ttl_s: int) -> tuple[int, float]:
        self.now_s += TRIP_S
        return 7, float(ttl_s)

    async def keep_alive(self, lease_id: int) -> float:
        await self.is_held.wait()
        self.is_held.clear()
        self.now_s += TRIP_S
        self.kept += 1
        return TTL_S

    async def revoke(self, lease_id: int) -> None:
        """Nothing is left of it."""


async def test_the_time_of_a_lease_runs_from_when_it_was_asked_for_not_from_the_answer() -> None:
    etcd = SlowEtcd()
    lost: list[str] = []
    lease = await KeptLease.granted(cast(Any, etcd), TTL_S, on_error=lost.append, clock_s=lambda: etcd.now_s)
    lasts_s = TTL_S * (1 - MARGIN)
    assert lease.left_s == 100.0 + lasts_s - etcd.now_s
    etcd.now_s = asked_s = 101.0
    lease.keep(lost.append)
    etcd.is_held.set()
    await until(lambda: etcd.kept == 1)
    await asyncio.sleep(0)
    assert lease.left_s == asked_s + lasts_s - etcd.now_s
    etcd.now_s = asked_s + lasts_s
    assert not lease.is_held_now()
    assert lost
    lease.end()
