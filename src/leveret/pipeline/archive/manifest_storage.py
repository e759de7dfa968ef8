"""Stores the manifest's lines: in files on this machine, or as objects in a store.

On this machine, `manifest/<number of its first entry>.log`, lines appended with one write and one `fdatasync` under a
lock; a torn line can only be the last: readers stop before it, the next writer cuts it off. A long log is replaced by
one that begins with the sum of all earlier entries. Once that is on disk, the earlier logs are deleted.

A store has no append and no lock, but an object that is created only if there is none of its name:

    manifest/entries/<number>.entry   one line
    manifest/logs/<first>.log         FOLD_ENTRIES whole lines, of entries that are deleted a day later
    manifest/begins/<number>.begin    the entry of this number has the sum of all earlier ones

The first process creates the entry of a number; another one reads it and decides again. A number does not become free
when its entry is deleted, because a request to create is valid for minutes, not for a day. All this depends on the
store, so the start of a transfer tests it (`check`).

A first read starts at the newest begin. Everything before a begin is deleted a day later. A reader does not notice
that; so if it found no new entry for so long that it may have happened, it looks for a later begin.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from leveret.model.errors import StorageError
from leveret.pipeline.files.files import (
    ORPHAN_AGE_S,
    Place,
    delete,
    locked,
    make_directory,
    matching,
    sync_directory,
)
from leveret.pipeline.files.objects import ObjectPath

LOG_BYTES_MAX: Final = 8_000_000
FOLD_ENTRIES: Final = 1000
BEGIN_ENTRIES: Final = 20 * FOLD_ENTRIES
"""The distance of begins, some 8 MB; they are firsts of logs, so that a reader that began there can write a log."""
FOLDED_KEPT_S: Final = 86_400.0
BEHIND_S: Final = 3600.0
"""A reader without new entries for so long may wait for a deleted one; much less than `FOLDED_KEPT_S`."""
_LOCK_TIMEOUT_S: Final = 30.0
_READERS: Final = 16

Take: TypeAlias = Callable[[bytes], bool]
"""Takes the next line, without its end; returns False if it is not the next one, or is damaged."""


class ManifestDamaged(StorageError):
    """A line other than the last one does not match its check."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} is damaged; nothing was changed. Restore it from a copy, or delete all data of the standby, "
            "which then transfers them again"
        )


class ManifestLog(Protocol):
    """Lines, numbered from 1."""

    def check(self) -> None:
        """Check that the store can keep appended lines.

        Raises:
            StorageError: the store lacks a property that the manifest needs.
        """

    def shorten(self, number: int, line: Callable[[], bytes]) -> bool:
        """If the log is long, begin another one with a line of this number for all earlier ones.

        Return whether it did.
        """

    def read(self, take: Take) -> None:
        """Pass on the lines since the last call; one line replaces those that were folded.

        Raises:
            ManifestDamaged: naming file and line.
        """

    def locked(self) -> AbstractContextManager[None]:
        """Exclude other writers, if the storage works by locks."""

    def append(self, number: int, line: bytes) -> bool:
        """Append the line of this number; return False if there is one by now, which is to be read."""

    def fold(self, first: int, number: int, lines: Callable[[int, int], bytes]) -> None:
        """Fold and delete earlier lines, after line `number`.

        `lines` gives the lines between two numbers, with their ends, from `first` on, which is 1 or the number of a
        line for all earlier ones.
        """


class FileManifestLog:
    """Files on this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log: Path | None = None
        self._log_bytes = 0
        self._first_line_bytes = 0

    def check(self) -> None:
        """Make the read lines durable, because their writer may have been killed before its sync.

        The upstream will get their positions next, and may drop its records.
        """
        with self.locked():
            logs = sorted(self._directory.glob("*.log"))
            if logs:
                with logs[-1].open("rb") as file:
                    os.fdatasync(file.fileno())
                sync_directory(self._directory)

    def read(self, take: Take) -> None:
        """Read on in the last log, and in later ones."""
        while True:
            # A log that goes between being listed and being opened has been replaced by another one.
            with suppress(FileNotFoundError):
                return self._read(take)

    def _read(self, take: Take) -> None:
        logs = sorted(self._directory.glob("*.log"))
        before = self._log
        if before is not None and before not in logs:
            if not logs or logs[0] < before:
                raise StorageError(f"{before}: the manifest was deleted while it was in use")
            self._log = None
        for log in logs[logs.index(self._log) if self._log else 0 :]:
            if log != self._log:
                self._log, self._log_bytes, self._first_line_bytes = log, 0, 0
            self._read_log(log, take, is_last=log == logs[-1])

    def shorten(self, number: int, line: Callable[[], bytes]) -> bool:
        """Begin a new log; it is on disk before the others go, so readers that are behind find everything in it."""
        # The threshold grows with the first line, so that writing that line again costs little in comparison.
        if self._log_bytes <= LOG_BYTES_MAX + 2 * self._first_line_bytes:
            return False
        self._cut_torn_line()
        before = sorted(self._directory.glob("*.log"))
        with self._begun(number):
            self.append(number, line())
        # The newest first: if this is interrupted, the remaining logs are contiguous from the oldest on.
        for log in reversed(before):
            log.unlink()
            sync_directory(self._directory)
        return True

    def locked(self) -> AbstractContextManager[None]:
        """The lock beside the logs."""
        return locked(self._directory / "lock", _LOCK_TIMEOUT_S, "writing the manifest")

    def append(self, number: int, line: bytes) -> bool:
        """Append durably."""
        self._cut_torn_line()
        if self._log is None:
            with self._begun(number):
                return self.append(number, line)
        is_new = not self._log_bytes
        with self._log.open("ab", buffering=0) as file:
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._log))
                os.fdatasync(file.fileno())
            except OSError:
                # Readers must not see a line that a loss of power may undo.
                with suppress(OSError):
                    file.truncate(self._log_bytes)
                raise
        if is_new:
            sync_directory(self._directory)
        self._count(len(line))
        return True

    @contextmanager
    def _begun(self, number: int) -> Iterator[None]:
        """Write a log of this number from here on; go on in the one before if the disk refuses it."""
        before = self._log, self._log_bytes, self._first_line_bytes
        make_directory(self._directory)
        self._log, self._log_bytes, self._first_line_bytes = self._directory / f"{number:020}.log", 0, 0
        try:
            yield
        except OSError:
            self._log, self._log_bytes, self._first_line_bytes = before
            raise

    def _count(self, line_bytes: int) -> None:
        self._log_bytes += line_bytes
        self._first_line_bytes = self._first_line_bytes or line_bytes

    def fold(self, first: int, number: int, lines: Callable[[int, int], bytes]) -> None:
        """Do nothing."""

    def _read_log(self, log: Path, take: Take, is_last: bool) -> None:
        with log.open("rb") as file:
            file.seek(self._log_bytes)
            octets = file.read()
        lines = octets.split(b"\n")
        for index, line in enumerate(lines[:-1]):
            if not take(line):
                # A line that is complete except for pages that never arrived, which are zero, is torn. A complete
                # line was altered later: its files must not be taken for unused.
                if is_last and index == len(lines) - 2 and not lines[-1] and b"\0" in line:
                    return
                raise ManifestDamaged(f"{log}: the line at byte {self._log_bytes}")
            self._count(len(line) + 1)

    def _cut_torn_line(self) -> None:
        if self._log is not None and self._log.exists() and self._log.stat().st_size > self._log_bytes:
            with self._log.open("r+b") as file:
                file.truncate(self._log_bytes)
                os.fsync(file.fileno())


class ObjectLog:
    """Objects in a store."""

    def __init__(self, directory: ObjectPath) -> None:
        self._entries = directory / "entries"
        self._logs = directory / "logs"
        self._begins = directory / "begins"
        self._probe = directory / "probes"
        self._next = 1
        self._changed_s = time.monotonic()

    def check(self) -> None:
        """Test whether an object can be created twice; remove unfinished objects of dead writers."""
        self._probe.sweep(ORPHAN_AGE_S)
        probe = self._probe / secrets.token_hex(8)
        probe.create(b"1")
        try:
            if probe.create(b"2"):
                raise StorageError(
                    f"{self._entries.root}: the store creates an object a second time (it does not support "
                    "If-None-Match), so two processes could write the manifest over each other: keep the "
                    "archive in "
                    "another store, or on a disk"
                )
        finally:
            probe.unlink(missing_ok=True)

    def read(self, take: Take) -> None:
        """Read all entries: at first by a listing, then one by one."""
        before, begin = self._next, None
        if before == 1:
            begin = self._go_to_begin()
            # Entries that are folded and deleted meanwhile are read in the next step.
            with suppress(FileNotFoundError):
                self._read_listed(take)
        while True:
            if self._read_next(take):
                self._changed_s = time.monotonic()
                continue
            ahead = self._go_to_begin() if self._may_be_behind() else None
            if ahead is None:
                break
            begin = ahead
        if begin is not None and self._next == begin:
            self._next = before
            raise ManifestDamaged(f"{self._begin(begin)}, which names a missing entry,")

    def _read_next(self, take: Take) -> bool:
        entry = self._entry(self._next)
        try:
            octets = entry.read_bytes()
        except FileNotFoundError:
            entry = self._log_with(self._next)
            try:
                lines = entry.read_bytes().split(b"\n")
            except FileNotFoundError:
                return False
            octets = b"\n".join(lines[(self._next - 1) % FOLD_ENTRIES :])
        self._take_all(entry, octets, take)
        return True

    def _may_be_behind(self) -> bool:
        if time.monotonic() - self._changed_s <= BEHIND_S:
            return False
        self._changed_s = time.monotonic()
        return True

    def _go_to_begin(self) -> int | None:
        """Read on at the newest begin, if it is ahead; return its number, None if it is not."""
        newest = _newest(self._begins.iterdir())
        if newest <= self._next:
            return None
        self._next = newest
        return newest

    def shorten(self, number: int, line: Callable[[], bytes]) -> bool:
        """Write the entry first, because a begin must name an existing entry."""
        if number % FOLD_ENTRIES != 1 or number == 1:
            return False
        newest = _newest(self._begins.iterdir())
        if number - newest < BEGIN_ENTRIES or not self.append(number, line()):
            return False
        self._say_begin(number)
        return True

    def locked(self) -> AbstractContextManager[None]:
        """Do nothing: writers may try concurrently."""
        return nullcontext()

    def append(self, number: int, line: bytes) -> bool:
        """Create the entry; durable when this returns True."""
        entry = self._entry(number)
        if not entry.create(line) and entry.read_bytes() != line:
            return False
        self._next = number + 1
        return True

    def fold(self, first: int, number: int, lines: Callable[[int, int], bytes]) -> None:
        """Write whole logs of entries that are in none yet, and delete entries that a log, or a begin, replaces."""
        if number % FOLD_ENTRIES:
            return
        written = {_number_of(log) for log in self._logs.iterdir()}
        for each in range(first, number, FOLD_ENTRIES):
            if each not in written:
                self._log_with(each).create(lines(each, each + FOLD_ENTRIES - 1))
                written.add(each)
        if first > 1:
            # The entry's writer may have died before it wrote the begin.
            self._say_begin(first)
        begin = _newest(self._begins.older_than(FOLDED_KEPT_S))
        for place in (*self._begins.iterdir(), *self._logs.iterdir()):
            if _number_of(place) < begin:
                place.unlink(missing_ok=True)
        for entry in self._entries.older_than(FOLDED_KEPT_S):
            if _number_of(entry) < begin or _number_of(self._log_with(_number_of(entry))) in written:
                entry.unlink(missing_ok=True)

    def _say_begin(self, number: int) -> None:
        self._begin(number).create(b"")

    def _read_listed(self, take: Take) -> None:
        """Read everything from the next entry on, many at a time."""
        logs = [log for log in self._logs.iterdir() if _number_of(log) >= self._next]
        last = _number_of(logs[-1]) + FOLD_ENTRIES - 1 if logs else self._next - 1
        entries = self._entries.listed_after(self._entry(last).name)
        with ThreadPoolExecutor(_READERS, "manifest") as threads:
            for place, octets in zip(
                [*logs, *entries], threads.map(ObjectPath.read_bytes, [*logs, *entries]), strict=True
            ):
                self._take_all(place, octets, take)

    def _take_all(self, place: ObjectPath, octets: bytes, take: Take) -> None:
        for line in _lines(octets):
            if not take(line):
                raise ManifestDamaged(f"{place}, where entry {self._next} should be,")
            self._next += 1

    def _entry(self, number: int) -> ObjectPath:
        return self._entries / f"{number:020}.entry"

    def _begin(self, number: int) -> ObjectPath:
        return self._begins / f"{number:020}.begin"

    def _log_with(self, number: int) -> ObjectPath:
        """The log that has, or will have, the entry of this number."""
        first = (number - 1) // FOLD_ENTRIES * FOLD_ENTRIES + 1
        return self._logs / f"{first:020}.log"


def delete_manifest(directory: Place) -> None:
    """Delete the manifest, its begin first: after an interruption it is damaged, rather than a shorter valid one.

    Raises:
        StorageError: some of it stays.
    """
    for begin in matching(directory, "begins/*.begin")[-1:]:
        # In this order: while one of the two exists, everything behind it exists, too.
        delete(directory / "entries" / f"{begin.name.partition('.')[0]}.entry")
        delete(directory / "logs" / f"{begin.name.partition('.')[0]}.log")
    for pattern in ("*.log", "logs/*.log", "entries/*.entry"):
        for first in matching(directory, pattern)[:1]:
            delete(first)
            sync_directory(first.parent)
    delete(directory)


def _number_of(place: ObjectPath) -> int:
    return int(place.name.partition(".")[0])


def _newest(begins: Iterable[ObjectPath]) -> int:
    """The highest number of these begins, 1 for none."""
    return max(map(_number_of, begins), default=1)


def _lines(octets: bytes) -> Iterator[bytes]:
    """Yield lines without their ends; an object is always whole."""
    return iter(octets.removesuffix(b"\n").split(b"\n"))
