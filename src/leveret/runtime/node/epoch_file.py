"""The highest epoch that may have been assigned.

Mirrors, standbys and logs survive a queue and identify it by its epoch, so no epoch is assigned twice. The
definitions log has the epochs of durable shared queues only; exclusive and transient ones leave no record there.
Epochs are reserved in blocks, before the first of a block is assigned; unused epochs of a block are skipped after a
restart. Each reservation waits for the disk in the event loop, so each block of a process is twice as large as the one
before: an import of 10,000 queues waits four times and not ten.
"""

from __future__ import annotations

import logging
from typing import Final

from leveret.model.errors import StorageError
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

BLOCK: Final = 1000
BLOCK_MAX: Final = 64 * BLOCK
_RESERVED: Final = "reserved"


class EpochFile:
    """See the module."""

    def __init__(self, file: StateFile) -> None:
        """Reserve nothing yet."""
        self._file = file
        self._block = BLOCK

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
        """Reserve the epochs after `last` on disk; return the last reserved one. This blocks for the disk."""
        reserved = last + self._block
        try:
            self._file.save({_RESERVED: reserved})
        except StorageError as error:
            logger.warning("epochs_not_reserved after=%d error=%s", last, error)
            return last
        self._block = min(2 * self._block, BLOCK_MAX)
        return reserved
