"""Work that one event leaves behind and that is too long for one step of the event loop: a little with each flush.

What is small is done at once. Of the rest each flush does as much as its time allows, each piece of work in its turn,
so what a stranger does ten times holds up nobody longer than what is done once. Whoever leaves work behind sees to it
that each of its parts leaves a consistent state: others act between two of them, and a node may end there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

AT_ONCE: Final = 250
"""As many parts are done at once between two flushes, of all work together. A part takes 10 to 20 microseconds."""

ENOUGH: Final = object()
"""See `Chores.begin`."""


class Chores:
    """See the module."""

    def __init__(self) -> None:
        """None."""
        self._left: deque[Iterator[object]] = deque()
        self._at_once = AT_ONCE

    def __bool__(self) -> bool:
        """Whether any are left."""
        return bool(self._left)

    def begin(self, work: Iterator[object]) -> None:
        """Do the first parts of a piece of work, all of them if they are few.

        Each step of the iterator is one; one that yields `ENOUGH` leaves much to the flush, and ends the turn.
        """
        while self._at_once > 0:
            self._at_once -= 1
            done = next(work, self)
            if done is self:
                return
            if done is ENOUGH:
                self._at_once = 0
        self._left.append(work)

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Begin another flush: do more of what is left; whether any is left then.

        Args:
            is_over: asked after each part.
        """
        self._at_once = AT_ONCE
        left = self._left
        while left:
            work = left.popleft()
            for done in work:
                if done is ENOUGH or is_over():
                    left.append(work)
                    return True
        return False
