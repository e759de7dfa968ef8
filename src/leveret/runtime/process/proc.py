"""What the system says about this process, in files of /proc that are kept open: there may be no descriptor left."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path
from typing import Final

_BYTES: Final = 4096
_OPEN_FILES: Final = Path("/proc/self/fd")


def read_proc(path: str) -> str:
    """A small file of /proc as it is now.

    Raises:
        OSError: there is none, or no descriptor for reading it a first time.
    """
    return os.pread(_descriptor(path), _BYTES, 0).decode()


@cache
def _descriptor(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def open_files() -> int:
    """Descriptors this process has open; kernels since 6.2 keep the number, else they are counted."""
    try:
        return _OPEN_FILES.stat().st_size or len(os.listdir(_OPEN_FILES))
    except OSError:
        # To count them takes one more, and all there may be are open.
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
