"""The memory that the C library keeps of what was freed. GNU's only; others do as they will."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

KEPT_BYTES: Final = 16 * 1024 * 1024
FROM_SYSTEM_BYTES: Final = 8 * 1024 * 1024
"""Larger blocks come from the system, and go back to it, each by itself."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Keep up to KEPT_BYTES for what comes next, instead of half a megabyte.

    What a peer sends in one turn of the loop is freed in the next. Given back at once, each page of it is cleared
    by the system before it is used again: a third of what a recovered message cost.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, FROM_SYSTEM_BYTES)


def give_back_memory() -> None:
    """Collect garbage, and return to the system what is kept for later: an alarm must be able to end."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
