"""What is to end with a test that is a coroutine: in the test's own event loop, and also where the test fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

import pytest

_endings: ContextVar[AsyncExitStack] = ContextVar("endings")


async def with_endings(test: Coroutine[Any, Any, None]) -> None:
    """Run a test, then what it has to be ended with, the last first.

    A failure that is raised in a callback of the event loop fails the test. pytest-timeout raises in whatever runs,
    and the loop would only log it: the test would wait on.
    """
    task = asyncio.current_task()
    assert task is not None
    failures: list[BaseException] = []

    def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exception = context.get("exception")
        if isinstance(exception, pytest.fail.Exception):
            failures.append(exception)
            task.cancel()
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(on_exception)
    try:
        async with AsyncExitStack() as stack:
            _endings.set(stack)
            await test
    except asyncio.CancelledError:
        if not failures:
            raise
    if failures:
        raise failures[0]


def at_end(ending: Callable[[], Awaitable[None]]) -> None:
    """End with the test that runs; who runs a story in a loop of its own ends everything itself."""
    stack = _endings.get(None)
    if stack is not None:
        stack.push_async_callback(ending)
