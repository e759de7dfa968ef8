"""Lines of the log for a failure that many things have at once, and have again at each attempt.

    failures = SparseLog()
    others = failures.others()
    if others is not None:
        logger.error("mirror_not_written log=%s error=%s others=%d", name, error, others)

A full disk refuses the copies of thousands of logs, each every two seconds: their lines would fill the leader's disk,
too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.runtime.process.clock import elapsed_ms

SPARSE_MS: Final = 30_000
"""The interval at which a lasting failure is logged."""


class SparseLog:
    """See the module."""

    def __init__(self, now_ms: Callable[[], int] = elapsed_ms) -> None:
        """Have the first failure logged; `now_ms` is a clock that never goes back."""
        self._now_ms = now_ms
        self._logged_at_ms: int | None = None
        self._others = 0

    def others(self) -> int | None:
        """Note a failure; return how many have not been logged since the last one that was, None if this one is not."""
        now_ms = self._now_ms()
        if self._logged_at_ms is not None and now_ms - self._logged_at_ms < SPARSE_MS:
            self._others += 1
            return None
        others, self._others, self._logged_at_ms = self._others, 0, now_ms
        return others
