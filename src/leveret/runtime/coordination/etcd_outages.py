"""Log lines for an etcd that does not answer: each reason once and then every 30 seconds, and the return of etcd.

A node without etcd tries several times a second, in several ways, and each way has an error of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

REMIND_S: Final = 30.0
"""The interval at which a lasting reason is logged again."""
_REASONS_MAX: Final = 50


class EtcdOutages:
    """See the module; it outlives the connections, leases and nodes of one process."""

    def __init__(self, logger: logging.Logger, clock_s: Callable[[], float]) -> None:
        """Assume that etcd is there."""
        self._logger = logger
        self._clock_s = clock_s
        self._reported_at_s: dict[tuple[str, str], float] = {}

    def failed(self, event: str, error: str) -> None:
        """Log a failed request unless the same was logged lately; `event` names the log line."""
        now_s = self._clock_s()
        reported_at_s = self._reported_at_s.get((event, error))
        if reported_at_s is not None and now_s - reported_at_s < REMIND_S:
            return
        if len(self._reported_at_s) >= _REASONS_MAX:
            self._reported_at_s.clear()
        self._reported_at_s[event, error] = now_s
        self._logger.warning("%s error=%s action=retry", event, error)

    def reached(self, endpoint: object) -> None:
        """A request was answered: log that once; the next failure is logged at once."""
        if self._reported_at_s:
            self._reported_at_s.clear()
            self._logger.info("etcd_reached endpoint=%s", endpoint)
