"""The progress of a replica that is sent what it lacks."""

from __future__ import annotations

import time
from typing import Any, Final

_AT_ONCE_S: Final = 0.001


def progress_row(done_bytes: int, total_bytes: int, seconds: float) -> dict[str, Any]:
    """Bytes done and in all, bytes a second, and seconds left; None while nobody can tell."""
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
        total_bytes: what was to be sent.
    """

    def __init__(self, total_bytes: int = 0) -> None:
        """It begins now."""
        self.total_bytes = total_bytes
        self._began_s = time.monotonic()

    def row(self, left_bytes: int) -> dict[str, Any]:
        """See `progress_row`, with so many bytes left."""
        total = max(self.total_bytes, left_bytes)
        return progress_row(total - left_bytes, total, time.monotonic() - self._began_s)
