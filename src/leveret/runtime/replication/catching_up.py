"""The records that one peer still lacks, read from disk beside live traffic, until nothing is missing.

Only missing records are sent: for each log from the last chunk that both nodes have. No step delays a publisher: a
step reads a megabyte or so, and the next step waits until the socket has taken it.
"""

from __future__ import annotations

import asyncio
import logging
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
from leveret.storage.open_segments import OutOfDescriptors
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

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 1024 * 1024
STEP_LOGS: Final = 64
"""The most logs in one step: opening a log's file takes as long as reading tens of kilobytes."""
_STEP_CHANGES: Final = 2 * STEP_LOGS
_NOTED_AT_ONCE: Final = 1000
_FIRST_NUMBER: Final = 1 << 31
"""The feed uses the numbers below this one for logs."""


class PrefixPosition(NamedTuple):
    """The sent part of a copy's prefix, segment by segment, the newest first.

    Attributes:
        top: the copy has everything from this offset on.
        next_offset: the end of the sent part of the segment that ends at `top`.
    """

    top: int
    next_offset: int


def read_prefix(frame: Frame, number: int, log: Log, at: PrefixPosition, bytes_max: int) -> PrefixPosition:
    """Read the next chunks of a prefix segment into a frame; return the position behind them.

    The position is 0 if there is no more, or if they cannot be read: the log's owner finds the damage, and the copy
    continues without the rest of the prefix.

    Raises:
        OutOfDescriptors: they cannot be read now.
    """
    start, next_offset = log.segment_before(at.top), at.next_offset
    if start is None:
        return PrefixPosition(0, 0)
    if not start <= next_offset < at.top:
        next_offset = start
    try:
        for segment, header, octets in log.read_segments(next_offset, max(1, bytes_max)):
            if segment != start or header.chunk_id >= at.top:
                break
            frame.add(log_change(ChangeKind.HEAD, number, start), [octets], header.records)
            next_offset = header.next_offset
    except OutOfDescriptors:
        raise
    except StorageError as error:
        logger.error("prefix_not_sent log=%s error=%s", log.name, error)
        return PrefixPosition(0, 0)
    return PrefixPosition(start, start) if next_offset >= at.top else PrefixPosition(at.top, next_offset)


class CatchUpPlan:
    """The logs with records that the follower was not sent; see the module.

    Attributes:
        sent: for each log that the follower knows, the offset behind the last sent chunk.
        is_noted: whether `note_all` has ended.
        skipped: logs that were closed and so not compared; the follower's copies of them are unknown.
    """

    def __init__(
        self,
        tree: Tree,
        sent: dict[str, int],
        spared: set[str],
        on_unreadable: Callable[[str, StorageError], None],
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Start with `sent`, the ends of the follower's copies of the leader's logs.

        The leader cannot read the logs in `spared`, and sends none of their records. `on_unreadable` is called with
        another log that proves unreadable; unless the call raises, that log is spared from then on. `numbers` yields
        the numbers of logs; all plans of one link share it.
        """
        self.sent = sent
        self.is_noted = False
        self.skipped: set[str] = set()
        self._spared = set(spared)
        self._on_unreadable = on_unreadable
        self._tree = tree
        # The missing octets of each log when last measured: to measure all of them again takes too long.
        self._behind: dict[str, int] = {}
        self._left_bytes = 0
        # The logs of these whose files were closed before: they are closed again, for there may be thousands.
        self._idle: set[str] = set()
        self._changes: list[bytes] = []
        self._drops: dict[str, int] = {}
        self._prefixes: dict[str, PrefixPosition] = {}
        self._numbers: dict[str, int] = {}
        self._free_numbers = numbers if numbers is not None else count_from(_FIRST_NUMBER + 1)

    @property
    def is_nothing(self) -> bool:
        """Whether all records and changes were sent."""
        return not (self._behind or self._changes or self._drops or self._prefixes)

    @property
    def logs_left(self) -> int:
        """The approximate number of logs with unsent changes."""
        return len(self._behind) + len(self._changes) // 2 + len(self._drops) + len(self._prefixes)

    def bytes_left(self, *, exactly: bool = False) -> int:
        """Return the octets still to read; approximately, without new records of known logs, unless `exactly`."""
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

    # -- changes of the leader's logs ---------------------------------------------------------

    async def note_all(self, names: Iterable[str]) -> None:
        """Note missing records of these logs, with pauses; definitions first, because they define queues' logs."""
        for count, name in enumerate(sorted(names, key=lambda name: (name != "definitions", name))):
            if name in self._tree.logs:
                self.noted(name)
            elif self._tree.is_closed(name):
                self.skip(name)
            if count % _NOTED_AT_ONCE == _NOTED_AT_ONCE - 1:
                await asyncio.sleep(0)
        self.is_noted = True

    def spare(self, name: str) -> None:
        """Send no records of a log that the leader cannot read."""
        self._spared.add(name)
        self._drops.pop(name, None)
        self._done(name)

    def skip(self, name: str) -> None:
        """Send no records of a log on this link, because it is closed while its leader changes."""
        self.skipped.add(name)
        self.spare(name)

    def noted(self, name: str) -> None:
        """Note that a log may have missing records."""
        if name not in self._behind and name not in self._spared:
            log = self._tree.logs[name]
            if name not in self.sent or self.sent[name] < log.next_offset:
                self._look_at(name)

    def dropped(self, name: str, first_offset: int) -> None:
        """Note a drop; if the follower lacks the records before it, the copy begins anew at the new first offset."""
        if self.sent.get(name, -1) >= first_offset:
            self._drop(name, first_offset)

    def begun(self, name: str) -> None:
        """Note that the log began anew: the follower's copy does too."""
        self._spared.discard(name)
        self.skipped.discard(name)
        self._prefixes.pop(name, None)
        self.sent.pop(name, None)
        self.noted(name)

    def truncated(self, name: str, offset: int) -> None:
        """Note that the log was truncated; the follower quarantines the records behind, as this node did."""
        if self.sent.get(name, -1) > offset:
            self.sent[name] = offset
            self._changes.append(log_change(ChangeKind.TRUNCATE, self._number(name), offset))

    def precede(self, name: str, top: int) -> None:
        """Note that the follower lacks the log's prefix before the offset `top`."""
        if name in self.sent and name not in self._spared:
            at = self._prefixes.get(name)
            if at is None or at.top < top:
                self._prefixes[name] = PrefixPosition(top, top)

    def lacks_before(self, name: str, first_offset: int) -> None:
        """Note that the follower's copy begins at this offset; unless the copy begins anew, it lacks the prefix."""
        if self.sent.get(name, 0) > first_offset:
            self.precede(name, first_offset)

    def deleted(self, name: str) -> None:
        """Note that the log was deleted."""
        self._done(name)
        self._drops.pop(name, None)
        self._prefixes.pop(name, None)
        self.sent.pop(name, None)
        self._remove(ChangeKind.DELETE, name)

    # -- steps for the follower ---------------------------------------------------------------

    def take(self, step: Step) -> None:
        """Note a step from the comparison of a log, except a Probe."""
        match step:
            case Continue(name, at):
                self.sent[name] = at
            case Begin(name, at):
                self._begin(name, at)
            case Truncate(name, at):
                self.sent[name] = at
                self._changes.append(log_change(ChangeKind.TRUNCATE, self._number(name), at))
            case DropBefore(name, at):
                self._drop(name, at)
            case DeleteLog(name):
                self._remove(ChangeKind.DELETE, name)
            case QuarantineLog(name):
                self._drops.pop(name, None)
                self._remove(ChangeKind.QUARANTINE, name)

    def _drop(self, name: str, first_offset: int) -> None:
        """Have the follower drop segments that end before that offset, once it was sent all records of the log.

        Not before: later records may store dropped messages again (wire.relocation).
        """
        self._drops[name] = max(first_offset, self._drops.get(name, 0))

    def _drop_due(self) -> None:
        for name, first_offset in list(self._drops.items()):
            log = self._tree.logs.get(name)
            if log is None or name in self._spared:
                del self._drops[name]
            elif self.sent.get(name, -1) >= log.next_offset:
                # Not more than is gone now: segments may have come in front of a cluster's log since.
                begin = min(first_offset, log.first_offset)
                self._changes.append(log_change(ChangeKind.DROP, self._number(name), begin))
                del self._drops[name]
            else:
                self.noted(name)

    def _remove(self, kind: ChangeKind, name: str) -> None:
        """Have the follower delete or quarantine the log."""
        self._changes.append(whole_change(kind, self._number(name)))
        # The follower forgets this number; a later log of the same name gets another one.
        del self._numbers[name]

    def file(self, name: str, octets: bytes | None) -> None:
        """Send the present content of a state file; None: it is gone."""
        self._changes.append(file_change(name, octets))

    def all_files(self, extent: list[str]) -> None:
        """Send all state files; the follower removes its other ones."""
        own = dict(self._tree.files())
        for name, octets in own.items():
            self.file(name, octets)
        for name in extent:
            if name not in own:
                self.file(name, None)

    def _begin(self, name: str, offset: int) -> None:
        """Have the follower's copy of the log begin anew."""
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
        """Return a frame with the next missing records, about so many octets, or records."""
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
        """Return a log of the leader; None if it is gone. Raises LinkError if it was closed meanwhile."""
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
