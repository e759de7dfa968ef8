"""Work too long for one step of the event loop, done in parts, some with each flush.

Small work is done at once. Of the rest each flush does as much as its time allows, the pieces of work in turns, so a
client that causes much work delays others no longer than one that causes little. Each part has to leave a consistent
state: other events come between two parts, and a node may end there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

AT_ONCE: Final = 250
"""The number of parts, of all work together, done at once between two flushes. A part takes 10 to 20 microseconds."""

ENOUGH: Final = object()
"""See `DeferredWork.begin`."""


class DeferredWork:
    """The unfinished pieces of work; see the module.

    Attributes:
        left: the pieces, in their turns.
    """

    def __init__(self) -> None:
        """None."""
        self.left: deque[Iterator[object]] = deque()
        self._at_once = AT_ONCE

    def __bool__(self) -> bool:
        """Whether any work is left."""
        return bool(self.left)

    def begin(self, work: Iterator[object]) -> None:
        """Begin a piece of work: do its first parts, all of them if they are few.

        Each step of the iterator is one part; a part that yields `ENOUGH` ends the turn, because it leaves much to
        the flush.
        """
        while self._at_once > 0:
            self._at_once -= 1
            done = next(work, self)
            if done is self:
                return
            if done is ENOUGH:
                self._at_once = 0
        self.left.append(work)

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Do more of the work in another flush; return whether any is left.

        Args:
            is_over: called after each part; true ends the flush.
        """
        self._at_once = AT_ONCE
        left = self.left
        while left:
            work = left.popleft()
            for done in work:
                if done is ENOUGH or is_over():
                    left.append(work)
                    return True
        return False
