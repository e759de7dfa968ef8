"""The election in virtual time, over an etcd whose connections are cut, that is slow, hangs and is restarted."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from contextvars import copy_context
from typing import Final

import pytest

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import Endpoints
from leveret.runtime.coordination import election as election_module
from leveret.runtime.coordination import lease as lease_module
from leveret.runtime.coordination.election import Election, ElectionWon, NotLeader
from leveret.runtime.coordination.etcd import EtcdUnreachable
from leveret.testing.simulation.etcd.client import SimulatedEtcdClient
from leveret.testing.simulation.etcd.companion import SimulatedCompanion
from leveret.testing.simulation.etcd.paths import DELAY_S_MAX
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.process import SimulatedProcess, _current

NAMES: Final = ("a", "b", "c")
SECONDS: Final = 60
TTL_MS: Final = 2_000
STEP_S: Final = 0.005
QUIET_S: Final = 10.0


class Contest:
    """Nodes that lead whenever they may, and now and then resign."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.etcd = SimulatedEtcd(asyncio.get_running_loop(), random.Random(seed + 1))
        self.etcd.use_here()
        self.elections: dict[str, Election] = {}
        self.wins: list[tuple[int, str]] = []
        self.most = 0

    async def play(self) -> None:
        tasks = [self._as_process(name) for name in NAMES]
        watching = asyncio.create_task(self._watch())
        for _ in range(SECONDS * 2):
            await asyncio.sleep(self.chance.random())
            self._trouble()
        self._peace()
        wins = len(self.wins)
        await asyncio.sleep(QUIET_S)
        assert self.holders() or len(self.wins) > wins
        watching.cancel()
        for election in self.elections.values():
            await election.close()
        await asyncio.gather(*tasks)

    def holders(self) -> list[str]:
        return [name for name, each in self.elections.items() if each.holds_lease_now()]

    def _as_process(self, name: str) -> asyncio.Task[None]:
        context = copy_context()
        context.run(_current.set, SimulatedProcess(name))
        return asyncio.get_running_loop().create_task(self._contend(name), context=context)

    async def _contend(self, name: str) -> None:
        settings = EtcdOptions(
            endpoints=Endpoints().parse("http://127.0.0.1:1"), prefix="p", lease_ttl_ms=TTL_MS
        )
        clock_s = asyncio.get_running_loop().time
        election = Election(settings, on_deposed=lambda why: None, clock_s=clock_s)
        self.elections[name] = election
        election.start()
        everyone = frozenset(NAMES)
        async for leader in election.watch_leader():
            with suppress(EtcdUnreachable, NotLeader):
                if leader is None and isinstance(won := await election.campaign(name, name, 0), ElectionWon):
                    self.wins.append((won.epoch, name))
                    await election.record_in_sync(everyone)
                elif leader is not None and leader.node_id == name and self.chance.random() < 0.2:
                    await election.resign()

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, len(self.holders()))
            await asyncio.sleep(STEP_S)

    def _trouble(self) -> None:
        etcd, chance = self.etcd, self.chance
        match chance.randrange(10):
            case 0 | 1:
                requests = chance.choice((True, False))
                etcd.cut(
                    chance.choice(NAMES), requests=requests, answers=not requests or chance.random() < 0.5
                )
            case 2 | 3 | 4:
                etcd.heal(chance.choice(NAMES))
            case 5:
                etcd.paths.delay_s_max = chance.choice((DELAY_S_MAX, 0.5))
            case 6 if etcd.is_up:
                etcd.stop()
            case 7:
                etcd.go_on()
            case 8 if etcd.is_up:
                etcd.kill()
                etcd.start()
            case 9:
                with suppress(Exception):
                    etcd.compact()

    def _peace(self) -> None:
        for name in NAMES:
            self.etcd.heal(name)
        self.etcd.paths.delay_s_max = DELAY_S_MAX
        self.etcd.go_on()


@pytest.mark.long
@pytest.mark.parametrize("number", range(8))
def test_one_leads_at_a_time_in_an_epoch_of_its_own_whatever_becomes_of_etcd(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    seed = int(os.environ.get("SEED", "0")) + number
    print("seed", seed)
    monkeypatch.setattr(election_module, "Etcd", SimulatedEtcdClient)
    monkeypatch.setattr(lease_module, "LeaseCompanion", SimulatedCompanion)

    async def story() -> None:
        contest = Contest(seed)
        await contest.play()
        assert contest.most == 1
        # Who leads already wins again, in the same epoch.
        epochs = [epoch for epoch, _ in dict.fromkeys(contest.wins)]
        assert epochs == sorted(set(epochs))
        assert len(epochs) > 3

    VirtualLoop(random.Random(1)).run_until_complete(story())
