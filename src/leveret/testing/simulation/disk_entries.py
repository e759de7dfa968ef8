"""What a disk has of files and directories: the state of the last sync, and each change of a name since then.

A change of names is one step, kept as a whole or not at all: a new name, a removal, or a rename, which is both. The
content of a file is that of its last sync, with any part of what was written since.
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
    """A file or a directory, under however many names.

    Attributes:
        inode: its device and number, as long as it has a name.
        path: where it was seen last.
        mode: its permissions.
        names: of a directory: what is in it.
        durable: of a directory: what was in it at its last sync.
        changes: of a directory: those of its names since, in their order.
        synced: of a file: its content at its last sync; empty before the first one.
        removed: of a file that has no name any more: its content when it lost the last one.
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

    def content(self) -> bytes:
        """What a file holds now."""
        if self.removed is not None:
            return self.removed
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""  # Another thread has just removed it.

    def walk(self) -> Iterator[DiskEntry]:
        """This one and all that is below it, by the present names."""
        yield self
        for entry in self.names.values():
            yield from entry.walk()

    def names_synced(self) -> None:
        """Its names are durable as they are, and with them the other half of each rename."""
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
    """A name of a directory stands for an entry from now on, or for none; `before` is what it stood for."""

    directory: DiskEntry
    name: str
    entry: DiskEntry | None
    before: DiskEntry | None = None

    def apply(self, names: Names) -> None:
        """Do it to the directory's names; a name that has come to stand for something else meanwhile is not removed."""
        if self.entry is not None:
            names[self.name] = self.entry
        elif names.get(self.name) is self.before:
            names.pop(self.name, None)

    def moved(self, clones: dict[DiskEntry, DiskEntry]) -> NameSet:
        """The same of copies; what has none stays the original, which nothing leads to."""
        found = [
            clones.get(each, each) if each else None for each in (self.directory, self.entry, self.before)
        ]
        return NameSet(found[0] or self.directory, self.name, found[1], found[2])


@dataclass(eq=False, slots=True)
class NamesChanged:
    """One change; its number is its place in the order of all."""

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
    """A directory, and all that any of its names may still stand for after a loss of power."""
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
    """The names that a loss of power leaves in each directory.

    Args:
        root: the directory, which itself stays.
        chance: which changes are kept.
        in_order: of the changes of one directory the first ones are kept, as file systems with a journal do it; on
            half of the disks the first ones of all directories. Otherwise any of them are.
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
    """Some of the first changes of each directory."""
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
            # It had one name before this, though that may have come by a rename that is not kept by itself.
            _forget_old_names(setting.entry, left)
        setting.apply(left[setting.directory])


def _forget_old_names(entry: DiskEntry, left: dict[DiskEntry, Names]) -> None:
    for directory, names in left.items():
        for name in [each for each, found in names.items() if found is entry]:
            if directory.names.get(name) is not entry:
                del names[name]


def content_after_loss(synced: bytes, now: bytes, chance: random.Random) -> bytes:
    """What a loss of power leaves of a file: as it was synced, as it is, or torn.

    Torn, it ends anywhere between both ends; pages that were written since are as before, or zero where nothing was.
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
    """Make a directory and all below it, hard links as links; return where each entry is."""
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
    """Copies of a directory and of all that is reachable from it, by the original: a disk that is the same so far."""
    clones = {entry: replace(entry, names={}, durable={}, changes=[]) for entry in reachable(root)}
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
