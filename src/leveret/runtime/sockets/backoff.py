"""The waits between tries of a failed step: longer each time, up to the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
QUICK_RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""The waits for links between two nodes of a cluster, on which clients depend."""


def delay_s(steps: Sequence[float], failures: int) -> float:
    """The wait after one more failure, when there were `failures` in a row before it."""
    return steps[min(failures, len(steps) - 1)]


class RetryWaits:
    """The waits of one step that is tried again and again.

    A failure soon after a try began counts, also if the try succeeded first: what succeeds only for a moment is tried
    less and less often. A try that lasted longer than twice the longest wait was good, and the waits begin anew.
    """

    __slots__ = ("_failures", "_steps", "_tried_at_s")

    def __init__(self, steps: Sequence[float]) -> None:
        """Begin without failures."""
        self._steps = steps
        self._failures = 0
        self._tried_at_s = 0.0

    def failed(self, now_s: float) -> float:
        """Note a failure, by a clock that never goes back; return the wait before the next try."""
        if now_s - self._tried_at_s > 2 * self._steps[-1]:
            self._failures = 0
        wait_s = delay_s(self._steps, self._failures)
        self._failures += 1
        self._tried_at_s = now_s + wait_s
        return wait_s
