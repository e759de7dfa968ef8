"""The definitions log: every change of a durable entity, in order, one record each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from leveret.model.definitions import Change, Definitions, decode_change, encode_change
from leveret.model.errors import Corrupt
from leveret.runtime.commit import GroupCommit
from leveret.storage.log import Log
from leveret.wire.chunk import ENTRIES_MAX, Chunk, ChunkType, encode_entry, split_entries


class DefinitionsStore:
    """Reads the definitions at start, appends changes afterwards.

    Attributes:
        definitions: what the log said at start.
        next_offset: number of changes ever logged; a new queue's epoch is beyond it.
    """

    def __init__(self, directory: Path, commit: GroupCommit, clock_ms: Callable[[], int]) -> None:
        """Open the log.

        Raises:
            Corrupt: the definitions cannot be read; the node must not start without them.
        """
        self.definitions = Definitions()
        self._commit = commit
        self._clock_ms = clock_ms
        self._log = Log(directory, epoch=1)
        self._log.open(self._recovered)

    def _recovered(self, chunk: Chunk) -> None:
        for index, entry in enumerate(split_entries(chunk.data)):
            try:
                self.definitions.apply(decode_change(entry))
            except msgspec.DecodeError as error:
                offset = chunk.header.chunk_id + index
                raise Corrupt(
                    str(self._log.directory), "", offset, -1, f"not a change of a definition: {error}"
                ) from None

    @property
    def next_offset(self) -> int:
        """How many changes were ever logged."""
        return self._log.next_offset

    def append(self, changes: Sequence[Change]) -> None:
        """Log changes; durable after the next group commit.

        Raises:
            StorageError: the disk refused them; none is logged.
        """
        for at in range(0, len(changes), ENTRIES_MAX):
            entries = [encode_entry(encode_change(change)) for change in changes[at : at + ENTRIES_MAX]]
            count = len(entries)
            self._log.append(ChunkType.USER, count, count, b"".join(entries), self._clock_ms())
        self._commit.appended(self._log)

    def close(self) -> None:
        """Sync and close."""
        self._log.sync()
        self._log.close()
