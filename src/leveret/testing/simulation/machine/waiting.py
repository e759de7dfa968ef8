"""Waiting in virtual time: for a condition, by polling, and for a future, which wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

LOOK_S: Final = 0.1


async def wait_until(holds: Callable[[], bool], timeout_s: float, look_s: float = LOOK_S) -> bool:
    """Poll a condition every `look_s` seconds; return whether it held within the timeout."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while not holds():
        if loop.time() > until_s:
            return False
        await asyncio.sleep(look_s)
    return True


def wake_all(wakes: list[asyncio.Future[Any]]) -> None:
    """Wake all that wait for these futures, in order, and forget the futures."""
    for each in wakes:
        if not each.done():
            each.set_result(None)
    wakes.clear()
