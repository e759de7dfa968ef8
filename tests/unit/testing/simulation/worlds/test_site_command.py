"""A command for a simulated site is given again if it ended without an answer; no node that stands still is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("greenlet")

from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.process import SimulatedProcess
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.worlds.sites.site_command import SiteCommand


class Undisturbed(Random):
    """Chooses the first of everything: no kill, the first node."""

    def choice(self, seq: Any) -> Any:
        """Return the first."""
        return seq[0]


class Node:
    """A node that serves, with a broker that can be replaced."""

    def __init__(self, name: str) -> None:
        self.name, self.process = name, SimulatedProcess(name)
        self.is_open = True
        self.roles = SimpleNamespace(node=SimpleNamespace(name=name))

    def start(self) -> None:
        """It runs."""


class World:
    """Waits, and has a story."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        self.story = SimpleNamespace(note=lambda text: None)

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        """See SimulatedWorld."""
        assert await wait_until(holds, timeout_s), what


def given(nodes: list[Node], act: Callable[[Any], Any], is_done: Callable[[], bool]) -> float:
    """Give a command to a site of these nodes; return the virtual time that it took."""
    loop = VirtualLoop(Random(1))
    decided = SimpleNamespace(site=SimpleNamespace(promotions=[]))
    site: Any = SimpleNamespace(name="b", nodes=nodes, opened=nodes, decided=decided)
    world: Any = World()
    loop.run_until_complete(SiteCommand(world, site, "promotion", act, is_done, Undisturbed(1)).run())
    return loop.time()


def test_a_command_whose_node_leaves_its_cluster_is_given_again() -> None:
    """A node that leaves cancels what waits for changes of its cluster: that ended the whole hunt once."""
    asked: list[str] = []

    async def act(broker: Any) -> None:
        asked.append(broker.name)
        if len(asked) == 1:
            waits = asyncio.get_running_loop().create_future()
            waits.cancel()
            await waits

    given([Node("b1")], act, lambda: len(asked) == 2)
    assert asked == ["b1", "b1"]


def test_a_command_whose_node_begins_anew_in_the_same_process_is_given_again_at_once() -> None:
    asked: list[str] = []
    node = Node("b1")

    async def act(broker: Any) -> None:
        asked.append(broker.name)
        if len(asked) == 1:
            node.roles = SimpleNamespace(node=SimpleNamespace(name="b1, anew"))
            await asyncio.get_running_loop().create_future()

    assert given([node], act, lambda: len(asked) == 2) < 60.0
    assert asked == ["b1", "b1, anew"]


def test_no_node_that_stands_still_is_asked() -> None:
    asked: list[str] = []
    nodes = [Node("b1"), Node("b2")]
    nodes[0].process.pause()

    async def act(broker: Any) -> None:
        asked.append(broker.name)

    given(nodes, act, lambda: bool(asked))
    assert asked == ["b2"]
