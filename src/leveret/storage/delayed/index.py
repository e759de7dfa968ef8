"""Where each log ended at each time of the delay, and what was destroyed since: a delayed follower's way back.

    delayed/base.json                      where all logs ended when the window of the delay begins; see `IndexBase`
    delayed/index/<offset>.segment         a chunk a frame of the leader, its time when the leader cut the frame
    delayed/kept/<offset>/<log>.<file>     files of logs that the frame with this offset cut or deleted, as they were

A frame's chunk holds one `IndexedFrame`, in MessagePack. So the ends of all logs at a time are those of the base,
changed by all frames up to that time. What a log holds beyond its end came later, whatever it is.

**Order.** `keep` and `append` come before the change itself. An end need not be durable before the log is: after a loss
of power a log may be longer than its last end here, and a start notes that. All else that is noted cannot be found out
afterwards, so the index is synced (`is_destructive`) before the change is made. Nothing is removed for good before a
base is durable that no longer needs it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.begin import SUFFIX as BEGIN_SUFFIX
from leveret.storage.directory import make_directory, sync_directory
from leveret.storage.log import Log
from leveret.storage.removed import RemovedFiles
from leveret.storage.segment import has_segments, segment_of
from leveret.storage.state_file import StateFile, with_checksum
from leveret.storage.tree import put_log_away
from leveret.wire.chunk import Chunk, ChunkType

DIRECTORY: Final = "delayed"
SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
NEVER_MS: Final = 1 << 62
_READ_BYTES: Final = 256 * 1024


class EntryKind(IntEnum):
    """What is noted of a log or state file."""

    END = 0
    """The log ends at this offset from now on; it may be new."""
    GONE = 1
    """There is no such log from now on, and there was none before the frame."""
    DROP = 2
    """The leader dropped what ends before this offset; it is here until the delay has passed."""
    TRUNCATED = 3
    """The log ended elsewhere, and is cut at this offset; it was kept, and what is cut off is quarantined."""
    DELETED = 4
    """The log was kept, and is gone."""
    QUARANTINED = 5
    """The same, and it is quarantined as well."""
    FILE = 6
    """The state file held these octets before; None: there was none."""
    BEGINS = 7
    """The leader got earlier segments again: its log begins at this offset, or before; earlier drops end there."""


KEPT: Final = frozenset({EntryKind.TRUNCATED, EntryKind.DELETED, EntryKind.QUARANTINED})
_DESTRUCTIVE: Final = KEPT | {EntryKind.FILE}


class IndexEntry(msgspec.Struct, frozen=True, array_like=True):
    """One line of a frame, see EntryKind."""

    kind: EntryKind
    name: str
    offset: int = 0
    octets: bytes | None = None


class FramePart(IntEnum):
    """How a frame counts: those of a join are no state of the leader before the last of them."""

    WHOLE = 0
    OF_JOIN = 1
    END_OF_JOIN = 2


class IndexedFrame(msgspec.Struct, frozen=True, array_like=True):
    """One frame of the leader: what is noted of it, and how much it brought."""

    part: FramePart
    noted: list[IndexEntry]
    messages: int = 0
    records: int = 0
    octets: int = 0

    @property
    def is_destructive(self) -> bool:
        """Whether the index must be durable before the frame is applied."""
        return any(each.kind in _DESTRUCTIVE for each in self.noted)


class FrameGroup(NamedTuple):
    """Frames that count as one: a frame, or all of a join; `at_ms` is NEVER_MS for a join whose end is not here."""

    at_ms: int
    begun_ms: int
    first: int
    end: int
    frames: list[tuple[int, IndexedFrame]]


class IndexBase(msgspec.Struct):
    """Where the window begins.

    Attributes:
        offset: frames before this offset are out of it.
        at_ms: when the leader cut the last of them.
        delay_ms: the delay.
        ends: where each log ended then.
    """

    offset: int = 0
    at_ms: int = 0
    delay_ms: int = 0
    ends: dict[str, int] = {}

    def follow(self, group: FrameGroup) -> None:
        """Change the ends as a group of frames did, and begin behind it."""
        for _, frame in group.frames:
            for each in frame.noted:
                if each.kind in (EntryKind.END, EntryKind.TRUNCATED):
                    self.ends[each.name] = each.offset
                elif each.kind in (EntryKind.GONE, EntryKind.DELETED, EntryKind.QUARANTINED):
                    self.ends.pop(each.name, None)
        self.offset = group.end
        if group.at_ms != NEVER_MS:
            self.at_ms = max(self.at_ms, group.at_ms)


class DelayIndex:
    """See the module.

    Attributes:
        log: the frames.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        removed: RemovedFiles | None = None,
    ) -> None:
        """Of the node with this data directory; call `open` or `begin` before anything else.

        Kept files have the last names of deleted logs. So what is removed goes through `removed`, the node's.
        """
        self.directory = data_dir / DIRECTORY
        self._removed = removed if removed is not None else RemovedFiles(data_dir)
        self._kept = self.directory / "kept"
        self._file = StateFile(self.directory / "base.json")
        self._segment_bytes_max = segment_bytes_max
        self.log = self._log()

    @property
    def exists(self) -> bool:
        """Whether this node has one."""
        return self._file.path.exists()

    @property
    def end(self) -> int:
        """The offset that the next frame gets."""
        return self.log.next_offset

    # -- life ---------------------------------------------------------------------------------

    def begin(self, base: IndexBase) -> None:
        """Begin with an empty window.

        Raises:
            StorageError: the disk refuses it.
        """
        try:
            make_directory(self.directory)
            for path in (self._kept, self.log.directory):
                self._removed.remove(path)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot be made: {error}") from error
        base.offset = 0
        self.save(base)
        self.log = self._log().open()
        # From now on a missing file is a loss.
        self.log.make()

    def _log(self) -> Log:
        return Log(
            self.directory / "index",
            epoch=1,
            segment_bytes_max=self._segment_bytes_max,
            remove=self._removed.remove,
        )

    def open(self) -> IndexBase:
        """Recover what is there; the base.

        Raises:
            Corrupt: damage that no torn write explains: there is no way back.
            StorageError: the disk refused it, or `base.json` is damaged.
        """
        try:
            base = msgspec.convert(self._file.load(), IndexBase)
        except msgspec.ValidationError as error:
            raise StorageError(f"{self._file.path}: {error}; restore it from a copy") from error
        directory = self.log.directory
        if not directory.is_dir() or not has_segments(directory):
            raise Corrupt(str(directory), "", base.offset, -1, "its files are missing")
        self.log.open(first_offset=base.offset)
        if not self.log.first_offset <= base.offset <= self.log.next_offset:
            what = (
                f"it has frames {self.log.first_offset} to {self.end}, and the delay begins at {base.offset}"
            )
            raise Corrupt(str(self.log.directory), "", base.offset, -1, what)
        # A crash came between the two: what was kept belongs to a frame that is not here.
        for path in self._kept_since(self.end):
            with suppress(OSError):
                self._removed.remove(path)
        return base

    def put_away(self, to: Path) -> None:
        """Move all there is, which is damaged: what was kept may yet be wanted.

        Raises:
            StorageError: the disk refuses it.
        """
        self.close()
        put_log_away(self.directory, to / DIRECTORY)

    def save(self, base: IndexBase) -> None:
        """Have the base on disk.

        Raises:
            StorageError: the disk refuses it.
        """
        self.write(self.encoded(base))

    def encoded(self, base: IndexBase) -> bytes:
        """The base for `write`."""
        return with_checksum(msgspec.json.encode(base))

    def write(self, encoded: bytes) -> None:
        """As `save`; a thread may do it, while nothing else writes the base.

        Raises:
            StorageError: the disk refuses it.
        """
        self._file.write(encoded)

    def has_waste(self, offset: int) -> bool:
        """Whether something is only needed by frames before an offset."""
        kept = self._kept_since(0)
        return self.log.retained_from(before=offset) > self.log.first_offset or (
            bool(kept) and int(kept[0].name) < offset
        )

    def forget_before(self, offset: int) -> None:
        """Remove what only frames before an offset need: the base on disk begins there.

        Raises:
            StorageError: the disk refuses it; the next call goes on with it.
        """
        self.log.drop_before(offset)
        try:
            for path in self._kept_since(0):
                if int(path.name) < offset:
                    self._removed.remove(path)
        except OSError as error:
            raise StorageError(f"{self._kept}: cannot be removed: {error}") from error

    def close(self) -> None:
        """Give all descriptors back."""
        if self.log.is_open:
            self.log.close()

    def remove(self) -> None:
        """Have no way back any more.

        Raises:
            StorageError: the disk refuses it.
        """
        self.close()
        try:
            # First what says that there is one: what is left by a crash is removed by the next `begin`.
            self._file.remove()
            self._removed.remove(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot be removed: {error}") from error

    # -- frames -------------------------------------------------------------------------------

    def append(self, frame: IndexedFrame, at_ms: int) -> None:
        """Note a frame before it is applied; on disk when this returns if it is destructive.

        Raises:
            StorageError: the disk refused it; it is not noted.
        """
        data = msgspec.msgpack.encode(frame)
        self.log.append(ChunkType.USER, 1, 1, data, at_ms)
        if frame.is_destructive:
            self.log.sync()

    def groups(self, offset: int) -> Iterator[FrameGroup]:
        """All frames from an offset on, at which a group begins.

        Raises:
            Corrupt: they cannot be read back.
        """
        begun_ms, join = 0, list[tuple[int, IndexedFrame]]()
        for at, at_ms, frame in self._frames(offset):
            if frame.part is FramePart.WHOLE and not join:
                yield FrameGroup(at_ms, at_ms, at, at + 1, [(at, frame)])
                continue
            begun_ms = begun_ms if join else at_ms
            join.append((at, frame))
            if frame.part is FramePart.END_OF_JOIN:
                yield FrameGroup(at_ms, begun_ms, join[0][0], at + 1, join)
                join = []
        if join:
            yield FrameGroup(NEVER_MS, begun_ms, join[0][0], join[-1][0] + 1, join)

    def _frames(self, offset: int) -> Iterator[tuple[int, int, IndexedFrame]]:
        while offset < self.end:
            for chunk in list(self.log.read(offset, _READ_BYTES, check=True)):
                offset = chunk.header.next_offset
                yield chunk.header.chunk_id, chunk.header.timestamp_ms, self._decoded(chunk)

    def _decoded(self, chunk: Chunk) -> IndexedFrame:
        try:
            return msgspec.msgpack.decode(chunk.data, type=IndexedFrame)
        except msgspec.DecodeError as error:
            what = f"it holds no frame of a leader: {error}"
            raise Corrupt(str(self.log.directory), "", chunk.header.chunk_id, -1, what) from None

    # -- what frames destroy ------------------------------------------------------------------

    def keep(self, logs: Iterable[tuple[str, Log, int | None]]) -> None:
        """Keep the files of logs that the next frame cuts at an offset or, with None, deletes; durable on return.

        Files are linked: that takes no room. Of a log that is cut, the file that loses its end and the one before, to
        which the log may append again, are copied.

        Raises:
            StorageError: the disk refuses it; the logs are to be left as they are.
        """
        self.link(self.end, [synced(*each) for each in logs])

    def link(self, offset: int, logs: Iterable[tuple[str, Path, int | None]]) -> None:
        """As `keep`, for the frame with that offset and the directories of synced logs; a thread may do it.

        Raises:
            StorageError: as for `keep`.
        """
        place = self._kept / f"{offset:020d}"
        try:
            self._removed.remove(place)
            make_directory(place)
            for name, directory, cut_at in logs:
                _link(directory, place, _prefix(name), cut_at)
            sync_directory(place)
        except OSError as error:
            raise StorageError(f"{place}: data that the leader removes cannot be kept: {error}") from error

    def has_kept(self, offset: int, name: str) -> bool:
        """Whether the files of a log were kept for the frame with this offset."""
        return bool(self._files(offset, name))

    def largest_kept(self, offset: int, name: str) -> int:
        """The size in octets of the largest file of a log that was kept for the frame with this offset."""
        with suppress(FileNotFoundError):
            return max((path.stat().st_size for path in self._files(offset, name)), default=0)
        return 0

    def restore(self, offset: int, name: str, directory: Path) -> None:
        """Put the files of a log back; no log is in that directory. They stay here, too.

        Raises:
            StorageError: the disk refuses it.
        """
        try:
            make_directory(directory)
            for path in self._files(offset, name):
                target = directory / path.name.partition(".")[2]
                target.unlink(missing_ok=True)
                os.link(path, target)
            sync_directory(directory)
        except OSError as error:
            raise StorageError(f"{directory}: the log cannot be restored: {error}") from error

    def _files(self, offset: int, name: str) -> list[Path]:
        return sorted((self._kept / f"{offset:020d}").glob(f"{_prefix(name)}.*"))

    def _kept_since(self, offset: int) -> list[Path]:
        with suppress(FileNotFoundError):
            return sorted(path for path in self._kept.iterdir() if int(path.name) >= offset)
        return []


def _prefix(name: str) -> str:
    """Of the files of a log; its name may be longer than that of a file."""
    return blake2b(name.encode(), digest_size=16).hexdigest()


def synced(name: str, log: Log, cut_at: int | None) -> tuple[str, Path, int | None]:
    """Sync a log, whose files are then the same wherever they are linked; return its entry for `DelayIndex.link`.

    Raises:
        StorageError: the disk refuses it.
    """
    log.sync()
    return name, log.directory, cut_at


def _link(directory: Path, place: Path, prefix: str, cut_at: int | None) -> None:
    paths = {path: segment_of(path.name) for path in directory.iterdir()}
    starts = sorted(segment[0] for segment in paths.values() if segment)
    copied: set[int] = set()
    if cut_at is not None:
        copied = {start for start, end in pairwise([*starts, NEVER_MS]) if start <= cut_at <= end}
    for path, segment in paths.items():
        target = place / f"{prefix}.{path.name}"
        if segment and segment[0] in copied:
            shutil.copyfile(path, target)
            with target.open("rb") as file:
                os.fsync(file.fileno())
        elif segment or path.name.endswith(BEGIN_SUFFIX):
            # A segment that the event loop drops meanwhile is not needed.
            with suppress(FileNotFoundError):
                os.link(path, target)
