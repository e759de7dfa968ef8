"""A wait in an event loop for a condition that has no event; `ports.wait_until` is the wait outside of a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leveret.testing.network.ports import NotReady

_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.005


async def until(holds: Callable[[], object], what: str = "what is waited for") -> None:
    """Call `holds` until it returns true.

    Raises:
        NotReady: it did not within half a minute; `what` names the condition in the message.
    """
    deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
    while not holds():
        if asyncio.get_running_loop().time() >= deadline_s:
            raise NotReady(f"{what}: not within {_PATIENCE_S:g} s")
        await asyncio.sleep(_POLL_S)
