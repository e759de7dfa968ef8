"""The file `complete_copies.json`: the logs of queues that this node leads, or mirrors with all that was confirmed.

Followers of the node copy the file with the logs. It is for the day when only copies are left, and etcd's records of
the synchronised mirrors are gone with the cluster: a mirror that was not synchronised may have the last messages of a
queue and lack the first (core.replication.rebuilding).

A log is named late, and struck out in time: a copy that begins anew is struck out before anything is appended to it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leveret.model.errors import StorageError
from leveret.storage.state_file import StateFile
from leveret.storage.tree import Tree

logger = logging.getLogger(__name__)

FILE: Final = "complete_copies.json"
_LATER_S: Final = 0.5
"""Records of thousands of queues may change at once; the file names all logs."""


def complete_copies(tree: Tree) -> frozenset[str] | None:
    """The named logs; None where no node of a cluster wrote the file: then all logs are complete.

    Raises:
        StorageError: the file is damaged.
    """
    file = tree.file(tree.root / FILE)
    if file.octets() is None:
        return None
    return frozenset(file.load().get("logs", ()))


class CompleteCopies:
    """See the module."""

    def __init__(self, file: StateFile) -> None:
        """Name nothing; what was named by a run before is struck out with the first change."""
        self._file = file
        self._names: set[str] = set()
        self._saving: asyncio.TimerHandle | None = None

    def add(self, name: str) -> None:
        """The log is complete: name it soon."""
        if name not in self._names:
            self._names.add(name)
            self._save_later()

    def discard(self, name: str) -> None:
        """The log is not complete, or not here; soon is soon enough, as nothing is taken from it."""
        if name in self._names:
            self._names.discard(name)
            self._save_later()

    def strike_out(self, name: str) -> None:
        """The log begins anew: this is on disk before the log's next record is acked, and at followers before it."""
        if name in self._names:
            self._names.discard(name)
            self._save()

    def stop(self) -> None:
        """Name nothing more."""
        if self._saving is not None:
            self._saving.cancel()

    def _save_later(self) -> None:
        if self._saving is None:
            self._saving = asyncio.get_running_loop().call_later(_LATER_S, self._save)

    def _save(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        try:
            self._file.save({"logs": sorted(self._names)})
        except StorageError as error:
            logger.error("complete_copies_not_saved error=%s", error)
            self._save_later()
