"""tests.endings: how a coroutine's test ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.endings import at_end, with_endings


def fail() -> None:
    pytest.fail("Timeout")


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_timeout_that_a_callback_meets_ends_the_test_and_what_belongs_to_it(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    ended: list[str] = []

    async def end() -> None:
        ended.append("node")

    async def waits_for_ever() -> None:
        at_end(end)
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=loop) as runner, pytest.raises(pytest.fail.Exception, match="Timeout"):
        runner.run(with_endings(waits_for_ever()))
    assert ended == ["node"]
