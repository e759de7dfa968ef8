"""A small JSON object on disk, replaced whole: identities, modes, positions.

A new file is written beside the old one, synced, and renamed; then the directory is synced. So a reader finds the old
object or the new one, after power loss too. Mode 0600.

The last field is a checksum of all others, because one bit that the disk alters may turn a number or the name of a
field into another one, and the file would still be read. An object without that field is not checked: one of an earlier
version, or one that an operator has written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from isal.isal_zlib import crc32

from leveret.model.errors import StorageError
from leveret.storage.directory import sync_directory
from leveret.storage.reserve import is_full

SUFFIX: Final = ".json"
"""The suffix of state files' names, by which they are listed."""
BESIDE: Final = ".new"
"""The further suffix of a file that will replace a state file; a crash may leave one."""

CHECKSUM: Final = "crc32"
"""The name of the field with the checksum."""

OnReplaced: TypeAlias = Callable[[Path, bytes | None], None]
"""Called with a file's new content, None after its removal."""


def _write(path: Path, octets: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(octets)
        file.flush()
        os.fsync(file.fileno())


def encoded(state: dict[str, Any]) -> bytes:
    """Return the octets of a file with this object, in lines that people can read."""
    return msgspec.json.format(with_checksum(msgspec.json.encode(state)))


def with_checksum(octets: bytes) -> bytes:
    """Return an encoded object, without white space, with the checksum of its fields."""
    field = b'"%s":"%s"}' % (CHECKSUM.encode(), _checksum(octets).encode())
    return octets[:-1] + (b"," if octets != b"{}" else b"") + field


def _checksum(octets: bytes) -> str:
    return f"{crc32(octets):08x}"


class StateFile:
    """The object in one file, without a cache."""

    def __init__(self, path: Path, on_replaced: OnReplaced | None = None) -> None:
        """Name the file, which need not exist."""
        self.path = path
        self._on_replaced = on_replaced

    def octets(self) -> bytes | None:
        """The file as it is; None if it was never saved.

        Raises:
            StorageError: the file may not be read.
        """
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error}") from error

    def load(self, otherwise: str = "") -> dict[str, Any]:
        """The object as it was last saved; empty if it never was.

        `otherwise` is the way on if the file can neither be repaired nor restored, for the error.

        Raises:
            StorageError: the file is not a JSON object, was altered, or may not be read.
        """
        way_on = f"; {otherwise}" if otherwise else ""
        try:
            state = msgspec.json.decode(self.path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            raise StorageError(
                f"{self.path}: {error}; repair the file, or restore it from a copy{way_on}"
            ) from error
        if state.pop(CHECKSUM, None) not in (None, _checksum(msgspec.json.encode(state))):
            raise StorageError(
                f"{self.path}: it was altered: its checksum differs; repair the file, and remove its field "
                f'"{CHECKSUM}" once everything else in it is right, or restore it from a copy{way_on}'
            )
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the object; on disk when this returns. Blocks for the disk.

        Raises:
            StorageError: the directory is missing, full or may not be written.
        """
        self.replace(encoded(state))

    def replace(self, octets: bytes) -> None:
        """As `save`, of an encoded object, such as another node's.

        Raises:
            StorageError: as `save`.
        """
        self.write(octets)
        self.report(octets)

    def save_in_thread(
        self, state: dict[str, Any], on_loop: Callable[[Callable[[bytes], None], bytes], object]
    ) -> None:
        """As `save`, in a thread: `on_loop` has the event loop call `on_replaced`, whose changes are the loop's alone.

        One thread at a time. The caller of `asyncio.to_thread` continues behind that call.

        Raises:
            StorageError: as `save`.
        """
        octets = encoded(state)
        self.write(octets)
        on_loop(self.report, octets)

    def report(self, octets: bytes | None) -> None:
        """Call `on_replaced`, as `replace` does after the write."""
        if self._on_replaced is not None:
            self._on_replaced(self.path, octets)

    def write(self, octets: bytes) -> None:
        """As `replace`, without the call of `on_replaced`: a thread may do it, one at a time.

        Raises:
            StorageError: as `save`.
        """
        with self._beside() as beside:
            if self._holds(octets):
                # The same octets are on disk already, if perhaps not yet under this name. A full disk has no room for
                # a second copy, and each start writes the node's identity again.
                sync_directory(self.path.parent)
                return
            _write(beside, octets)
            beside.rename(self.path)
            sync_directory(self.path.parent)

    @contextmanager
    def prepared(self, state: dict[str, Any]) -> Iterator[Callable[[], None]]:
        """Write the object beside the file, and yield the call that replaces the file by it.

        A full disk refuses the first, before anything rests on it, and has room for the second.

        Raises:
            StorageError: as `save`, also by that call.
        """
        octets = encoded(state)
        with self._beside() as beside:
            _write(beside, octets)

        def replace() -> None:
            with self._beside():
                beside.rename(self.path)
                sync_directory(self.path.parent)
            self.report(octets)

        try:
            yield replace
        finally:
            beside.unlink(missing_ok=True)

    @contextmanager
    def _beside(self) -> Iterator[Path]:
        """The file that will replace this one; an error of the system removes it, and is raised as a StorageError."""
        beside = self.path.with_name(f"{self.path.name}{BESIDE}")
        try:
            yield beside
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            hint = (
                "; make room on its disk, of which disk_reserve holds some for a start"
                if is_full(error)
                else ""
            )
            raise StorageError(f"{self.path}: cannot be written: {error}{hint}") from error

    def _holds(self, octets: bytes) -> bool:
        with suppress(StorageError):
            return self.octets() == octets
        return False

    def remove(self) -> None:
        """Remove the file, if there is one; it is gone from the disk when this returns.

        Raises:
            StorageError: the disk refuses it.
        """
        try:
            self.path.unlink()
            sync_directory(self.path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be removed: {error}") from error
        self.report(None)
