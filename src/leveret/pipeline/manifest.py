"""The manifest: which files hold what was transferred. It alone is the truth.

A file that the manifest does not name does not exist for any reader; Spark's checkpoint decides nothing.
An entry is a line of JSON with its checksum (`documents`); entries are numbered from 1.

An entry adds files, or takes files away; adding and removing at once replaces. Where the lines are, and how it is
that each number is written once, is told in `manifest_log`. A file holds the chunks of one vhost's outgoing log from
offset `first` up to before `next`; the files ever added to a vhost continue each other without a gap. What is offered
twice (a repeated batch, a process thought dead) is recognised and left out; what would leave a gap is refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from leveret.model.errors import StorageError
from leveret.pipeline.documents import line_of, value_of
from leveret.pipeline.files import Place
from leveret.pipeline.manifest_log import FileLog, ManifestLog, ObjectLog
from leveret.pipeline.objects import ObjectPath


class TransferGap(StorageError):
    """A file does not continue what the manifest has.

    Attributes:
        vhost: whose outgoing log.
        have: offset up to which the manifest has it.
        offered: first offset of the file.
    """

    def __init__(self, vhost: str, have: int, offered: int) -> None:
        super().__init__(
            f"vhost '{vhost}': transferred up to offset {have}, a file that begins at {offered} does not "
            "continue that; nothing was recorded, the transfer starts again from the manifest"
        )
        self.vhost = vhost
        self.have = have
        self.offered = offered


class QueuePart(msgspec.Struct):
    """What one queue (of one epoch) has in a file.

    Attributes:
        messages: number of messages.
        settled: number of offsets that settlements name; some of them may be no messages.
        ranges: (first offset, count) of the records, in order of arrival, neighbours joined.
        min_ms: timestamp of the oldest chunk.
        max_ms: timestamp of the newest chunk.
    """

    queue: str
    epoch: int
    messages: int = 0
    settled: int = 0
    ranges: list[tuple[int, int]] = []
    min_ms: int = 0
    max_ms: int = 0

    def count(self, first: int, records: int, timestamp_ms: int, is_message: bool) -> None:
        """Take in one chunk."""
        self.min_ms = min(self.min_ms, timestamp_ms) if self.ranges else timestamp_ms
        self.max_ms = max(self.max_ms, timestamp_ms)
        if self.ranges and sum(self.ranges[-1]) == first:
            self.ranges[-1] = (self.ranges[-1][0], self.ranges[-1][1] + records)
        else:
            self.ranges.append((first, records))
        self.messages += records if is_message else 0


class StoredFile(msgspec.Struct, kw_only=True):
    """A Parquet file of records and its sidecar of settlements; paths are relative to the data directory.

    Attributes:
        first: offset in the outgoing log of the first record.
        next: offset after the last one.
        settlements: path of the sidecar, empty when there is nothing settled.
        books: path of what readers and publishers of streams stored (`books`), empty for nothing.
        bytes: of all its files.
        history_from_ms: from a compaction: how queues stood before this is not known any more.
    """

    vhost: str
    path: str
    settlements: str = ""
    books: str = ""
    first: int
    next: int
    records: int
    bytes: int
    min_ms: int
    max_ms: int
    queues: list[QueuePart]
    history_from_ms: int = 0

    @property
    def names(self) -> list[str]:
        """The paths of all its files."""
        return [name for name in (self.path, self.settlements, self.books) if name]


class Entry(msgspec.Struct, kw_only=True):
    """One line: files added, paths of files taken away, vhosts of which everything is to be forgotten.

    Attributes:
        writer: tells entries of two processes apart that say the same.
    """

    number: int
    at_ms: int
    writer: str = ""
    added: list[StoredFile] = []
    removed: list[str] = []
    forgotten: list[str] = []


class Manifest:
    """The manifest of one data directory, as far as it has been read.

    Attributes:
        entries: all entries, in order.
        next_by_vhost: offset up to which each vhost's outgoing log is stored.
    """

    def __init__(self, data_dir: Place) -> None:
        """Read what there is; a data directory that does not exist is empty.

        Raises:
            ManifestDamaged: naming file and line.
        """
        self.data_dir = data_dir
        self.entries: list[Entry] = []
        self.next_by_vhost: dict[str, int] = {}
        self._writer = secrets.token_hex(4)
        directory = data_dir / "manifest"
        self._log: ManifestLog = (
            ObjectLog(directory) if isinstance(directory, ObjectPath) else FileLog(directory)
        )
        self.refresh()

    @property
    def number(self) -> int:
        """Number of the last entry, 0 when there is none."""
        return self.entries[-1].number if self.entries else 0

    def files(self, up_to: int | None = None) -> list[StoredFile]:
        """The files that exist after entry `up_to` (the last one), in order of vhost and offset."""
        found: dict[str, StoredFile] = {}
        for entry in self._entries_to(up_to):
            for path in entry.removed:
                found.pop(path, None)
            if entry.forgotten:
                found = {path: file for path, file in found.items() if file.vhost not in entry.forgotten}
            found.update({file.path: file for file in entry.added})
        return sorted(found.values(), key=lambda file: (file.vhost, file.first))

    def ever_added(self, vhost: str, up_to: int) -> Iterator[StoredFile]:
        """Files added to `vhost` up to entry `up_to` since it was forgotten, those taken away since included."""
        since = max((each.number for each in self.entries if vhost in each.forgotten), default=0)
        for entry in self.entries[since:up_to]:
            yield from (file for file in entry.added if file.vhost == vhost)

    def history_from_ms(self, vhost: str) -> int:
        """How a vhost's queues stood at moments before this is not known any more; 0: as far back as there is data."""
        return max((file.history_from_ms for file in self.files() if file.vhost == vhost), default=0)

    def check(self) -> None:
        """See that the manifest can be kept here as it must be.

        Raises:
            StorageError: the store cannot be used for it.
        """
        self._log.check()

    def refresh(self) -> None:
        """Read what was appended since, by whichever process."""
        self._log.read(self._take_line)

    def append(self, added: Iterable[StoredFile], removed: Iterable[str] = ()) -> list[StoredFile]:
        """Make files part of the truth; those already covered are left out. Returns those that are new.

        Raises:
            TransferGap: a file leaves a gap; the files before it were recorded.
            StorageError: a file is not there, or the manifest cannot be written.
        """
        files, gone = list(added), list(removed)
        with self.locked():
            is_written = False
            while not is_written:
                fresh, gap = self._continuing(files, replacing=bool(gone))
                self._check_there(fresh)
                is_written = not (fresh or gone) or self._write(added=fresh, removed=gone)
        if gap is not None:
            raise gap
        return fresh

    def forget(self, vhosts: Iterable[str]) -> list[StoredFile]:
        """Take away all of these vhosts, as if nothing of them had ever come. Returns the files, now nobody's.

        Raises:
            StorageError: the manifest cannot be written.
        """
        wanted = set(vhosts)
        with self.locked():
            is_written = False
            while not is_written:
                known = sorted(wanted & self.next_by_vhost.keys())
                gone = [file for file in self.files() if file.vhost in known]
                is_written = not known or self._write(forgotten=known)
        return gone

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from appending, and be up to date."""
        with self._log.locked():
            self.refresh()
            yield

    def _check_there(self, files: list[StoredFile]) -> None:
        """A file may have been swept away as an orphan while the process that wrote it seemed dead."""
        for name in (name for file in files for name in file.names):
            if not (self.data_dir / name).exists():
                raise StorageError(
                    f"{self.data_dir / name}: is gone, so it was not recorded; transfer it again"
                )

    def _entries_to(self, up_to: int | None) -> list[Entry]:
        return self.entries if up_to is None else self.entries[:up_to]

    def _continuing(
        self, added: Iterable[StoredFile], replacing: bool
    ) -> tuple[list[StoredFile], TransferGap | None]:
        fresh: list[StoredFile] = []
        ends = dict(self.next_by_vhost)
        for file in sorted(added, key=lambda file: (file.vhost, file.first)):
            end = ends.get(file.vhost)
            if end is not None and file.next <= end and not replacing:
                continue
            if end is not None and file.first != end and not replacing:
                return fresh, TransferGap(file.vhost, end, file.first)
            ends[file.vhost] = max(file.next, end or 0)
            fresh.append(file)
        return fresh, None

    def _take_line(self, line: bytes) -> bool:
        try:
            entry = value_of(line, Entry)
        except msgspec.DecodeError:
            return False
        if entry.number != self.number + 1:
            return False
        self._take(entry)
        return True

    def _take(self, entry: Entry) -> None:
        self.entries.append(entry)
        for vhost in entry.forgotten:
            self.next_by_vhost.pop(vhost, None)
        for file in entry.added:
            self.next_by_vhost[file.vhost] = max(file.next, self.next_by_vhost.get(file.vhost, 0))

    def _write(
        self,
        added: list[StoredFile] | None = None,
        removed: list[str] | None = None,
        forgotten: list[str] | None = None,
    ) -> bool:
        """Append an entry; false: another process was faster, and its entry is read."""
        entry = Entry(
            number=self.number + 1,
            at_ms=time.time_ns() // 1_000_000,
            writer=self._writer,
            added=added or [],
            removed=removed or [],
            forgotten=forgotten or [],
        )
        if not self._log.append(entry.number, line_of(entry)):
            self.refresh()
            return False
        self._take(entry)
        self._log.fold(entry.number, self._lines)
        return True

    def _lines(self, first: int, last: int) -> bytes:
        return b"".join(line_of(entry) for entry in self.entries[first - 1 : last])
