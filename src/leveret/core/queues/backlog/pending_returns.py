"""Returns of messages in several steps; the queue delivers nothing until all of them are done.

So messages are delivered in the same order as if all had come back at once, and no consumer that is being removed gets
more.
"""

from __future__ import annotations

from collections.abc import Callable


class PendingReturns:
    """The unfinished returns of one queue; true while there are any."""

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        """None."""
        self._count = 0
        self._waiting: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether returns are unfinished."""
        return self._count > 0

    def begin(self) -> None:
        """Begin a piece of work that returns messages or removes consumers."""
        self._count += 1

    def end(self) -> None:
        """End a piece of work; the last one calls the waiting callbacks."""
        self._count -= 1
        if not self._count:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call back once all returns are done; some must be unfinished now."""
        self._waiting.append(callback)
