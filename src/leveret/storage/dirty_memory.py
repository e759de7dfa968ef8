"""How much a syncfs of one file system has to write: what programs wrote to its files, and no disk has yet.

The kernel tells that of all file systems together, and two things make too much of it. Octets that other programs left
on the same file system stay for 30 seconds, though they are written in a moment. Octets on another file system, perhaps
on a device that has failed and never takes them, are no work for this one. So where much is dirty, the owner syncs the
file system once in a while with nobody waiting for that. What is dirty after a sync that took little time is elsewhere.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Final

DIRTY_BYTES_MAX: Final = 32 << 20
"""What a syncfs may find to write, this node's own data included: a disk writes that in 0.2 s."""

SHORT_S: Final = 0.1
"""A syncfs of no more than this left nothing behind but what was written meanwhile."""

WRITE_BACK_EVERY_S: Final = 1.0
IDLE_SHARE: Final = 9
"""After a write-back the next begins at the earliest when this many times its duration has gone by."""

_MEMORY: Final = "/proc/meminfo"


class DirtyMemory:
    """See the module; all but `write_back` is for one thread."""

    def __init__(self) -> None:
        """Hold a descriptor until `close`: there may be none left when one is needed. Raises OSError."""
        self._fd = os.open(_MEMORY, os.O_RDONLY | os.O_CLOEXEC)
        self._elsewhere_bytes = 0
        self._is_much = False
        self._is_written_back = False
        self._not_before_s = 0.0

    def is_little(self) -> bool:
        """Whether a syncfs that begins now takes little time, as far as is known."""
        dirty = self._read()
        self._elsewhere_bytes = min(self._elsewhere_bytes, dirty)
        self._is_much = dirty - self._elsewhere_bytes > DIRTY_BYTES_MAX
        return not self._is_much

    def begin_write_back(self) -> bool:
        """Whether the file system is to be synced for nobody now, by a call of `write_back`."""
        if not self._is_much or self._is_written_back or time.monotonic() < self._not_before_s:
            return False
        self._is_much, self._is_written_back = False, True
        return True

    def write_back(self, sync: Callable[[], None]) -> None:
        """Have `sync` sync the file system, and learn from it; runs in any thread. Raises OSError."""
        began_s = time.monotonic()
        try:
            sync()
            took_s = time.monotonic() - began_s
            if took_s <= SHORT_S:
                self._elsewhere_bytes = self._read()
        finally:
            ended_s = time.monotonic()
            self._not_before_s = ended_s + max(WRITE_BACK_EVERY_S, IDLE_SHARE * (ended_s - began_s))
            self._is_written_back = False

    def _read(self) -> int:
        return dirty_bytes(os.pread(self._fd, 8192, 0))

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def dirty_bytes(memory: bytes) -> int:
    """What the system has still to write, by its figures of memory; see proc(5)."""
    return 1024 * sum(
        int(size) for size in re.findall(rb"^(?:Dirty|Writeback): *(\d+) kB", memory, re.MULTILINE)
    )
