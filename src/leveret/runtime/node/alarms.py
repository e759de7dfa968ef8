"""Measures the node's memory and disk once a second, and reports alarms."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.config.sections.limits import Watermarks
from leveret.core.broker.alarms import Alarms, Watermark
from leveret.runtime.process.allocator import give_back_memory
from leveret.runtime.process.proc import used_memory_bytes
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.storage.disk import free_disk_bytes
from leveret.storage.reserve import Reserve

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

    def __init__(self, watermarks: Watermarks, directory: Path, reserve_bytes: int = 0) -> None:
        """Watch the process, and the disk of `directory`; hold a reserve of this size on it (storage.reserve)."""
        self._reserve = Reserve(directory, reserve_bytes)
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
        self._has_collected = False

    async def run(self) -> None:
        """Measure for ever, and hold the reserve of the disk while there is room for it."""
        while True:
            try:
                await self._hold_reserve(self.probe())
            except OSError as error:
                # A node that cannot measure for a moment continues with its last measurement.
                logger.warning("alarm_probe_failed error=%s action=retry", error)
            await asyncio.sleep(PROBE_EVERY_S)

    async def hold_reserve(self) -> None:
        """Hold the reserve of the disk if there is room, even if the node serves no client: a promotion may need it."""
        await self._hold_reserve(free_disk_bytes(self._directory))

    async def _hold_reserve(self, free_bytes: int | None) -> None:
        reserve = self._reserve
        if not reserve.is_wanted(free_bytes):
            return
        if await asyncio.to_thread(reserve.take):
            logger.info("disk_reserve_held size_bytes=%d", reserve.size_bytes)

    def probe(self) -> int | None:
        """Measure once. While memory is low, return freed memory to the system first.

        Returns:
            The free octets of the disk, if they are known.
        """
        if self.mem_alarm and time.monotonic() - self._gave_back_at_s >= GIVE_BACK_EVERY_S:
            # Each visit of all objects stops the node, and finds once what was garbage before the alarm.
            give_back_memory(collect=not self._has_collected)
            self._has_collected = True
            self._gave_back_at_s = time.monotonic()
        elif not self.mem_alarm:
            self._has_collected = False
        process_sockets().judge()
        free = free_disk_bytes(self._directory)
        if self._reserve.give_up(free):
            logger.warning("disk_reserve_given_up size_bytes=%d reason=disk_full", self._reserve.size_bytes)
            free = free_disk_bytes(self._directory)
        # The reserve is for the node itself: it lets no publisher in.
        for_all = None if free is None else self._reserve.free_for_all(free)
        self.measure(used_memory_bytes(), for_all)
        return free

    def changed(self) -> None:
        """See Alarms: log the change, and report it."""
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


def total_memory_bytes() -> int:
    """Return the memory available to this process: the machine's, or less if its control group limits it."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        # No such file, or the word `max`: there is no limit.
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)
