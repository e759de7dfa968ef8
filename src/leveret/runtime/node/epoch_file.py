"""The highest epoch that may have been assigned.

Mirrors, standbys and logs survive a queue and identify it by its epoch, so no epoch is assigned twice. The
definitions log has the epochs of durable shared queues only; exclusive and transient ones leave no record there.
Epochs are reserved in blocks, before the first of a block is assigned; unused epochs of a block are skipped after a
restart. Each block of a process is twice as large as the one before. The first reservation waits for the disk in the
event loop. Once half of that block is used, a thread of the group commit reserves the next one, and so on: an import
of 10,000 queues waits once.
"""

from __future__ import annotations

import asyncio
import logging
from threading import Lock
from typing import Final

from leveret.model.errors import StorageError
from leveret.runtime.logs.commit import GroupCommit, Write
from leveret.storage.state_file import StateFile, encoded

logger = logging.getLogger(__name__)

BLOCK: Final = 1000
BLOCK_MAX: Final = 64 * BLOCK
_RESERVED: Final = "reserved"


class EpochFile:
    """See the module."""

    def __init__(self, file: StateFile, commits: GroupCommit | None = None) -> None:
        """Reserve nothing yet; without `commits`, each reservation waits for the disk."""
        self._file = file
        self._commits = commits
        self._block = BLOCK
        self._on_disk = self._ahead = 0
        self._writing = Lock()

    def last(self) -> int:
        """Return the highest epoch that may have been assigned.

        Raises:
            StorageError: the file is damaged.
        """
        try:
            reserved = self._file.load().get(_RESERVED, 0)
        except StorageError:
            reserved = None
        if not isinstance(reserved, int):
            raise StorageError(
                f'{self._file.path} is damaged: write into it {{"{_RESERVED}": N}}, where N is higher than any epoch '
                "there may have been, such as twice that of a copy; without it, epochs could be given again"
            )
        return reserved

    def reserve(self, last: int) -> int:
        """Return the highest epoch after `last` that may be assigned before the next call; `last` itself for none.

        This blocks for the disk if all reserved epochs are assigned.
        """
        if last < self._on_disk:
            self._reserve_ahead()
            return self._on_disk
        reserved = max(last + self._block, self._ahead)
        try:
            with self._writing:
                self._file.save({_RESERVED: reserved})
                self._reserved(reserved)
        except StorageError as error:
            logger.warning("epochs_not_reserved after=%d error=%s", last, error)
            return last
        return reserved if self._commits is None else (last + reserved) // 2

    def _reserved(self, last: int) -> None:
        self._on_disk = max(self._on_disk, last)
        self._block = min(2 * self._block, BLOCK_MAX)

    def _reserve_ahead(self) -> None:
        if self._commits is not None and not self._ahead:
            self._ahead = self._on_disk + self._block
            self._commits.beside(self._prepare)

    def _prepare(self) -> Write:
        ahead, loop = self._ahead, asyncio.get_running_loop()
        return lambda: self._write(ahead, loop)

    def _write(self, ahead: int, loop: asyncio.AbstractEventLoop) -> None:
        """Reserve a block in a thread, unless the loop reserved more while this waited."""
        octets = encoded({_RESERVED: ahead})
        try:
            with self._writing:
                if ahead > self._on_disk:
                    self._file.write(octets)
        except StorageError as error:
            logger.warning("epochs_not_reserved after=%d error=%s", self._on_disk, error)
            ahead = 0
        loop.call_soon_threadsafe(self._written, ahead, octets)

    def _written(self, ahead: int, octets: bytes) -> None:
        self._ahead = 0
        if ahead > self._on_disk:
            # Followers have the number before any queue of the block.
            self._file.report(octets)
            self._reserved(ahead)
