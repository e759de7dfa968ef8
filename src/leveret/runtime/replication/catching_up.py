"""The records that one peer still lacks, read from disk beside live traffic, until nothing is missing.

Only missing records are sent: per log from the last chunk that both nodes have. Nothing here delays a publisher: a
step reads a megabyte or so, and the next step waits until the socket has taken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import count as count_from
from itertools import islice
from typing import Final, NamedTuple

from leveret.core.replication.join import (
    Begin,
    Continue,
    DeleteLog,
    DropBefore,
    QuarantineLog,
    Step,
    Truncate,
)
from leveret.model.errors import StorageError
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.link import (
    ChangeKind,
    Frame,
    LinkError,
    file_change,
    log_change,
    name_change,
    whole_change,
)

STEP_BYTES: Final = 1024 * 1024
STEP_LOGS: Final = 64
"""In one step at most: to open a log's file takes as long as to read tens of kilobytes of it, to make it longer."""
_STEP_CHANGES: Final = 2 * STEP_LOGS
_NOTED_AT_ONCE: Final = 1000
_FIRST_NUMBER: Final = 1 << 31
"""Numbers of logs below this one are the feed's."""


class PrefixPosition(NamedTuple):
    """How far the records in front of a copy are sent, segment by segment, the newest first.

    Attributes:
        top: the copy has everything from here on.
        next_offset: of the segment that ends at `top`, what comes before this was sent.
    """

    top: int
    next_offset: int


def read_prefix(frame: Frame, number: int, log: Log, at: PrefixPosition, bytes_max: int) -> PrefixPosition:
    """Read the next chunks of the segment in front of a copy into a frame; return how far that is then.

    Raises:
        StorageError: they cannot be read.
    """
    start, next_offset = log.segment_before(at.top), at.next_offset
    if start is None:
        return PrefixPosition(0, 0)
    if not start <= next_offset < at.top:
        next_offset = start
    for segment, header, octets in log.read_segments(next_offset, max(1, bytes_max)):
        if segment != start or header.chunk_id >= at.top:
            break
        frame.add(log_change(ChangeKind.HEAD, number, start), [octets], header.records)
        next_offset = header.next_offset
    return PrefixPosition(start, start) if next_offset >= at.top else PrefixPosition(at.top, next_offset)


class CatchUpPlan:
    """Which logs have more than the follower was sent; see the module.

    Attributes:
        sent: the offset behind the last chunk that was sent, of every log that the follower knows.
        is_noted: `note_all` was called.
        skipped: logs that were closed when they were to be compared; what the follower has of them is not known.
    """

    def __init__(
        self,
        tree: Tree,
        sent: dict[str, int],
        spared: set[str],
        on_unreadable: Callable[[str, StorageError], None],
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`sent` is what the follower has of the logs it shares with the leader.

        Of the logs in `spared`, which the leader cannot read, nothing is sent. `on_unreadable` is told of another
        one that turns out to be such: it is spared from then on, unless that raises. `numbers` are those that
        logs may get; who uses several of these on one link hands them all the same.
        """
        self.sent = sent
        self.is_noted = False
        self.skipped: set[str] = set()
        self._spared = set(spared)
        self._on_unreadable = on_unreadable
        self._tree = tree
        # Octets that each of them lacked when that was looked at last: to ask all of them again takes too long.
        self._behind: dict[str, int] = {}
        self._left_bytes = 0
        # Those of them whose files nobody had open: they are closed again, for there may be thousands.
        self._idle: set[str] = set()
        self._changes: list[bytes] = []
        self._drops: dict[str, int] = {}
        self._prefixes: dict[str, PrefixPosition] = {}
        self._numbers: dict[str, int] = {}
        self._free_numbers = numbers if numbers is not None else count_from(_FIRST_NUMBER + 1)

    @property
    def is_nothing(self) -> bool:
        """Whether the follower was sent everything."""
        return not (self._behind or self._changes or self._drops or self._prefixes)

    @property
    def logs_left(self) -> int:
        """About how many logs have more records than the follower was sent."""
        return len(self._behind) + len(self._changes) // 2 + len(self._drops) + len(self._prefixes)

    def bytes_left(self, *, exactly: bool = False) -> int:
        """Octets that are to be read yet: about, and without what is new in logs that were known to have more."""
        if exactly:
            for name in self._behind:
                self._look_at(name)
        logs, prefixes = self._tree.logs, self._prefixes.items()
        in_front = (
            logs[name].bytes_from(0) - logs[name].bytes_from(at.top) for name, at in prefixes if name in logs
        )
        return self._left_bytes + sum(in_front)

    def _look_at(self, name: str) -> None:
        left = self._left(name)
        self._left_bytes += left - self._behind.get(name, 0)
        self._behind[name] = left

    def _done(self, name: str) -> None:
        self._left_bytes -= self._behind.pop(name, 0)
        if name in self._idle:
            self._idle.discard(name)
            log = self._tree.logs.get(name)
            if log is not None:
                log.close()

    def _left(self, name: str) -> int:
        log = self._tree.logs.get(name)
        if log is None:
            return 0
        return log.bytes_from(self.sent.get(name, log.first_offset))

    # -- what happens meanwhile ---------------------------------------------------------------

    async def note_all(self, names: Iterable[str]) -> None:
        """Look at these logs, with a rest now and then; definitions first, for they say what the logs of queues are."""
        for count, name in enumerate(sorted(names, key=lambda name: (name != "definitions", name))):
            if name in self._tree.logs:
                self.noted(name)
            if count % _NOTED_AT_ONCE == _NOTED_AT_ONCE - 1:
                await asyncio.sleep(0)
        self.is_noted = True

    def spare(self, name: str) -> None:
        """The leader cannot read this log: nothing of it is sent."""
        self._spared.add(name)
        self._drops.pop(name, None)
        self._done(name)

    def skip(self, name: str) -> None:
        """The log is closed, as its leader changes: nothing of it is sent on this link."""
        self.skipped.add(name)
        self.spare(name)

    def noted(self, name: str) -> None:
        """There may be more in a log."""
        if name not in self._behind and name not in self._spared:
            log = self._tree.logs[name]
            if name not in self.sent or self.sent[name] < log.next_offset:
                self._look_at(name)

    def dropped(self, name: str, first_offset: int) -> None:
        """The log begins later; if the follower lacks what came before that, its log begins anew with the rest."""
        if self.sent.get(name, -1) >= first_offset:
            self._drop(name, first_offset)

    def begun(self, name: str) -> None:
        """The log began anew, whatever the follower has of it."""
        self._spared.discard(name)
        self.skipped.discard(name)
        self._prefixes.pop(name, None)
        self.sent.pop(name, None)
        self.noted(name)

    def truncated(self, name: str, offset: int) -> None:
        """The log was cut there; what the follower was sent of the rest goes to quarantine, as it did here."""
        if self.sent.get(name, -1) > offset:
            self.sent[name] = offset
            self._changes.append(log_change(ChangeKind.CUT, self._number(name), offset))

    def precede(self, name: str, top: int) -> None:
        """The follower has the log from the offset `top` on, and lacks what stands in front of that here."""
        if name in self.sent and name not in self._spared:
            at = self._prefixes.get(name)
            if at is None or at.top < top:
                self._prefixes[name] = PrefixPosition(top, top)

    def lacks_before(self, name: str, first_offset: int) -> None:
        """What the follower had when it came began there; unless it begins anew, that is kept."""
        if self.sent.get(name, 0) > first_offset:
            self.precede(name, first_offset)

    def deleted(self, name: str) -> None:
        """The log is gone."""
        self._done(name)
        self._drops.pop(name, None)
        self._prefixes.pop(name, None)
        self.sent.pop(name, None)
        self._remove(ChangeKind.DELETE, name)

    # -- what the follower is to do -----------------------------------------------------------

    def take(self, step: Step) -> None:
        """Note what follows from the comparison of a log; anything but a Probe."""
        match step:
            case Continue(name, at):
                self.sent[name] = at
            case Begin(name, at):
                self._begin(name, at)
            case Truncate(name, at):
                self.sent[name] = at
                self._changes.append(log_change(ChangeKind.CUT, self._number(name), at))
            case DropBefore(name, at):
                self._drop(name, at)
            case DeleteLog(name):
                self._remove(ChangeKind.DELETE, name)
            case QuarantineLog(name):
                self._drops.pop(name, None)
                self._remove(ChangeKind.QUARANTINE, name)

    def _drop(self, name: str, first_offset: int) -> None:
        """The follower is to drop what ends before that offset, once it was sent all that the log has.

        Not before: what is dropped may have been stored again behind that (wire.relocation).
        """
        self._drops[name] = max(first_offset, self._drops.get(name, 0))

    def _drop_due(self) -> None:
        for name, first_offset in list(self._drops.items()):
            log = self._tree.logs.get(name)
            if log is None or name in self._spared:
                del self._drops[name]
            elif self.sent.get(name, -1) >= log.next_offset:
                self._changes.append(log_change(ChangeKind.DROP, self._number(name), first_offset))
                del self._drops[name]
            else:
                self.noted(name)

    def _remove(self, kind: ChangeKind, name: str) -> None:
        """The follower is to delete or quarantine the log."""
        self._changes.append(whole_change(kind, self._number(name)))
        # Should there be another one of that name, it gets another number: the follower forgets this one.
        del self._numbers[name]

    def file(self, name: str, octets: bytes | None) -> None:
        """A state file holds this now."""
        self._changes.append(file_change(name, octets))

    def all_files(self, extent: list[str]) -> None:
        """All state files hold what they do here, and of those that the follower has the others are gone."""
        own = dict(self._tree.files())
        for name, octets in own.items():
            self.file(name, octets)
        for name in extent:
            if name not in own:
                self.file(name, None)

    def _begin(self, name: str, offset: int) -> None:
        """The follower is to forget what it has of the log."""
        self.sent[name] = offset
        self._drops.pop(name, None)
        self._prefixes.pop(name, None)
        self._changes.append(log_change(ChangeKind.BEGIN, self._number(name), offset))

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = next(self._free_numbers)
            self._changes.append(name_change(number, name))
        return number

    # -- sending ------------------------------------------------------------------------------

    def step(self, bytes_max: int, records_max: int = 1 << 62) -> Frame:
        """The next part of what is missing, about so many octets, or records."""
        frame = Frame()
        self._drop_due()
        if len(self._changes) > _STEP_CHANGES:
            for change in self._changes[:_STEP_CHANGES]:
                frame.add(change)
            del self._changes[:_STEP_CHANGES]
            return frame
        for name in tuple(islice(self._behind, STEP_LOGS)):
            if frame.octets >= bytes_max or frame.records >= records_max:
                break
            log = self._open_log(name)
            if log is None:
                self._done(name)
                continue
            if not log.has_descriptors:
                self._idle.add(name)
            try:
                self._read(frame, name, log, bytes_max, records_max)
            except StorageError as error:
                self._on_unreadable(name, error)
                self.spare(name)
            if name in self._spared or self.sent[name] >= log.next_offset:
                self._done(name)
            else:
                self._look_at(name)
        self._drop_due()
        self._flush(frame)
        self._read_prefixes(frame, bytes_max)
        return frame

    def _open_log(self, name: str) -> Log | None:
        """A log of the leader; None if it is gone. Raises LinkError for one that was closed meanwhile."""
        log = self._tree.logs.get(name)
        if log is None and self._tree.is_closed(name):
            raise LinkError(f"log {name} was closed meanwhile, because its leader changes: join again")
        return log

    def _read_prefixes(self, frame: Frame, bytes_max: int) -> None:
        for name, at in tuple(self._prefixes.items()):
            if frame.octets >= bytes_max:
                return
            log = self._open_log(name)
            if log is None or at.top <= log.first_offset or name in self._spared:
                del self._prefixes[name]
                continue
            number = self._number(name)
            self._flush(frame)
            self._prefixes[name] = read_prefix(frame, number, log, at, bytes_max - frame.octets)

    def _read(self, frame: Frame, name: str, log: Log, bytes_max: int, records_max: int) -> None:
        number = self._number(name)
        if name not in self.sent or self.sent[name] < log.first_offset:
            self._begin(name, log.first_offset)
        self._flush(frame)
        for segment, header, octets in log.read_segments(self.sent[name], bytes_max - frame.octets):
            if header.next_offset > self.sent[name]:
                frame.add(log_change(ChangeKind.APPEND, number, segment), [octets], header.records)
                self.sent[name] = header.next_offset
            if frame.records >= records_max:
                break
        if log.size_bytes == 0:
            self.sent[name] = log.next_offset

    def _flush(self, frame: Frame) -> None:
        for change in self._changes:
            frame.add(change)
        self._changes.clear()
