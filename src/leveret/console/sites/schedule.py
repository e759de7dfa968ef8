"""When a site is asked, so that its node hardly feels it. Pure: time is an argument.

Each round of questions has a shortest interval. A round that took long makes the next one wait longer, so that a node
works for the console at most a fiftieth of the time, 20 ms a second, however many queues the node has. What the node
works is estimated from above: the time that each answer took beyond the quickest of its round, which takes about
as long as the way to the site and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BUSY_SHARE: Final = 0.02
OFTEN_S: Final = 2.0
SELDOM_S: Final = 10.0
SILENT_S: Final = 2.0
"""Between two attempts at a site that does not answer."""
OFTEN_MAX_S: Final = 8.0
"""What is asked often costs little by itself, and a slow site that was asked seldom would pass for silent."""
SELDOM_MAX_S: Final = 300.0


class PollSchedule:
    """When the next round of one kind is due."""

    def __init__(self, interval_s: float, wait_max_s: float) -> None:
        """Due at once; a round comes at least every `wait_max_s`."""
        self._interval_s = interval_s
        self._wait_max_s = wait_max_s
        self._due_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether to ask now."""
        return now_s >= self._due_s

    def due_in_s(self, now_s: float) -> float:
        """How long to wait; 0 if it is due."""
        return max(0.0, self._due_s - now_s)

    def took(self, began_s: float, answers_s: Sequence[float], askers: int = 1) -> None:
        """A round was answered, each question within so much time; `askers` share the site's time."""
        worked_s = sum(answers_s) - len(answers_s) * min(answers_s, default=0.0)
        wait_s = max(self._interval_s, worked_s / BUSY_SHARE) * max(1, askers)
        self._due_s = began_s + min(wait_s, self._wait_max_s)

    def failed(self, now_s: float, wait_s: float = SILENT_S) -> None:
        """Nothing came."""
        self._due_s = now_s + wait_s

    def hurry(self) -> None:
        """Something has changed: be due at once."""
        self._due_s = 0.0
