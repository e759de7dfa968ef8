"""The progress of a job, from the reports of its pipeline process. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_RATE_AFTER_MS: Final = 1_000


class JobProgress:
    """Progress in messages, or in another measured unit.

    Attributes:
        step: the present step, in words.
        done: the finished part of `total`; both are 0 until the total is known.
    """

    def __init__(self, step: str) -> None:
        """Start with nothing done."""
        self.step = step
        self.done = self.total = 0
        self._since_ms: int | None = None
        self._step_before = step

    def take(self, event: Mapping[str, Any], now_ms: int) -> None:
        """Take a report of the pipeline.

        `planned` raises the total; `published`, `compared` and `counted` raise the done part. `blocked` and `unblocked`
        tell that another broker takes no messages for now, and that it takes them again.
        """
        match event.get("event"):
            case "started":
                self.step = "looking for unconsumed messages"
            case "planned":
                queues = event.get("queues")
                self.total += sum(queues.values()) if isinstance(queues, dict) else 0
                self._begin("recovering", now_ms)
            case "counting":
                self.done, self.total = 0, _count(event)
                self._begin("counting", now_ms, anew=True)
            case "comparing":
                self.done = 0
                self._begin("comparing", now_ms, anew=True)
            case "blocked":
                self._step_before = self.step
                self.step = f"waiting: {blocked_by(event)}"
            case "unblocked":
                self.step = self._step_before
            case "published" | "compared" | "counted":
                self.done += _count(event)

    def measured(self, step: str, done: int, total: int, now_ms: int) -> None:
        """Take a measurement of the whole finished part."""
        self._begin(step, now_ms)
        self.done, self.total = min(done, total), total

    def seconds_left(self, now_ms: int) -> float | None:
        """Estimate the remaining seconds from the speed so far; None while the speed is unknown."""
        if self._since_ms is None or not self.done or now_ms - self._since_ms < _RATE_AFTER_MS:
            return None
        return max(0, self.total - self.done) * (now_ms - self._since_ms) / 1000 / self.done

    def _begin(self, step: str, now_ms: int, *, anew: bool = False) -> None:
        self.step = step
        if anew or self._since_ms is None:
            self._since_ms = now_ms


def blocked_by(event: Mapping[str, Any]) -> str:
    """Return a sentence about a broker that blocks its publishers."""
    return f"{event.get('target')} blocks its publishers until its alarm ends: {event.get('reason')}"


def _count(event: Mapping[str, Any]) -> int:
    count = event.get("messages")
    return count if isinstance(count, int) else 0
