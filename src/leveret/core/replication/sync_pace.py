"""The pace of a replica's synchronisation: the pause before more is read from disk for it. RabbitMQ's arithmetic.

Only missing records are paced; messages that are published meanwhile are sent at once.
"""

from __future__ import annotations

from typing import Final

MEASURED_MS: Final = 50
"""The pace is judged after more than this time; a shorter measurement is mostly noise. But see SyncPace.sent."""


def pause_ms(octets: int, elapsed_ms: int, bytes_s_max: int) -> int:
    """Return the pause that keeps the rate within the limit after `octets` were sent within `elapsed_ms`."""
    if bytes_s_max <= 0:
        return 0
    return max(round(octets * 1000 / bytes_s_max) - elapsed_ms, 0)


class SyncPace:
    """The octets sent since the begin of a measurement. Times are milliseconds of a clock that never goes back."""

    __slots__ = ("_began_ms", "_bytes_s_max", "_due_ms", "_octets")

    def __init__(self, bytes_s_max: int = 0, now_ms: int = 0) -> None:
        """Begin a measurement now; 0 is no limit."""
        self._bytes_s_max = bytes_s_max
        self._began_ms = self._due_ms = now_ms
        self._octets = 0

    def wait_ms(self, bytes_s_max: int, now_ms: int) -> int:
        """Return the milliseconds that the next batch has to wait under that limit; a new limit holds at once."""
        if bytes_s_max != self._bytes_s_max:
            self._bytes_s_max, self._octets = bytes_s_max, 0
            self._began_ms = self._due_ms = now_ms
        return max(0, self._due_ms - now_ms)

    def sent(self, octets: int, now_ms: int) -> int:
        """Note a sent batch.

        A measurement ends early once more was sent than the limit allows in a second, however fast: an operator with a
        limit needs the network for other traffic.

        Returns:
            Milliseconds to wait before the next batch; 0 for none.
        """
        self._octets += octets
        elapsed_ms = now_ms - self._began_ms
        if elapsed_ms <= MEASURED_MS and self._octets <= self._bytes_s_max:
            return 0
        wait_ms = pause_ms(self._octets, elapsed_ms, self._bytes_s_max)
        # The next measurement begins after the wait.
        self._began_ms, self._octets = now_ms + wait_ms, 0
        self._due_ms = now_ms + wait_ms
        return wait_ms
