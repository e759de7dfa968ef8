"""A simulated world: nodes, applications with books, and faults that a seed decides; then all heals and is counted.

    report = ClusterWorld(seed=7, folder=folder).run(seconds=60)

Raises RunFailure, which tells the story, if the books do not balance, or if something does not come to rest after all
has healed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from pamqp import commands

from leveret.model import definitions as d
from leveret.testing.simulation.applications import (
    SimulatedApplication,
    SimulatedConsumer,
    SimulatedPublisher,
    drain,
)
from leveret.testing.simulation.books import BooksFault, RunBooks
from leveret.testing.simulation.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.disk import SimulatedDisk
from leveret.testing.simulation.loop import NothingLeft, VirtualLoop
from leveret.testing.simulation.network import SimulatedNetwork
from leveret.testing.simulation.node import SimulatedNode
from leveret.testing.simulation.patches import simulated
from leveret.testing.simulation.process import SimulatedProcess
from leveret.testing.simulation.story import Story

REST_TIMEOUT_S: Final = 120.0
START_TIMEOUT_S: Final = 60.0
LOOK_S: Final = 0.1


class NeverAtRest(Exception):
    """Something does not come to be although all has healed."""


class RunFailure(Exception):
    """A run failed; the text tells the seed, the fault and the story.

    Attributes:
        fault: the reason: a BooksFault, or NeverAtRest.
        count: how many faults of the world there were.
        story: the last lines of all logs.
    """

    def __init__(self, seed: int, fault: Exception, count: int, story: str) -> None:
        super().__init__(f"seed {seed}: {type(fault).__name__}: {fault}\n{story}")
        self.fault, self.count, self.story = fault, count, story


class RunReport(NamedTuple):
    """What a run did."""

    seed: int
    seconds: float
    steps: int
    confirmed: int
    settled: int
    found: int
    faults: dict[str, int]


class PossibleFault(NamedTuple):
    """A fault that may happen: its kind, what it concerns, and what it does."""

    kind: str
    act: Callable[[], Coroutine[Any, Any, None] | None]
    about: str = ""


class SimulatedWorld:
    """What all worlds share; see the module.

    Attributes:
        random: of the faults; delays and applications have chances of their own.
        nodes: all nodes.
        applications: all publishers and consumers.
        queues: the names of the queues.
        faults: counts, by kind.
        disk: of all nodes.
        count: how many faults there were, those that were left out among them.
    """

    def __init__(self, seed: int, folder: Path, *, skip: frozenset[int] = frozenset()) -> None:
        """Nothing runs yet; the folder is removed at the end. `skip`: numbers of faults that are left out."""
        self.seed = seed
        self.skip = skip
        self.random = Random(f"faults {seed}")
        self.loop = VirtualLoop(Random(f"delays {seed}"))
        self.network = SimulatedNetwork(self.loop, Random(f"network {seed}"))
        # Each run has disks and links of its own: what hardly ever happens in one happens all the time in another.
        self.loop.threads_delay_s = self.random.choice((0.002, 0.02, 0.2))
        self.network.delay_s = self.random.choice((0.002, 0.01, 0.05))
        self.story = Story(self.loop)
        self.books = RunBooks()
        self.nodes: list[SimulatedNode] = []
        self.applications: list[SimulatedApplication] = []
        self.queues: list[str] = []
        self.faults: dict[str, int] = {}
        self.count = 0
        self.disk = SimulatedDisk(folder)
        self._folder = folder
        self._operator = SimulatedProcess("op")

    def add_node(self, name: str, settings: dict[str, str]) -> SimulatedNode:
        """Prepare a node."""
        node = SimulatedNode(name, self._folder, self.network, self.disk, settings)
        self.nodes.append(node)
        return node

    # -- a run ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> RunReport:
        """Let faults happen for so long, heal all, and count. Raises RunFailure."""
        root = logging.getLogger("leveret")
        level, propagates = root.level, root.propagate
        root.addHandler(self.story)
        root.setLevel(logging.INFO)
        root.propagate = False
        # The collector runs at moments that no seed decides, and what it frees may call the loop.
        gc.disable()
        try:
            with self.disk, simulated(self.loop, Random(f"product {self.seed}")):
                found: int = self.loop.run_until_complete(self._play(seconds))
        except (BooksFault, NeverAtRest, NothingLeft, ClientClosed, TimeoutError) as fault:
            raise RunFailure(self.seed, fault, self.count, self.story.text()) from fault
        finally:
            root.removeHandler(self.story)
            root.setLevel(level)
            root.propagate = propagates
            self._clear()
            gc.enable()
        return RunReport(
            self.seed,
            self.loop.time(),
            self.loop.steps,
            self.books.confirmed,
            self.books.settled,
            found,
            self.faults,
        )

    def _clear(self) -> None:
        for node in self.nodes:
            node.kill()
        for application in self.applications:
            application.process.kill()
            application.process.discard()
        for node in self.nodes:
            node.discard()
        self.loop.close()
        _close_below(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _play(self, seconds: float) -> int:
        self.prepare()
        await self._operator.spawn(self.set_up())
        for application in self.applications:
            application.start()
        until_s = self.loop.time() + seconds
        while self.loop.time() < until_s:
            await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
            await self._harm()
            self.look()
        self.story.note("-- all heals")
        await self.heal()
        return await self._operator.spawn(self._count())

    async def _harm(self) -> None:
        """Let one fault happen, unless it is left out."""
        number, self.count = self.count, self.count + 1
        fault = self.random.choice(self.possible_faults())
        if number in self.skip:
            return
        self.faults[fault.kind] = self.faults.get(fault.kind, 0) + 1
        self.story.note(f"fault {number}: {fault.kind} {fault.about}".rstrip())
        result = fault.act()
        if result is not None:
            await result

    pause_s = 2.0
    """Between two faults, on average."""

    def prepare(self) -> None:
        """Make what all processes are to find in their context."""

    async def set_up(self) -> None:
        """Start nodes, make queues and applications."""
        raise NotImplementedError

    def possible_faults(self) -> Sequence[PossibleFault]:
        """Return what may happen now."""
        raise NotImplementedError

    async def heal(self) -> None:
        """End all faults; return when all is as it should be."""
        raise NotImplementedError

    def look(self) -> None:
        """Raise what an application has found."""
        for application in self.applications:
            if application.fault is not None:
                raise application.fault
        for node in self.nodes:
            if node.bug is not None:
                raise NeverAtRest(f"{node.name} ended: {node.bug!r}") from node.bug

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float = REST_TIMEOUT_S) -> None:
        """Wait for something.

        Raises:
            NeverAtRest: it does not come to be in time.
        """
        until_s = self.loop.time() + timeout_s
        while not holds():
            if self.loop.time() > until_s:
                raise NeverAtRest(f"not within {timeout_s:g} s: {what}")
            await asyncio.sleep(LOOK_S)

    # -- what a world does ------------------------------------------------------------------------

    async def client(self) -> SimulatedClient:
        """Connect the operator to a node that is open, with patience."""
        for _ in range(200):
            open_nodes = [node for node in self.nodes if node.is_open]
            if open_nodes:
                try:
                    async with asyncio.timeout(5):
                        return await SimulatedClient.connect(
                            self.network, self.random.choice(open_nodes).amqp_port
                        )
                except (ClientClosed, OSError, TimeoutError):
                    pass
            await asyncio.sleep(0.5)
        raise NeverAtRest("no node lets a client in")

    async def declare(self, queue: str, **arguments: Any) -> None:
        """Declare a durable queue."""
        client = await self.client()
        await client.call(
            commands.Queue.Declare(
                0, queue, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()}
            )
        )
        client.close()
        self.queues.append(queue)

    async def set_policy(
        self, node: SimulatedNode, name: str, pattern: str, definition: dict[str, Any]
    ) -> None:
        """Set a policy at a node, as its HTTP API does."""
        process, roles = node.process, node.roles
        assert process is not None
        assert roles is not None
        policy = d.Policy(vhost="/", name=name, pattern=pattern, definition=definition, apply_to="queues")

        async def change() -> None:
            async with roles.node.changing():
                roles.node.broker.apply(d.Put(policy))
                await roles.node.commit()

        await process.spawn(change())

    def publishers(self, count: int, interval_s: float) -> None:
        """Have so many publish to all queues."""
        ports = [node.amqp_port for node in self.nodes]
        for number in range(count):
            name = f"p{number}"
            chance = Random(f"{name} {self.seed}")
            self.applications.append(
                SimulatedPublisher(
                    name, self.network, ports, self.books, chance, queues=self.queues, interval_s=interval_s
                )
            )

    def consumers(self, queues: Sequence[str]) -> None:
        """Have one consume each of these queues."""
        ports = [node.amqp_port for node in self.nodes]
        for queue in queues:
            name = f"c-{queue}"
            chance = Random(f"{name} {self.seed}")
            self.applications.append(
                SimulatedConsumer(name, self.network, ports, self.books, chance, queue=queue)
            )

    async def _count(self) -> int:
        """Stop the applications, take all that is left, and judge."""
        for application in self.applications:
            application.is_stopping = True
        await asyncio.sleep(10)
        self.look()
        found: dict[str, list[int]] = {queue: [] for queue in self.queues}
        for queue in self.queues:
            await self._drain(queue, found[queue])
        self.books.judge(found)
        return sum(map(len, found.values()))

    async def _drain(self, queue: str, numbers: list[int]) -> None:
        client = await self.client()

        def note(delivery: ClientDelivery) -> None:
            message = self.books.delivered(
                queue, delivery.message_id, delivery.body, redelivered=delivery.redelivered
            )
            numbers.append(message.number)

        try:
            await drain(client, queue, note)
        except (ClientClosed, TimeoutError) as error:
            raise NeverAtRest(f"queue {queue} cannot be drained: {error!r}") from error
        client.close()


def _close_below(folder: Path) -> None:
    """Close the files that killed processes left open: the kernel does that for real ones."""
    prefix = f"{folder.resolve()}/"
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(prefix):
                os.close(int(name))
