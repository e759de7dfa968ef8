"""The wait of a flush for further publishes.

A flush costs about 0.1 ms for each queue, however few messages the queue gets. So one flush for several reads is worth
a wait if publishers send to many queues. The wait ends with the first turn of the event loop without publishes:
publishers that wait for confirms send no more. A lone message, and messages to one queue only, are flushed at once: an
idle turn costs 10 us of a round trip of some hundred.
"""

from __future__ import annotations

from typing import Final

MESSAGES_EACH: Final = 64
"""The average number of messages for each queue at which a flush stops waiting."""
WAIT_S_MAX: Final = 0.010


class Gathering:
    """The publishes since the last flush; does no I/O and reads no clock."""

    __slots__ = ("_began_s", "_count", "_count_before")

    def __init__(self) -> None:
        """Begin without publishes."""
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """Note that a flush is due from now on."""
        self._began_s = now_s
        self._count = self._count_before = 0

    def add(self, count: int) -> None:
        """Count published messages."""
        self._count += count

    def goes_on(self, queues: int, now_s: float) -> bool:
        """Whether a flush for so many queues waits for the next turn of the loop; called once a turn."""
        before, self._count_before = self._count_before, self._count
        return (
            queues > 1
            and self._count > 1
            and before < self._count < MESSAGES_EACH * queues
            and now_s - self._began_s < WAIT_S_MAX
        )
