"""The progress of a replica that catches up."""

from __future__ import annotations

import time
from typing import Any, Final

_AT_ONCE_S: Final = 0.001


def progress_row(done_bytes: int, total_bytes: int, seconds: float) -> dict[str, Any]:
    """Return bytes done and in total, bytes a second, and seconds left; None while that is unknown."""
    rate = done_bytes / max(_AT_ONCE_S, seconds)
    return {
        "bytes_done": done_bytes,
        "bytes_total": total_bytes,
        "rate_bytes_s": round(rate),
        "seconds_left": round((total_bytes - done_bytes) / rate, 1) if rate else None,
    }


class SynchronisingProgress:
    """The progress since this was made.

    Attributes:
        total_bytes: the bytes to send.
    """

    def __init__(self, total_bytes: int = 0) -> None:
        """Begin now."""
        self.total_bytes = total_bytes
        self._began_s = time.monotonic()

    def row(self, left_bytes: int) -> dict[str, Any]:
        """Return `progress_row` for so many bytes left."""
        total = max(self.total_bytes, left_bytes)
        return progress_row(total - left_bytes, total, time.monotonic() - self._began_s)
