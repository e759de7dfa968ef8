"""The clocks that the pure rooms receive: the time of day, and a clock for durations that nobody sets."""

from __future__ import annotations

import time


def clock_ms() -> int:
    """Return the wall clock in milliseconds. A machine's wall clock may jump forward or back by hours at any moment."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Return milliseconds since an arbitrary moment, for differences only.

    This clock never goes back and never jumps.
    """
    return time.monotonic_ns() // 1_000_000
