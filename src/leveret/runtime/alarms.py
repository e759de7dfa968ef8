"""Looks at the node's memory and disk once a second, and tells who must know of an alarm."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.config.limits import Watermarks
from leveret.core.alarms import Alarms, Watermark
from leveret.runtime.allocator import give_back_memory

logger = logging.getLogger(__name__)

PROBE_EVERY_S: Final = 1.0
GIVE_BACK_EVERY_S: Final = 10.0
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class AlarmWatch(Alarms):
    """The node's alarms, kept up to date.

    Attributes:
        on_change: called after the alarms in effect have changed.
    """

    def __init__(self, watermarks: Watermarks, directory: Path) -> None:
        """Watch the process, and the disk that `directory` is on."""
        super().__init__(
            Watermark(watermarks.memory_relative, watermarks.memory_absolute_bytes),
            Watermark(
                watermarks.disk_relative,
                watermarks.disk_absolute_bytes if watermarks.disk_relative is None else None,
            ),
            watermarks.memory_total_bytes or total_memory_bytes(),
        )
        self.on_change: list[Callable[[], None]] = []
        self._directory = directory
        self._gave_back_at_s = -GIVE_BACK_EVERY_S

    async def run(self) -> None:
        """Measure, for ever."""
        while True:
            self.probe()
            await asyncio.sleep(PROBE_EVERY_S)

    def probe(self) -> None:
        """Measure once; while memory is low, have what is free of it counted as free first."""
        if self.mem_alarm and time.monotonic() - self._gave_back_at_s >= GIVE_BACK_EVERY_S:
            give_back_memory()
            self._gave_back_at_s = time.monotonic()
        self._tell(self.measure(used_memory_bytes(), free_disk_bytes(self._directory)))

    def set_memory(self, limit: Watermark) -> bool:
        """Block publishers from this on, until the node stops; whoever must know of a change is told."""
        changed = super().set_memory(limit)
        self._tell(changed)
        return changed

    def set_disk(self, limit: Watermark) -> bool:
        """Block publishers below this, until the node stops; whoever must know of a change is told."""
        changed = super().set_disk(limit)
        self._tell(changed)
        return changed

    def set_replicas_short(self, is_short: bool) -> bool:
        """Block publishers while so; whoever must know of a change is told."""
        changed = super().set_replicas_short(is_short)
        self._tell(changed)
        return changed

    def set_elsewhere(self, resources: tuple[str, ...]) -> bool:
        """Block publishers while other nodes are short; whoever must know of a change is told."""
        changed = super().set_elsewhere(resources)
        self._tell(changed)
        return changed

    def _tell(self, changed: bool) -> None:
        if not changed:
            return
        level = logging.WARNING if self.active else logging.INFO
        logger.log(
            level,
            ("alarm_in_effect action=block_publishers" if self.active else "alarms_cleared")
            + " resources=%s memory_used_bytes=%d memory_limit_bytes=%s disk_free_bytes=%s disk_limit_bytes=%s",
            ",".join(self.active) or "none",
            self.memory_used_bytes,
            self.memory_limit_bytes,
            self.disk_free_bytes,
            self.disk_limit_bytes,
        )
        for call in self.on_change:
            call()


def used_memory_bytes() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def total_memory_bytes() -> int:
    """The memory this process may have: the machine's, or less if its control group says so."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        # No such file, or the word `max`: no limit.
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)


def free_disk_bytes(directory: Path) -> int | None:
    """What can still be written where `directory` is; None if the system does not say."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
