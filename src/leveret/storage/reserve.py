"""Room on the disk that the node holds for itself, and gives up when there is no other.

A node with a full disk has to start, and its queues have to be drained: state files are replaced, and each settlement
is logged before the segments that it empties can go. A file of the data directory holds the room for that. It goes when
less than its size is free, and is made again once twice as much is free beyond what blocks publishers.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE: Final = "disk.reserve"


class Reserve:
    """See the module."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """In this directory, of this size; 0 for none. Nothing is made or given up yet."""
        self.path = directory / FILE
        self.size_bytes = size_bytes

    @property
    def is_held(self) -> bool:
        """Whether it is there."""
        return self.path.exists()

    @property
    def missing_bytes(self) -> int:
        """What is free and is not to be counted as free: the reserve's, while it is given up."""
        return 0 if self.is_held else self.size_bytes

    def give_up(self, free_bytes: int | None) -> bool:
        """Remove it if too little is free; whether that was so."""
        if free_bytes is None or free_bytes >= self.size_bytes or not self.is_held:
            return False
        with suppress(OSError):
            self.path.unlink()
        return not self.is_held

    def is_wanted(self, free_bytes: int | None, blocks_below_bytes: int | None) -> bool:
        """Whether it is to be made: it is not there, and enough is free."""
        if not self.size_bytes or free_bytes is None:
            return False
        return free_bytes >= (blocks_below_bytes or 0) + 2 * self.size_bytes and not self.is_held

    def take(self) -> bool:
        """Make it; whether it was made. Blocks for the disk.

        A file system that cannot set room aside, or has no more of it, goes without for now.
        """
        beside = self.path.with_name(f"{FILE}.new")
        try:
            descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.size_bytes)
            finally:
                os.close(descriptor)
            beside.rename(self.path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            return False
        return True


def is_full(error: OSError) -> bool:
    """Whether it is for want of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
