"""Tasks that are no longer wanted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


async def end_task(task: asyncio.Task[Any] | None, *ignored: type[Exception]) -> None:
    """Cancel a task, if there is one, and wait for its end; raise its exception unless it is of `ignored`."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError, *ignored):
            await task
