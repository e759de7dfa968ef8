"""What comes back to a queue in turns, because it is too much for one step: nothing is handed out before all is back.

So messages are handed out in the order in which they would be if all had come back at once, and no consumer that is
about to be taken away gets more.
"""

from __future__ import annotations

from collections.abc import Callable


class PendingReturns:
    """Of one queue; true while any are left."""

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        """None."""
        self._count = 0
        self._waiting: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether anything is still coming back."""
        return self._count > 0

    def begin(self) -> None:
        """A piece of work begins that gives messages back, or takes consumers away."""
        self._count += 1

    def end(self) -> None:
        """It has ended; the last one has those called who wait."""
        self._count -= 1
        if not self._count:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call back once nothing more is coming back; there must be something now."""
        self._waiting.append(callback)
