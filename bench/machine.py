"""Facts about the machine of a run. Without them a figure cannot be compared with a later one."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def facts(folder: Path) -> dict[str, str | int | float]:
    """Return processor, memory, kernel, Python and the file system that holds `folder`."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": _file_system(folder.resolve()),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system with the longest mount point above `folder`."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        if len(mount) >= len(best) and folder.is_relative_to(mount):
            best, kind = mount, found
    return kind
