"""runtime.process.loop_watch: what holds up the event loop is measured, and named."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

from leveret.model.patterns import Pattern
from leveret.runtime.process import loop_watch
from leveret.runtime.process.loop_watch import LoopWatch

WITHIN_S = 10


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
def reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(loop_watch, "_REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(loop_watch, "_INTERVAL_S", 0.05)
    caplog.set_level(logging.WARNING)
    return caplog


def test_a_long_step_is_measured_and_named(reported: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watch = LoopWatch()
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.02)
        busy_for(0.2)
        await eventually(lambda: "busy_for" in reported.text)
        assert watch.long_steps >= 1
        assert watch.long_seconds > 0.1
        assert watch.longest_s > 0.1
        task.cancel()

    asyncio.run(main())
    assert "event_loop_held_up" in reported.text
    assert "test_loop_watch:busy_for" in reported.text


def test_a_pause_of_the_collector_is_told_by_its_name(reported: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        task = asyncio.create_task(LoopWatch().run())
        await asyncio.sleep(0.02)
        heap = [[each] for each in range(2_000_000)]
        await asyncio.sleep(0.05)
        gc.collect()
        await eventually(lambda: "garbage collection of generation 2" in reported.text)
        assert heap
        task.cancel()

    asyncio.run(main())


def test_what_is_long_is_told_now_and_then_with_how_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "_REPORT_EVERY_S", 0.6)

    async def main() -> None:
        watch = LoopWatch()
        task = asyncio.create_task(watch.run())
        steps = 0
        until = time.monotonic() + WITHIN_S
        while sum("event_loop_held_up" in line for line in caplog.text.splitlines()) < 2:
            assert time.monotonic() < until
            busy_for(0.05)
            steps += 1
            await asyncio.sleep(0.03)
        assert steps > 4
        task.cancel()

    asyncio.run(main())


def test_when_it_ends_it_leaves_nothing_behind() -> None:
    async def main() -> None:
        callbacks = len(gc.callbacks)
        task = asyncio.create_task(LoopWatch().run())
        await asyncio.sleep(0.02)
        assert len(gc.callbacks) == callbacks + 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(gc.callbacks) == callbacks

    asyncio.run(main())


def test_a_pattern_that_is_too_costly_is_told(reported: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        task = asyncio.create_task(LoopWatch().run())
        assert not Pattern(r"^(?!amq)(a+)+$").covers("a" * 254 + "b")
        await eventually(lambda: "pattern_too_costly" in reported.text)
        task.cancel()

    asyncio.run(main())
    assert "^(?!amq)(a+)+$" in reported.text
