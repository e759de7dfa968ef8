"""How far an outgoing log has each queue, also where the records that say so are retained no more.

What is copied of a queue is at downstreams, and is to be ended there with the queue (`runtime.outgoing`), however long
ago retention dropped the last record of it. So where the log begins, a state file says how far it had each queue
that had not ended there. Order: the file is on disk before the records are dropped. It says what they said and
nothing of what is behind them, which may still be lost with the power; and where it is ahead of the log, as nothing
was dropped after all, reading those records once more changes nothing.

It is written only with a drop, so of some 50 octets a queue for each segment that goes, and never appended to the
log: what is carried there would be transferred, and pushed out what is held, by thousands of queues that stand still.

A file that is behind the begin of the log is of a log that began anew, and one that is ahead of its end is of one
that was lost: nothing of it counts, and queues are copied anew.
"""

from __future__ import annotations

import msgspec

from leveret.model.errors import StorageError
from leveret.runtime.outgoing_reach import Key
from leveret.storage.log import Log
from leveret.storage.state_file import StateFile


class _Saved(msgspec.Struct, frozen=True):
    """Where the log began, or was about to, and how far it had been with whom: name, life, position."""

    first: int = -1
    positions: list[tuple[bytes, int, int]] = []


class Carried:
    """By queue and life, what each segment of the log says of it, and what those before said."""

    def __init__(self, file: StateFile) -> None:
        """Of a log that is yet to be read; `file` is the one beside it."""
        self._file = file
        self._before: dict[Key, int] = {}
        self._said: dict[int, dict[Key, int | None]] = {}

    def note(self, key: Key, segment: int, position: int | None) -> None:
        """A record in the newest segment says how far the queue is copied; None: that it ended."""
        said = self._said.setdefault(segment, {})
        # A settlement of what was dropped stands at a place that is copied already.
        said[key] = None if position is None else max(position, said.get(key) or 0)

    def load(self, log: Log) -> dict[Key, int]:
        """All positions in a log that was read: how far it has each queue that has not ended.

        Raises:
            StorageError: the file is damaged.
        """
        try:
            saved = msgspec.convert(self._file.load(), _Saved)
        except msgspec.ValidationError as error:
            raise StorageError(
                f"{self._file.path}: {error}; remove it, messages of queues that are gone may come back at downstreams"
            ) from None
        if log.first_offset <= saved.first <= log.next_offset:
            self._before = {(name, life): position for name, life, position in saved.positions}
        return self._up_to(log.next_offset + 1)

    def save(self, first: int) -> None:
        """The log is about to begin with the segment at `first`. Blocks for the disk.

        Raises:
            StorageError: the disk refused it; what is before is not to be dropped.
        """
        positions = [(*key, position) for key, position in self._up_to(first).items()]
        self._file.replace(msgspec.json.encode(_Saved(first, positions)))

    def forget_before(self, first: int) -> None:
        """The log begins with the segment at `first` now."""
        if any(segment < first for segment in self._said):
            self._before = self._up_to(first)
            self._said = {segment: said for segment, said in self._said.items() if segment >= first}

    def clear(self) -> None:
        """The log is empty, and begins anew.

        Raises:
            StorageError: the disk refused it.
        """
        self._file.remove()
        self._before, self._said = {}, {}

    def _up_to(self, end: int) -> dict[Key, int]:
        """What is said by all segments that begin before an offset."""
        positions = dict(self._before)
        for segment, said in self._said.items():
            if segment < end:
                for key, position in said.items():
                    if position is None:
                        positions.pop(key, None)
                    else:
                        positions[key] = max(position, positions.get(key, 0))
        return positions
