"""The disk that a directory is on."""

from __future__ import annotations

import os
from pathlib import Path


def free_disk_bytes(directory: Path) -> int | None:
    """The octets that can still be written to the disk of `directory`; None if unknown. Takes no descriptor."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
