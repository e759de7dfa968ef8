"""Waiting, in an event loop, for what comes with no event; `ports.wait_until` waits where there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leveret.testing.network.ports import NotReady

_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.005


async def until(holds: Callable[[], object], what: str = "what is waited for") -> None:
    """Ask `holds` again and again until it says yes.

    Raises:
        NotReady: it did not for half a minute; `what` names the wish in the message.
    """
    deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
    while not holds():
        if asyncio.get_running_loop().time() >= deadline_s:
            raise NotReady(f"{what}: not within {_PATIENCE_S:g} s")
        await asyncio.sleep(_POLL_S)
