"""Tracks the names of a log's files, and of its directory, that a loss of power may undo.

A file is found after a crash once the directories above it are synced: its log's own, for the segment's name, and the
one or two above, for the name of a log that is new. A group commit syncs them with the segments' data, so that
thousands of fresh logs cost no fsync on the event loop. Until it has ended, no record in such a log is promised, and
no other record may name the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from leveret.storage.directory import sync_directory

_LEVELS_ABOVE: Final = 2
"""The directories above a log's own that may be new: the site's logs, and the one that logs are spread over."""


class UnsyncedNames:
    """Names that wait for a sync; a round covers those made before its `begin_round`."""

    def __init__(self, directory: Path) -> None:
        """None waits."""
        self._directory = directory
        self._made = self._syncing = self._synced = 0
        self._above: set[Path] = set()

    @property
    def is_fresh(self) -> bool:
        """Whether the directory's own name may not be durable: a loss of power may leave nothing of the log."""
        return bool(self._above)

    def add(self) -> None:
        """A file of the log has a new name."""
        self._made += 1

    def add_directory(self, new_in: Iterable[Path] | None = None) -> None:
        """The log's directory, and those above it, have new names in these directories; None if these are unknown."""
        self._above.update(self._directory.parents[:_LEVELS_ABOVE] if new_in is None else new_in)
        self._made += 1

    def sync(self) -> None:
        """Make all names durable, here and now. Raises OSError."""
        for directory in (self._directory, *self._above):
            sync_directory(directory)
        self._above.clear()
        self._synced = self._made

    def due(self, shared: set[Path]) -> list[Path]:
        """The directories that a round must sync for this log, without those in `shared`, which it syncs already."""
        return [self._directory, *(self._above - shared)] if self._made != self._synced else []

    def begin_round(self) -> None:
        """Note that the sync of all due names begins."""
        self._syncing = self._made

    def end_round(self) -> None:
        """Note that the round begun last has ended without an error."""
        self._synced = self._syncing
        if self._synced == self._made:
            self._above.clear()

    def clear(self) -> None:
        """Forget all names: the log is removed."""
        self._made = self._syncing = self._synced = 0
        self._above.clear()
