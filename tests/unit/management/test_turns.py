from __future__ import annotations

import asyncio

from leveret.management.turns import in_turns


def test_others_are_served_while_long_work_goes_on() -> None:
    story: list[str] = []

    async def work() -> None:
        async for item in in_turns(range(3), turn_s=0):
            story.append(f"work {item}")

    async def other() -> None:
        for _ in range(2):
            story.append("other")
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(work(), other())

    asyncio.run(both())
    assert story == ["work 0", "other", "work 1", "other", "work 2"]


def test_short_work_is_done_at_one_go() -> None:
    async def count() -> list[int]:
        return [item async for item in in_turns(range(5), turn_s=60)]

    assert asyncio.run(count()) == list(range(5))
