"""Faults that belong together: a leader is cut off from some of the others, then lost, and maybe its successor too.

A single fault seldom meets the moment at which a wrong order of steps shows: who takes over must lack something, and
must count as having it. Here one after the other is brought about: links are cut, etcd is slow, the policy changes, and
then, at a moment that matters, the leader ends in one of several ways. Who was cut off may have to lead next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, Protocol

from leveret.testing.simulation.etcd import SimulatedEtcd
from leveret.testing.simulation.network import SimulatedNetwork
from leveret.testing.simulation.node import SimulatedNode
from leveret.testing.simulation.waiting import wait_until

_MOMENT_S: Final = 2.0
_TAKEN_OVER_S: Final = 6.0
_LOOK_S: Final = 0.005
_AWAY_S: Final = (0.5, 2.5, 2.5, 6.0)


class LedWorld(Protocol):
    """What a misfortune needs of its world; see EtcdWorld."""

    random: Random
    network: SimulatedNetwork
    nodes: list[SimulatedNode]
    etcd: SimulatedEtcd
    etcd_delay_s: float

    def leaders(self) -> set[str]:
        """Return the nodes that lead something, by their full names."""

    def start(self, node: SimulatedNode) -> None:
        """Start a node that is down."""

    async def until_moment(self, timeout_s: float) -> None:
        """Wait for a moment that matters."""


class LeaderLoss:
    """One such misfortune of a world; see the module."""

    def __init__(self, world: LedWorld, prepare: Sequence[Callable[[], object]] = ()) -> None:
        """Nothing happens yet; one of `prepare` may be done first, such as a change of policy."""
        self._world = world
        self._random = world.random
        self._prepare = prepare

    async def run(self) -> None:
        """Let it happen, and heal it."""
        world = self._world
        leader = self._leader()
        if leader is None:
            return
        if self._prepare and self._random.random() < 0.4:
            self._random.choice(self._prepare)()
        if self._random.random() < 0.4:
            world.etcd.paths.delay_s_max = self._random.choice((0.1, 0.4, 0.8))
        self._cut_off(leader)
        await world.until_moment(_MOMENT_S)
        ended = [leader]
        restarts = [self._end(leader)]
        if self._random.random() < 0.5:
            await wait_until(lambda: self._leader(leader) is not None, _TAKEN_OVER_S, _LOOK_S)
            second = self._leader(leader)
            if second is not None:
                if self._random.random() < 0.5:
                    world.network.mend()
                    self._cut_off(second)
                await asyncio.sleep(self._random.choice((0.0, self._random.expovariate(2.0))))
                ended.append(second)
                restarts.append(self._end(second))
        if self._random.random() < 0.5:
            world.network.mend()
        await asyncio.gather(*restarts)
        world.network.mend()
        world.etcd.paths.delay_s_max = world.etcd_delay_s
        for node in ended:
            world.start(node)

    def _leader(self, but: SimulatedNode | None = None) -> SimulatedNode | None:
        """A node that runs and leads something; not that one."""
        leaders = self._world.leaders()
        nodes = [each for each in self._world.nodes if each.is_open and each is not but]
        found = [each for each in nodes if f"{each.name}@localhost" in leaders]
        return self._random.choice(found) if found else None

    def _cut_off(self, leader: SimulatedNode) -> None:
        """Have some of the others hear nothing of a leader, or it of them, and maybe not of each other."""
        network, others = self._world.network, [each for each in self._world.nodes if each is not leader]
        for other in self._random.sample(others, self._random.randint(0, len(others))):
            if self._random.random() < 0.3:
                network.reset(leader.name, other.name)
            one, two = self._random.sample((leader.name, other.name), 2)
            network.cut(one, two, both=self._random.random() < 0.5)
        if self._random.random() < 0.2:
            one, two = self._random.sample([each.name for each in others], 2)
            network.cut(one, two)

    def _end(self, node: SimulatedNode) -> Awaitable[object]:
        """Have a node end, or not take part for a while; what to wait for until it is back."""
        return asyncio.ensure_future(self._random.choice(_WAYS)(self, node))

    async def _killed(self, node: SimulatedNode) -> None:
        node.kill()
        await self._away(node)

    async def _without_power(self, node: SimulatedNode) -> None:
        node.lose_power(self._random)
        await self._away(node)

    async def _stopped(self, node: SimulatedNode) -> None:
        await node.stop()
        await self._away(node)

    async def _paused(self, node: SimulatedNode) -> None:
        node.pause()
        await asyncio.sleep(self._random.uniform(1.5, 6.0))
        node.resume()

    async def _without_etcd(self, node: SimulatedNode) -> None:
        requests, answers = self._random.choice(((True, True), (True, False), (False, True)))
        self._world.etcd.cut(node.name, requests=requests, answers=answers)
        await asyncio.sleep(self._random.uniform(1.5, 6.0))
        self._world.etcd.heal(node.name)

    async def _away(self, node: SimulatedNode) -> None:
        await asyncio.sleep(self._random.expovariate(1 / self._random.choice(_AWAY_S)))
        self._world.start(node)


_WAYS: Final = (
    LeaderLoss._killed,
    LeaderLoss._without_power,
    LeaderLoss._without_power,
    LeaderLoss._stopped,
    LeaderLoss._paused,
    LeaderLoss._without_etcd,
)
