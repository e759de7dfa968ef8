"""What a delayed follower has received and not applied: a log of changes, and how far they were applied.

    delayed/<offset>.segment    a chunk a frame of the leader, its timestamp when the leader cut the frame
    delayed/applied.json        the offset before which everything is applied, durably; see `Note`

A record is one change, so changes have offsets. Its entry, big endian; names are spelled out, as the numbers of a
link mean nothing after it:

    u32 length of what follows | u8 kind | u16 length | u64 offset | i64 previous | name | octets

    kind                   offset           octets
    of wire.link.Kind      as on the link   of APPEND the chunk, of FILE the file
    64 JOINING, 65 JOINED  0                the leader: the changes between the two are what the follower lacked when
                                            it joined, and only all of them together make a whole node again

`previous` is where the chunk stands here that comes before in the same log, -1 if it does not wait: so the chunks
of a log are found from the newest back, without reading what lies between.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.log import Log
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.state_file import StateFile
from leveret.wire.chunk import ENTRIES_MAX, Chunk, ChunkType, decode_header
from leveret.wire.link import ChangeKind

DIRECTORY: Final = "delayed"
SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is applied goes a segment at a time."""
JOINING: Final = 64
JOINED: Final = 65
_READ_BYTES: Final = 1024 * 1024
_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">BHQq")

Octets: TypeAlias = bytes | memoryview


class SpoolEntry(NamedTuple):
    """One change as it waits; see the module."""

    kind: int
    name: str
    offset: int = 0
    octets: Octets = b""
    previous: int = -1


class Waiting(NamedTuple):
    """Changes of one frame, which the leader cut at `at_ms` by its own clock; the first has offset `first`."""

    at_ms: int
    first: int
    entries: list[SpoolEntry]


class Note(msgspec.Struct, frozen=True):
    """How far was applied.

    Attributes:
        applied: every change before this offset is.
        at_ms: when the leader cut the last of them.
        joining: the leader, encoded, if JOINING is among them and its JOINED is not.
    """

    applied: int = 0
    at_ms: int = 0
    joining: bytes | None = None


class Spool:
    """See the module.

    Attributes:
        log: the changes.
        note: as it is on disk.
    """

    def __init__(self, data_dir: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        """Of the node with this data directory; call `open` before anything else."""
        self.directory = data_dir / DIRECTORY
        self.note = Note()
        self.log: Log
        self._segment_bytes_max = segment_bytes_max
        self._file = StateFile(self.directory / "applied.json")
        self._near = Waiting(0, 0, [])
        """What was looked at last: who looks for one chunk looks for its neighbours."""

    @property
    def exists(self) -> bool:
        """Whether this node has one; it may be empty."""
        return self.directory.is_dir()

    def open(self, on_waiting: Callable[[Waiting], None]) -> None:
        """Recover what is there; `on_waiting` gets every change that is not applied, in order.

        Raises:
            Corrupt: damage that no torn write explains.
            StorageError: the disk refused it, or `applied.json` is damaged.
        """
        try:
            self.note = msgspec.convert(self._file.load(), Note)
        except msgspec.ValidationError as error:
            raise StorageError(f"{self._file.path}: {error}; restore it from a copy") from error
        applied = self.note.applied

        def recovered(chunk: Chunk) -> None:
            if chunk.header.next_offset > applied:
                on_waiting(self._since(chunk, applied))

        self.log = self._log().open(recovered, first_offset=applied)
        if self.log.first_offset > applied:
            what = f"it begins at {self.log.first_offset}, and what is before {applied} was applied"
            raise Corrupt(str(self.directory), "", applied, -1, what)
        if self.log.next_offset < applied:
            # With durability = os the power took what was applied already: go on behind it.
            self.log.close()
            self._unlink()
            self.log = self._log().open(first_offset=applied)

    def _log(self) -> Log:
        return Log(self.directory, epoch=1, segment_bytes_max=self._segment_bytes_max)

    @property
    def end(self) -> int:
        """The offset that the next change gets."""
        return self.log.next_offset

    def append(self, entries: Sequence[SpoolEntry], at_ms: int) -> None:
        """Have at most `ENTRIES_MAX` changes wait behind all others; durable once the log is synced.

        Raises:
            StorageError: the disk refused them; none of them waits.
        """
        assert len(entries) <= ENTRIES_MAX
        data = b"".join(piece for entry in entries for piece in _encode(entry))
        self.log.append(ChunkType.USER, len(entries), len(entries), data, at_ms)

    def read(self, offset: int) -> list[Waiting]:
        """Some changes from an offset on, frame by frame, at least one if there is any.

        Raises:
            Corrupt: they cannot be read back.
        """
        # All at once: while they are applied, segments are let go.
        return [self._since(chunk, offset) for chunk in self.log.read(offset, _READ_BYTES, check=True)]

    def all_from(self, offset: int) -> Iterator[Waiting]:
        """All changes from an offset on; what is applied or appended meanwhile may be missing.

        Raises:
            Corrupt: they cannot be read back.
        """
        while offset < self.end:
            for waiting in self.read(offset):
                yield waiting
                offset = waiting.first + len(waiting.entries)

    def entry_at(self, offset: int) -> SpoolEntry:
        """The change with this offset, which is there.

        Raises:
            Corrupt: it cannot be read back.
        """
        if not 0 <= offset - self._near.first < len(self._near.entries):
            chunk = next(self.log.read(offset, 1, check=True))
            self._near = self._since(chunk, 0)
        return self._near.entries[offset - self._near.first]

    def _since(self, chunk: Chunk, offset: int) -> Waiting:
        """The changes of a chunk, without those before an offset."""
        header = chunk.header
        try:
            entries = list(_decode(memoryview(chunk.data)))
            if len(entries) != header.records:
                raise ValueError(f"{len(entries)} changes instead of {header.records}")
        except (struct.error, ValueError) as error:
            what = f"it holds no changes of a leader: {error}"
            raise Corrupt(str(self.directory), "", header.chunk_id, -1, what) from None
        skipped = max(0, offset - header.chunk_id)
        return Waiting(header.timestamp_ms, header.chunk_id + skipped, entries[skipped:])

    def save(self, note: Note) -> None:
        """Have the note on disk, and let go what it says is applied: that must be durable where it was applied.

        Raises:
            StorageError: the disk refuses it.
        """
        self._file.save(msgspec.to_builtins(note))
        self.note = note
        self.log.drop_before(note.applied)

    def close(self) -> None:
        """Give all descriptors back."""
        if hasattr(self, "log"):
            self.log.close()

    def remove(self) -> None:
        """Have no spool any more; what waits in it is gone.

        Raises:
            StorageError: the disk refuses it.
        """
        # After a removal that is broken off, nothing of it is to be applied any more.
        self.save(Note(self.end))
        self.close()
        try:
            self._unlink()
            shutil.rmtree(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot be removed: {error}") from error

    def _unlink(self) -> None:
        for path in self.directory.glob("*.segment*"):
            path.unlink()

    # -- what nobody is to apply --------------------------------------------------------------

    def quarantine(self, offset: int, quarantine: Callable[[Path], Quarantine]) -> DivergentReport | None:
        """Keep the chunks that wait from an offset on under `divergent/`, as what only a former leader had is kept.

        `quarantine` quarantines logs that are below a directory. Blocks for the disk, so it is for a thread.

        Returns:
            The last report; None if no chunk waits.

        Raises:
            StorageError: the disk refuses it; the next call goes on with it.
        """
        scratch = self.directory / "aside"
        shutil.rmtree(scratch, ignore_errors=True)
        keeper = quarantine(scratch)
        logs: dict[str, Log] = {}

        def keep(name: str) -> None:
            logs[name].sync()
            keeper.add(name)
            logs.pop(name).delete()

        for waiting in self.all_from(offset):
            for entry in waiting.entries:
                if entry.kind != ChangeKind.APPEND:
                    continue
                header = decode_header(entry.octets)
                if entry.name in logs and logs[entry.name].next_offset != header.chunk_id:
                    # What was its leader's then was another's before: that is a report of its own.
                    keep(entry.name)
                if entry.name not in logs:
                    log = Log(scratch / entry.name, epoch=1, durable=False)
                    logs[entry.name] = log.open(first_offset=header.chunk_id)
                log = logs[entry.name]
                log.append_raw(header, entry.octets, log.first_offset)
        for name in list(logs):
            keep(name)
        return keeper.finish()


def _encode(entry: SpoolEntry) -> tuple[bytes, Octets]:
    name = entry.name.encode()
    head = _HEAD.pack(entry.kind, len(name), entry.offset, entry.previous) + name
    return _LENGTH.pack(len(head) + len(entry.octets)) + head, entry.octets


def _decode(data: memoryview) -> Iterator[SpoolEntry]:
    at = 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        kind, length, offset, previous = _HEAD.unpack_from(data, at + _LENGTH.size)
        name_at = at + _LENGTH.size + _HEAD.size
        at += _LENGTH.size + size
        if name_at + length > at or at > len(data):
            raise ValueError("a change is cut short")
        name = bytes(data[name_at : name_at + length]).decode()
        yield SpoolEntry(kind, name, offset, data[name_at + length : at], previous)
