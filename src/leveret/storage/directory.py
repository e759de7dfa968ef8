"""Makes names in a directory durable: until then, power loss may undo a creation, a renaming or a removal."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import takewhile
from pathlib import Path


def make_directory(path: Path, *, durable: bool = True) -> list[Path]:
    """Make a directory with mode 0700, and the missing ones above it; on disk if `durable`.

    Returns:
        The directories that got a new name.

    Raises:
        OSError: the disk refused one of them. None is left: the next caller would take one that is there for durable.
    """
    missing = list(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    made: list[Path] = []
    try:
        for each in reversed(missing):
            each.mkdir(mode=0o700)
            made.append(each)
            if durable:
                sync_directory(each.parent)
    except OSError:
        for each in reversed(made):
            with suppress(OSError):
                each.rmdir()
        raise
    return [each.parent for each in missing]


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
