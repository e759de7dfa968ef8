"""Facts about this process from files of /proc, which stay open: there may be no free descriptor later."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path
from typing import Final

_BYTES: Final = 4096
_OPEN_FILES: Final = Path("/proc/self/fd")


def read_proc(path: str) -> str:
    """Return the present content of a small file of /proc.

    Raises:
        OSError: the file does not exist, or there is no descriptor to open it for the first time.
    """
    return os.pread(_descriptor(path), _BYTES, 0).decode()


@cache
def _descriptor(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def open_files() -> int:
    """Return the number of open descriptors. Kernels since 6.2 report it; on older kernels it is counted."""
    try:
        return _OPEN_FILES.stat().st_size or len(os.listdir(_OPEN_FILES))
    except OSError:
        # Counting takes one more descriptor; without one, all of them are open.
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def used_memory_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(read_proc("/proc/self/statm").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
