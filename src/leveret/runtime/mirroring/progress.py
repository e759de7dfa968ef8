"""The progress of a mirror that is being synchronised."""

from __future__ import annotations

import time
from typing import Any, Final

_AT_ONCE_S: Final = 0.001


class SynchronisingProgress:
    """Since it began.

    Attributes:
        total_bytes: what was to be sent.
    """

    def __init__(self, total_bytes: int = 0) -> None:
        """It begins now."""
        self.total_bytes = total_bytes
        self._began_s = time.monotonic()

    def row(self, left_bytes: int) -> dict[str, Any]:
        """Bytes done and in all, bytes a second, and seconds left; None while nobody can tell."""
        total = max(self.total_bytes, left_bytes)
        rate = (total - left_bytes) / max(_AT_ONCE_S, time.monotonic() - self._began_s)
        return {
            "bytes_done": total - left_bytes,
            "bytes_total": total,
            "rate_bytes_s": round(rate),
            "seconds_left": round(left_bytes / rate, 1) if rate else None,
        }
