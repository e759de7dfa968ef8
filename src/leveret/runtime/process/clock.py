"""The wall clock, which the pure rooms are handed."""

from __future__ import annotations

import time


def clock_ms() -> int:
    """Wall clock in milliseconds; the only clock the rooms below ever see."""
    return time.time_ns() // 1_000_000
