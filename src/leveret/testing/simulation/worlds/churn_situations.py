"""Situations in which queues are deleted and declared again while a node of theirs is away, late or about to be lost.

A node that was away learns of several lives of a name at once, and has the copy of a former one. So each situation
makes a node miss the change, or lose its rights in the midst of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.situations import (
    ALL,
    MAJORITY,
    TWO,
    ClusterSituations,
    Group,
    NoSuchGroup,
    SituatedWorld,
    situations_of,
)

_REPLACED_S: Final = 3.0
_AWAY_S: Final = 2.5
_TAKEN_OVER_S: Final = 1.5
_SLOW_S: Final = 0.2


class ReplacingWorld(SituatedWorld, Protocol):
    """The world of queues that come and go, as this module uses it; see ChurnWorld."""

    def replace(self, names: Collection[str]) -> Callable[[], bool]:
        """Have queues deleted and declared again; return what tells whether that was answered."""

    def declare_crowd(self) -> None:
        """Have an exchange, and more queues than fit into one transaction, declared at once."""


class ReplacedQueues(ClusterSituations):
    """See the module."""

    def __init__(self, world: ReplacingWorld) -> None:
        """Begin without one."""
        super().__init__(world)
        self._replacing = world

    async def _away(self, node: SimulatedNode, leader: SimulatedNode) -> None:
        """Have a node miss what comes now, in one of several ways."""
        match self._random.randrange(5):
            case 0:
                node.kill()
            case 1:
                node.lose_power(self._random)
            case 2:
                self._world.etcd.cut(node.name)
            case 3:
                node.pause()
            case _:
                self._world.network.cut(node.name, leader.name)

    def _back(self, node: SimulatedNode) -> None:
        """End what `_away` began."""
        self._world.etcd.heal(node.name)
        self._world.network.mend()
        node.resume()
        self._world.start(node)

    async def _replaced(self, group: Group) -> None:
        """Replace the queue of a group, and others of its leader; wait for the answer, but not for long."""
        led = [
            key[1] for key, placed in self._world.busy().items() if placed.leader == group.leader.full_name
        ]
        if self._random.random() < 0.5:
            # The deletion and the next declaration wait for the publication before, and are written together.
            self._world.etcd.paths.delay_s_max = _SLOW_S
        is_answered = self._replacing.replace({group.key[1], *led[:3]})
        await wait_until(is_answered, _REPLACED_S, 0.02)

    async def replaced_while_mirror_away(self) -> None:
        """Queues are replaced while a mirror is away, perhaps twice; it comes back, and the leader is lost."""
        group = await self._under(self._random.choice((ALL, MAJORITY)), 1)
        away = self._random.choice(group.mirrors)
        await self._away(away, group.leader)
        for _ in range(self._random.randint(1, 2)):
            await self._pause(0.5)
            await self._replaced(group)
        self._back(away)
        await self._pause(0.5)
        if self._random.random() < 0.7:
            await self._moment()
            group.leader.kill()
            await asyncio.sleep(_TAKEN_OVER_S)

    async def replaced_while_leader_away(self) -> None:
        """The leader is away; its queues are led on by a mirror, and replaced, before it comes back."""
        group = await self._under(self._random.choice((ALL, TWO)), 1)
        await self._moment()
        await self._away(group.leader, group.mirrors[0])
        if self._random.random() < 0.5:
            await asyncio.sleep(_AWAY_S)
        await self._replaced(group)
        self._back(group.leader)
        await self._pause(1.0)

    async def lost_while_replaced(self) -> None:
        """A node is lost while the replacement of queues is on its way to a slow etcd."""
        group = await self._under(ALL, 1)
        self._world.etcd.paths.delay_s_max = self._random.choice((self._world.etcd_delay_s, _SLOW_S))
        self._replacing.replace({group.key[1]})
        await self._world.until_moment(1.0, self._random.choice(("record", "promise", "")))
        await self._pause(0.3)
        lost = self._random.choice([each for each in self._world.nodes if each.is_open] or [group.leader])
        await self._away(lost, group.leader)
        await asyncio.sleep(_AWAY_S)
        await self._replaced(group)
        self._back(lost)

    async def moved_while_replaced(self) -> None:
        """Queues move, and their policy changes, while they are replaced."""
        group = await self._under(ALL, 1)
        for _ in range(4):
            is_answered = self._replacing.replace({group.key[1]})
            await self._pause(0.2)
            match self._random.randrange(3):
                case 0:
                    self._world.move(group.key, self._random.choice(group.mirrors).full_name)
                case 1:
                    self._world.set_mirrors(self._random.choice((ALL, MAJORITY, TWO)))
                case _:
                    self._move_all(group.leader, self._random.choice(group.mirrors))
            await wait_until(is_answered, 1.0, 0.02)
            with suppress(NoSuchGroup):
                group = await self._under(ALL, 1)

    async def crowd_declared(self) -> None:
        """More queues than fit into one transaction are declared at once, and a node is lost in the midst of it."""
        self._world.etcd.paths.delay_s_max = _SLOW_S
        self._replacing.declare_crowd()
        await self._world.until_moment(1.0, "record")
        if self._random.random() < 0.5:
            await self._pause(0.3)
            self._random.choice(self._world.nodes).kill()
            await asyncio.sleep(_TAKEN_OVER_S)


REPLACED: Final = situations_of(ReplacedQueues)
