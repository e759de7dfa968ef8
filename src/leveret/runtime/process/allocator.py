"""Memory: objects that stay for good, and the freed memory that the C library keeps (set for GNU's library only)."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

KEPT_BYTES: Final = 16 * 1024 * 1024
FROM_SYSTEM_BYTES: Final = 8 * 1024 * 1024
"""The library takes each larger block from the system alone, and gives it back alone."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def freeze_objects() -> None:
    """Collect garbage, and visit the objects made so far never again: they stay for good."""
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Keep up to KEPT_BYTES of freed memory for reuse, instead of half a megabyte.

    The octets of one turn of the loop are freed in the next. If the library returned them at once, the system would
    clear each page before its next use: a third of the cost of a recovered message.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, FROM_SYSTEM_BYTES)


def give_back_memory(*, collect: bool = True) -> None:
    """Collect garbage, and return all kept memory to the system, so that a memory alarm can end."""
    if collect:
        gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
