"""The end of a task that is no longer wanted."""

from __future__ import annotations

import asyncio

import pytest

from leveret.runtime.process.unwanted_tasks import end_task


async def test_a_task_has_ended_when_it_is_no_longer_wanted() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_task(task)
    assert ended == ["work"]
    await end_task(None)


async def test_a_failure_is_raised_unless_it_is_ignored() -> None:
    async def fail() -> None:
        raise LookupError

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await end_task(task, LookupError)
    with pytest.raises(LookupError):
        await end_task(task, ValueError)
