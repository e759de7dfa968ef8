"""The manifest: which files hold what was transferred. It alone is the truth.

A file that the manifest does not name does not exist for any reader; Spark's checkpoint decides nothing.
The manifest is a directory of logs, each named by the number of its first entry; an entry is a line:

    +---------------+-------+---------------------+------+
    | CRC-32 of the | space | JSON object, numbers| LF   |
    | JSON, 8 hex   |       | rise by 1 from 1    |      |
    +---------------+-------+---------------------+------+

An entry adds files, or takes files away; adding and removing at once replaces. Appending is one write and
one `fdatasync` under a lock, so a torn line can only be the last: readers stop before it, the next writer
cuts it off. A file holds the chunks of one vhost's outgoing log from offset `first` up to before `next`;
the files ever added to a vhost continue each other without a gap. What is offered twice (a repeated batch,
a process thought dead) is recognised and left out; what would leave a gap is refused.

This module needs neither Arrow nor Spark, so that looking is cheap.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from leveret.model.errors import StorageError
from leveret.pipeline.files import locked, make_directory, sync_directory

LOG_BYTES_MAX: Final = 8_000_000
_LOCK_TIMEOUT_S: Final = 30.0
_CRC_CHARS: Final = 8


class ManifestDamaged(StorageError):
    """A line that is not the last one does not match its check."""


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
        bytes: of both files.
        history_from_ms: from a compaction: how queues stood before this is not known any more.
    """

    vhost: str
    path: str
    settlements: str = ""
    first: int
    next: int
    records: int
    bytes: int
    min_ms: int
    max_ms: int
    queues: list[QueuePart]
    history_from_ms: int = 0


class Entry(msgspec.Struct, kw_only=True):
    """One line: files added, paths of files taken away, vhosts of which everything is to be forgotten."""

    number: int
    at_ms: int
    added: list[StoredFile] = []
    removed: list[str] = []
    forgotten: list[str] = []


class Manifest:
    """The manifest of one data directory, as far as it has been read.

    Attributes:
        entries: all entries, in order.
        next_by_vhost: offset up to which each vhost's outgoing log is stored.
    """

    def __init__(self, data_dir: Path) -> None:
        """Read what there is; a data directory that does not exist is empty.

        Raises:
            ManifestDamaged: naming file and line.
        """
        self.data_dir = data_dir
        self.directory = data_dir / "manifest"
        self.entries: list[Entry] = []
        self.next_by_vhost: dict[str, int] = {}
        self._log: Path | None = None
        self._log_bytes = 0
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

    def refresh(self) -> None:
        """Read what was appended since, by whichever process."""
        logs = self._logs()
        if self._log is not None and self._log not in logs:
            raise StorageError(f"{self._log}: the manifest was deleted while it was in use")
        for log in logs[logs.index(self._log) if self._log else 0 :]:
            if log != self._log:
                self._log, self._log_bytes = log, 0
            self._read_log(log, is_last=log == logs[-1])

    def append(self, added: Iterable[StoredFile], removed: Iterable[str] = ()) -> list[StoredFile]:
        """Make files part of the truth; those already covered are left out. Returns those that are new.

        Raises:
            TransferGap: a file leaves a gap; the files before it were recorded.
            StorageError: a file is not there, or the manifest cannot be written.
        """
        gone = list(removed)
        with self.locked():
            self._cut_torn_line()
            fresh, gap = self._continuing(added, replacing=bool(gone))
            self._check_there(fresh)
            if fresh or gone:
                self._write(Entry(number=self.number + 1, at_ms=_now_ms(), added=fresh, removed=gone))
        if gap is not None:
            raise gap
        return fresh

    def forget(self, vhosts: Iterable[str]) -> list[StoredFile]:
        """Take away all of these vhosts, as if nothing of them had ever come. Returns the files, now nobody's.

        Raises:
            StorageError: the manifest cannot be written.
        """
        with self.locked():
            self._cut_torn_line()
            known = sorted(set(vhosts) & self.next_by_vhost.keys())
            gone = [file for file in self.files() if file.vhost in known]
            if known:
                self._write(Entry(number=self.number + 1, at_ms=_now_ms(), forgotten=known))
        return gone

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from appending, and be up to date."""
        with locked(self.directory / "lock", _LOCK_TIMEOUT_S, "writing the manifest"):
            self.refresh()
            yield

    def _check_there(self, files: list[StoredFile]) -> None:
        """A file may have been swept away as an orphan while the process that wrote it seemed dead."""
        for name in (name for file in files for name in (file.path, file.settlements) if name):
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

    def _logs(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    def _read_log(self, log: Path, is_last: bool) -> None:
        with log.open("rb") as file:
            file.seek(self._log_bytes)
            octets = file.read()
        lines = octets.split(b"\n")
        for index, line in enumerate(lines[:-1]):
            entry = self._decode(line)
            if entry is None:
                if is_last and index == len(lines) - 2 and not lines[-1]:
                    return
                raise ManifestDamaged(
                    f"{log}: the line at byte {self._log_bytes} is damaged; nothing was changed, restore the "
                    "file from a copy, or delete all data of the standby and let it transfer anew"
                )
            self._log_bytes += len(line) + 1
            self._take(entry)

    def _decode(self, line: bytes) -> Entry | None:
        body = line[_CRC_CHARS + 1 :]
        if line[: _CRC_CHARS + 1] != b"%08x " % zlib.crc32(body):
            return None
        entry = msgspec.json.decode(body, type=Entry)
        return entry if entry.number == self.number + 1 else None

    def _take(self, entry: Entry) -> None:
        self.entries.append(entry)
        for vhost in entry.forgotten:
            self.next_by_vhost.pop(vhost, None)
        for file in entry.added:
            self.next_by_vhost[file.vhost] = max(file.next, self.next_by_vhost.get(file.vhost, 0))

    def _cut_torn_line(self) -> None:
        if self._log is not None and self._log.stat().st_size > self._log_bytes:
            with self._log.open("r+b") as file:
                file.truncate(self._log_bytes)
                os.fsync(file.fileno())

    def _write(self, entry: Entry) -> None:
        body = msgspec.json.encode(entry)
        line = b"%08x %b\n" % (zlib.crc32(body), body)
        is_new = self._log is None or self._log_bytes > LOG_BYTES_MAX
        if is_new:
            make_directory(self.directory)
            self._log, self._log_bytes = self.directory / f"{entry.number:020}.log", 0
        assert self._log is not None
        with self._log.open("ab", buffering=0) as file:
            file.write(line)
            os.fdatasync(file.fileno())
        if is_new:
            sync_directory(self.directory)
        self._log_bytes += len(line)
        self._take(entry)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
