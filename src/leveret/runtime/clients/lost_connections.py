"""The ends of lost connections: the first of a pass of the event loop at once, those of thousands a few in each pass.

A network that fails closes all sockets together. The end of one connection takes tens of microseconds, for its log line
and what it leaves behind, so the ends of 5,000 in one pass would hold up all others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 50
"""The most ends in one pass: 2 to 4 ms."""


class LostConnections:
    """See the module."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._left = AT_ONCE
        self._is_planned = False

    def add(self, end: Callable[[], None]) -> None:
        """End a connection now, or behind those that wait already."""
        if self._left and not self._waiting:
            self._left -= 1
            end()
        else:
            self._waiting.append(end)
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_planned = False
        count = min(AT_ONCE, len(self._waiting))
        self._left = AT_ONCE - count
        if count:
            self._plan()
        for _ in range(count):
            # One by one: if an end fails, the others wait for the next pass.
            self._waiting.popleft()()
