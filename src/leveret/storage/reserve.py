"""Room on the disk that the node reserves for itself, and gives up when the disk is full.

A node with a full disk has to start, and its queues have to be drained: state files are replaced, and each settlement
is logged before the segments that it empties can go. A file of the data directory holds the room for that. The file
is removed when less than its size is free, and made again once twice its size is free. The limit that blocks publishers
does not count: it may be as large as the machine's memory, and a node below it needs the reserve most.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE: Final = "disk.reserve"


class Reserve:
    """The reserve of one data directory; see the module."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """Reserve `size_bytes` in this directory, 0 for none; no file is made or removed yet."""
        self.path = directory / FILE
        self.size_bytes = size_bytes

    @property
    def is_held(self) -> bool:
        """Whether the file exists."""
        return self.path.exists()

    def free_for_all(self, free_bytes: int) -> int:
        """The free octets that publishers may use: none of a reserve that is given up, until it can be made again.

        A limit of free disk below the reserve's size would let them in the moment it is given up, and they would use
        it up before the next measurement: the node could not start any more.
        """
        if self.is_held or not self.size_bytes:
            return free_bytes
        return free_bytes - self.size_bytes if free_bytes >= 2 * self.size_bytes else 0

    def give_up(self, free_bytes: int | None) -> bool:
        """Remove the file if too little is free; return whether it was removed."""
        if free_bytes is None or free_bytes >= self.size_bytes or not self.is_held:
            return False
        with suppress(OSError):
            self.path.unlink()
        return not self.is_held

    def is_wanted(self, free_bytes: int | None) -> bool:
        """Whether the file should be made: it does not exist, and enough is free."""
        if not self.size_bytes or free_bytes is None:
            return False
        return free_bytes >= 2 * self.size_bytes and not self.is_held

    def take(self) -> bool:
        """Make the file; return whether it was made. Blocks for the disk.

        If the file system cannot reserve room, or is full, there is no reserve for now.
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
    """Whether the cause of an error is a full disk."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
