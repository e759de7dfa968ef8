"""Waiting in virtual time for what nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.1


async def wait_until(holds: Callable[[], bool], timeout_s: float, look_s: float = LOOK_S) -> bool:
    """Look from time to time whether something holds; return whether it came to hold in time."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while not holds():
        if loop.time() > until_s:
            return False
        await asyncio.sleep(look_s)
    return True
