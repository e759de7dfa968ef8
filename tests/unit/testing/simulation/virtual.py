"""Virtual time for tests of the simulation's parts: a loop that never waits, as there is nothing to wait for."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Clock(selectors.DefaultSelector):
    """Lets the time pass for which it should have waited."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "what is waited for never happens"
        self.now_s += max(0.0, timeout)
        return []


class TestLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    __test__ = False

    def __init__(self) -> None:
        self.clock = _Clock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s


def run(story: Coroutine[Any, Any, Result]) -> Result:
    """Run a story in virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=TestLoop) as runner:
        return runner.run(story)
