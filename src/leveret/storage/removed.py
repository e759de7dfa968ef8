"""Removes files without waiting for the file system to free their blocks.

A file system frees a file's blocks when the last name of the file goes. On ext4 with `discard`, 1.5 GB took 3.7 s: the
event loop stood still, and the node lost its lease. So a large file, or a directory, is renamed into a directory of
its own, and a thread removes it from there. The place that it had is free at once, as after a removal, and power loss
may undo both alike. What a crash leaves in that directory is removed after the next start.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

DIRECTORY: Final = "removed"

AT_ONCE_BYTES_MAX: Final = 1024 * 1024
"""A file of up to so many octets is removed in place: freeing it costs no more than a renaming."""

_BLOCK_BYTES: Final = 512
_RUN: Final = os.urandom(4).hex()
"""In a container each process has the same number, and what the one before left may still be there."""
_numbers: Final = count()


class RemovedFiles:
    """What was removed from a data directory; see the module.

    Attributes:
        free: removes a file or directory for good. Runs in place unless a thread is set for it.
    """

    def __init__(self, root: Path) -> None:
        """Use the directory `removed` of a data directory, which is made when it is needed."""
        self.directory = root / DIRECTORY
        self.free: Callable[[Path], None] = free

    def remove(self, path: Path) -> None:
        """Remove a file or a directory, if it is there.

        Raises:
            OSError: the disk refused it.
        """
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode) and found.st_blocks * _BLOCK_BYTES <= AT_ONCE_BYTES_MAX:
            path.unlink(missing_ok=True)
            return
        target = self.directory / f"{os.getpid()}-{_RUN}-{next(_numbers)}"
        try:
            if not self.directory.exists():
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(target)
        except OSError:
            # The disk is full, or the path is on another one.
            remove_in_place(path)
        else:
            self.free(target)

    def free_left(self) -> None:
        """Free what a former process removed and did not free."""
        with suppress(OSError):
            for path in self.directory.iterdir():
                self.free(path)


def remove_in_place(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file or a directory, if it is there; blocks until its blocks are free.

    With `ignore_errors`, what the disk refuses of a directory stays, and all else goes.

    Raises:
        OSError: the disk refused it.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


def free(path: Path) -> None:
    """Remove a file or a directory for good, as far as the disk lets; blocks until its blocks are free."""
    with suppress(OSError):
        remove_in_place(path, ignore_errors=True)
