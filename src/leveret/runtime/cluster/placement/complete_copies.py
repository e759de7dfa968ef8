"""The file `complete_copies.json`: the logs of queues that this node leads, or mirrors with all confirmed messages.

Followers of the node copy the file with the logs. It is needed when only copies are left, and etcd's records of the
synchronised mirrors are lost with the cluster: a mirror that was not synchronised may have the last messages of a
queue and lack the first (core.replication.rebuilding).

A log may be added late, but must be removed in time: if a copy begins anew, its name is removed before the first
append to it.
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
"""The delay of a write: records of thousands of queues may change at once, and the file lists all logs."""


def complete_copies(tree: Tree) -> frozenset[str] | None:
    """Return the listed logs; None if no node of a cluster wrote the file: then all logs are complete.

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
        """List no log; the first change removes the names that a previous run listed."""
        self._file = file
        self._names: set[str] = set()
        self._saving: asyncio.TimerHandle | None = None

    def add(self, name: str) -> None:
        """List a complete log, soon."""
        if name not in self._names:
            self._names.add(name)
            self._save_later()

    def discard(self, name: str) -> None:
        """Remove a log that is incomplete, or not here, soon: its records stay, so the list may be late."""
        if name in self._names:
            self._names.discard(name)
            self._save_later()

    def strike_out(self, name: str) -> None:
        """Remove a log that begins anew: durably, before its next record is acked or reaches followers."""
        if name in self._names:
            self._names.discard(name)
            self._save()

    def stop(self) -> None:
        """Write no more."""
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
