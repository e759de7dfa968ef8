"""The position of an outgoing log in each queue, for queues whose records retention has dropped.

The end of a queue has to reach every downstream that has records of it (`runtime.collecting.collector`), even long
after retention dropped the queue's last record from the outgoing log. So a state file has the position in each
queue that had not ended where the log begins. Order: the file is on disk before the records are dropped. It has the
positions of the dropped records only, because later records may still be lost with the power. If a crash prevents
the drop, the file is ahead of the log; the records are then read once more, which changes nothing.

The file is written only at a drop: some 50 octets a queue for each dropped segment. The positions are not appended
to the log, because thousands of idle queues would then be transferred again and again, and would displace records.

If a log begins anew, its queues are copied anew, and the log has no position of earlier records; downstreams still
have those records. So before the log's content is dropped, the file gets an upper bound for each incarnation that
had not ended (`former`), until it ends. If a crash prevents the drop, some queues are copied once more.

A file that is behind the begin of the log, or ahead of its end, belongs to a lost log. It is ignored, and queues
are copied anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from leveret.model.errors import StorageError
from leveret.runtime.collecting.lowest_offsets import Key
from leveret.storage.log import Log
from leveret.storage.state_file import StateFile, with_checksum

_WITHOUT: Final = "otherwise remove it: messages of queues that are gone may come back at downstreams then"


class _Saved(msgspec.Struct, frozen=True):
    """The log's begin, present or next, and the positions: name, incarnation, position."""

    first: int = -1
    positions: list[tuple[bytes, int, int]] = []
    former: list[tuple[bytes, int, int]] = []


class PositionsCheckpoint:
    """The positions in each segment of the log, by queue and incarnation, and those before its begin.

    Attributes:
        former: the offsets up to which downstreams may have incarnations from before the log began anew; read only.
    """

    def __init__(self, file: StateFile) -> None:
        """Begin with a log that is yet to be read; `file` is the one beside it."""
        self.former: dict[Key, int] = {}
        self._file = file
        self._before: dict[Key, int] = {}
        self._former_before: dict[Key, int] = {}
        self._said: dict[int, dict[Key, int | None]] = {}

    def note(self, key: Key, segment: int, position: int | None) -> None:
        """Note a record in the newest segment: the position of a queue's copy, or None for its end."""
        said = self._said.setdefault(segment, {})
        # A settlement of dropped messages is at a position that is copied already.
        said[key] = None if position is None else max(position, said.get(key) or 0)
        if position is None:
            self.former.pop(key, None)

    def load(self, log: Log) -> dict[Key, int]:
        """All positions of a log that was read, of queues that have not ended.

        Raises:
            StorageError: the file is damaged.
        """
        try:
            saved = msgspec.convert(self._file.load(_WITHOUT), _Saved)
        except msgspec.ValidationError as error:
            raise StorageError(f"{self._file.path}: {error}; {_WITHOUT}") from None
        if log.first_offset <= saved.first <= log.next_offset:
            self._before = {(name, incarnation): position for name, incarnation, position in saved.positions}
            self._former_before = {
                (name, incarnation): position for name, incarnation, position in saved.former
            }
            self.former = self._former_up_to(log.next_offset + 1)
        return self._up_to(log.next_offset + 1)

    def save(self, first: int) -> None:
        """Store the positions before the log begins with the segment at `first`. Blocks for the disk.

        Raises:
            StorageError: the disk refused it; earlier segments must not be dropped.
        """
        self._write(first, self._up_to(first), self._former_up_to(first))

    def forget_before(self, first: int) -> None:
        """Note that the log begins with the segment at `first` now."""
        if any(segment < first for segment in self._said):
            self._before, self._former_before = self._up_to(first), self._former_up_to(first)
            self._said = {segment: said for segment, said in self._said.items() if segment >= first}

    def begin_anew(self, first: int) -> None:
        """Store the positions before the log, which is durable, drops everything and goes on at `first`.

        Blocks for the disk.

        Raises:
            StorageError: the disk refused it; nothing must be dropped.
        """
        for key, position in self._up_to(first + 1).items():
            self.former[key] = max(position, self.former.get(key, 0))
        self._write(first, {}, self.former)

    def clear(self) -> None:
        """Note that the log is empty."""
        self._before, self._former_before, self._said = {}, dict(self.former), {}

    def _write(self, first: int, positions: dict[Key, int], former: dict[Key, int]) -> None:
        rows = ([(*key, position) for key, position in each.items()] for each in (positions, former))
        self._file.replace(with_checksum(msgspec.json.encode(_Saved(first, *rows))))

    def _up_to(self, end: int) -> dict[Key, int]:
        """The positions in all segments that begin before an offset."""
        positions = dict(self._before)
        for key, position in self._said_before(end):
            if position is None:
                positions.pop(key, None)
            else:
                positions[key] = max(position, positions.get(key, 0))
        return positions

    def _former_up_to(self, end: int) -> dict[Key, int]:
        """The earlier incarnations without an end in the segments that begin before an offset."""
        ended = {key for key, position in self._said_before(end) if position is None}
        return {key: position for key, position in self._former_before.items() if key not in ended}

    def _said_before(self, end: int) -> Iterator[tuple[Key, int | None]]:
        for segment, said in self._said.items():
            if segment < end:
                yield from said.items()
