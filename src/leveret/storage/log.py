"""A log: a directory of segment files, appended to, read by offset, cut at the old end.

Order of an append, and why: one `writev` puts header, data and trailer behind the last chunk, so a crash leaves a
prefix of the chunk and never a hole before it. Nothing is promised until `fdatasync`, which the group commit runs off
the event loop on duplicates of the descriptors from `unsynced()`. It covers data *and* length. A new segment's
directory is among the descriptors, so that the segment's name is on disk before any record in it is promised; until
then the segments before it stay. A failed or short write is cut off again at once, so a later append never lands
behind garbage.

A new segment may reach the disk before the end of its predecessor does. Until the predecessor is synced the new file
is *provisional*: its name ends in `.new`, and no record in it has been promised. If the predecessor is torn after a
crash, a provisional segment is removed with the torn tail. A segment with its final name is never removed; a torn
predecessor of it is damage. Once the new segment has its final name, the predecessor is *sealed*, by its name again.
So a missing newest segment is told from one that never existed.

Exchanged and removed files are detected: the first chunk of a segment names the log and the chunk before it
(wire.chunk, `LOG`), and the log's begin is written beside the segments (storage.begin). A start and a scrub compare
them. While the log is open, `synced` checks that the synced files still have their names, so no record is promised in
a file that the next start would not find.

The first file of a log, and the log's directory, have new names, which `append` leaves to the group commit that syncs
the first chunk, if `open` got `defer_names` (storage.unsynced_names). A second file is made only once the names of
the first are durable, because a second file without a first one would be damage.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.begin import BeginFile
from leveret.storage.directory import make_directory, sync_directory
from leveret.storage.log_files import remove_log_files
from leveret.storage.log_reader import NOTHING_BESIDE, LogReader
from leveret.storage.log_recovery import LogRecovery
from leveret.storage.open_segments import OpenSegments, opening_error, storage_error
from leveret.storage.removed import remove_in_place
from leveret.storage.segment import OnChunk, Segment, SegmentState, segment_of
from leveret.storage.summary import rename_with_summary, summary_path
from leveret.storage.sync import DirectoryDescriptor, close_descriptors, sync_and_close
from leveret.storage.unsynced_names import UnsyncedNames
from leveret.wire.chunk import Chunk, Header, crc_of, encode_header, in_few_pieces, seal_of, with_log

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024


class LogOwner(Protocol):
    """The receiver of a log's changes; see storage.tree."""

    def opened(self, log: Log) -> None:
        """The log can be used."""

    def appended(self, log: Log, segment: int, header: Header, octets: list[bytes | memoryview]) -> None:
        """A chunk is at the log's end, in the segment that begins at offset `segment`."""

    def dropped(self, log: Log) -> None:
        """The log begins later than before."""

    def deleted(self, log: Log) -> None:
        """The log's directory is gone."""

    def holds(self, log: Log) -> bool:
        """Whether the log's directory is its own."""

    def has_replaced(self, log: Log) -> bool:
        """Whether another log was opened there since."""


class Log(LogReader):
    """Chunks in order of offset; one writer, any number of readers in the same process.

    Attributes:
        epoch: written into each appended chunk.
        name: its name on every node; empty for a part, or a copy, of another log.
        first_offset: the first offset in the log.
        next_offset: the offset of the next record.
        synced_offset: the offset up to which the log is durable.
        torn_bytes: the octets of an unfinished append that `open` cut off.
    """

    def __init__(
        self,
        directory: Path,
        *,
        epoch: int,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        durable: bool = True,
        owner: LogOwner | None = None,
        open_segments: OpenSegments | None = None,
        remove: Callable[[Path], None] = remove_in_place,
        name: str = "",
    ) -> None:
        """Describe a log; call `open` before anything else. Without `durable` it need not survive power loss.

        `open_segments` bounds the open segments of all logs that share it; `remove` removes a file or directory.
        """
        super().__init__(directory, open_segments)
        self.epoch = epoch
        self.name = name
        self._owner = owner
        self._remove = remove
        self._begin = BeginFile(directory)
        self._names = UnsyncedNames(directory)
        self._defers_names = False
        self.segment_bytes_max = segment_bytes_max
        self.torn_bytes = 0
        self.synced_offset = 0
        self._syncing_end = 0
        self._durable = durable
        self._unsynced: list[Segment] = []
        self.unsynced_bytes = 0
        self._syncing: list[Segment] = []
        self._made: Segment | None = None
        self._has_overhang = False
        self._with_messages = True
        self._sealed: list[Path] = []
        self._sync_failure: OSError | None = None
        self._sync_wanted = 0

    def open(
        self,
        on_chunk: OnChunk | None = None,
        *,
        first_offset: int = 0,
        must_exist: bool = False,
        with_messages: bool = True,
        cut_at: int | None = None,
        sync: bool = True,
        defer_names: bool = False,
    ) -> Log:
        """Make the directory, or recover the log in it and pass every whole chunk to `on_chunk`.

        A log that is open already stays as it is.

        Without `with_messages`, `on_chunk` gets only the notable chunks of segments with a summary (see
        storage.summary), messages without their data. With `must_exist` nothing is made. Chunks from `cut_at` on are
        removed unread, as a torn tail is. With `sync`, everything recovered is durable afterwards, also records that
        a killed process had not synced. Without it, they are due for a sync as if they had just been appended. The
        same holds for names, except with `must_exist`: a log is recorded to exist only once its names are durable.
        With `defer_names` a new log becomes durable by the sync of its first chunk.

        Raises:
            Corrupt: damage that no torn write explains; the files are left as they are.
            OutOfDescriptors: the system has no descriptor for it now.
            StorageError: the disk refused it, or the log must exist and is missing.
        """
        self._with_messages = with_messages
        if self._segments:
            # The log is in use already: the caller that opens it again needs its content.
            self.torn_bytes = 0
            for chunk in self.read(0, sys.maxsize):
                (on_chunk or _ignore)(chunk)
            return self
        try:
            names = list(self.directory.iterdir()) if self.directory.exists() else []
            found = sorted(match for path in names if (match := segment_of(path.name)))
            if must_exist and not found:
                raise StorageError(
                    f"log {self.directory} is missing, with all that was in it; stop the node and restore the "
                    "directory from a copy, or accept the loss with leveretctl restart_queue"
                )
            self._defers_names = self._durable and defer_names
            new_in = make_directory(self.directory, durable=self._durable and not defer_names)
            if self._defers_names and new_in:
                self._names.add_directory(new_in)
            if self._durable and not must_exist and not new_in:
                # A killed process may have made the directory, with or without files, and synced no name.
                self._names.add_directory()
            self._begin = BeginFile(self.directory, [path.name for path in names])
            recovery = LogRecovery(
                self.directory,
                self._segments,
                on_chunk or _ignore,
                with_messages,
                durable=self._durable,
                name=self.name,
                begin=self._begin.offset,
            )
            if found:
                self._recover(recovery, found, cut_at)
                if sync:
                    self.sync()
                # A start opens many logs that are not used for long: they hold no descriptor.
                self.close()
            else:
                self._segments.append(Segment(self.directory, first_offset))
            recovery.remove_summaries(names)
        except OSError as error:
            raise opening_error(error, f"log {self.directory}: cannot be opened") from error
        if self._owner is not None:
            self._owner.opened(self)
        return self

    @property
    def is_open(self) -> bool:
        """Whether `open` has succeeded."""
        return bool(self._segments)

    def _recover(
        self, recovery: LogRecovery, found: list[tuple[int, SegmentState]], cut_at: int | None
    ) -> None:
        try:
            tail = recovery.find(found, cut_at)
        finally:
            self.torn_bytes += recovery.torn_bytes
        if self.name:
            # A start needs no room on the disk: it works on a full one.
            with suppress(OSError):
                self._begin.write(self.first_offset)
        self._unsynced = tail if self._durable else []
        if any(segment.state is SegmentState.PROVISIONAL for segment in self._unsynced):
            self._names.add()
        self.synced_offset = tail[0].first_offset
        self._seal()

    def missing(self) -> Corrupt:
        """The error for a log whose files are gone."""
        return self._segments[-1].missing()

    @property
    def starts_segment(self) -> bool:
        """Whether the next chunk is the first of its segment."""
        newest = self._segments[-1]
        return newest.size == 0 or newest.size >= self.segment_bytes_max

    @property
    def is_rolling(self) -> bool:
        """Whether the newest segment is provisional, until a sync."""
        return self._segments[-1].state is SegmentState.PROVISIONAL

    @property
    def wants_sync(self) -> bool:
        """Whether segments wait for a sync, to get their final names or to be dropped, with or without a commit."""
        return self.is_rolling or self._names.is_fresh or self.synced_offset < self._sync_wanted

    def want_sync(self) -> int:
        """Ask for a sync of everything appended so far, so that records can be dropped; return the end of that."""
        if self._durable:
            self._sync_wanted = self.next_offset
        return self._sync_wanted

    def append(
        self,
        kind: int,
        entries: int,
        records: int,
        data: bytes | list[bytes],
        timestamp_ms: int,
        trailer: bytes = b"",
        crc: int | None = None,
    ) -> Header:
        """Write one chunk behind the last; it is durable once the descriptors from `unsynced` are fdatasynced.

        Large pieces of `data` are not copied.

        Raises:
            StorageError: the disk refused it; the log is as it was before.
        """
        segment = self._segments[-1]
        if segment.size >= self.segment_bytes_max:
            segment = self.roll()
        pieces, data_bytes = in_few_pieces(data)
        if crc is None:
            crc = crc_of(pieces)
        if not segment.size and self.name:
            trailer = with_log(trailer, self.name, self.last_seal)
        chunk_id = segment.next_offset
        header = Header(
            kind, entries, records, timestamp_ms, self.epoch, chunk_id, crc, data_bytes, len(trailer)
        )
        self._write(segment, header, [encode_header(*header), *pieces, trailer])
        return header

    @property
    def last_seal(self) -> int:
        """The seal of the last chunk, 0 if there is none."""
        last = next((segment.last for segment in reversed(self._segments) if segment.last), None)
        return seal_of(last) if last else 0

    def begin_at(self, offset: int) -> None:
        """Set the offset of the first chunk, if no chunk was ever written."""
        first = self._segments[0]
        if len(self._segments) == 1 and not first.size and not first.path.exists():
            self._segments[0] = Segment(self.directory, offset)

    def make(self) -> None:
        """Make the file of an empty log, whose name holds the log's begin. Blocks for the disk.

        Raises:
            StorageError: the disk refused it.
        """
        segment = self._segments[-1]
        try:
            self._write_begin(segment)
            self._fd(segment)
            if self._durable and self._made is not segment:
                self._names.sync()
        except OSError as error:
            raise StorageError(
                f"log {self.directory}: cannot be begun at {self.next_offset}: {error}"
            ) from error
        self._made = segment

    def append_raw(self, header: Header, octets: bytes | memoryview, segment: int) -> None:
        """Write a chunk of another node's log as it is, in a segment with the same begin as there.

        The names of a new log are durable when this returns: the next chunk from that node may be the record that the
        log exists.

        Raises:
            StorageError: the chunk does not follow the last one, or the disk refused it; the log is as it was before.
        """
        newest = self._segments[-1]
        if not newest.size and len(self._segments) > 1 and segment == self._segments[-2].first_offset:
            newest = self._unroll()
        if header.chunk_id != self.next_offset or segment not in (newest.first_offset, self.next_offset):
            raise StorageError(
                f"log {self.directory}: chunk {header.chunk_id} of segment {segment} does not follow offset "
                f"{self.next_offset} of segment {newest.first_offset}"
            )
        if segment != newest.first_offset:
            newest = self.roll()
        self._defers_names = False
        self._write(newest, header, [octets])

    def _write(self, segment: Segment, header: Header, octets: list[bytes | memoryview]) -> None:
        try:
            if not segment.size or self._has_overhang or self._names.is_fresh:
                self._prepare(segment)
            written = os.pwritev(self._fd(segment), octets, segment.size)
            if written != header.chunk_bytes:
                raise OSError(
                    errno.ENOSPC,
                    f"{os.strerror(errno.ENOSPC)}, {written} of {header.chunk_bytes} octets written",
                )
        except FileNotFoundError as error:
            # A start would not find a later chunk either.
            raise segment.missing() from error
        except OSError as error:
            self._cut_back(segment)
            what = f"log {self.directory}: append at offset {header.chunk_id} failed"
            raise storage_error(error, what) from error
        if not self._unsynced or self._unsynced[-1] is not segment:
            self._unsynced.append(segment)
        self.unsynced_bytes += header.chunk_bytes
        segment.note(header)
        if self._owner is not None:
            self._owner.appended(self, segment.first_offset, header, octets)

    def _prepare(self, segment: Segment) -> None:
        if self._names.is_fresh and not (self._defers_names and len(self._segments) == 1):
            self._names.sync()
        if segment.size == 0:
            self._write_begin(segment)
            self._fd(segment)
            if self._durable and self._made is not segment:
                if segment.state is SegmentState.PROVISIONAL:
                    self._names.add()
                elif self._defers_names:
                    self._names.add_directory()
                else:
                    sync_directory(self.directory)
        if self._has_overhang:
            os.ftruncate(self._fd(segment), segment.size)
            self._has_overhang = False

    def _write_begin(self, newest: Segment) -> None:
        """Write the begin of a log before its first record."""
        if self.name and len(self._segments) == 1:
            self._begin.write(newest.first_offset)

    def roll(self) -> Segment:
        """Begin a new segment with the next chunk, and return it."""
        segment = self._segments[-1]
        if segment.size:
            state = SegmentState.PROVISIONAL if self._durable else SegmentState.NEWEST
            segment = Segment(self.directory, self.next_offset, state)
            self._segments.append(segment)
        return segment

    def _unroll(self) -> Segment:
        """Remove the newest segment, which is empty, and go on in the one before it. Blocks for the disk.

        The node with the original does not have that segment: it ended before it wrote the first chunk. The names
        change back in the reverse order: the newest segment may go only once it is on disk that its predecessor is
        not sealed, because a sealed segment promises a successor.

        Raises:
            StorageError: the disk refused it; the log goes on with either.
        """
        segment, empty = self._segments[-2:]
        try:
            if segment.state is SegmentState.SEALED:
                summary_path(segment.path).unlink(missing_ok=True)
                self._sealed = [path for path in self._sealed if path != segment.path]
                segment.enter(SegmentState.NEWEST)
                sync_directory(self.directory)
            segment.unshare()
            self._close_segment(empty)
            empty.path.unlink(missing_ok=True)
            sync_directory(self.directory)
        except OSError as error:
            raise StorageError(
                f"log {self.directory}: empty segment {empty.path.name} cannot be removed: {error}"
            ) from error
        for pending in (self._unsynced, self._syncing):
            if empty in pending:
                pending.remove(empty)
        self._segments.pop()
        return segment

    def prepend(self, head: Log) -> None:
        """Move the only segment of another log, durable and ending at this log's begin, in front of it.

        Blocks for the disk. One `rename` does it: whenever the node dies, this log is whole, with it or without it.

        Raises:
            StorageError: the segment does not fit, or the disk refused it; both logs are as they were.
        """
        segment, first = head._segments[0], self._segments[0]
        if len(head._segments) > 1 or segment.next_offset != first.first_offset or not segment.size:
            raise StorageError(
                f"log {self.directory}: {segment.path}, with offsets {segment.first_offset} to {segment.next_offset}, "
                f"does not fit before offset {first.first_offset}: delete {head.directory}, it will be copied again"
            )
        target = Segment(self.directory, segment.first_offset, SegmentState.SEALED)
        head.close()
        try:
            # A sealed first segment promises another one: so that one must exist, also if it is empty.
            self._fd(first)
            self._names.sync()
            segment.path.rename(target.path)
            sync_directory(self.directory)
        except OSError as error:
            with suppress(OSError):
                target.path.rename(segment.path)
            raise StorageError(
                f"log {self.directory}: {segment.path} cannot be taken in: {error}; it stays there until it can"
            ) from error
        segment.path, segment.state = target.path, SegmentState.SEALED
        self._segments.insert(0, segment)
        # Not earlier: if the node dies in between, the segment in front would look lost.
        with suppress(OSError):
            if self.name:
                self._begin.write(segment.first_offset)
        self._sealed.append(segment.path)
        head._segments.clear()

    def take_in(self, staged: Segment) -> None:
        """Append a segment that was written elsewhere: whole, durable, checked, and made to follow the last chunk.

        One `rename` does it. Until the group commit has synced the directory, and the end of the segment before, the
        new one is provisional like any other. So a crash leaves it or not, and never a part of it, because all of it
        was durable before it had a name here. No record in it is promised before that. The owner is not told: nobody
        may copy this log's changes.

        Raises:
            StorageError: it does not follow, or the disk refused it; the log is as it was before.
        """
        newest = self._segments[-1]
        if staged.first_offset != self.next_offset or not staged.size:
            raise StorageError(
                f"{staged.path}: does not follow offset {self.next_offset} of log {self.directory}"
            )
        is_second = newest.size > 0
        state = SegmentState.PROVISIONAL if is_second and self._durable else newest.state
        target = self.directory / f"{staged.first_offset:020d}{state}"
        try:
            if self._names.is_fresh and len(self._segments) + is_second > 1:
                self._names.sync()
            if self._has_overhang:
                os.ftruncate(self._fd(newest), newest.size)
                self._has_overhang = False
            self._write_begin(newest)
            rename_with_summary(staged.path, target)
        except OSError as error:
            raise storage_error(error, f"log {self.directory}: {staged.path} cannot be taken in") from error
        (self._names.add if state is SegmentState.PROVISIONAL else self._names.add_directory)()
        if not is_second:
            self._close_segment(self._segments.pop())
        staged.path, staged.state = target, state
        self._segments.append(staged)
        self.unsynced_bytes += staged.size
        self._unsynced = [each for each in self._unsynced if each in self._segments] + [staged]

    def _cut_back(self, segment: Segment) -> None:
        try:
            os.ftruncate(self._fd(segment), segment.size)
        except OSError:
            # Garbage stays behind the end: it must be removed before a shorter chunk is written over its begin.
            self._has_overhang = True

    def unsynced(self, shared: set[Path] | None = None) -> list[int]:
        """Duplicates of the descriptors that an fdatasync must cover; the caller closes them.

        The oldest segment comes first. `shared` are the directories above logs that the same round syncs already for
        other logs; this log's are added to them. Call `synced` once all are synced; without that call, everything is
        due again.

        Raises:
            OutOfDescriptors: the system has no descriptor for a duplicate now; all is due as before.
            Corrupt: the directory, or a segment in it, is gone.
            StorageError: a segment cannot be opened, or an fdatasync has failed before.
        """
        if self._sync_failure is not None:
            raise StorageError(f"log {self.directory}: cannot be synced: {self._sync_failure}")
        descriptors: list[int] = []
        shared = set() if shared is None else shared
        directories = self._names.due(shared)
        due = [*self._syncing, *(segment for segment in self._unsynced if segment not in self._syncing)]
        try:
            for segment in due:
                descriptors.append(segment.second_fd())
            for directory in directories:
                opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                descriptors.append(DirectoryDescriptor(opened))
        except (OSError, Corrupt) as error:
            close_descriptors(descriptors)
            if isinstance(error, Corrupt):
                raise
            if isinstance(error, FileNotFoundError):
                raise self.missing() from error
            raise storage_error(error, f"log {self.directory}: cannot be synced") from error
        shared.update(directories)
        self._names.begin_round()
        self._syncing, self._unsynced = due, []
        self.unsynced_bytes = 0
        self._syncing_end = self.next_offset
        return descriptors

    def is_due(self, segment: Segment) -> bool:
        """See LogReader; octets in a sync that has not ended count, too."""
        return self._durable and (segment in self._unsynced or segment in self._syncing)

    def sync_and_close(self, segment: Segment) -> None:
        """See LogReader, and storage.open_segments for why."""
        if self.is_due(segment) and segment.has_fd:
            try:
                os.fdatasync(segment.fd())
            except OSError as error:
                # No other descriptor may hide this error: octets that are not synced by now can never be promised.
                self._sync_failure = error
        super().sync_and_close(segment)

    @property
    def _is_held(self) -> bool:
        """Whether its files must exist while it is open; not so for a part, or after another log took them over."""
        return bool(self.name) and (self._owner is None or self._owner.holds(self))

    def synced(self) -> None:
        """Note that the descriptors of the last `unsynced` are synced: provisional segments among them become final.

        Raises:
            Corrupt: a synced file is gone: no record in it may be promised.
        """
        syncing, self._syncing = self._syncing, []
        if self._owner is not None and self._owner.has_replaced(self):
            return  # The same log after a cut, for instance: the files' names are its own.
        for segment in syncing if self._is_held else ():
            if segment.size:
                segment.check_file()
        self._names.end_round()
        self.synced_offset = self._syncing_end
        provisional = [segment for segment in syncing if segment.state is SegmentState.PROVISIONAL]
        if not provisional:
            return
        # A segment whose renaming fails keeps its state until the next start, which does no harm.
        with suppress(OSError):
            for segment in provisional:
                segment.enter(SegmentState.NEWEST)
        self._seal()

    def _seal(self) -> None:
        """Seal every segment that has a final successor."""
        with suppress(OSError):
            for segment, after in pairwise(self._segments):
                if segment.state is SegmentState.NEWEST and after.state is not SegmentState.PROVISIONAL:
                    segment.enter(SegmentState.SEALED)
                    self._sealed.append(segment.path)

    def take_sealed(self) -> list[Path]:
        """Segments sealed since the last call that should get a summary; see storage.summary.summarise."""
        sealed, self._sealed = self._sealed, []
        return [] if self._with_messages else sealed

    def sync(self) -> None:
        """Make all appended chunks durable, here and now. Raises StorageError, and so does every later sync then."""
        try:
            sync_and_close(self.unsynced())
        except OSError as error:
            # The kernel reports it once, and a later sync of the same octets would succeed.
            self._sync_failure = error
            raise storage_error(error, f"log {self.directory}: cannot be synced") from error
        self.synced()

    def drop_before(self, offset: int) -> int:
        """Delete whole segments, oldest first, that hold no record from `offset` on; return their number.

        The newest segment stays, so a file name always gives the next offset.

        Raises:
            StorageError: the disk refused it; segments that could not be deleted are still there.
        """
        dropped = 0
        for segment, after in pairwise(self._segments):
            if segment.next_offset > offset or after.state is SegmentState.PROVISIONAL:
                break
            dropped += 1
        if dropped:
            self._begin_with(self._segments[dropped])
        for _ in range(dropped):
            self._drop_oldest()
        return dropped

    def _begin_with(self, segment: Segment) -> None:
        """Write the new begin, before the segments in front of it go."""
        try:
            if self.name:
                self._begin.write(segment.first_offset)
        except OSError as error:
            raise StorageError(f"log {self.directory}: nothing can be dropped: {error}") from error

    def empty(self) -> None:
        """Delete all records; the next offset stays the same, after a crash too. Blocks for the disk.

        Raises:
            StorageError: the disk refused it; segments that could not be deleted are still there.
        """
        try:
            self.sync()
            if self._segments[-1].size:
                segment = Segment(self.directory, self.next_offset)
                self._fd(segment)
                if self._durable:
                    sync_directory(self.directory)
                self._segments.append(segment)
        except OSError as error:
            raise StorageError(f"log {self.directory}: cannot be emptied: {error}") from error
        self.drop_before(self.next_offset)

    def retain(
        self,
        *,
        bytes_max: int | None = None,
        older_than_ms: int | None = None,
        beside: Mapping[int, int] = NOTHING_BESIDE,
    ) -> int:
        """Delete the oldest segments beyond a size or an age; return their number.

        `beside`: octets stored elsewhere for a segment, by its first offset; they count as the segment's.
        """
        return self.drop_before(
            self.retained_from(bytes_max=bytes_max, older_than_ms=older_than_ms, beside=beside)
        )

    def _drop_oldest(self) -> None:
        segment = self._segments[0]
        self._close_segment(segment)
        try:
            # First the summary, without which the segment is as good. If either stays, the log still has the segment.
            summary_path(segment.path).unlink(missing_ok=True)
            self._remove(segment.path)
        except OSError as error:
            raise StorageError(f"log segment {segment.path} cannot be deleted: {error}") from error
        del self._segments[0]
        for pending in (self._unsynced, self._syncing):
            if segment in pending:
                pending.remove(segment)
        if self._owner is not None:
            self._owner.dropped(self)

    def delete(self) -> None:
        """Close the log and remove its directory, which may hold segments and summaries only.

        If state files are beside them, these and the directory stay; their owner removes them, perhaps later.

        Raises:
            StorageError: the disk refused it, or another file is there.
        """
        self.close()
        self._unsynced.clear()
        self._syncing.clear()
        self._names.clear()
        try:
            remove_log_files(self.directory, self._remove)
        except OSError as error:
            raise StorageError(f"log {self.directory}: cannot be removed: {error}") from error
        if self._owner is not None:
            self._owner.deleted(self)


def _ignore(chunk: Chunk) -> None:
    """Recover without looking at the chunks."""
