"""A lease is relied on for as long as etcd cannot have ended it, by this node's clock."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from leveret.config.sections.etcd import EtcdOptions
from leveret.core.replication.election import MARGIN
from leveret.runtime.coordination import lease as lease_module
from leveret.runtime.coordination.lease import KeptLease
from leveret.testing.network.waiting import until

TTL_S = 2.0
TRIP_S = 0.5


class SlowEtcd:
    """An etcd whose answers take half a second of the lease's clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.granted = 6
        self.kept = 0
        self.is_held = asyncio.Event()

    async def grant(self, ttl_s: int) -> tuple[int, float]:
        self.now_s += TRIP_S
        self.granted += 1
        return self.granted, float(ttl_s)

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


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_process_that_gets_another_lease_has_the_companion_of_that_one_only(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    started: list[int] = []
    running: set[int] = set()

    class Companion:
        def __init__(self, options: EtcdOptions, lease_id: int, ttl_s: float) -> None:
            self._lease_id = lease_id

        def ensure_started(self) -> None:
            started.append(self._lease_id)
            running.add(self._lease_id)

        def release(self) -> None:
            running.discard(self._lease_id)

    monkeypatch.setattr(lease_module, "LeaseCompanion", Companion)
    etcd = SlowEtcd()

    async def kept() -> KeptLease:
        options = cast(Any, object())
        lease = await KeptLease.granted(
            cast(Any, etcd), TTL_S, on_error=print, clock_s=lambda: etcd.now_s, options=options
        )
        lease.keep(print)
        await until(lambda: lease.id in running)
        return lease

    first = await kept()
    if is_lost:
        etcd.now_s += TTL_S
        assert not first.is_held_now()
    else:
        first.end()
    assert running == set()
    second = await kept()
    # Nothing of the first one comes late.
    etcd.is_held.set()
    await until(lambda: etcd.kept > 0)
    await until(lambda: started.count(second.id) > 1)
    assert running == {second.id}
    assert started.count(first.id) == 1
    second.end()
    assert running == set()
