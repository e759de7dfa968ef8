"""The simulated companion: a lease ends with its process, unless the companion is killed, hangs, or loses its power."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import pytest

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import Endpoints
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.runtime.coordination.companion import STARTS_MAX
from leveret.testing.simulation.etcd.companion import SimulatedCompanion, hang_companions, kill_companions
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.process import SimulatedProcess
from leveret.testing.simulation.machine.waiting import wait_until

TTL_S: Final = 2
OPTIONS: Final = EtcdOptions(endpoints=Endpoints().parse("http://127.0.0.1:2379"))
AT_ONCE: Final = (0.0, 0.1)
BY_ITSELF: Final = (1.9, 2.6)


class Scene:
    """A process with a lease and a companion."""

    def __init__(self) -> None:
        self.etcd = SimulatedEtcd(asyncio.get_running_loop(), random.Random(1))
        self.etcd.use_here()
        self.process = SimulatedProcess("n1")
        self.lease_id = self.etcd.grant(TTL_S).id
        self.etcd.transact(StoreTransaction((), (PutKey("k", b"v", leased=True),)), self.lease_id)
        self.companion = self.process.context().run(SimulatedCompanion, OPTIONS, self.lease_id, TTL_S)
        self.companion.ensure_started()

    def kill(self) -> None:
        self.process.kill()
        self.process.report_death()

    async def ended_after_s(self) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await wait_until(lambda: "k" not in self.etcd.state.entries, 10.0, 0.01)
        return loop.time() - began_s


def killed(scene: Scene) -> None:
    scene.kill()


def lost_power(scene: Scene) -> None:
    scene.process.kill()


def killed_after_companion(scene: Scene) -> None:
    kill_companions(scene.process)
    scene.kill()


def killed_with_companion_started_again(scene: Scene) -> None:
    kill_companions(scene.process)
    scene.companion.ensure_started()
    scene.kill()


def killed_with_companion_started_too_often(scene: Scene) -> None:
    for _ in range(STARTS_MAX):
        kill_companions(scene.process)
        scene.companion.ensure_started()
    scene.kill()


def killed_while_companion_hangs(scene: Scene) -> None:
    hang_companions(scene.process, 1.0)
    scene.kill()


def cut_from_etcd(scene: Scene) -> None:
    scene.etcd.cut("n1")
    scene.kill()


def paused(scene: Scene) -> None:
    scene.process.pause()


@pytest.mark.parametrize(
    ("happens", "ends_s"),
    [
        (killed, AT_ONCE),
        (killed_with_companion_started_again, AT_ONCE),
        (killed_while_companion_hangs, (1.0, 1.1)),
        (killed_after_companion, BY_ITSELF),
        (killed_with_companion_started_too_often, BY_ITSELF),
        (lost_power, BY_ITSELF),
        (cut_from_etcd, BY_ITSELF),
        (paused, BY_ITSELF),
    ],
)
def test_a_lease_ends_when_its_companion_says_so_or_by_itself(
    happens: Callable[[Scene], None], ends_s: tuple[float, float]
) -> None:
    async def story() -> float:
        scene = Scene()
        happens(scene)
        return await scene.ended_after_s()

    found_s = VirtualLoop(random.Random(2)).run_until_complete(story())
    assert ends_s[0] <= found_s <= ends_s[1]


def test_a_companion_that_was_released_ends_no_lease() -> None:
    async def story() -> float:
        scene = Scene()
        scene.companion.release()
        scene.kill()
        return await scene.ended_after_s()

    assert VirtualLoop(random.Random(2)).run_until_complete(story()) > AT_ONCE[1]
