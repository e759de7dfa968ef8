"""The clocks that the pure rooms are handed: the time of day, and one for durations, which nobody sets."""

from __future__ import annotations

import time


def clock_ms() -> int:
    """Wall clock in milliseconds: a machine's may be set forward or back at any moment, by hours."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Milliseconds since some moment; to be subtracted from each other. They never go back and never jump."""
    return time.monotonic_ns() // 1_000_000
