"""A delayed follower: it has all data of its leader, and keeps the data that the leader removes for a configured time.

So a promotion of this node as of a time before a mistake undoes the mistake, for as long as the delay. The same node
can be promoted at once with all changes. Records of the leader are appended here at once: a settlement is a record like
any other, so a log that is truncated at its end of a time is the log of that time. An index (storage.delayed) notes the
end of each log, frame by frame. Only destructive changes are delayed:

    a drop of old segments                 waits in the index, and is made when the delay has passed
    the deletion or truncation of a log    is made at once; the previous files are kept until then
    the replacement of a state file        is made at once; the previous octets are in the index

A drop may be made late, or not at all: dropped messages are settled, beyond retention, or stored again by relocations.

No promise of the leader waits for a delayed follower: a follower in sync may be promoted at once without loss; this
node is promoted in order to lose changes.

**When.** A frame's time is the time of the leader's cut, or of its arrival by this node's clock if that is earlier. The
records that a node lacks at a join are sent log by log, so a part of them is no state that the leader ever had: all of
them count from the join's end. The first join of a node without data is not delayed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leveret.core.replication.clock_steps import ClockSteps
from leveret.core.replication.receiver import Copied
from leveret.model.errors import Corrupt, LeveretError, PreconditionFailed, StorageError
from leveret.model.moment import moment_text
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.process.work_slices import in_slices, in_thread_to_its_end
from leveret.runtime.replication.applier import Applier, QuarantineFactory, WaitingChanges
from leveret.runtime.replication.delayed_drops import DelayedDrops
from leveret.runtime.replication.point_in_time import go_back, missing_log, past, quarantine_bytes
from leveret.runtime.replication.spooled import take_over
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.delayed.index import (
    NEVER_MS,
    DelayIndex,
    EntryKind,
    FrameGroup,
    FramePart,
    IndexBase,
    IndexedFrame,
    IndexEntry,
    synced,
)
from leveret.storage.delayed.spool import Spool
from leveret.storage.disk import free_disk_bytes
from leveret.storage.log import Log
from leveret.wire.chunk import ChunkType
from leveret.wire.link import ChangeKind, FrameHead, LogChange, LogExtent

logger = logging.getLogger(__name__)

ALL_MS: Final = (1 << 62) - 1
"""A time after every cut."""
_PAUSE_S: Final = (0.2, 1.0)
"""The shortest and the longest pause between two checks of due changes: clocks may be set."""
_DROPPED_AT_ONCE: Final = 50
"""The logs of which one turn of the event loop drops what is not needed."""
_REMOVALS: Final = 60
"""The most removals for good within one delay: each of them writes the ends of all logs to disk."""
_WITH_MESSAGES: Final = ("queues/", "streams/")
_NOTED_AS: Final = {
    ChangeKind.BEGIN: EntryKind.DELETED,
    ChangeKind.DELETE: EntryKind.DELETED,
    ChangeKind.QUARANTINE: EntryKind.QUARANTINED,
    ChangeKind.TRUNCATE: EntryKind.TRUNCATED,
}


@dataclass(slots=True)
class _Amount:
    """An amount of a leader's changes; see applier.WaitingChanges."""

    messages: int = 0
    records: int = 0
    octets: int = 0

    def add(self, groups: Iterable[FrameGroup], times: int = 1) -> None:
        for group in groups:
            for _, frame in group.frames:
                self.messages += times * frame.messages
                self.records += times * frame.records
                self.octets += times * frame.octets

    def shown(self, oldest_ms: int | None, newest_ms: int | None, error: str = "") -> WaitingChanges:
        return WaitingChanges(self.messages, self.records, self.octets, oldest_ms, newest_ms, error)


class Delaying:
    """See the module; FollowerData in front of an Applier.

    Attributes:
        apply_delay_ms: the time by which this node can go back.
    """

    def __init__(
        self,
        index: DelayIndex,
        applier: Applier,
        commits: GroupCommit,
        *,
        apply_delay_ms: int,
        has_joined: bool,
        clock_ms: Callable[[], int],
        elapsed_ms: Callable[[], int],
        on_damage: Callable[[Corrupt], None],
    ) -> None:
        """Start without open files; a node that has not joined a leader yet does not delay its first join.

        `on_damage` is called with the error of a damaged or missing index.
        """
        self.apply_delay_ms = apply_delay_ms
        self._on_damage = on_damage
        self._index = index
        self._applier = applier
        self._tree = applier.tree
        self._commits = commits
        self._delays = has_joined
        self._clock_ms = clock_ms
        self._elapsed_ms = elapsed_ms
        self._steps = ClockSteps(apply_delay_ms, clock_ms(), elapsed_ms())
        self._base = IndexBase()
        """The present begin of the window; the one on disk may be older."""
        self._amount = _Amount()
        self._error = ""
        self._durable = 0
        self._oldest_ms = self._newest_ms = 0
        self._received_at_ms = 0
        self._leader: ProvenLeader | None = None
        self._begins_join = self._is_in_join = False
        self._join_at = 0
        self._drops = DelayedDrops()
        self._unsure: set[str] = set()
        """Logs with noted changes that may not have been made."""
        self._linked: tuple[int, dict[str, int | None]] = -1, {}
        """The offset of the frame for which logs were kept last, and the offsets at which it cuts them."""
        self._removes_at_s = 0.0
        self._expiring = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover the index, or begin one. The call reads all of it, so it runs in a thread, before any other call.

        A damaged index is quarantined: all data are present, but this node can no longer go back to earlier times.

        Raises:
            StorageError: the disk refuses it.
        """
        try:
            if self._index.exists:
                self._delays = True
                self._base = self._index.open()
                self._base.delay_ms = self.apply_delay_ms
                self._index.save(self._base)
                self._recover()
            elif self._delays:
                self._begin(self._applier.last_timestamp_ms)
        except Corrupt as error:
            logger.error("delay_index_damaged error=%s action=begin_anew", error)
            name = f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(self._clock_ms() / 1000))}"
            self._index.put_away(self._tree.root / "divergent" / name)
            self._begin(self._clock_ms())

    def _begin(self, at_ms: int) -> None:
        ends = {name: log.next_offset for name, log in self._tree.logs.items()}
        self._base = IndexBase(0, at_ms, self.apply_delay_ms, ends)
        self._index.begin(self._base)
        self._durable = self._oldest_ms = self._newest_ms = 0
        self._amount, self._is_in_join, self._delays = _Amount(), False, True
        # A damaged index may have been counted up to the damage. Its offsets would hold up the drops of this one.
        self._drops.begin_window()

    def _recover(self) -> None:
        """Read the window, and find the logs whose ends differ from the noted ones."""
        base = self._base
        ends = IndexBase(base.offset, base.at_ms, base.delay_ms, dict(base.ends))
        for group in self._index.groups(base.offset):
            ends.follow(group)
            self._count(group)
            self._is_in_join, self._join_at = group.at_ms == NEVER_MS, group.first
        self._durable = self._index.end
        here = {name: log.next_offset for name, log in self._tree.logs.items()}
        differs = {name for name in here.keys() | ends.ends.keys() if here.get(name) != ends.ends.get(name)}
        self._unsure |= differs
        # More than noted: power was lost before the frame was acked. Less: a crash came in the middle of a frame, or
        # of going back, or a log is damaged; then this is no state of the leader before a join has ended.
        self._begins_join = any(here.get(name, 0) < end for name, end in ends.ends.items())

    def _count(self, group: FrameGroup) -> None:
        """Count frames at the end of the window."""
        newest_ms = group.begun_ms if group.at_ms == NEVER_MS else group.at_ms
        if group.first == self._base.offset:
            self._oldest_ms, self._newest_ms = group.begun_ms, newest_ms
        self._newest_ms = max(self._newest_ms, newest_ms)
        self._amount.add([group])
        for at, frame in group.frames:
            self._drops.noted(at, frame)

    @property
    def log(self) -> Log | None:
        """The log of the index; None without an index."""
        return self._index.log if self._delays else None

    @property
    def waits(self) -> bool:
        """Whether the window holds changes."""
        return self._delays and self._base.offset < self._index.end

    def start(self) -> None:
        """Begin to remove due data in the background."""
        if self._unsure:
            self._note([], self._clock_ms())
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def halt(self) -> None:
        """End the removal in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    async def stop(self) -> None:
        """End the removal in the background, and close the files."""
        await self.halt()
        # A start counts from the base on disk, so that stays before drops that are due and not made. If the write
        # fails, the next start has an older base, without harm.
        if self._delays and not self._drops.due:
            with suppress(StorageError):
                self._index.save(self._base)
        self._index.close()

    async def _run(self) -> None:
        while True:
            try:
                self._steps.look(self._clock_ms(), self._elapsed_ms())
                await self.expire(self._steps.before_ms)
                self._error = ""
            except Exception as error:
                text = f"data whose delay is over cannot be removed: {str(error) or type(error).__name__}"
                if text != self._error:
                    is_bug = not isinstance(error, LeveretError)
                    logger.error("delayed_changes_not_applied error=%s", error, exc_info=is_bug)
                self._error = text
                if isinstance(error, Corrupt):
                    self._on_damage(error)
                    return
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        least, most = _PAUSE_S
        if self._error or not self.waits:
            return min(most, max(least, self.apply_delay_ms / 1000))
        due_ms = self._oldest_ms - self._steps.before_ms
        return min(max(least, due_ms / 1000), most)

    # -- reports and frames of the link: applier.FollowerData ----------------------------------------

    def inventory(self) -> Iterator[LogExtent]:
        """See FollowerData."""
        return self._applier.inventory()

    def copied(self, name: str) -> Copied:
        """See FollowerData."""
        return self._applier.copied(name)

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """See FollowerData."""
        return self._applier.headers(name, before, count)

    def joining(self, leader: ProvenLeader) -> None:
        """See FollowerData."""
        self._leader = leader
        self._drops.joining()
        self._begins_join = True
        self._applier.joining(leader)

    def keeping(self, changes: Sequence[LogChange]) -> Coroutine[Any, Any, None] | None:
        """See FollowerData: a thread keeps the files of logs that these changes destroy, perhaps of thousands."""
        quarantining = self._applier.keeping(changes)
        destroyed = self._destroyed(changes) if self._delays else {}
        return self._keep(destroyed, quarantining) if destroyed else quarantining

    async def _keep(
        self,
        destroyed: dict[str, tuple[Log, int | None]],
        quarantining: Coroutine[Any, Any, None] | None,
    ) -> None:
        if quarantining is not None:
            await quarantining
        async with self._expiring:
            at = self._index.end
            kept = [synced(name, *log) async for name, log in in_slices(destroyed.items())]
            await in_thread_to_its_end(self._index.link, at, kept)
            self._linked = at, {name: cut_at for name, (_, cut_at) in destroyed.items()}

    def _destroyed(self, changes: Iterable[LogChange]) -> dict[str, tuple[Log, int | None]]:
        """Return the present logs that changes delete, or cut at an offset; their first such change counts."""
        found: dict[str, tuple[Log, int | None]] = {}
        for change in changes:
            log = self._tree.logs.get(change.name)
            if change.kind in _NOTED_AS and log is not None and change.name not in found:
                found[change.name] = log, change.offset if change.kind is ChangeKind.TRUNCATE else None
        return found

    def take(self, head: FrameHead, changes: Iterable[LogChange]) -> None:
        """See FollowerData: a frame is noted before it is applied."""
        # A leader's clock that is ahead must not lengthen the delay.
        self.take_at(min(head.cut_at_ms, self._clock_ms()), head, list(changes))

    def take_at(self, at_ms: int, head: FrameHead, changes: list[LogChange]) -> None:
        """Take a frame that the leader cut at `at_ms`.

        Raises:
            StorageError, LinkError: see Applier.apply.
        """
        self._received_at_ms = at_ms
        if not self._delays:
            self._applier.take(head, changes)
            return
        if changes:
            # Also a follower that streamed and was too slow catches up log by log, as in a join.
            self._begins_join |= head.position == 0
            self._note(changes, at_ms)
        try:
            self._applier.take(head, (each for each in changes if each.kind is not ChangeKind.DROP))
        except BaseException:
            self._unsure.update(each.name for each in changes)
            raise

    def joined(self) -> None:
        """See FollowerData."""
        leader = self._leader
        self._applier.joined()
        self._begins_join = False
        if not self._delays:
            self._commits.when_durable(lambda: self._begin_to_delay(leader))
        elif (lines := self._drops.joined()) or self._is_in_join:
            at_ms = self._received_at_ms or self._clock_ms()
            self._record(IndexedFrame(FramePart.END_OF_JOIN, lines), at_ms)

    def _begin_to_delay(self, leader: ProvenLeader | None) -> None:
        if leader is self._leader and not self._delays:
            self._begin(self._received_at_ms or self._applier.last_timestamp_ms)

    def drop_due(self) -> None:
        """See FollowerData."""
        self._applier.drop_due()

    def delayed_changes(self) -> WaitingChanges:
        """See FollowerData."""
        oldest_ms, newest_ms = (self._oldest_ms, self._newest_ms) if self.waits else (None, None)
        return self._amount.shown(oldest_ms, newest_ms, self._error)

    # -- notes --------------------------------------------------------------------------------

    def _note(self, changes: list[LogChange], at_ms: int) -> None:
        """Note a frame, and keep the data that it destroys. See storage.delayed.index for the order."""
        ends: dict[str, int | None] = {}
        lines, kept = self._ends_of(self._unsure), dict[str, tuple[Log, int | None]]()
        files: set[str] = set()
        left: dict[str, int] = {}
        self._drops.begin_frame()
        for change in changes:
            name, kind = change.name, change.kind
            if kind in (ChangeKind.FILE, ChangeKind.REMOVE):
                if name not in files and (before := self._file(change)):
                    files.add(name)
                    lines += before
                continue
            log = self._tree.logs.get(name)
            if log is None:
                # Refuse impossible names before any change is noted.
                self._tree.path_of(name)
            if kind is ChangeKind.DROP:
                self._drops.dropped(name, change.offset)
            elif kind is ChangeKind.APPEND and change.chunk is not None:
                ends[name] = change.chunk.header.next_offset
            elif kind is ChangeKind.HEAD and change.chunk is not None:
                self._drops.begins_earlier(name, change.offset)
            elif kind in _NOTED_AS:
                cut_at = change.offset if kind is ChangeKind.TRUNCATE else None
                stays = -1 if cut_at is None else cut_at
                # A truncation leaves what a later change of the same frame may destroy. The files are of before both.
                if log is not None and stays < left.get(name, stays + 1):
                    left[name] = stays
                    kept.setdefault(name, (log, cut_at))
                    lines.append(IndexEntry(_NOTED_AS[kind], name, change.offset))
                self._drops.destroyed(change)
                ends[name] = change.offset if kind in (ChangeKind.BEGIN, ChangeKind.TRUNCATE) else None
        lines += self._drops.entries(kept)
        for name, end in ends.items():
            lines.append(
                IndexEntry(EntryKind.GONE, name) if end is None else IndexEntry(EntryKind.END, name, end)
            )
        if not lines:
            return
        if kept and self._linked != (self._index.end, {name: cut_at for name, (_, cut_at) in kept.items()}):
            self._index.keep((name, log, cut_at) for name, (log, cut_at) in kept.items())
        is_of_join = self._is_in_join or self._begins_join
        frame = IndexedFrame(
            FramePart.OF_JOIN if is_of_join else FramePart.WHOLE, lines, *_amount_of(changes)
        )
        self._record(frame, at_ms)
        self._unsure.clear()

    def _file(self, change: LogChange) -> list[IndexEntry]:
        """Return a note with the previous content of a state file, if the frame changes it."""
        before = self._tree.file(self._tree.path_of(change.name)).octets()
        after = bytes(change.octets) if change.kind is ChangeKind.FILE else None
        return [IndexEntry(EntryKind.FILE, change.name, 0, before)] if before != after else []

    def _ends_of(self, names: Iterable[str]) -> list[IndexEntry]:
        """Return notes of the present ends of these logs, or of their absence."""
        logs = self._tree.logs
        return [
            IndexEntry(EntryKind.END, name, logs[name].next_offset)
            if name in logs
            else IndexEntry(EntryKind.GONE, name)
            for name in names
        ]

    def _record(self, frame: IndexedFrame, at_ms: int) -> None:
        at = self._index.end
        self._index.append(frame, at_ms)
        self._count(FrameGroup(at_ms, at_ms, at, at + 1, [(at, frame)]))
        if frame.part is FramePart.OF_JOIN and not self._is_in_join:
            self._join_at = at
        self._is_in_join = frame.part is FramePart.OF_JOIN
        self._begins_join = self._begins_join and not self._is_in_join
        end = self._index.end
        self._commits.appended(self._index.log)
        self._commits.when_durable(lambda: self._is_durable(end))

    def _is_durable(self, end: int) -> None:
        self._durable = max(self._durable, end)

    # -- the end of the delay -----------------------------------------------------------------

    async def expire(self, until_ms: int) -> None:
        """Move the begin of the window behind the leader's changes up to a time; now and then remove unneeded data.

        Raises:
            StorageError: the disk refuses it; the next call continues.
        """
        async with self._expiring:
            if not self._delays:
                return
            is_in_join = self._is_in_join and self._base.offset >= self._join_at
            for group in () if is_in_join else self._index.groups(self._base.offset):
                self._oldest_ms = group.begun_ms
                if group.end > self._durable or group.at_ms > until_ms:
                    break
                self._amount.add([group], -1)
                self._base.follow(group)
                self._drops.expired(group)
                await asyncio.sleep(0)
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._removes_at_s and (self._drops.due or self._index.has_waste(self._base.offset)):
                self._removes_at_s = now_s + self.apply_delay_ms / 1000 / _REMOVALS
                await self._remove_due()

    async def _remove_due(self) -> None:
        """Remove data that only times before the window need; first the new begin of the window is saved durably.

        The base is as long as the node has logs, so a thread writes it.
        """
        if self._drops.due and (self._begins_join or self._is_in_join):
            # The leader may be about to say that a log begins earlier there.
            return
        # The end of a cancelled write, too: a promotion then removes the file.
        await in_thread_to_its_end(self._index.write, self._index.encoded(self._base))
        dropped, due = 0, self._drops.due
        while due and not (self._begins_join or self._is_in_join):
            dropped += 1
            if dropped % _DROPPED_AT_ONCE == 0:
                await asyncio.sleep(0)
            name, first_offset = next(iter(due.items()))
            self._applier.apply(LogChange(ChangeKind.DROP, name, first_offset))
            del due[name]
        self._commits.begin()
        self._index.forget_before(self._base.offset)

    # -- promotion ----------------------------------------------------------------------------

    @property
    def is_torn(self) -> bool:
        """Whether a join has begun and not ended."""
        return self._delays and self._is_in_join

    def why_not(self, until_ms: int | None) -> str:
        """Return why a promotion with the leader's changes up to a time must not proceed; empty if it may.

        None: the operator has not chosen whether to keep the changes in the window, and either choice is final.
        """
        if self.waits and until_ms is None:
            return (
                "this delayed follower can leave changes out: --apply-delayed leads with all of them, --apply-until "
                "TIME with those that the leader had made by then, and the others are quarantined"
            )
        if until_ms is not None and until_ms < self._base.at_ms:
            return "changes of the leader after that time are applied already"
        # No change has a later time. The clock may have been set back since the last one came.
        now_ms = self._clock_ms()
        if until_ms is not None and max(now_ms, self._newest_ms) < until_ms < ALL_MS:
            return (
                f"that time lies in the future: by this node's clock it is {moment_text(now_ms)} now. "
                "--apply-delayed leads with all changes"
            )
        return ""

    def lacks(self, until_ms: int) -> str:
        """Return why this node cannot be what its leader was at a time; empty if it can.

        The reason is a damaged log that was not copied anew yet, kept files that are gone, an interrupted return to
        another time, or a full disk.

        Raises:
            StorageError: the index cannot be read.
        """
        then = past(self._index, self._base, until_ms)
        for name, end in then.ends.items():
            log = self._tree.logs.get(name)
            if name not in then.kept and (log.next_offset if log is not None else 0) < end:
                return f"log {name} does not have all of that time: it ends before offset {end}"
        if (gone := missing_log(then, self._index)) is not None:
            return f"the files of log {gone}, which were kept when it was truncated or deleted, are gone"
        free, room = free_disk_bytes(self._tree.root), quarantine_bytes(then, self._tree, self._index)
        if free is not None and free < room:
            return f"the disk has {free} octets free, and the quarantine of later records may take {room}"
        return ""

    async def left_after(self, until_ms: int | None) -> WaitingChanges:
        """Return the changes that a promotion as of a time would leave out; with None, all changes in the window.

        Raises:
            StorageError: the index cannot be read.
        """
        if until_ms is None:
            return self.delayed_changes()
        left, oldest_ms, newest_ms = _Amount(), None, None
        for group in self._index.groups(self._base.offset) if self._delays else ():
            is_torn = group.at_ms == NEVER_MS
            if oldest_ms is not None or (group.at_ms > until_ms and not (is_torn and until_ms == ALL_MS)):
                oldest_ms = oldest_ms or group.begun_ms
                newest_ms = group.begun_ms if is_torn else group.at_ms
                left.add([group])
            await asyncio.sleep(0)
        return left.shown(oldest_ms, newest_ms)

    async def hold(self, until_ms: int) -> None:
        """Remove nothing more until `finish`, so that this node can still be brought to its state at that time.

        Raises:
            PreconditionFailed: it cannot: the delay has passed meanwhile.
            StorageError: the index cannot be read, or the disk refuses a write. The removal goes on in both cases.
        """
        await self.halt()
        try:
            why = self.why_not(until_ms)
            if why:
                raise PreconditionFailed(why)
            if self._delays:
                await self.left_after(until_ms)
                await in_thread_to_its_end(self._index.write, self._index.encoded(self._base))
        except BaseException:
            self._task = asyncio.get_running_loop().create_task(self._run())
            raise

    async def finish(self, until_ms: int, quarantine: QuarantineFactory | None = None) -> None:
        """Bring all logs to their state at a time, for good; the caller takes no frames meanwhile.

        Later records are quarantined. Until the end, this node records on disk that it is no copy of its leader.

        Raises:
            StorageError: the disk refuses it; the call may be repeated, also after a crash.
        """
        await self.halt()
        if not self._delays:
            return
        await self._commits.all_durable()
        if until_ms == ALL_MS:
            await self.expire(ALL_MS)
        await self._remove_due()
        if until_ms < ALL_MS:
            assert quarantine is not None
            await go_back(past(self._index, self._base, until_ms), self._index, self._applier, quarantine)
        await self._commits.all_durable()
        self._applier.drop_due()
        self._delays = False
        self._commits.forget(self._index.log)
        self._index.remove()


def _amount_of(changes: list[LogChange]) -> tuple[int, int, int]:
    """Return the number of messages, records and octets."""
    amount = _Amount()
    for change in changes:
        amount.octets += len(change.octets)
        if change.kind is ChangeKind.APPEND and change.chunk is not None:
            header = change.chunk.header
            amount.records += header.records
            if header.type == ChunkType.USER and change.name.startswith(_WITH_MESSAGES):
                amount.messages += header.records
    return amount.messages, amount.records, amount.octets


async def follower_data(
    data_dir: Path,
    applier: Applier,
    commits: GroupCommit,
    *,
    apply_delay_ms: int,
    has_joined: bool,
    clock_ms: Callable[[], int],
    elapsed_ms: Callable[[], int],
    on_damage: Callable[[Corrupt], None],
) -> Applier | Delaying:
    """Return the receiver of the link's frames: the applier, or for a delayed follower a started Delaying.

    The waiting changes in an older version's spool are applied first. Without a delay, kept data are removed.

    Raises:
        StorageError: the index or a spool cannot be read, or the disk refuses it.
    """
    index, spool = DelayIndex(data_dir, removed=applier.tree.removed), Spool(data_dir)
    if not apply_delay_ms and not index.exists and not spool.exists:
        return applier
    delaying = Delaying(
        index,
        applier,
        commits,
        apply_delay_ms=apply_delay_ms,
        has_joined=has_joined or spool.exists,
        clock_ms=clock_ms,
        elapsed_ms=elapsed_ms,
        on_damage=on_damage,
    )
    await asyncio.to_thread(delaying.open)
    delaying.start()
    if spool.exists:
        await take_over(spool, delaying, applier, commits)
    if not apply_delay_ms:
        await delaying.finish(ALL_MS)
        return applier
    return delaying
