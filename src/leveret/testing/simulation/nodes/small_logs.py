"""Logs that are worked on at a few kilobytes, as real ones are at megabytes.

A run has some hundreds of messages, a hundred kilobytes. So no log would get a second segment, give disk space back,
relocate a message, or be read by its summary, unless all of these begin earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

SEGMENT_BYTES: Final = 4096
"""The size at which a small segment is closed."""
_SMALL: Final = {
    "leveret.runtime.logs.reclaiming.QUIET_BYTES_MIN": 1024,
    "leveret.runtime.logs.reclaiming.BUSY_BYTES_MIN": 8192,
    "leveret.runtime.logs.relocating.RELOCATED_BYTES_MIN": 4096,
    "leveret.runtime.logs.relocating._STEP_BYTES": 1024,
    "leveret.runtime.logs.definitions_store.COMPACT_BYTES_MIN": 16_384,
    "leveret.runtime.cluster.placement.queue_roles.SUMMARY_BYTES_MIN": 2048,
    "leveret.storage.summary.SUMMARY_BYTES_MIN": 2048,
}


@contextmanager
def small_logs() -> Iterator[None]:
    """Replace the sizes from which on the product works on a log."""
    with ExitStack() as patches:
        for target, size in _SMALL.items():
            patches.enter_context(mock.patch(target, size))
        yield
