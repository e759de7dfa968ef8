"""The kernel's syncs for an event loop: a round of group commit begins some, and hears of the end of each."""

from __future__ import annotations

import asyncio
import logging
from itertools import count

from leveret.runtime.logs.sync_threads import Ended
from leveret.storage.kernel_syncs import KernelSyncs

logger = logging.getLogger(__name__)


class LoopSyncs:
    """Calls back on the loop for the syncs that the kernel does (storage.kernel_syncs)."""

    def __init__(self, syncs: KernelSyncs | None) -> None:
        """Without `syncs` the kernel takes none; `close` closes them."""
        self._syncs = syncs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, list[Ended]] = {}
        self._numbers = count()

    def begin(self, descriptors: list[int], ended: Ended) -> int:
        """Begin to sync the first of these descriptors, and return how many; `ended` is called for each of them."""
        syncs = self._syncs
        if syncs is None or not descriptors:
            return 0
        try:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                self._loop.add_reader(syncs.readable_fd, self._note_ended, syncs)
            number = next(self._numbers)
            begun = syncs.begin(descriptors, number)
        except OSError as error:
            # A file system, or a sandbox, without them: threads do all syncs from now on.
            logger.info("kernel_syncs_refused error=%s action=sync_in_threads", error)
            if not self._waiting:
                self.close()
            return 0
        if begun:
            self._waiting[number] = [ended] * begun
        return begun

    def _note_ended(self, syncs: KernelSyncs) -> None:
        for number, error in syncs.ended():
            waiting = self._waiting[number]
            ended = waiting.pop()
            if not waiting:
                del self._waiting[number]
            ended(error)

    def close(self) -> None:
        """Wait for the syncs that have begun; nobody hears of them."""
        syncs, self._syncs = self._syncs, None
        if syncs is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(syncs.readable_fd)
        syncs.close()
