"""A small JSON object on disk, replaced whole: identities, modes, positions.

It is written beside, synced, renamed, the directory synced. So a reader finds the old object or the new one, after
power loss too. Mode 0600.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from leveret.model.errors import StorageError
from leveret.storage.directory import sync_directory
from leveret.storage.reserve import is_full

SUFFIX: Final = ".json"
"""How the names of state files end, so that what lists them need not know them."""
BESIDE: Final = ".new"
"""How the name of what is to take a file's place ends, beyond that; a crash may leave it."""

OnReplaced: TypeAlias = Callable[[Path, bytes | None], None]
"""Told of a file's new content, None when it was removed."""


class StateFile:
    """The object in one file; nothing is cached."""

    def __init__(self, path: Path, on_replaced: OnReplaced | None = None) -> None:
        """Name the file; it need not exist."""
        self.path = path
        self._on_replaced = on_replaced

    def octets(self) -> bytes | None:
        """The file as it is; None if it was never saved.

        Raises:
            StorageError: it may not be read.
        """
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error}") from error

    def load(self) -> dict[str, Any]:
        """The object as it was saved last; empty if it never was.

        Raises:
            StorageError: the file is not a JSON object, or may not be read.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            raise StorageError(
                f"{self.path}: {error}; mend the file, or remove it to start from the configuration"
            ) from error

    def save(self, state: dict[str, Any]) -> None:
        """Replace the object; on disk when this returns. Blocks for the disk.

        Raises:
            StorageError: the directory is missing, full or may not be written.
        """
        self.replace(msgspec.json.format(msgspec.json.encode(state)))

    def replace(self, octets: bytes) -> None:
        """As `save`, of an object that is encoded already: another node's.

        Raises:
            StorageError: as `save`.
        """
        beside = self.path.with_name(f"{self.path.name}{BESIDE}")
        try:
            if self._holds(octets):
                # What was written before, so its octets are on disk, if perhaps not yet by this name. A full disk
                # has no room for writing them once more, and a start says again who the node is.
                sync_directory(self.path.parent)
                return
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(octets)
                file.flush()
                os.fsync(file.fileno())
            beside.rename(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            hint = (
                "; make room on its disk, of which disk_reserve holds some for a start"
                if is_full(error)
                else ""
            )
            raise StorageError(f"{self.path}: cannot be written: {error}{hint}") from error
        if self._on_replaced is not None:
            self._on_replaced(self.path, octets)

    def _holds(self, octets: bytes) -> bool:
        with suppress(StorageError):
            return self.octets() == octets
        return False

    def remove(self) -> None:
        """Have no object any more; nothing happens if there is none.

        Raises:
            StorageError: the disk refuses it.
        """
        try:
            self.path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be removed: {error}") from error
        if self._on_replaced is not None:
            self._on_replaced(self.path, None)
