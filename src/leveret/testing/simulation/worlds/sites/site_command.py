"""An operator's command for a whole site, killed up to three times while it works, and given again at any node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from leveret.core.queues.queue import Queue
from leveret.model.errors import LeveretError
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.sites.site import Site, broker_of
from leveret.testing.simulation.worlds.world import START_TIMEOUT_S, SimulatedWorld

STEPS_MAX: Final = 300
_TRIES_MAX: Final = 12
_TIMEOUT_S: Final = 300.0
_OBEY_S: Final = 20.0
_KILLS: Final = (0, 1, 1, 2, 3)
_KINDS: Final = ("kill", "lose power", "lose power at the end", "pause", "pipeline", "pipeline")
_END_S: Final = 60.0


class SiteCommand:
    """See the module.

    Attributes:
        is_disturbed: whether nodes are killed while the command works.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        site: Site,
        name: str,
        act: Callable[[Any], Coroutine[Any, Any, object]],
        is_done: Callable[[], bool],
        chance: Random,
    ) -> None:
        """Prepare a command; nothing is done yet.

        Args:
            world: it starts the nodes, and has the story.
            site: the site.
            name: the command's, for the story.
            act: gives the command to the broker of one node.
            is_done: returns whether all nodes of the site have obeyed.
            chance: decides kills.
        """
        self._world = world
        self._site = site
        self._name = name
        self._act = act
        self._is_done = is_done
        self._chance = chance
        self._promotions = 0
        self.is_disturbed = False

    async def run(self, *, may_leave_down: bool = False, is_calm: bool = False) -> None:
        """Give the command until all nodes have obeyed.

        Args:
            may_leave_down: whether a node may be down while the command is disturbed.
            is_calm: whether nothing disturbs the command.

        Raises:
            NeverConverged: they do not obey, although nothing kills them any more.
        """
        nodes = self._site.nodes
        kills = 0 if is_calm else self._chance.choice(_KILLS)
        failure = ""
        for number in range(_TRIES_MAX):
            left_down = self._chance.choice(nodes) if may_leave_down and number < kills else None
            for node in nodes:
                if node is not left_down:
                    node.start()
            await self._world.until(lambda: bool(self._site.opened), "it starts", START_TIMEOUT_S)
            if number and await wait_until(self._is_done, _OBEY_S if number >= kills else 0.0):
                return
            if number >= kills:
                await wait_until(lambda: len(self._site.opened) == len(nodes), START_TIMEOUT_S)
            # A suspended one would answer once it is resumed, after another one has done its work.
            awake = [node for node in self._site.opened if node.process and not node.process.is_paused]
            if awake:
                node = self._chance.choice(awake)
                failure = await self._try(node, is_disturbed=number < kills)
        if not await wait_until(self._is_done, _OBEY_S):
            raise NeverConverged(f"no end of the {self._name} of site {self._site.name}: {failure}")

    async def _try(self, node: SimulatedNode, *, is_disturbed: bool) -> str:
        """Give the command once; return the reason of its failure, empty if it or the node ended otherwise."""
        process, broker = node.process, broker_of(node)
        assert process is not None
        self._promotions = len(self._site.decided.site.promotions)
        self.is_disturbed = is_disturbed
        working = process.spawn(self._act(broker))
        if is_disturbed:
            await self._disturb(self._chance.choice(self._site.nodes), working)

        def is_over() -> bool:
            # A node that begins anew, without its lease, ends the connections over which it was told.
            return working.done() or not process.is_alive or (node.is_open and broker_of(node) is not broker)

        if not await wait_until(is_over, _TIMEOUT_S):
            return f"not within {_TIMEOUT_S:g} s"
        # A node that leaves its cluster cancels what waits for changes there: it ended otherwise, too.
        if working.done() and not working.cancelled():
            try:
                working.result()
            except LeveretError as error:
                self._world.story.note(f"-- the {self._name} failed: {error}")
                return f"{type(error).__name__}: {error}"
        return ""

    def _has_messages(self) -> bool:
        """Return whether some queues of the site have messages, or had some."""
        queues = [queue for node in self._site.opened for queue in broker_of(node).broker.queues.values()]
        return any(queue.backlog.next_offset for queue in queues if isinstance(queue, Queue))

    async def _disturb(self, node: SimulatedNode, working: asyncio.Task[Any]) -> None:
        """Kill or suspend the node, or kill a process of its pipeline, while the command works."""
        chance, world = self._chance, self._world
        if chance.random() < 0.5:
            await wait_until(lambda: self._has_messages() or working.done(), 60.0, 0.002)
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.1, 1.0, 3.0)) * chance.random())
        kind = chance.choice(_KINDS)
        world.faults[f"{kind} in {self._name}"] += 1
        world.story.note(f"-- {kind} in the {self._name}, {node.name}")
        if kind == "kill":
            node.kill()
        elif kind == "lose power":
            node.lose_power(chance)
        elif kind == "lose power at the end":
            # What was said to be done was done a moment ago.
            await wait_until(lambda: working.done() or self._is_recorded(), _END_S, 0.001)
            node.lose_power(chance)
        elif kind == "pause":
            # The processes of its pipeline go on, while another node may take its place.
            node.pause()
            await asyncio.sleep(chance.uniform(1.0, 8.0))
            node.resume()
        else:
            await wait_until(lambda: bool(self._site.pipelines()) or working.done(), 20.0, 0.01)
            for process in self._site.pipelines():
                process.last_step = process.steps + chance.randint(1, STEPS_MAX)

    def _is_recorded(self) -> bool:
        """Return whether an open node knows of the end of a node's part of the command."""
        if not self._site.opened:
            return False
        site = self._site.decided.site
        parts = site.promoting.recovered if site.promoting is not None else ()
        return len(site.promotions) > self._promotions or bool(parts)
