"""The disk that a directory is on."""

from __future__ import annotations

import os
from pathlib import Path


def free_disk_bytes(directory: Path) -> int | None:
    """What can still be written where `directory` is; None if the system does not say. Takes no descriptor."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
