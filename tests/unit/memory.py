"""Directories in memory, where an fsync costs nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for the block, in memory if it can be."""
    with tempfile.TemporaryDirectory(
        prefix="leveret-unit-", dir=MEMORY if MEMORY.is_dir() else None, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)
