"""Slows down guesses of passwords, by address. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from typing import Final

FAILURES_MAX: Final = 5
WITHIN_S: Final = 60.0
_ADDRESSES_MAX: Final = 10_000


class LoginThrottle:
    """After `FAILURES_MAX` failures within `WITHIN_S`, an address waits until the first of them is older.

    An attempt counts as a failure from its begin on, until it succeeds or turns out to be none.
    """

    def __init__(self) -> None:
        """Begin without failures."""
        self._failures: dict[str, deque[float]] = {}

    def wait_s(self, address: str, now_s: float) -> float:
        """Return the time that an address has to wait, in seconds; 0 if it may try."""
        failures = self._failures.get(address)
        if failures is None or len(failures) < FAILURES_MAX:
            return 0.0
        return max(0.0, failures[0] + WITHIN_S - now_s)

    def began(self, address: str, now_s: float) -> None:
        """Count an attempt of an address."""
        if len(self._failures) >= _ADDRESSES_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures.setdefault(address, deque(maxlen=FAILURES_MAX)).append(now_s)

    def forgive(self, address: str) -> None:
        """Take the last attempt of an address back: it was no failure."""
        failures = self._failures.get(address)
        if failures:
            failures.pop()

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        self._failures.pop(address, None)
