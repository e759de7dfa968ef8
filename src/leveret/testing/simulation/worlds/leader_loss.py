"""A sequence of faults: a leader is cut off from some of the others, then lost, and sometimes its successor, too.

A single fault seldom meets the moment at which a wrong order of steps shows: the successor must lack a message, and
must count as having it. Here the conditions come about one after the other: links are cut, etcd is slow, the policy
changes, and then, at a critical moment, the leader ends in one of several ways. A node that was cut off may have to
lead next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, Protocol

from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode

_MOMENT_S: Final = 2.0
_TAKEN_OVER_S: Final = 6.0
_LOOK_S: Final = 0.005
_AWAY_S: Final = (0.5, 2.5, 2.5, 6.0)


class LedWorld(Protocol):
    """The world, as this module uses it; see EtcdWorld."""

    random: Random
    network: SimulatedNetwork
    nodes: list[SimulatedNode]
    etcd: SimulatedEtcd
    etcd_delay_s: float

    def leaders(self) -> set[str]:
        """Return the full names of the nodes that lead a queue."""

    def start(self, node: SimulatedNode) -> None:
        """Start a node that is down."""

    async def until_moment(self, timeout_s: float) -> None:
        """Wait for a critical moment."""


class LeaderLoss:
    """One such sequence of faults in a world; see the module."""

    def __init__(self, world: LedWorld, prepare: Sequence[Callable[[], object]] = ()) -> None:
        """Begin without a fault; `run` may call one of `prepare` first, such as a change of policy."""
        self._world = world
        self._random = world.random
        self._prepare = prepare

    async def run(self) -> None:
        """Carry out the sequence, and heal it."""
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
        """Return a running leader other than `but`; None if there is none."""
        leaders = self._world.leaders()
        nodes = [each for each in self._world.nodes if each.is_open and each is not but]
        found = [each for each in nodes if each.full_name in leaders]
        return self._random.choice(found) if found else None

    def _cut_off(self, leader: SimulatedNode) -> None:
        """Cut links from or to a leader, or both, at some of the others, and sometimes a link between two others."""
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
        """End or suspend a node for a while; return an awaitable for its return."""
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
