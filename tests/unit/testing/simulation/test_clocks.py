"""Clocks of nodes that are set: nothing that lasts goes by the time of day."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pamqp import commands

from leveret.testing.simulation.applications.client import SimulatedClient
from leveret.testing.simulation.worlds.cluster import ClusterWorld
from leveret.testing.simulation.worlds.followers import FollowerWorld
from leveret.testing.simulation.worlds.single import SingleWorld
from leveret.testing.simulation.worlds.with_etcd import EtcdWorld
from leveret.testing.simulation.worlds.world import START_TIMEOUT_S, PossibleFault

pytestmark = pytest.mark.timeout(200)

BACK_S = 7200.0
HEARTBEAT_S: Final = 10
EXPIRES_MS: Final = 600_000


class _SetBack(EtcdWorld):
    """Its links break, and its clocks go back."""

    def possible_faults(self) -> Sequence[PossibleFault]:
        self.pause_s = 1.0
        one, other = self.random.sample(self.nodes, 2)
        return [
            PossibleFault("set back", self.set_back),
            PossibleFault("reset", lambda: self.network.reset(one.name, other.name)),
        ]

    def set_back(self) -> None:
        for node in self.nodes:
            assert node.process is not None
            node.process.clock_offset_s -= BACK_S


class SetBackCluster(_SetBack, ClusterWorld):
    """A cluster of that kind."""


class SetBackFollowers(_SetBack, FollowerWorld):
    """Followers of that kind."""


@pytest.mark.story
@pytest.mark.parametrize("kind", [SetBackCluster, SetBackFollowers])
def test_mirrors_and_followers_become_synchronised_although_all_clocks_are_set_back(
    kind: type[EtcdWorld], tmp_path: Path
) -> None:
    report = kind(1, tmp_path).run(seconds=15)
    assert report.faults["set back"] > 1
    assert report.faults["reset"] > 1


class SetClock(SingleWorld):
    """A node whose clock is set, and a client of it that beats, holds a delivery and leaves a queue unused."""

    step_s = 0.0

    async def set_up(self) -> None:
        node = self.add_node("n1", {})
        node.start()
        await self.until(lambda: node.is_open, "the node starts", START_TIMEOUT_S)
        self.watched = await SimulatedClient.connect(self.network, node.amqp_port, heartbeat_s=HEARTBEAT_S)
        unused: Any = {"x-expires": EXPIRES_MS}
        await self.watched.call(commands.Queue.Declare(0, "unused", durable=True, arguments=unused))
        await self.watched.call(commands.Queue.Declare(0, "held", durable=True))
        self.watched.publish("held", "one", b"one")
        assert (await self.watched.call(commands.Basic.Get(0, "held"))).body == b"one"
        self.beating = asyncio.get_running_loop().create_task(self.beat())

    async def beat(self) -> None:
        while not self.watched.is_closed:
            self.watched.beat()
            # A publish is no use of a queue, yet the node looks at the queue then.
            self.watched.publish("unused", "more", b"more")
            await asyncio.sleep(HEARTBEAT_S / 2)

    def possible_faults(self) -> Sequence[PossibleFault]:
        return [PossibleFault("set", self.set_clock)]

    def set_clock(self) -> None:
        process = self.nodes[0].process
        assert process is not None
        process.clock_offset_s += self.step_s

    async def heal(self) -> None:
        await super().heal()
        assert not self.watched.is_closed, self.watched.reason
        await self.watched.call(commands.Queue.Declare(0, "unused", passive=True))
        # Its heartbeats came too: it would have been closed by now without them.
        self.beating.cancel()
        await self.until(
            lambda: self.watched.is_closed, "the end of a client that is silent", 3 * HEARTBEAT_S
        )


@pytest.mark.parametrize("step_s", [BACK_S, -BACK_S])
def test_a_client_of_a_node_whose_clock_is_set_notices_nothing(step_s: float, tmp_path: Path) -> None:
    """Heartbeats, consumer timeouts and `expires` are durations: no time of day begins or ends them."""
    world = SetClock(1, tmp_path)
    world.step_s = step_s
    report = world.run(seconds=3 * HEARTBEAT_S)
    assert report.faults["set"] > 1
