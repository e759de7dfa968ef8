"""Files and directories of a simulated disk: their state at the last sync, and each change of a name since then.

A change of names is one step, and the disk keeps all of it or none: a new name, a removal, or a rename, which is both.
A loss of power leaves a file's content of the last sync, with any part of the later writes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096

_numbers = count()

Names = dict[str, "DiskEntry"]


@dataclass(eq=False, slots=True)
class DiskEntry:
    """A file or a directory, with any number of names.

    Attributes:
        inode: its device and number, as long as it has a name.
        path: its last known path.
        mode: its permissions.
        names: of a directory: its present entries.
        durable: of a directory: its entries at its last sync.
        changes: of a directory: the changes of its names since then, in order.
        synced: of a file: its content at its last sync; empty before the first one.
        removed: of a file without a name: its content when it lost the last one.
        reading: of a file: what a reader of the synced content keeps for its next reading.
    """

    inode: tuple[int, int]
    is_directory: bool
    path: str
    mode: int
    names: Names = field(default_factory=dict)
    durable: Names = field(default_factory=dict)
    changes: list[NamesChanged] = field(default_factory=list)
    synced: bytes = b""
    removed: bytes | None = None
    reading: object = None

    def content(self) -> bytes:
        """Return the present content of a file."""
        if self.removed is not None:
            return self.removed
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""  # Another thread has just removed it.

    def certain(self, name: str) -> DiskEntry | None:
        """Return the entry that has a durable name in a directory, and is still there, by any name."""
        entry = self.durable.get(name)
        if entry is None or self.names.get(name) is entry or entry in self.names.values():
            return entry
        return None

    def walk(self) -> Iterator[DiskEntry]:
        """Yield this entry and all entries below it, by the present names."""
        yield self
        for entry in self.names.values():
            yield from entry.walk()

    def names_synced(self) -> None:
        """Make the present names durable, and with them the other half of each rename."""
        changes, self.changes = self.changes, []
        for change in changes:
            for setting in change.settings:
                if setting.directory is not self:
                    setting.directory._is_durable(change.number, setting)
            change.settings.clear()
        self.durable = dict(self.names)

    def _is_durable(self, number: int, setting: NameSet) -> None:
        setting.apply(self.durable)
        for change in self.changes:
            if change.number <= number:
                change.settings = [
                    each for each in change.settings if (each.directory, each.name) != (self, setting.name)
                ]
        self.changes = [
            change for change in self.changes if any(each.directory is self for each in change.settings)
        ]


@dataclass(slots=True)
class NameSet:
    """A change of one name in a directory, to `entry`, or to none for a removal; `before` is the previous entry."""

    directory: DiskEntry
    name: str
    entry: DiskEntry | None
    before: DiskEntry | None = None

    def apply(self, names: Names) -> None:
        """Apply the change to a directory's names; a name that names another entry by now is not removed."""
        if self.entry is not None:
            names[self.name] = self.entry
        elif names.get(self.name) is self.before:
            names.pop(self.name, None)

    def moved(self, clones: dict[DiskEntry, DiskEntry]) -> NameSet:
        """Return the change for cloned entries; an entry without a clone stays, because no clone leads to it."""
        found = [
            clones.get(each, each) if each else None for each in (self.directory, self.entry, self.before)
        ]
        return NameSet(found[0] or self.directory, self.name, found[1], found[2])


@dataclass(eq=False, slots=True)
class NamesChanged:
    """One change of names; `number` is its place in the order of all changes."""

    settings: list[NameSet]
    number: int = field(default_factory=lambda: next(_numbers))


def change_names(*settings: NameSet) -> None:
    """Change present names, in one step."""
    change = NamesChanged(list(settings))
    for directory in dict.fromkeys(setting.directory for setting in settings):
        directory.changes.append(change)
    for setting in settings:
        setting.before = setting.before or setting.directory.names.get(setting.name)
        setting.apply(setting.directory.names)


def reachable(root: DiskEntry) -> list[DiskEntry]:
    """Return a directory, and all entries that its names may lead to after a loss of power."""
    found: dict[DiskEntry, None] = {}
    due = [root]
    while due:
        entry = due.pop()
        if entry not in found:
            found[entry] = None
            due += [*entry.names.values(), *entry.durable.values()]
            due += [each.entry for change in entry.changes for each in change.settings if each.entry]
    return list(found)


def names_after_loss(root: DiskEntry, chance: random.Random, *, in_order: bool) -> dict[DiskEntry, Names]:
    """Return the names that a loss of power leaves in each directory.

    Args:
        root: the directory, which itself stays.
        chance: decides which changes are kept.
        in_order: whether the first changes of each directory are kept, as by file systems with a journal; half of the
            disks keep the first changes of all directories together. Otherwise any changes are kept.
    """
    left = {entry: dict(entry.durable) for entry in reachable(root) if entry.is_directory}
    found = {change for entry in left for change in entry.changes}
    changes = sorted(found, key=lambda change: change.number)
    share = chance.random()
    if not in_order:
        kept = [change for change in changes if chance.random() < share]
    elif chance.random() < 0.5:
        kept = changes[: chance.randint(0, len(changes))]
    else:
        kept = _first_ones(changes, chance, share)
    for change in kept:
        _keep(change, left)
    return left


def _first_ones(changes: list[NamesChanged], chance: random.Random, share: float) -> list[NamesChanged]:
    """Choose some of the first changes of each directory."""
    ended: set[DiskEntry] = set()
    kept = []
    for change in changes:
        directories = {each.directory for each in change.settings}
        if ended & directories or chance.random() > share:
            ended |= directories
        else:
            kept.append(change)
    return kept


def _keep(change: NamesChanged, left: dict[DiskEntry, Names]) -> None:
    is_rename = any(each.entry is None for each in change.settings) and len(change.settings) > 1
    for setting in change.settings:
        if setting.directory not in left:
            continue
        if is_rename and setting.entry is not None:
            # The entry had one name before this one, though that may be from a rename that is not kept itself.
            _forget_old_names(setting.entry, left)
        setting.apply(left[setting.directory])


def _forget_old_names(entry: DiskEntry, left: dict[DiskEntry, Names]) -> None:
    for directory, names in left.items():
        for name in [each for each, found in names.items() if found is entry]:
            if directory.names.get(name) is not entry:
                del names[name]


def content_after_loss(synced: bytes, now: bytes, chance: random.Random) -> bytes:
    """Return content of a file that a loss of power could leave: the synced one, the present one, or a torn one.

    A torn file ends anywhere between both ends. Each page that was written since the sync has its new content, or its
    old one, which is zero beyond the synced end.
    """
    if synced == now or chance.random() < 0.25:
        return synced
    if chance.random() < 0.3:
        return now
    shorter, longer = sorted((len(synced), len(now)))
    length = chance.randint(shorter, longer) if len(now) > len(synced) else chance.choice((shorter, longer))
    left = bytearray(now[:length].ljust(length, b"\0"))
    before = synced[:length].ljust(length, b"\0")
    share = chance.choice((0.0, chance.random()))
    for page in range(0, length, PAGE_BYTES):
        end = page + PAGE_BYTES
        if left[page:end] != before[page:end] and chance.random() < share:
            left[page:end] = before[page:end]
    return bytes(left)


def written(
    root: DiskEntry,
    to: Path,
    names: Mapping[DiskEntry, Mapping[str, DiskEntry]],
    content: Callable[[DiskEntry], bytes],
) -> dict[DiskEntry, str]:
    """Make a directory and all entries below it, hard links as links; return the path of each entry."""
    places: dict[DiskEntry, str] = {}
    due = [(root, str(to))]
    for entry, path in due:
        if entry in places:
            os.link(places[entry], path)
            continue
        places[entry] = path
        if entry.is_directory:
            os.makedirs(path)
            due += [(each, f"{path}/{name}") for name, each in sorted(names[entry].items())]
        else:
            Path(path).write_bytes(content(entry))
    for entry, path in reversed(places.items()):
        os.chmod(path, entry.mode)
        with suppress(FileNotFoundError):
            status = os.stat(entry.path)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return places


def cloned(root: DiskEntry) -> dict[DiskEntry, DiskEntry]:
    """Copy a directory and all entries reachable from it to an equal disk; return the copies by their originals."""
    clones = {
        entry: replace(entry, names={}, durable={}, changes=[], reading=None) for entry in reachable(root)
    }
    changes: dict[NamesChanged, NamesChanged] = {}
    for entry, clone in clones.items():
        clone.names = {name: clones[each] for name, each in entry.names.items()}
        clone.durable = {name: clones[each] for name, each in entry.durable.items()}
        for change in entry.changes:
            if change not in changes:
                changes[change] = NamesChanged(
                    [each.moved(clones) for each in change.settings], change.number
                )
            clone.changes.append(changes[change])
    return clones
