"""runtime.process.loop_watch: what holds up the event loop is measured, and named."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable

import pytest
import uvloop

from leveret.model.patterns import Pattern
from leveret.runtime.process import loop_watch
from leveret.runtime.process.loop_watch import LoopWatch

WITHIN_S = 60


async def eventually(condition: object) -> None:
    """Wait for it; what a step did is told with the beat after it."""
    until = time.monotonic() + WITHIN_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        await asyncio.sleep(0.005)


def busy_for(seconds: float) -> None:
    """Of the processor's time: what the machine gives to others meanwhile is not counted."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(loop_watch, "_REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(loop_watch, "_INTERVAL_S", 0.05)
    caplog.set_level(logging.WARNING)
    return caplog


async def test_a_long_step_is_measured_and_named(warnings: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.02)
    busy_for(0.2)
    await eventually(lambda: "busy_for" in warnings.text)
    assert watch.long_steps >= 1
    assert watch.long_seconds > 0.1
    assert watch.longest_s > 0.1
    task.cancel()
    assert "event_loop_held_up" in warnings.text
    assert "test_loop_watch:busy_for" in warnings.text


async def is_quiet(watch: LoopWatch) -> None:
    """Wait until its beats are slow; to ask often would be work, and on a busy machine too much of it."""
    until = time.monotonic() + WITHIN_S
    while not watch._is_quiet:
        assert time.monotonic() < until
        await asyncio.sleep(0.1)


def in_one_call(seconds: float) -> None:
    """Keep the processor busy in one call into C: no signal's handler runs meanwhile."""
    began = time.thread_time()
    sum(range(1_000_000))
    sum(range(max(1, int(1_000_000 * seconds / (time.thread_time() - began)))))


@pytest.mark.long
@pytest.mark.parametrize("busy", [busy_for, in_one_call])
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_long_step_that_begins_and_ends_between_two_slow_beats_is_measured_and_named(
    busy: Callable[[float], None],
    factory: Callable[[], asyncio.AbstractEventLoop],
    warnings: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_watch, "_QUIET_BEAT_S", 60.0)

    async def main() -> None:
        watch = LoopWatch()
        task = asyncio.create_task(watch.run())
        for _ in range(3):
            await is_quiet(watch)
            steps = watch.long_steps
            busy(0.06)
            await eventually(lambda steps=steps: watch.long_steps > steps)
        assert watch.long_seconds > 3 * 0.03
        await eventually(lambda: busy.__name__ in warnings.text)
        task.cancel()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


async def test_many_short_steps_after_quiet_are_no_long_one(warnings: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    await is_quiet(watch)
    for _ in range(300):
        busy_for(0.001)
        await asyncio.sleep(0)
    assert not watch._is_quiet
    assert watch.long_seconds < 0.1  # of 0.3; a machine that is busy with others may add to one
    task.cancel()


def test_a_loop_that_does_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = 0
    take_beat = LoopWatch._take_beat

    def counted(watch: LoopWatch, cpu_s: float, waited_s: float) -> None:
        nonlocal beats
        beats += 1
        take_beat(watch, cpu_s, waited_s)

    async def main() -> None:
        watch = LoopWatch()
        task = asyncio.create_task(watch.run())
        await is_quiet(watch)
        before = beats
        await asyncio.sleep(0.5)
        assert beats - before <= 6  # two, if nothing else wakes it; fifty when beats are fast
        task.cancel()

    monkeypatch.setattr(LoopWatch, "_take_beat", counted)
    asyncio.run(main())


async def test_of_two_watches_in_a_process_the_one_without_the_timer_beats_all_the_time() -> None:
    first, second = LoopWatch(), LoopWatch()
    tasks = [asyncio.create_task(first.run())]
    await is_quiet(first)
    tasks.append(asyncio.create_task(second.run()))
    await is_quiet(second)
    await eventually(lambda: not first._is_quiet)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


async def test_a_pause_of_the_collector_is_told_by_its_name(warnings: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(LoopWatch().run())
    await asyncio.sleep(0.02)
    heap = [[each] for each in range(600_000)]
    await asyncio.sleep(0.05)
    gc.collect()
    await eventually(lambda: "garbage collection of generation 2" in warnings.text)
    assert heap
    task.cancel()


async def test_what_is_long_is_told_now_and_then_with_how_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "_REPORT_EVERY_S", 0.6)

    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    steps = 0
    until = time.monotonic() + WITHIN_S
    while sum("event_loop_held_up" in line for line in caplog.text.splitlines()) < 2:
        assert time.monotonic() < until
        busy_for(0.05)
        steps += 1
        await asyncio.sleep(0.03)
    assert steps > 2
    task.cancel()


async def test_when_it_ends_it_leaves_nothing_behind() -> None:
    callbacks = len(gc.callbacks)
    task = asyncio.create_task(LoopWatch().run())
    await asyncio.sleep(0.02)
    assert len(gc.callbacks) == callbacks + 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(gc.callbacks) == callbacks


async def test_a_timer_that_fires_while_it_ends_reads_no_closed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, close, handlers = LoopWatch(), os.close, []

    def closed(file: int) -> None:
        close(file)
        handlers.append(signal.getsignal(signal.SIGPROF))
        signal.raise_signal(signal.SIGPROF)

    task = asyncio.create_task(watch.run())
    await is_quiet(watch)
    monkeypatch.setattr(os, "close", closed)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handlers == [signal.SIG_IGN]


async def test_a_pattern_that_is_too_costly_is_told(warnings: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(LoopWatch().run())
    assert not Pattern(r"^(?!amq)(a+)+$").covers("a" * 254 + "b")
    await eventually(lambda: "pattern_too_costly" in warnings.text)
    task.cancel()
    assert "^(?!amq)(a+)+$" in warnings.text
