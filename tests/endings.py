"""What is to end with a test that is a coroutine: in the test's own event loop, and also where the test fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

_endings: ContextVar[AsyncExitStack] = ContextVar("endings")


async def with_endings(test: Coroutine[Any, Any, None]) -> None:
    """Run a test, then what it has to be ended with, the last first."""
    async with AsyncExitStack() as stack:
        _endings.set(stack)
        await test


def at_end(ending: Callable[[], Awaitable[None]]) -> None:
    """End with the test that runs; who runs a story in a loop of its own ends everything itself."""
    stack = _endings.get(None)
    if stack is not None:
        stack.push_async_callback(ending)
