"""How long a flush waits for more publishes.

A flush costs about 0.1 ms for each queue, however few messages the queue gets. So one flush for several reads is worth
a wait where publishers send to many queues. The wait ends with the first turn of the event loop that brings no
publishes: publishers that wait for confirms send no more. A lone message, and all that goes to one queue, is flushed at
once: a turn that brings nothing costs 10 us of a round trip of some hundred.
"""

from __future__ import annotations

from typing import Final

MESSAGES_EACH: Final = 64
"""A flush does not wait once it has so many messages for each of its queues, on average."""
WAIT_S_MAX: Final = 0.010


class Gathering:
    """The publishes that came since the last flush; does no I/O and reads no clock."""

    __slots__ = ("_began_s", "_count", "_count_before")

    def __init__(self) -> None:
        """Nothing came yet."""
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """A flush is due from now on."""
        self._began_s = now_s
        self._count = self._count_before = 0

    def add(self, count: int) -> None:
        """So many messages were published."""
        self._count += count

    def goes_on(self, queues: int, now_s: float) -> bool:
        """Whether a flush for so many queues waits for the next turn of the loop; asked once a turn."""
        before, self._count_before = self._count_before, self._count
        return (
            queues > 1
            and self._count > 1
            and before < self._count < MESSAGES_EACH * queues
            and now_s - self._began_s < WAIT_S_MAX
        )
