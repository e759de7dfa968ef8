"""Tasks without which the process is of no use: it ends with the first of them that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def ends_process(failed: asyncio.Event) -> Callable[[asyncio.Task[Any]], None]:
    """Return a callback for the end of such a task, which logs its failure and sets `failed`."""

    def ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.critical("task_failed task=%s action=stop", task.get_name(), exc_info=task.exception())
            failed.set()

    return ended
