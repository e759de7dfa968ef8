"""The file `complete_copies.json`: the logs of queues that this node leads, or mirrors with all confirmed messages.

Followers of the node copy the file with the logs. It is needed when only copies are left, and etcd's records of the
synchronised mirrors are lost with the cluster: a mirror that was not synchronised may have the last messages of a
queue and lack the first (core.replication.rebuilding).

A log may be added late, but must be removed in time: if a copy begins anew, no record of the new copy is acked, or
reaches followers, before the list without it. The list is as long as the node has logs, so the threads of the group
commit write it, beside the syncs of a round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from threading import Lock
from typing import Final

import msgspec

from leveret.model.errors import StorageError
from leveret.runtime.logs.commit import GroupCommit, Write
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

    def __init__(self, tree: Tree, commits: GroupCommit) -> None:
        """List the logs that a previous run listed, as far as they are still here."""
        self._file = tree.file(tree.root / FILE)
        self._commits = commits
        # In the order of their addition.
        self._names: dict[str, None] = {}
        self._later: asyncio.TimerHandle | None = None
        self._is_due = self._is_struck = False
        self._prepared = b""
        self._unwritten: bytes | None = None
        self._writing = Lock()
        try:
            self._names = {name: None for name in complete_copies(tree) or () if tree.path_of(name).is_dir()}
        except StorageError as error:
            logger.error("complete_copies_not_read error=%s action=begin_anew", error)

    def add(self, name: str) -> None:
        """List a complete log, soon."""
        if name not in self._names:
            self._names[name] = None
            self._save_later()

    def discard(self, name: str) -> None:
        """Remove a log that is incomplete, or not here, soon: its records stay, so the list may be late."""
        if name in self._names:
            del self._names[name]
            self._save_later()

    def keep(self, names: Container[str]) -> None:
        """Remove all logs but these, soon: other queues were deleted while this node did not run."""
        for name in [name for name in self._names if name not in names]:
            self.discard(name)

    def strike_out(self, name: str) -> None:
        """Remove a log that begins anew, with the next round of the group commit."""
        if name in self._names:
            del self._names[name]
            self._is_struck = True
            self._save()

    def stop(self) -> None:
        """Begin no more writes."""
        if self._later is not None:
            self._later.cancel()

    def _save_later(self) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(_LATER_S, self._save_now)

    def _save_now(self) -> None:
        self._save()
        self._commits.begin()

    def _save(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if not self._is_due:
            self._is_due = True
            self._commits.beside(self._prepare)

    def _prepare(self) -> Write:
        """Return the write; with a log that was struck out, followers get the list in front of its records."""
        octets = self._prepared = self._unwritten = msgspec.json.encode({"logs": list(self._names)})
        if self._is_struck:
            self._file.report(octets)
        self._is_due = self._is_struck = False
        loop = asyncio.get_running_loop()
        return lambda: self._write(loop)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the newest list, in a thread; of two that run at once, the second finds nothing to write."""
        with self._writing:
            octets, self._unwritten = self._unwritten, None
            if octets is None:
                return
            try:
                self._file.write(octets)
            except StorageError as error:
                logger.error("complete_copies_not_saved error=%s action=retry", error)
                loop.call_soon_threadsafe(self._save_later)
            else:
                loop.call_soon_threadsafe(self._report, octets)

    def _report(self, octets: bytes) -> None:
        """Send a written list to followers: one that joined meanwhile may have read the file before."""
        if octets is self._prepared:
            self._file.report(octets)
