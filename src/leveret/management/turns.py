"""Long pieces of work in the event loop that also carries the messages: a little at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

TURN_S: Final = 0.01
"""How long work goes on before the loop serves others."""

T = TypeVar("T")


async def in_turns(items: Iterable[T], turn_s: float = TURN_S) -> AsyncIterator[T]:
    """The items, one after the other; whoever takes them lets the loop serve others every `turn_s`.

    What is worked on may change meanwhile: take a snapshot first.
    """
    until = time.perf_counter() + turn_s
    for item in items:
        yield item
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + turn_s
