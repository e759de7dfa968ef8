"""What an older Leveret's delayed follower had received and not applied: it is read, applied, and gone.

    delayed/<offset>.segment    a chunk a frame of the leader, its timestamp when the leader cut the frame
    delayed/applied.json        the offset before which everything is applied, durably; see `AppliedPosition`

A record is one change, so changes have offsets. Its entry, big endian; names are spelled out:

    u32 length of what follows | u8 kind | u16 length | u64 offset | i64 previous | name | octets

    kind                     offset           octets
    of wire.link.ChangeKind  as on the link   of APPEND the chunk, of FILE the file
    64 JOINING, 65 JOINED    0                the leader: the changes between the two are what the follower lacked when
                                              it joined
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.log import Log
from leveret.storage.segment import has_segments
from leveret.storage.state_file import StateFile
from leveret.wire.chunk import Chunk

DIRECTORY: Final = "delayed"
JOINING: Final = 64
JOINED: Final = 65
_READ_BYTES: Final = 1024 * 1024
_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">BHQq")


class SpoolEntry(NamedTuple):
    """One change as it waits; see the module."""

    kind: int
    name: str
    offset: int
    octets: memoryview


class WaitingFrame(NamedTuple):
    """Changes of one frame, which the leader cut at `at_ms` by its own clock; the first has offset `first`."""

    at_ms: int
    first: int
    entries: list[SpoolEntry]


class AppliedPosition(msgspec.Struct, frozen=True):
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
        note: as it is on disk.
    """

    def __init__(self, data_dir: Path) -> None:
        """Of the node with this data directory; call `open` before anything else."""
        self.directory = data_dir / DIRECTORY
        self.note = AppliedPosition()
        self._log = Log(self.directory, epoch=1)
        self._file = StateFile(self.directory / "applied.json")

    @property
    def exists(self) -> bool:
        """Whether this node has one; it may be empty."""
        return self.directory.is_dir() and (self._file.path.exists() or has_segments(self.directory))

    def open(self) -> None:
        """Recover what is there.

        Raises:
            Corrupt: damage that no torn write explains.
            StorageError: the disk refused it, or `applied.json` is damaged.
        """
        try:
            self.note = msgspec.convert(self._file.load(), AppliedPosition)
        except msgspec.ValidationError as error:
            raise StorageError(f"{self._file.path}: {error}; restore it from a copy") from error
        self._log.open(first_offset=self.note.applied)

    @property
    def has_waiting(self) -> bool:
        """Whether anything is not applied."""
        return self.note.applied < self._log.next_offset

    def waiting(self) -> Iterator[WaitingFrame]:
        """All that is not applied, frame by frame.

        Raises:
            Corrupt: it cannot be read back.
        """
        offset = self.note.applied
        while offset < self._log.next_offset:
            for chunk in list(self._log.read(offset, _READ_BYTES, check=True)):
                yield self._since(chunk, offset)
                offset = chunk.header.next_offset

    def _since(self, chunk: Chunk, offset: int) -> WaitingFrame:
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
        return WaitingFrame(header.timestamp_ms, header.chunk_id + skipped, entries[skipped:])

    def save(self, note: AppliedPosition) -> None:
        """Have the note on disk: what it says must be durable where it was applied.

        Raises:
            StorageError: the disk refuses it.
        """
        self._file.save(msgspec.to_builtins(note))
        self.note = note

    def close(self) -> None:
        """Give all descriptors back."""
        self._log.close()

    def remove(self) -> None:
        """Have no spool any more; all of it is applied, durably.

        Raises:
            StorageError: the disk refuses it.
        """
        # After a removal that is broken off, nothing of it is to be applied any more.
        self.save(AppliedPosition(self._log.next_offset))
        self.close()
        try:
            for path in self.directory.glob("*.segment*"):
                path.unlink()
            self._file.remove()
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot be removed: {error}") from error


def _decode(data: memoryview) -> Iterator[SpoolEntry]:
    at = 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        kind, length, offset, _ = _HEAD.unpack_from(data, at + _LENGTH.size)
        name_at = at + _LENGTH.size + _HEAD.size
        at += _LENGTH.size + size
        if name_at + length > at or at > len(data):
            raise ValueError("a change is cut short")
        name = bytes(data[name_at : name_at + length]).decode()
        yield SpoolEntry(kind, name, offset, data[name_at + length : at])
