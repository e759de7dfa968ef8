"""The directory with the logs of one kind of queue: one subdirectory each, named after the queue's epoch.

A log that is damaged, or that is marked and missing, takes its queue down and no other.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Set
from pathlib import Path
from typing import Final

from leveret.core.queues.queue import Queue
from leveret.model.errors import StorageError
from leveret.storage.log import Log
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.removed import RemovedFiles
from leveret.storage.segment import OnChunk
from leveret.wire.chunk import ChunkError

logger = logging.getLogger(__name__)

_NAME: Final = re.compile("[0-9a-f]{16}")


class LogHome:
    """See the module.

    Attributes:
        directory: the parent of the logs' directories.
        has_log: returns whether a queue's epoch is marked as having a log.
        record_existence: marks an epoch whose log has durable names.
        record_existence_once_synced: marks an epoch whose log has them after the next group commit.
    """

    def __init__(self, directory: Path, removed: RemovedFiles) -> None:
        """Begin without marks, until the three functions are set."""
        self.directory = directory
        self._removed = removed
        self.has_log: Callable[[int], bool] = _unmarked
        self.record_existence: Callable[[int], None] = record_nothing
        self.record_existence_once_synced: Callable[[int], None] = record_nothing
        self._seen_ns = 0

    def name(self, epoch: int) -> str:
        """The name of one log in the tree."""
        return f"{self.directory.name}/{directory_of(epoch)}"

    def expect_only(self, names: Set[str]) -> None:
        """Take a missing log for a loss only if it is among these, whatever the marks say."""
        has_log = self.has_log
        self.has_log = lambda epoch: has_log(epoch) and self.name(epoch) in names

    def place(self, epoch: int) -> Path:
        """The directory of one log."""
        return self.directory / directory_of(epoch)

    def recover(self, queue: Queue, log: Log, on_chunk: OnChunk) -> bool:
        """Open a queue's log if it has one, and pass its chunks to `on_chunk`, messages without their data.

        Records that a killed process had not synced are due: the caller gives the log to the group commit, which
        syncs thousands of logs in the time of a few single ones, before any client is served.

        Returns:
            Whether the log is open. If not, the queue is down, or has no log yet.

        Raises:
            OutOfDescriptors: the log may be whole, and cannot be opened now.
        """
        marked = self.has_log(queue.epoch)
        if not marked and not log.directory.exists():
            return False
        try:
            log.open(on_chunk, must_exist=marked, with_messages=False, sync=False)
        except OutOfDescriptors:
            raise
        except (StorageError, ChunkError) as error:
            take_down(queue, error)
            return False
        if log.torn_bytes:
            logger.warning(
                "torn_tail_cut vhost=%s queue=%s offset=%d octets=%d",
                *queue.key,
                log.next_offset,
                log.torn_bytes,
            )
        if log.size_bytes:
            # A killed process may not have synced the names: the caller's group commit does.
            self.record_existence_once_synced(queue.epoch)
        return True

    def names(self) -> set[str]:
        """The names of the existing directories.

        Raises:
            StorageError: they cannot be listed.
        """
        try:
            return set(os.listdir(self.directory))
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot be listed: {error}") from error

    def epochs(self) -> set[int]:
        """The epochs of all existing logs."""
        return {int(name, 16) for name in self.names() if _NAME.fullmatch(name)}

    def has_changed(self) -> bool:
        """Whether a log's directory was made or removed since the last call."""
        try:
            changed_ns = self.directory.stat().st_mtime_ns
        except OSError:
            changed_ns = -1
        seen_ns, self._seen_ns = self._seen_ns, changed_ns
        return changed_ns != seen_ns

    def look_again(self) -> None:
        """Have the next `has_changed` report a change: what the last one reported was not looked at."""
        self._seen_ns = 0

    def has_logs(self) -> bool:
        """Whether there is any log."""
        return self.directory.exists() and any(self.directory.iterdir())

    def remove_orphans(self, epochs: set[int]) -> None:
        """Delete the logs of queues whose deletion became durable before their log was removed.

        `epochs` are those of all queues in the definitions log, also of a queue that could not be put at this start,
        whose messages must stay.
        """
        known = set(map(directory_of, epochs))
        for directory in self.directory.iterdir() if self.directory.exists() else ():
            if directory.name not in known:
                logger.info("orphaned_log_removed directory=%s", directory.name)
                self._removed.remove(directory)


def take_down(queue: Queue, error: Exception) -> None:
    """Take a queue with an unusable log out of service: operations on it fail with the reason."""
    logger.error("queue_down vhost=%s queue=%s error=%s", *queue.key, error)
    queue.damage = str(error)


def directory_of(epoch: int) -> str:
    """The name of a queue's log directory, after its epoch."""
    return f"{epoch:016x}"


def _unmarked(epoch: int) -> bool:
    """Always false: no marks are known."""
    return False


def record_nothing(epoch: int) -> None:
    """Do nothing: marks are not kept."""
