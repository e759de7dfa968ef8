"""Makes names in a directory durable: until then, power loss may undo a creation, a renaming or a removal."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path


def make_directory(path: Path, *, durable: bool = True) -> list[Path]:
    """Make a directory with mode 0700, and the missing ones above it; on disk if `durable`. Raises OSError.

    Returns:
        The directories that got a new name.
    """
    missing = list(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    for each in reversed(missing):
        each.mkdir(mode=0o700)
        if durable:
            sync_directory(each.parent)
    return [each.parent for each in missing]


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
