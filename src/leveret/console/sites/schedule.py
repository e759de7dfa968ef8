"""The schedule of requests to a site, which bounds the work of its node. Pure: time is an argument.

Each round of requests has a shortest interval. After a long round the next one waits longer, so that a node works for
each kind of round at most a hundredth of the time, 10 ms a second, for any number of queues. The estimate of a node's
work is the time that each answer took beyond the quickest one of its round, which takes about one round trip to the
site. So it lacks the work of small answers, which the interval of frequent rounds bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BUSY_SHARE: Final = 0.01
OFTEN_S: Final = 3.0
SELDOM_S: Final = 10.0
SILENT_S: Final = 2.0
"""The wait between two attempts at a site that does not answer."""
OFTEN_MAX_S: Final = 8.0
"""Frequent requests cost little each, and a slow site with rare requests would pass for silent."""
SELDOM_MAX_S: Final = 300.0


class PollSchedule:
    """The times of the rounds of one kind."""

    def __init__(self, interval_s: float, wait_max_s: float) -> None:
        """Begin with a round due at once; the wait for a round is at most `wait_max_s`."""
        self._interval_s = interval_s
        self._wait_max_s = wait_max_s
        self._due_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Return whether a round is due."""
        return now_s >= self._due_s

    def due_in_s(self, now_s: float) -> float:
        """Return the time until the next round, in seconds; 0 if it is due."""
        return max(0.0, self._due_s - now_s)

    def took(self, began_s: float, answers_s: Sequence[float], askers: int = 1) -> None:
        """Note an answered round, with the time of each answer; `askers` watches share the site's time."""
        worked_s = sum(answers_s) - len(answers_s) * min(answers_s, default=0.0)
        wait_s = max(self._interval_s, worked_s / BUSY_SHARE) * max(1, askers)
        self._due_s = began_s + min(wait_s, self._wait_max_s)

    def failed(self, now_s: float, wait_s: float = SILENT_S) -> None:
        """Note a round without an answer."""
        self._due_s = now_s + wait_s

    def hurry(self) -> None:
        """Make the next round due at once, because of a change at the site."""
        self._due_s = 0.0
