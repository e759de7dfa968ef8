"""Long pieces of work in the event loop that also carries the messages: a little at a time.

Of all that is worked on so, one piece has its turn in a pass of the loop: ten long answers at once hold up
nobody longer than one does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

TURN_S: Final = 0.004
"""How long work goes on before the loop serves others."""

T = TypeVar("T")


class _Queue:
    """Who waits for a turn in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return in a later pass of the loop, in which nobody else returns from here."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # else its task was cancelled
            turn.set_result(None)
        if self._waiting:
            self._loop.call_soon(self._next)


_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue]] = WeakKeyDictionary()


async def in_turns(items: Iterable[T], turn_s: float = TURN_S) -> AsyncIterator[T]:
    """The items, one after the other; whoever takes them lets the loop serve others every `turn_s`.

    What is worked on may change meanwhile: take a snapshot first.
    """
    until = time.perf_counter() + turn_s
    for item in items:
        yield item
        if time.perf_counter() >= until:
            await others_first()
            until = time.perf_counter() + turn_s


def time_slice(turn_s: float = TURN_S) -> Callable[[], bool]:
    """What tells whether the work that begins now has gone on for `turn_s`."""
    until = time.perf_counter() + turn_s
    return lambda: time.perf_counter() >= until


async def others_first() -> None:
    """Let the loop serve others, and other long work."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue(loop)
    await queue.turn()
