"""What the manifest is written in: lines in files on this machine, or objects in a store.

On this machine, `manifest/<number of its first entry>.log`, lines appended with one write and one `fdatasync` under
a lock; a torn line can only be the last: readers stop before it, the next writer cuts it off. A log that has grown
long gives way to one that begins with what all before it came to. Once that is on disk, those before it are deleted.

A store has no append and no lock, but an object that is created only if there is none of its name:

    manifest/entries/<number>.entry   one line
    manifest/logs/<first>.log         FOLD_ENTRIES lines, whole ones: what the entries say that are deleted a day later
    manifest/begins/<number>.begin    the entry of this number says what all before it came to

The entry of a number is created once, by whichever process comes first; the other one reads it and thinks again. A
number is not free again when its entry is deleted: a request to create is valid for minutes, not for a day.
That rests on the store, so it is tried when a transfer starts (`check`).

Who reads for the first time begins at the newest begin. Of what is before one, all is deleted a day later; a store
tells nobody of that, so who found nothing new for so long that it may have happened looks for a begin ahead of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
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
"""How far begins are apart, some 8 MB; they are firsts of logs, so that a log can be written by who began there."""
FOLDED_KEPT_S: Final = 86_400.0
BEHIND_S: Final = 3600.0
"""Who came upon nothing new for so long may be at an entry that was deleted; much less than `FOLDED_KEPT_S`."""
_LOCK_TIMEOUT_S: Final = 30.0
_READERS: Final = 16

Take: TypeAlias = Callable[[bytes], bool]
"""Given the next line, without its end; false when it is not the next one, or damaged."""


class ManifestDamaged(StorageError):
    """A line that is not the last one does not match its check."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} is damaged; nothing was changed, restore it from a copy, or delete all data of the standby and "
            "let it transfer anew"
        )


class ManifestLog(Protocol):
    """Lines, numbered from 1."""

    def check(self) -> None:
        """See that what is appended can be kept as it must be.

        Raises:
            StorageError: the store does not do what the manifest rests on.
        """

    def shorten(self, number: int, line: Callable[[], bytes]) -> bool:
        """If it has grown long, begin with a line of this number that stands for all before it; whether it did."""

    def read(self, take: Take) -> None:
        """Hand over the lines that came since the last call; instead of those that went, the one that stands for them.

        Raises:
            ManifestDamaged: naming file and line.
        """

    def locked(self) -> AbstractContextManager[None]:
        """Keep others from appending, if that is how they are kept."""

    def append(self, number: int, line: bytes) -> bool:
        """Append the line of this number; false: there is one by now, to be read."""

    def fold(self, first: int, number: int, lines: Callable[[int, int], bytes]) -> None:
        """Tidy up after line `number`.

        `lines` gives those from a number to another, with their ends; it knows them from `first` on, which is 1 or the
        number of a line that stands for all before it.
        """


class FileManifestLog:
    """Files on this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log: Path | None = None
        self._log_bytes = 0
        self._first_line_bytes = 0

    def check(self) -> None:
        """Make durable what was read: who wrote it may have been killed before it was.

        The upstream is about to be told that it may let go of that.
        """
        with self.locked():
            logs = sorted(self._directory.glob("*.log"))
            if logs:
                with logs[-1].open("rb") as file:
                    os.fdatasync(file.fileno())
                sync_directory(self._directory)

    def read(self, take: Take) -> None:
        """Read on in the last log, and those that came after it."""
        while True:
            # A log that goes between being listed and being opened has given way to another one.
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
        """Readers that are behind find all of it in the new log, which is on disk before the others go."""
        # By so much longer that writing again what it begins with is little in comparison.
        if self._log_bytes <= LOG_BYTES_MAX + 2 * self._first_line_bytes:
            return False
        self._cut_torn_line()
        before = sorted(self._directory.glob("*.log"))
        self._begin(number)
        self.append(number, line())
        # The newest first, one by one: what is left of them if this is cut short follows from the oldest on.
        for log in reversed(before):
            log.unlink()
            sync_directory(self._directory)
        return True

    def locked(self) -> AbstractContextManager[None]:
        """The lock beside the logs."""
        return locked(self._directory / "lock", _LOCK_TIMEOUT_S, "writing the manifest")

    def append(self, number: int, line: bytes) -> bool:
        """Durable when this returns."""
        self._cut_torn_line()
        if self._log is None:
            self._begin(number)
        assert self._log is not None
        is_new = not self._log_bytes
        with self._log.open("ab", buffering=0) as file:
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._log))
                os.fdatasync(file.fileno())
            except OSError:
                # Nobody is to read what may be gone after a loss of power.
                with suppress(OSError):
                    file.truncate(self._log_bytes)
                raise
        if is_new:
            sync_directory(self._directory)
        self._count(len(line))
        return True

    def _begin(self, number: int) -> None:
        make_directory(self._directory)
        self._log, self._log_bytes, self._first_line_bytes = self._directory / f"{number:020}.log", 0, 0

    def _count(self, line_bytes: int) -> None:
        self._log_bytes += line_bytes
        self._first_line_bytes = self._first_line_bytes or line_bytes

    def fold(self, first: int, number: int, lines: Callable[[int, int], bytes]) -> None:
        """Nothing to tidy up."""

    def _read_log(self, log: Path, take: Take, is_last: bool) -> None:
        with log.open("rb") as file:
            file.seek(self._log_bytes)
            octets = file.read()
        lines = octets.split(b"\n")
        for index, line in enumerate(lines[:-1]):
            if not take(line):
                # A line that is whole but for pages that never arrived, which are zero. One of which nothing is missing
                # was altered since: its files are not to be taken for nobody's.
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
        self._changed_s = time.time()

    def check(self) -> None:
        """Try whether an object can be created twice; remove what writers that died left."""
        self._probe.sweep(ORPHAN_AGE_S)
        probe = self._probe / secrets.token_hex(8)
        probe.create(b"1")
        try:
            if probe.create(b"2"):
                raise StorageError(
                    f"{self._entries.root}: the store lets an object be created that is there already (it knows no "
                    "If-None-Match), so two processes could write the manifest over each other: keep the archive in "
                    "another store, or on a disk"
                )
        finally:
            probe.unlink(missing_ok=True)

    def read(self, take: Take) -> None:
        """Read what there is: at first by listing it, then by asking for the next."""
        before, begin = self._next, None
        if before == 1:
            begin = self._go_to_begin()
            # What is folded and deleted meanwhile is read in what follows.
            with suppress(FileNotFoundError):
                self._read_listed(take)
        while True:
            if self._read_next(take):
                self._changed_s = time.time()
                continue
            ahead = self._go_to_begin() if self._may_be_behind() else None
            if ahead is None:
                break
            begin = ahead
        if begin is not None and self._next == begin:
            self._next = before
            raise ManifestDamaged(f"{self._begin(begin)}, which names an entry that is not there,")

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
        if time.time() - self._changed_s <= BEHIND_S:
            return False
        self._changed_s = time.time()
        return True

    def _go_to_begin(self) -> int | None:
        """Read on at the newest begin, if that is ahead; its number, None if it is not."""
        newest = _newest(self._begins.iterdir())
        if newest <= self._next:
            return None
        self._next = newest
        return newest

    def shorten(self, number: int, line: Callable[[], bytes]) -> bool:
        """The entry first: that there is a begin is said of what is there."""
        if number % FOLD_ENTRIES != 1 or number == 1:
            return False
        newest = _newest(self._begins.iterdir())
        if number - newest < BEGIN_ENTRIES or not self.append(number, line()):
            return False
        self._say_begin(number)
        return True

    def locked(self) -> AbstractContextManager[None]:
        """Nobody is kept from trying."""
        return nullcontext()

    def append(self, number: int, line: bytes) -> bool:
        """Durable when this returns true."""
        entry = self._entry(number)
        if not entry.create(line) and entry.read_bytes() != line:
            return False
        self._next = number + 1
        return True

    def fold(self, first: int, number: int, lines: Callable[[int, int], bytes]) -> None:
        """Write whole logs of what they are not written of yet, and delete what those, or a begin, made superfluous."""
        if number % FOLD_ENTRIES:
            return
        written = {_number_of(log) for log in self._logs.iterdir()}
        for each in range(first, number, FOLD_ENTRIES):
            if each not in written:
                self._log_with(each).create(lines(each, each + FOLD_ENTRIES - 1))
                written.add(each)
        if first > 1:
            # Whoever wrote the entry may have died before it said so.
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
        """Everything there is from the next one on, many at a time."""
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
        """The log that has, or is to have, the entry of this number."""
        first = (number - 1) // FOLD_ENTRIES * FOLD_ENTRIES + 1
        return self._logs / f"{first:020}.log"


def delete_manifest(directory: Place) -> None:
    """Delete all of it, its begin first: what is left if that is cut short is damaged, and not one that knows less.

    Raises:
        StorageError: something stays.
    """
    for begin in matching(directory, "begins/*.begin")[-1:]:
        # In this order: as long as there is either of them, all that follows is there, too.
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
    """The highest number of these, 1 for none."""
    return max(map(_number_of, begins), default=1)


def _lines(octets: bytes) -> Iterator[bytes]:
    """Lines without their ends; an object appears whole."""
    return iter(octets.removesuffix(b"\n").split(b"\n"))
