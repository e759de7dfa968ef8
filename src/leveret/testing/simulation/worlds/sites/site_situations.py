"""Sequences of faults at two sites: conditions that come about one after the other, where single faults seldom meet.

A wrong order of steps mostly shows when something is late and something else is lost just then (ADR 44).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final, Protocol

from leveret.testing.simulation.machine.blocking import BlockingProcess
from leveret.testing.simulation.machine.loop import virtual_loop
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.sites.site import Site, pipelines_of

_LATE_S: Final = 1.0
_MOMENT_S: Final = 2.0
_TAKEN_OVER_S: Final = 4.0
_BATCH_S: Final = 15.0
_RECOVERED_S: Final = 30.0
_STEPS_MAX: Final = 30


class SituatedSites(Protocol):
    """The world, as this module uses it; see SitesWorld."""

    random: Random
    loop: Any
    network: SimulatedNetwork
    upstream: Site
    downstream: Site

    async def until_moment(self, timeout_s: float, moment: str | None = None) -> None:
        """Wait for a critical moment."""


class SiteSituations:
    """See the module; each public method is one sequence."""

    def __init__(self, world: SituatedSites) -> None:
        """Begin without a fault."""
        self._world = world
        self._random = world.random

    async def transfer_late(self) -> None:
        """Batches take long, so each reads much; then all of the pipeline is killed in the middle of one."""
        for _ in range(3):
            late = [each for each in self._world.downstream.pipelines() if "worker" in each.title]
            for process in late:
                process.pause()
            await asyncio.sleep(self._random.uniform(2.0, 8.0))
            for process in late:
                self._world.loop.resume(process)
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
        for process in self._world.downstream.pipelines():
            process.end(-9)

    async def upstream_late(self) -> None:
        """A node of the upstream whose disk is late loses its power at a promise."""
        opened = self._world.upstream.opened
        if not opened:
            return
        node = self._random.choice(opened)
        before_s, node.disk_delay_s = node.disk_delay_s, _LATE_S
        await asyncio.sleep(1.0)
        await self._world.until_moment(_MOMENT_S, "promise")
        node.lose_power(self._random)
        node.disk_delay_s = before_s
        await asyncio.sleep(self._random.uniform(0.1, 1.0))
        node.start()

    async def mirrors_late(self) -> None:
        """The disks of all nodes but one are late, and that one is lost shortly after a publish."""
        site = self._world.upstream
        if not (site.is_cluster and site.opened):
            return
        lost = self._random.choice(site.opened)
        before = {node: node.disk_delay_s for node in site.nodes}
        for node in site.nodes:
            node.disk_delay_s = 0.0 if node is lost else _LATE_S
        await asyncio.sleep(1.0)
        await self._world.until_moment(_MOMENT_S, "publish")
        await asyncio.sleep(self._random.uniform(0.1, 0.6))
        lost.kill()
        await asyncio.sleep(_TAKEN_OVER_S)
        for node, delay_s in before.items():
            node.disk_delay_s = delay_s
        lost.start()

    async def one_log_late(self) -> None:
        """A node of an upstream cluster is out of the downstream's reach, so its log comes after the others'."""
        world = self._world
        if not (world.upstream.is_cluster and world.upstream.opened):
            return
        late = self._random.choice(world.upstream.opened).name
        pairs = [pair for each in world.downstream.nodes for pair in ((late, each.name), (each.name, late))]
        for pair in pairs:
            world.network.cut(*pair, both=False)
        await asyncio.sleep(self._random.uniform(3.0, 9.0))
        world.network.mend(pairs)

    async def owner_suspended(self) -> None:
        """The owner is suspended, its pipeline goes on, and another node takes the vhost over."""
        nodes = self._world.downstream.nodes
        owners = [node for node in nodes if node.process is not None and node.process.children]
        if not (self._world.downstream.is_cluster and owners):
            return
        node = self._random.choice(owners)
        node.pause()
        await asyncio.sleep(self._random.uniform(2.0, 8.0))
        node.resume()


Situation = Callable[[SiteSituations], Coroutine[Any, Any, None]]
SITUATIONS: Final[Mapping[str, Situation]] = {
    name.replace("_", " "): act for name, act in vars(SiteSituations).items() if not name.startswith("_")
}
DEAD_LETTERS_MATTER: Final = "one log late"
"""The sequence in which dead letters are wanted between nodes, and little else."""


class OwnerSuspended:
    """The owner of a shared archive stands still in the midst of a batch when the upstream is lost.

    Its pipeline goes on while another node recovers, so that what the owner had begun ends in another owner's term.

    Attributes:
        suspended: the nodes that stand still, with the processes of their pipelines.
    """

    def __init__(self, upstream: Site, site: Site, chance: Random) -> None:
        """Suspend nothing yet."""
        self.suspended: dict[SimulatedNode, list[BlockingProcess]] = {}
        self._upstream = upstream
        self._site = site
        self._chance = chance
        # A batch that is not read yet ends empty, as the upstream is lost; one that is recorded has a lock.
        self._kind = chance.choice(("worker", "worker", "sink"))
        self._steps = chance.randint(1, _STEPS_MAX)

    async def suspend(self) -> None:
        """Suspend the nodes with pipelines, if possible while one records a batch; both sites run for that."""
        for node in (*self._upstream.nodes, *self._site.nodes):
            node.start()
        await wait_until(self._is_at_work, _BATCH_S, 0.001)
        await asyncio.sleep(self._chance.choice((0.0, 0.005, 0.02, 0.1)) * self._chance.random())
        self.suspended = {node: found for node in self._site.nodes if (found := pipelines_of(node))}
        for node, pipelines in self.suspended.items():
            node.pause()
            for process in pipelines:
                process.pause()

    async def resume(self) -> None:
        """Resume the pipelines while another node recovers, and later the nodes."""
        if not self.suspended:
            return
        await wait_until(self._is_recovered_elsewhere, _RECOVERED_S, 0.001)
        for pipelines in self.suspended.values():
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.3, 2.0)) * self._chance.random())
            for process in pipelines:
                virtual_loop().resume(process)
        await asyncio.sleep(self._chance.uniform(0.5, 5.0))
        for node in self.suspended:
            node.resume()

    def _is_at_work(self) -> bool:
        working = [each for each in self._site.pipelines() if self._kind in each.title]
        return any(not thread.done() for each in working for thread in each.threads)

    def _is_recovered_elsewhere(self) -> bool:
        others = [node for node in self._site.nodes if node not in self.suspended]
        running = [each for node in others for each in pipelines_of(node)]
        return any("recover" in each.title and each.steps >= self._steps for each in running)
