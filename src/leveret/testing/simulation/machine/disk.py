"""Disks of simulated nodes: real files. A loss of power leaves their synced content, and any part of the rest.

    with SimulatedDisk(folder) as disk:                      # folder: of all nodes; its present content is durable
        ...                                                  # the product writes and syncs below it
        disk.copy(before, after)                             # kill -9: files stay, and the durable part is unchanged
        disk.power_lost(before, after, random.Random(seed))  # a state of the files that a crash could leave
        disk.flip_bit(directory, random.Random(seed))

The durable content of a file is that of its last fsync or fdatasync, the durable names of a directory are those of its
last fsync, and a syncfs makes all entries below its directory durable. Each directory of a node counts as a disk of its
own. Each sync copies the file into memory, so files should be small.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self
from unittest import mock

from leveret.storage import sync
from leveret.testing.simulation.machine.disk_entries import (
    DiskEntry,
    NameSet,
    change_names,
    cloned,
    content_after_loss,
    names_after_loss,
    written,
)


class SimulatedDisk:
    """See the module.

    Attributes:
        root: the folder, resolved.
        lock: held while a sync or a change of names is done and noted; a fault between two steps takes it.
        on_removed: called after the product has removed or moved a file or a directory.
    """

    def __init__(self, root: Path) -> None:
        """Begin with all entries below `root` durable."""
        self.root = root.resolve()
        self.lock = threading.RLock()
        self.on_removed: Callable[[], None] = lambda: None
        self._entries: dict[tuple[int, int], DiskEntry] = {}
        self._patches = ExitStack()
        self._originals: dict[str, Any] = {}
        self._root = self._known(os.stat(self.root), str(self.root))
        self._sync_all(self._root)

    def __enter__(self) -> Self:
        """Observe the product's syncs and changes of names, until the end of the block."""
        for name in ("fsync", "fdatasync"):
            self._replace(os, name, self._synced)
        self._replace(sync, "syncfs", self._file_system_synced)
        for name in ("rename", "replace"):
            self._replace(os, name, self._renamed)
        for name in ("unlink", "remove", "rmdir"):
            self._replace(os, name, self._removed)
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _replace(self, module: Any, name: str, by: Callable[..., Any]) -> None:
        original = self._originals[name] = getattr(module, name)

        def seen(*given: Any, **named: Any) -> Any:
            with self.lock:
                return by(original, *given, **named)

        self._patches.enter_context(mock.patch.object(module, name, seen))

    # The state after a fault.

    def copy(self, directory: Path, to: Path) -> None:
        """Copy a directory to a new place, where the same part of it is durable."""
        with self.lock:
            root = self._looked_at(directory)
            clones = cloned(root)
            names = {entry: entry.names for entry in clones if entry.is_directory}
            places = written(root, to, names, DiskEntry.content)
            for entry, path in places.items():
                clones[entry].path = path
                clones[entry].inode = _key(os.stat(path))
                self._entries[clones[entry].inode] = clones[entry]

    def settle(self, directory: Path) -> None:
        """Make a directory, its name and all entries below durable, like files that an operator made long ago."""
        with self.lock:
            self._sync_all(self._root)
            self._sync_all(self._looked_at(directory))

    def power_lost(self, directory: Path, to: Path, chance: random.Random, *, in_order: bool = True) -> None:
        """Write a state of a directory that a loss of power could leave to a new place, where it is durable.

        Args:
            directory: a data directory, which stays unchanged.
            to: the new place, which does not exist.
            chance: decides the state.
            in_order: whether the disk keeps the changes of one directory's names in their order. The product relies on
                that order when a log's begin moves on (storage.begin), and when a segment is sealed.
        """
        with self.lock:
            root = self._looked_at(directory)
            names = names_after_loss(root, chance, in_order=in_order)
            written(root, to, names, lambda file: content_after_loss(file.synced, file.content(), chance))
            self._sync_all(self._looked_at(to))

    def remove(self, directory: Path) -> None:
        """Remove a directory that is no longer needed, and its entries."""
        with self.lock, ExitStack() as originals:
            for name in ("unlink", "rmdir"):
                originals.enter_context(
                    mock.patch.object(os, name, self._originals.get(name, getattr(os, name)))
                )
            for entry in list(self._looked_at(directory).walk()):
                self._entries.pop(entry.inode, None)
                entry.synced = b""
                entry.names, entry.durable, entry.changes = {}, {}, []
            shutil.rmtree(directory)

    def flip_bit(
        self,
        directory: Path,
        chance: random.Random,
        may_be: Callable[[Path], bool] = lambda path: True,
    ) -> tuple[Path, int] | None:
        """Flip one bit of a file at rest; return the file and the octet's place, None if all files are empty.

        Args:
            directory: the file is below this directory.
            chance: decides the bit; every octet is equally likely.
            may_be: returns whether a file may be chosen.
        """
        with self.lock:
            files = [each for each in sorted(directory.rglob("*")) if each.is_file() and may_be(each)]
            sizes = [each.stat().st_size for each in files]
            if not any(sizes):
                return None
            (path,) = chance.choices(files, sizes)
            with path.open("r+b", buffering=0) as file:
                octets = file.read()
                place = chance.randrange(len(octets))
                flipped = octets[place] ^ 1 << chance.randrange(8)
                file.seek(place)
                file.write(bytes((flipped,)))
            entry = self._entry(str(path))
            if entry is not None and place < len(entry.synced):
                entry.synced = entry.synced[:place] + bytes((flipped,)) + entry.synced[place + 1 :]
            return path, place

    def remove_at_rest(self, directory: Path) -> None:
        """Remove a directory durably, as an operator may do while the node is down."""
        shutil.rmtree(directory)
        self.settle(directory.parent)

    def durable(self, directory: Path, below: str) -> list[tuple[str, DiskEntry]]:
        """Return the files directly in a directory, by name, that no fault takes away; they have their synced content.

        A file counts if its name is durable, and if it was not removed since: a removal may be durable without a sync.

        Args:
            directory: the data directory.
            below: the path of the directory below the data directory; empty for the data directory itself.
        """
        with self.lock:
            try:
                entry = self._entry(str(directory))
            except FileNotFoundError:
                return []
            for name in filter(None, below.split("/")):
                if entry is None:
                    return []
                entry = entry.certain(name)
            if entry is None:
                return []
            files = ((name, entry.certain(name)) for name in entry.durable)
            return [(name, file) for name, file in files if file is not None and not file.is_directory]

    # The entries.

    def _known(self, status: os.stat_result, path: str) -> DiskEntry:
        entry = self._entries.get(_key(status))
        if entry is None:
            is_directory, mode = stat.S_ISDIR(status.st_mode), stat.S_IMODE(status.st_mode)
            entry = DiskEntry(_key(status), is_directory, path, mode)
            self._entries[entry.inode] = entry
        entry.path = path
        return entry

    def _entry(self, path: str, status: os.stat_result | None = None) -> DiskEntry | None:
        """Return the entry of an existing path; None outside of the root. A new name is noted as a change of names."""
        status = status or os.lstat(path)
        entry = self._entries.get(_key(status))
        if entry is self._root or (entry is not None and entry.is_directory):
            return entry
        parent, name = self._directory(path)
        if parent is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return None
        entry = self._known(status, f"{parent.path}/{name}")
        if parent.names.get(name) is not entry:
            change_names(NameSet(parent, name, entry))
        return entry

    def _directory(self, path: str) -> tuple[DiskEntry | None, str]:
        """Return the directory of a path, None outside of the root, and the path's name there."""
        above, name = os.path.split(path.rstrip("/"))
        status = os.stat(above or ".")
        entry = self._entries.get(_key(status))
        if entry is None:
            real = os.path.realpath(above or ".")
            if real.startswith(f"{self.root}/"):
                entry = self._entry(real, status)
        return entry, name

    def _looked_at(self, directory: Path) -> DiskEntry:
        """Return the entry of a directory, with all present entries below it noted."""
        entry = self._entry(str(directory.resolve()))
        assert entry is not None, f"{directory} is not below {self.root}"
        self._look_below(entry)
        return entry

    def _look(self, directory: DiskEntry) -> None:
        """Note the present names in a directory."""
        found = sorted(os.listdir(directory.path))
        for name in sorted(directory.names.keys() - set(found)):
            change_names(NameSet(directory, name, None))
        for name in found:
            with suppress(FileNotFoundError):  # Another thread may remove it.
                self._entry(f"{directory.path}/{name}")

    def _look_below(self, directory: DiskEntry) -> None:
        self._look(directory)
        for entry in list(directory.names.values()):
            if entry.is_directory:
                self._look_below(entry)

    def _sync_all(self, root: DiskEntry) -> None:
        self._look_below(root)
        for entry in root.walk():
            if entry.is_directory:
                entry.names_synced()
            else:
                entry.synced = entry.content()

    # The product's calls.

    def _synced(self, original: Callable[[int], None], file: Any) -> None:
        original(file)
        descriptor = file if isinstance(file, int) else file.fileno()
        entry = self._entry_of(descriptor)
        if entry is None:
            return
        if entry.is_directory:
            self._look(entry)
            entry.names_synced()
        else:
            entry.synced = _octets_of(descriptor)

    def _file_system_synced(self, original: Callable[[int], None], descriptor: int) -> None:
        original(descriptor)
        entry = self._entry_of(descriptor)
        if entry is not None:
            self._sync_all(entry)

    def _entry_of(self, descriptor: int) -> DiskEntry | None:
        """Return the entry of an open file; None outside of the root, and for a file without a name."""
        status = os.fstat(descriptor)
        if not status.st_nlink:
            return None
        entry = self._entries.get(_key(status))
        if entry is not None:
            return entry
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not f"{path}/".startswith(f"{self.root}/"):
            return None
        return self._entry(path, status)

    def _renamed(self, original: Callable[..., None], old: Any, new: Any, **given: Any) -> None:
        before, after = _path(old, given.get("src_dir_fd")), _path(new, given.get("dst_dir_fd"))
        moved = self._entry(before) if os.path.lexists(before) else None
        over = self._entry(after) if os.path.lexists(after) else None
        last = None if over is None or over is moved else _last_content(after, over)
        original(old, new, **given)
        if moved is None or moved is over:
            return
        (source, old_name), (target, new_name) = self._directory(before), self._directory(after)
        settings = [NameSet(source, old_name, None, moved)] if source else []
        if target is not None:
            settings.append(NameSet(target, new_name, moved))
            _moved(moved, f"{target.path}/{new_name}")
        change_names(*settings)
        if over is not None:
            self._lost_name(over, last)
        self.on_removed()

    def _removed(self, original: Callable[..., None], given_path: Any, *, dir_fd: int | None = None) -> None:
        path = _path(given_path, dir_fd)
        entry = self._entry(path) if os.path.lexists(path) else None
        if entry is None:
            original(given_path, dir_fd=dir_fd)
            return
        directory, name = self._directory(path)
        last = _last_content(path, entry)
        original(given_path, dir_fd=dir_fd)
        if directory is not None:
            change_names(NameSet(directory, name, None, entry))
        self._lost_name(entry, last)
        self.on_removed()

    def _lost_name(self, entry: DiskEntry, last: bytes | None) -> None:
        """Note that an entry lost a name; after the last one, another entry may get its inode's number."""
        if last is not None:
            entry.removed = last
            self._entries.pop(entry.inode, None)


def _last_content(path: str, entry: DiskEntry) -> bytes | None:
    """Return the content of a file that is about to lose its last name; None if it has other names."""
    if entry.is_directory:
        return b""
    return entry.content() if os.lstat(path).st_nlink == 1 else None


def _octets_of(descriptor: int) -> bytes:
    """Return the content of an open file."""
    size = os.fstat(descriptor).st_size
    with suppress(OSError):  # It may be open for writing only.
        octets = os.pread(descriptor, size, 0)
        if len(octets) == size:
            return octets
    with open(f"/proc/self/fd/{descriptor}", "rb") as own:
        return own.read()


def _moved(entry: DiskEntry, path: str) -> None:
    entry.path = path
    for name, each in entry.names.items():
        _moved(each, f"{path}/{name}")


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _path(given: Any, directory: int | None) -> str:
    path = os.fsdecode(given)
    return path if directory is None or path.startswith("/") else f"/proc/self/fd/{directory}/{path}"
