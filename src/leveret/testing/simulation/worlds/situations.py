"""Situations of a cluster in which a wrong order of steps shows: faults that follow each other.

A single fault seldom meets such a moment. A promise that was made too early shows only while a disk, a link or etcd is
late, and while the late node is about to lead or to be counted on. So each situation makes one node late, waits until
promises depend on that, and then ends, moves or cuts off another node. `SITUATIONS` has all of them by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from leveret.core.replication.cluster import Placement
from leveret.model.definitions import QueueKey
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.leader_loss import LedWorld

ALL: Final = {"ha-mode": "all"}
MAJORITY: Final = {"ha-mode": "all", "ha-confirm": "majority"}
BY_HAND: Final = {"ha-sync-mode": "manual"}
TWO: Final = {"ha-mode": "exactly", "ha-params": 2}
ADDITION: Final = "addition"
"""The moment at which a record that counts on another mirror is on its way to etcd."""
STOPPED_IN_TURN: Final = "stopped in turn"
LATE_S: Final = 0.3
"""The longest sync of a disk that is late."""
_POLICY_S: Final = 4.0
_DROPPED_S: Final = 5.0
_MOMENT_S: Final = 1.0
_RETURNED_S: Final = 3.0
_TAKEN_OVER_S: Final = 1.5


class SituatedWorld(LedWorld, Protocol):
    """The cluster, as this module uses it; see ClusterWorld."""

    random: Random

    def busy(self) -> Mapping[QueueKey, Placement]:
        """Return etcd's records of the mirrored queues that are published to."""

    def set_mirrors(self, definition: Mapping[str, Any]) -> None:
        """Change the policy of the mirrored queues."""

    def move(self, key: QueueKey, to: str) -> None:
        """Ask for another leader of a queue."""

    def remove_log(self, node: SimulatedNode, key: QueueKey) -> None:
        """Remove the directory of a queue's log at a node that is down."""

    async def until_moment(self, timeout_s: float, moment: str | None = None) -> None:
        """Wait for a critical moment."""

    async def restart_in_turn(self) -> None:
        """Stop and start one node after the other."""


class Group(NamedTuple):
    """The running nodes of a queue: its leader, and its synchronised mirrors, oldest first."""

    key: QueueKey
    leader: SimulatedNode
    mirrors: list[SimulatedNode]


class NoSuchGroup(Exception):
    """No queue has come to be as a situation needs it."""


class ClusterSituations:
    """Carries out situations in a world; see the module."""

    def __init__(self, world: SituatedWorld) -> None:
        """Begin without one."""
        self._world = world
        self._random = world.random

    async def run(self, name: str) -> None:
        """Carry out a situation, if it comes about, and end its conditions."""
        world = self._world
        disks = {node: node.disk_delay_s for node in world.nodes}
        with suppress(NoSuchGroup):
            await getattr(self, name.replace(" ", "_"))()
        world.network.mend()
        world.etcd.paths.delay_s_max = world.etcd_delay_s
        for node, delay_s in disks.items():
            node.disk_delay_s = delay_s
            node.resume()
            world.etcd.heal(node.name)
            world.start(node)

    # -- conditions -----------------------------------------------------------------------------

    def _groups(self, *, majority: bool | None = None, mirrors: int = 1) -> list[Group]:
        running = {node.full_name: node for node in self._world.nodes if node.is_open}
        found: list[Group] = []
        for key, placement in self._world.busy().items():
            synchronised = [
                running[each]
                for each in placement.mirrors
                if each in placement.synchronised and each in running
            ]
            is_wanted = majority is None or placement.majority == majority
            if is_wanted and placement.leader in running and len(synchronised) >= mirrors:
                found.append(Group(key, running[placement.leader], synchronised))
        return found

    async def _under(self, policy: Mapping[str, Any], mirrors: int = 2) -> Group:
        """Set a policy, and wait for a queue that follows it with so many synchronised mirrors.

        Raises:
            NoSuchGroup: there was none in time.
        """
        self._world.set_mirrors(policy)
        majority = "ha-confirm" in policy
        await wait_until(lambda: bool(self._groups(majority=majority, mirrors=mirrors)), _POLICY_S)
        groups = self._groups(majority=majority, mirrors=mirrors)
        if not groups:
            raise NoSuchGroup
        return self._random.choice(groups)

    async def _late(self, *nodes: SimulatedNode) -> None:
        """Make disks late, and wait until records are under way to them."""
        for node in nodes:
            node.disk_delay_s = LATE_S
        await asyncio.sleep(LATE_S)

    def _move_all(self, leader: SimulatedNode, to: SimulatedNode) -> None:
        """Move all queues of a node to another one at once."""
        for key, placement in self._world.busy().items():
            if placement.leader == leader.full_name:
                self._world.move(key, to.full_name)

    def _counts_on(self, node: SimulatedNode, key: QueueKey) -> bool:
        placement = self._world.busy().get(key)
        return placement is not None and node.full_name in placement.synchronised

    async def _moment(self) -> None:
        await self._world.until_moment(_MOMENT_S, self._random.choice(("promise", "publish", "record")))

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(self._random.uniform(0, seconds))

    # -- situations -----------------------------------------------------------------------------

    async def mirror_lost(self) -> None:
        """By majority: the mirror that has everything is lost, perhaps with the leader; the other one is late."""
        group = await self._under(MAJORITY)
        fast, late = self._random.sample(group.mirrors, 2)
        await self._late(late)
        await self._world.until_moment(_MOMENT_S, "promise")
        fast.kill()
        if self._random.random() < 0.5:
            group.leader.kill()
            await asyncio.sleep(_TAKEN_OVER_S)
        await self._pause(_TAKEN_OVER_S)

    async def leader_lost(self) -> None:
        """By majority: the leader is lost while one mirror is late, or has not received everything."""
        group = await self._under(MAJORITY)
        late = self._random.choice(group.mirrors)
        if self._random.random() < 0.5:
            self._world.network.cut(group.leader.name, late.name)
        await self._late(late)
        await self._world.until_moment(_MOMENT_S, "promise")
        group.leader.kill()
        await asyncio.sleep(_TAKEN_OVER_S)

    async def moved_while_late(self) -> None:
        """By majority: queues move to a mirror while it, or the other one, is late."""
        group = await self._under(MAJORITY)
        to, late = self._random.sample(group.mirrors, 2)
        await self._late(late)
        await self._moment()
        self._move_all(group.leader, self._random.choice((to, late)))
        await asyncio.sleep(1.0)

    async def moved_while_recorded(self) -> None:
        """Queues move while the record of a mirror that is late and comes back is on its way to a slow etcd."""
        policy = self._random.choice((ALL, MAJORITY))
        with suppress(NoSuchGroup):
            await self._under(policy)
        self._world.etcd.paths.delay_s_max = self._random.choice((0.3, 0.6))
        for _ in range(4):
            groups = self._groups(mirrors=1)
            if groups:
                group = self._random.choice(groups)
                others = [each for each in self._world.nodes if each is not group.leader]
                late, to = self._random.sample(others, 2)
                late.disk_delay_s = self._random.choice((0.1, 2 * LATE_S))
                self._world.network.reset(group.leader.name, late.name)
                if self._random.random() < 0.5:
                    await self._pause(1.0)
                else:
                    await self._world.until_moment(_RETURNED_S, ADDITION)
                self._move_all(group.leader, to)
                await self._pause(0.5)

    async def moved_to_late(self) -> None:
        """A queue moves to a mirror that is cut off from its leader and lacks messages."""
        group = await self._under(ALL)
        late = self._random.choice(group.mirrors)
        self._world.network.cut(group.leader.name, late.name)
        await wait_until(lambda: not self._counts_on(late, group.key), _DROPPED_S)
        await self._moment()
        self._world.move(group.key, late.full_name)
        await asyncio.sleep(4.5)

    async def policy_before_loss(self) -> None:
        """Confirms stop to wait for a majority by the policy; the leader is lost before the record says so."""
        group = await self._under(MAJORITY)
        self._world.network.cut(group.leader.name, group.mirrors[0].name)
        await self._pause(1.0)
        self._world.set_mirrors(ALL)
        await self._pause(0.3)
        group.leader.kill()
        await asyncio.sleep(_TAKEN_OVER_S)

    async def leader_stands_still(self) -> None:
        """A leader stands still for longer than its lease while a disk, its own or that of a mirror, is late."""
        group = await self._under(ALL, 1)
        await self._late(*self._random.choice(([group.leader], group.mirrors)))
        await self._moment()
        await self._pause(0.1)
        group.leader.pause()
        await asyncio.sleep(self._random.uniform(2.8, 4.0))
        group.leader.resume()
        await asyncio.sleep(0.5)

    async def without_etcd(self) -> None:
        """A node is cut off from etcd, which may be slow, for longer than its lease."""
        self._world.etcd.paths.delay_s_max = self._random.choice((self._world.etcd_delay_s, 0.45))
        await asyncio.sleep(2.0)
        node = self._random.choice(self._world.nodes)
        self._world.etcd.cut(node.name)
        await asyncio.sleep(4.5)

    async def log_lost(self) -> None:
        """A mirror comes back without its log, and the leader is lost at once."""
        group = await self._under(ALL)
        first, second = group.mirrors[:2]
        stops = self._random.random() < 0.5
        await self._late(second)
        await self._world.until_moment(_MOMENT_S, "promise")
        if stops:
            second.pause()
        else:
            # The record names the first one until its leader is lost.
            self._world.etcd.cut(group.leader.name, requests=True, answers=False)
        first.kill()
        self._world.remove_log(first, group.key)
        self._world.start(first)
        await wait_until(lambda: first.is_open, _DROPPED_S, 0.02)
        await self._pause(0.3)
        second.resume()
        await self._pause(0.3)
        if not stops:
            group.leader.kill()
            await asyncio.sleep(_TAKEN_OVER_S)

    async def log_lost_behind_cut(self) -> None:
        """A mirror loses its log while its leader cannot see that its link has ended."""
        group = await self._under(ALL)
        mirror = self._random.choice(group.mirrors)
        self._world.network.cut(group.leader.name, mirror.name)
        mirror.kill()
        await wait_until(lambda: not self._counts_on(mirror, group.key), _DROPPED_S)
        self._world.remove_log(mirror, group.key)
        self._world.start(mirror)
        await wait_until(lambda: self._counts_on(mirror, group.key), 3.0)

    async def policies_in_turn(self) -> None:
        """A queue loses a mirror by its policy, and has it again a moment later."""
        group = await self._under(ALL)
        kept = [each.full_name for each in (group.leader, group.mirrors[0])]
        for _ in range(6):
            self._world.set_mirrors({"ha-mode": "nodes", "ha-params": kept})
            await self._pause(0.04)
            self._world.set_mirrors(ALL)
            await self._pause(0.8)

    async def all_copies_lost(self) -> None:
        """A leader and its only mirror are lost, and the leader comes back to a slow etcd."""
        group = await self._under(TWO, 1)
        for node in (group.leader, *group.mirrors):
            node.kill()
        self._world.etcd.paths.delay_s_max = 0.4
        await self._pause(1.0)
        self._world.start(group.leader)
        await wait_until(lambda: group.leader.is_open, _DROPPED_S, 0.02)
        await asyncio.sleep(1.0)

    async def leader_returns(self) -> None:
        """A leader comes back while the write of its successor is on its way to etcd."""
        group = await self._under(self._random.choice((ALL, MAJORITY)))
        successor = group.mirrors[0]
        self._world.etcd.cut(successor.name, requests=True, answers=False)
        group.leader.kill()
        self._world.start(group.leader)
        # The successor keeps its lease.
        await wait_until(lambda: group.leader.is_open, 0.9, 0.02)
        await self._pause(0.1)
        self._world.etcd.paths.delay_s_max = 0.2
        self._world.etcd.heal(successor.name)
        await asyncio.sleep(1.0)

    async def two_successors(self) -> None:
        """A leader is lost while one mirror restarts: another one takes the queue over, late."""
        group = await self._under(ALL)
        first, second = group.mirrors[:2]
        first.kill()
        await asyncio.sleep(0.02)
        self._world.etcd.cut(second.name, requests=True, answers=False)
        group.leader.kill()
        await self._pause(0.1)
        self._world.start(first)
        await asyncio.sleep(1.3)
        self._world.etcd.heal(second.name)
        await asyncio.sleep(1.0)

    async def stopped_in_turn(self) -> None:
        """A mirror begins where a drained queue ends; then all nodes stop and start in turn."""
        self._world.set_mirrors(TWO)
        await self._pause(4.0)
        if self._random.random() < 0.5:
            # The mirror is sent nothing of what is there, so it begins at the end.
            with suppress(NoSuchGroup):
                await self._under({**ALL, **BY_HAND}, 1)
            await asyncio.sleep(1.0)
        with suppress(NoSuchGroup):
            await self._under(ALL)
        await self._world.restart_in_turn()

    async def synchronised_by_hand(self) -> None:
        """A new mirror lacks the messages of before, and the leader is lost."""
        self._world.set_mirrors({**TWO, **BY_HAND})
        await asyncio.sleep(1.0)
        group = await self._under({**ALL, **BY_HAND}, 1)
        await asyncio.sleep(1.5)
        group.leader.kill()
        await asyncio.sleep(_TAKEN_OVER_S)

    async def mirror_returns(self) -> None:
        """A mirror whose disk is late leaves and comes back, again and again."""
        group = await self._under(ALL)
        late = self._random.choice(group.mirrors)
        await self._late(late)
        for _ in range(5):
            self._world.network.reset(group.leader.name, late.name)
            await asyncio.sleep(0.5)
            await self._pause(0.8)

    async def writes_late(self) -> None:
        """Requests of a node to etcd are held up for longer than it waits for an answer."""
        for _ in range(3):
            groups = self._groups()
            if groups:
                leader = self._random.choice(groups).leader
                self._world.set_mirrors(self._random.choice((ALL, MAJORITY, TWO)))
                await self._pause(0.02)
                self._world.etcd.cut(leader.name, requests=True, answers=False)
                await asyncio.sleep(self._random.uniform(0.5, 1.0))
                self._world.etcd.heal(leader.name)
                await self._pause(0.5)

    async def clock_set_back(self) -> None:
        """The clocks of all nodes are set back, and a mirror has to be synchronised after that."""
        group = await self._under(ALL)
        for node in self._world.nodes:
            node.clock_offset_s -= 3600.0
            if node.process is not None:
                node.process.clock_offset_s = node.clock_offset_s
        mirror = self._random.choice(group.mirrors)
        mirror.kill()
        await self._pause(1.0)


def situations_of(kind: type[ClusterSituations]) -> list[str]:
    """Return the names of the situations that a class itself has."""
    return sorted(name.replace("_", " ") for name in vars(kind) if not name.startswith("_") and name != "run")


SITUATIONS: Final = situations_of(ClusterSituations)
