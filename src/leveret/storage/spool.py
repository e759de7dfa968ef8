"""What a delayed follower has received and not applied: a log of changes, and how far they were applied.

    delayed/<offset>.segment    a chunk a frame of the leader, its timestamp when the leader cut the frame
    delayed/applied.json        the offset up to which everything is applied, and durable; see `Note`

A record is one change, so that changes have offsets. Its entry, big endian; names are spelled out, for the numbers
of a link mean nothing after it:

    u8 kind | u16 length | u64 offset | i64 previous | name | the rest

    kind                    offset              the rest
    wire.link.Kind          as on the link      of APPEND the chunk; of FILE the file; of CUT the header of the
                                                last chunk that is left, empty for none
    64 JOINING, 65 JOINED   0                   the leader: between the two, changes are what the follower lacked
                                                when it joined, and only all of them together are a whole node

`previous` is the offset, here, of the last APPEND of the same log that stands before; -1 for none that counts. By
that the chunks of a log are found from the newest back without reading what lies between.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.log import Log
from leveret.storage.state_file import StateFile
from leveret.storage.walk import walk
from leveret.wire.chunk import ENTRIES_MAX, Chunk, ChunkType

DIRECTORY: Final = "delayed"
FILE: Final = "applied.json"
SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is applied goes a segment at a time."""
JOINING: Final = 64
JOINED: Final = 65
_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">BHQq")

Octets: TypeAlias = bytes | memoryview


class Entry(NamedTuple):
    """One change as it waits; see the module."""

    kind: int
    name: str
    offset: int = 0
    rest: Octets = b""
    previous: int = -1


class Waiting(NamedTuple):
    """A chunk: changes that the leader cut at `at_ms`, by its own clock; the first has offset `first_offset`."""

    at_ms: int
    first_offset: int
    entries: list[Entry]


class Note(msgspec.Struct, frozen=True):
    """How far was applied.

    Attributes:
        applied: every change before this offset is.
        at_ms: when the leader cut the last of them.
        joining: the leader, if JOINING is among them and its JOINED is not.
    """

    applied: int = 0
    at_ms: int = 0
    joining: dict[str, Any] | None = None


class Spool:
    """See the module.

    Attributes:
        log: the changes.
        note: as it is on disk.
    """

    def __init__(self, data_dir: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        """Describe what a node keeps in its data directory; call `open` before anything else."""
        self._data_dir = data_dir
        self._segment_bytes_max = segment_bytes_max
        self.directory = data_dir / DIRECTORY
        self.note = Note()
        self.log: Log
        self._file = StateFile(self.directory / FILE)

    def open(self, on_waiting: Callable[[Waiting], None]) -> None:
        """Recover what is there; `on_waiting` gets every change that is not applied, in order.

        Raises:
            Corrupt: damage that no torn write explains.
            StorageError: the disk refused it, or `applied.json` is damaged.
        """
        self.note = _load(self._file)
        self.log = self._log()
        self.log.open(lambda chunk: self._recovered(chunk, on_waiting), first_offset=self.note.applied)
        if self.log.first_offset > self.note.applied:
            what = f"the first change is {self.log.first_offset}, applied are those before {self.note.applied}"
            raise Corrupt(str(self.directory), "", self.note.applied, -1, what)
        if self.log.next_offset < self.note.applied:
            # With durability = os the power took what was applied already: the offsets go on behind it.
            self.log.close()
            for path in self.directory.glob("*.segment*"):
                path.unlink()
            self.log = self._log()
            self.log.open(first_offset=self.note.applied)

    def _log(self) -> Log:
        return Log(self.directory, epoch=1, segment_bytes_max=self._segment_bytes_max)

    def _recovered(self, chunk: Chunk, on_waiting: Callable[[Waiting], None]) -> None:
        if chunk.header.next_offset > self.note.applied:
            on_waiting(_since(self._decode(chunk), self.note.applied))

    @property
    def next_offset(self) -> int:
        """The offset that the next change gets."""
        return self.log.next_offset

    def append(self, entries: Sequence[Entry], at_ms: int) -> int:
        """Have changes wait behind all others; how many octets they take. Durable as every log is.

        Raises:
            StorageError: the disk refused them; what is not in `next_offset` is not there.
        """
        octets = 0
        for at in range(0, len(entries), ENTRIES_MAX):
            part = entries[at : at + ENTRIES_MAX]
            data = b"".join(piece for entry in part for piece in _encode(entry))
            self.log.append(ChunkType.USER, len(part), len(part), data, at_ms)
            octets += len(data)
        return octets

    def read(self, offset: int, bytes_max: int) -> list[Waiting]:
        """Changes from an offset on, whole chunks, at least one if there is any.

        Raises:
            Corrupt: they cannot be read back.
        """
        chunks = self.log.read(offset, bytes_max, check=True)
        return [_since(self._decode(chunk), offset) for chunk in chunks]

    def entry_at(self, offset: int) -> Entry:
        """The change with this offset, which is there.

        Raises:
            Corrupt: it cannot be read back.
        """
        return self.read(offset, 1)[0].entries[0]

    def _decode(self, chunk: Chunk) -> Waiting:
        header = chunk.header
        try:
            entries = _decode(memoryview(chunk.data))
        except (struct.error, ValueError) as error:
            what = f"no changes of a leader: {error}"
            raise Corrupt(str(self.directory), "", header.chunk_id, -1, what) from None
        if len(entries) != header.records:
            what = f"{len(entries)} changes instead of {header.records}"
            raise Corrupt(str(self.directory), "", header.chunk_id, -1, what)
        return Waiting(header.timestamp_ms, header.chunk_id, entries)

    def save(self, note: Note) -> None:
        """Have the note on disk when this returns; everything before it must be durable where it was applied.

        Raises:
            StorageError: the disk refuses it.
        """
        self._file.save(msgspec.to_builtins(note))
        self.note = note

    def drop_applied(self) -> None:
        """Delete what the note says is applied, as far as it fills segments.

        Raises:
            StorageError: the disk refuses it.
        """
        self.log.drop_before(self.note.applied)

    def close(self) -> None:
        """Give all descriptors back."""
        if hasattr(self, "log"):
            self.log.close()


def _load(file: StateFile) -> Note:
    try:
        return msgspec.convert(file.load(), Note)
    except msgspec.ValidationError as error:
        raise StorageError(f"{file.path}: {error}") from error


def _encode(entry: Entry) -> tuple[bytes, Octets]:
    name = entry.name.encode()
    head = _HEAD.pack(entry.kind, len(name), entry.offset, entry.previous) + name
    return _LENGTH.pack(len(head) + len(entry.rest)) + head, entry.rest


def _decode(data: memoryview) -> list[Entry]:
    entries = []
    at = 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        kind, length, offset, previous = _HEAD.unpack_from(data, at + _LENGTH.size)
        name_at = at + _LENGTH.size + _HEAD.size
        at += _LENGTH.size + size
        if name_at + length > at or at > len(data):
            raise ValueError("a change is cut short")
        name = bytes(data[name_at : name_at + length]).decode()
        entries.append(Entry(kind, name, offset, data[name_at + length : at], previous))
    return entries


def _since(waiting: Waiting, offset: int) -> Waiting:
    """Without what is before an offset."""
    skipped = max(0, offset - waiting.first_offset)
    if not skipped:
        return waiting
    return Waiting(waiting.at_ms, waiting.first_offset + skipped, waiting.entries[skipped:])


# -- without opening it ---------------------------------------------------------------------------


def has_waiting(data_dir: Path) -> bool:
    """Whether there is something that was received and not applied; what cannot be told counts as that."""
    directory = data_dir / DIRECTORY
    if not directory.is_dir():
        return False
    try:
        applied = _load(StateFile(directory / FILE)).applied
        with closing(walk(directory, applied)) as found:
            return next(found, None) is not None
    except (StorageError, OSError):
        return True


def put_away(data_dir: Path, *, what: str = DIRECTORY) -> Path | None:
    """Keep a spool that nobody is to apply under `divergent/`, which nobody removes; where, None without one.

    Raises:
        StorageError: the disk refuses it.
    """
    directory = data_dir / DIRECTORY
    if not directory.is_dir():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        kept = data_dir / "divergent"
        kept.mkdir(mode=0o700, exist_ok=True)
        name, number = f"{what}-{stamp}", 1
        while (kept / name).exists():
            number += 1
            name = f"{what}-{stamp}-{number}"
        directory.rename(kept / name)
        for changed in (kept, data_dir):
            _sync_directory(changed)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be moved to divergent/: {error}") from error
    return kept / name


def remove(data_dir: Path) -> None:
    """Have no spool any more; all that is in it is applied.

    Raises:
        StorageError: the disk refuses it.
    """
    directory = data_dir / DIRECTORY
    try:
        if directory.is_dir():
            # The note goes last: what is left of a removal that was broken off is still applied.
            for path in directory.glob("*.segment*"):
                path.unlink()
            shutil.rmtree(directory)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be removed: {error}") from error


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
