"""A simulated pipeline process, as the node that started it sees it."""

from __future__ import annotations

import asyncio
import gc
import warnings
from random import Random

from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.process import SimulatedProcess
from leveret.testing.simulation.pipelines.process import SimulatedSubprocess


def test_a_wait_for_it_in_a_finally_that_the_end_of_a_run_closes_leaves_no_coroutine_behind() -> None:
    node = SimulatedProcess("node")

    async def supervise() -> None:
        running = SimulatedSubprocess("transfer", 2**16)
        try:
            await running.wait()
        finally:
            await asyncio.wait_for(running.wait(), 1)

    async def play() -> None:
        node.spawn(supervise())
        await asyncio.sleep(0.1)
        node.kill()

    VirtualLoop(Random(1)).run_until_complete(play())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node.discard()
        gc.collect()
    assert [str(each.message) for each in caught if "never awaited" in str(each.message)] == []


def test_a_wait_for_it_returns_its_status() -> None:
    async def play() -> int:
        running = SimulatedSubprocess("transfer", 2**16)
        running.process.end(3)
        return await running.wait()

    async def as_node() -> int:
        return await SimulatedProcess("node").spawn(play())

    loop = VirtualLoop(Random(1))
    SimulatedNetwork(loop, Random(2))
    assert loop.run_until_complete(as_node()) == 3
