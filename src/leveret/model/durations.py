"""The bound of durations."""

from __future__ import annotations

from typing import Final

DURATION_MS_MAX: Final = 315_360_000_000
"""Ten years, RabbitMQ's bound of `expires` and of a message's expiration.

Sums with the time of day stay dates, and timers and sockets take it.
"""
