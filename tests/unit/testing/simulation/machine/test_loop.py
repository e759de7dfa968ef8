"""Virtual time: timers in order, processes that are killed and paused, work for threads, a run that nothing ends."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from leveret.testing.simulation.machine.loop import LoopDeadlock, SimulatedExecutor, VirtualLoop
from leveret.testing.simulation.machine.process import SimulatedProcess, current_process


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop(Random(1))


def test_time_goes_on_to_the_next_timer_and_no_further(loop: VirtualLoop) -> None:
    async def play() -> list[float]:
        times = []
        for delay_s in (0.5, 86_400.0, 0.0):
            await asyncio.sleep(delay_s)
            times.append(loop.time())
        return times

    assert loop.run_until_complete(play()) == [0.5, 86_400.5, 86_400.5]


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set(loop: VirtualLoop) -> None:
    ran: list[str] = []

    async def play() -> None:
        loop.call_later(2, ran.append, "second")
        loop.call_later(1, ran.append, "first")
        loop.call_later(2, ran.append, "third")
        cancelled = loop.call_later(1.5, ran.append, "never")
        cancelled.cancel()
        await asyncio.sleep(3)

    loop.run_until_complete(play())
    assert ran == ["first", "second", "third"]


def test_a_killed_process_runs_nothing_any_more_not_even_what_is_to_run_in_any_case(
    loop: VirtualLoop,
) -> None:
    process, ran = SimulatedProcess("n1"), list[str]()

    async def work() -> None:
        assert current_process() is process
        try:
            await asyncio.sleep(10)
        finally:
            ran.append("finally")

    async def play() -> None:
        process.spawn(work())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(100)

    loop.run_until_complete(play())
    assert ran == []
    process.discard()
    assert ran == ["finally"], "Python runs it when the coroutine is freed"


def test_a_paused_process_does_late_and_in_order_what_it_missed(loop: VirtualLoop) -> None:
    process, ran = SimulatedProcess("n1"), list[float]()

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            ran.append(loop.time())

    async def play() -> None:
        process.spawn(work())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(5)
        loop.resume(process)
        await asyncio.sleep(5)

    loop.run_until_complete(play())
    assert ran == [1.0, 6.5, 7.5]


def test_work_for_threads_is_done_later_and_what_it_raises_is_told(loop: VirtualLoop) -> None:
    async def play() -> tuple[int, float]:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        pool = SimulatedExecutor(max_workers=2)
        future = pool.submit(sum, [1, 2])
        assert not future.done()
        return await asyncio.wrap_future(future), loop.time()

    result, at_s = loop.run_until_complete(play())
    assert result == 3
    assert 0 < at_s < 1


def test_what_can_never_be_is_told_and_not_waited_for(loop: VirtualLoop) -> None:
    async def play() -> None:
        await loop.create_future()

    with pytest.raises(LoopDeadlock):
        loop.run_until_complete(play())
