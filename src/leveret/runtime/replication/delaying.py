"""A delayed follower: received changes wait in a spool, and are applied a configured delay later.

So a mistake at the leader can be undone by promoting this node, for as long as the delay. The spool
(storage.spool) is on disk before any of its content is acked. This node reports to its leader the applied and the
waiting changes together (`ahead`), so a join sends nothing twice. No promise of the leader waits for a delayed
follower: a follower in sync may be promoted at once without loss; this node is promoted in order to lose something.

**When.** A frame is due a delay after the leader cut it, by the two nodes' clocks. The records that a node lacks at a
join are sent log by log, so a part of them is no state that the leader ever had: all of them are due when the join's
end is due, and are never applied in part. The first join of a node without data is applied at once.

**Applying twice.** `applied.json` lags behind the applied changes, so after a crash some changes are applied again, and
that must do no harm. All changes of a log that came after the note are repeated, in order: chunks that are there are
skipped, and a change that begins or removes the log anew has the same result as before. Only a change that quarantines
chunks would also take later chunks: so the note is updated before anything is applied behind such a change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from leveret.model.errors import Corrupt, LeveretError, PreconditionFailed
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.ahead import Ahead
from leveret.runtime.replication.applier import Applier, WaitingChanges
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.log import Log
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.spool import JOINED, JOINING, Note, Spool, SpoolEntry, Waiting
from leveret.wire.chunk import ENTRIES_MAX, ChunkType, decode_chunk, decode_header
from leveret.wire.link import ChangeKind, FrameHead, LogChange, LogExtent

logger = logging.getLogger(__name__)

ALL_MS: Final = (1 << 62) - 1
"""A time that all was cut before."""
_NEVER: Final = 1 << 62
_PAUSE_S: Final = (0.2, 1.0)
"""Between two looks at what is due: at least, as each ends with a note on disk; at most, as clocks may be set."""
_QUARANTINES: Final = frozenset({ChangeKind.CUT, ChangeKind.QUARANTINE})
_BEGINS: Final = frozenset({ChangeKind.BEGIN, ChangeKind.DELETE, ChangeKind.QUARANTINE})
_WITH_MESSAGES: Final = ("queues/", "streams/")


@dataclass(slots=True)
class _Amount:
    """How much of what a leader did; see applier.WaitingChanges."""

    messages: int = 0
    records: int = 0
    octets: int = 0

    def add(self, entry: SpoolEntry, times: int = 1) -> None:
        self.octets += times * len(entry.octets)
        if entry.kind == ChangeKind.APPEND:
            header = decode_header(entry.octets)
            self.records += times * header.records
            if header.type == ChunkType.USER and entry.name.startswith(_WITH_MESSAGES):
                self.messages += times * header.records


@dataclass(slots=True)
class _Join:
    """The changes of one join: spool offsets `begin` to `end`, both included; none is due until the last is here."""

    begin: int
    end: int = _NEVER
    at_ms: int = _NEVER


class Delaying:
    """See the module; FollowerData in front of an Applier.

    Attributes:
        apply_delay_ms: how far this node stays behind.
        applied_at_ms: when the leader had done no more than is applied; 0 if that is not known.
        leader_ahead: the leader that this node will be in step with once all is applied; None if it is already.
    """

    def __init__(
        self,
        spool: Spool,
        applier: Applier,
        commits: GroupCommit,
        *,
        apply_delay_ms: int,
        has_joined: bool,
        clock_ms: Callable[[], int],
        on_damage: Callable[[Corrupt], None],
    ) -> None:
        """Nothing is open; one that has not joined a leader yet applies what its first join brings at once.

        `on_damage` is told of a log, or of what waits, that is damaged or gone.
        """
        self._on_damage = on_damage
        self.apply_delay_ms = apply_delay_ms
        self.applied_at_ms = 0
        self.leader_ahead: ProvenLeader | None = None
        self._spool = spool
        self._applier = applier
        self._commits = commits
        self._delays = has_joined
        self._clock_ms = clock_ms
        self._ahead = Ahead(applier, spool)
        self._waiting = _Amount()
        self._error = ""
        # Offsets of the spool: applied <= durable <= end.
        self._applied = self._durable = self._end = 0
        self._oldest_ms = self._newest_ms = 0
        self._joins: deque[_Join] = deque()
        self._joined_at = -1
        self._leader: ProvenLeader | None = None
        self._received_at_ms = 0
        self._begins_join = False
        """A join has begun, and the spool has nothing of it yet."""
        self._applied_joining: ProvenLeader | None = None
        self._begun_ms = 0
        """When the leader cut the frame that is applied, or was last: it is not left in the middle."""
        self._needs_note = False
        self._applying = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover what waits. Reads all of it, so it is for a thread; nothing else is done with this meanwhile.

        Raises:
            Corrupt: the spool is damaged.
            StorageError: the disk refuses it.
        """
        self._spool.open(self._recovered)
        note = self._spool.note
        self._applied = self._ahead.applied = note.applied
        self._durable = self._end = self._spool.end
        self._begun_ms = note.at_ms
        self.applied_at_ms = note.at_ms or self._applier.last_timestamp_ms
        self._delays |= self.waits

    def _recovered(self, waiting: Waiting) -> None:
        note = self._spool.note
        if not self._end:
            self._applied = self._end = note.applied
            if note.joining is not None:
                self._joins.append(_Join(note.applied))
        for offset, entry in enumerate(waiting.entries, waiting.first):
            if entry.kind not in (JOINING, JOINED):
                self._ahead.recovered(offset, entry)
        self._count(waiting.entries, waiting.at_ms)

    def _count(self, entries: Iterable[SpoolEntry], at_ms: int) -> None:
        """These wait behind all others."""
        if not self.waits:
            self._oldest_ms = at_ms
        self._newest_ms = at_ms
        for entry in entries:
            self._waiting.add(entry)
            if entry.kind == JOINING and not self._is_in_join:
                self._joins.append(_Join(self._end))
            elif entry.kind == JOINED:
                self.leader_ahead, self._joined_at = _leader_of(entry.octets), self._end
                if self._is_in_join:
                    self._joins[-1].end, self._joins[-1].at_ms = self._end, at_ms
            self._end += 1

    @property
    def log(self) -> Log:
        """Of what waits."""
        return self._spool.log

    @property
    def waits(self) -> bool:
        """Whether anything does."""
        return self._applied < self._end

    @property
    def _is_in_join(self) -> bool:
        return bool(self._joins) and self._joins[-1].end == _NEVER

    def start(self) -> None:
        """Apply from now on what is due."""
        joining = self._spool.note.joining
        if joining is not None:
            self._applied_joining = _leader_of(joining)
            self._applier.joining(self._applied_joining)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def halt(self) -> None:
        """Apply nothing more by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    async def stop(self) -> None:
        """Apply nothing more, and give the files back."""
        await self.halt()
        self._spool.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.apply_until(self._clock_ms() - self.apply_delay_ms)
                self._error = ""
            except Exception as error:
                text = f"what is due is not applied: {str(error) or type(error).__name__}"
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
        due_ms = self._oldest_ms + self.apply_delay_ms - self._clock_ms()
        return min(max(least, due_ms / 1000), most)

    # -- what the link asks and brings: applier.FollowerData -----------------------------------------

    def inventory(self) -> list[LogExtent]:
        """See FollowerData."""
        return self._ahead.inventory()

    def files(self, here: Iterable[str]) -> list[str]:
        """See FollowerData."""
        return self._ahead.files(here)

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """See FollowerData."""
        return self._ahead.headers(name, before, count)

    def joining(self, leader: ProvenLeader) -> None:
        """See FollowerData."""
        self._leader = leader
        self._begins_join = self._delays
        if not self._delays:
            self._applier.joining(leader)

    def take(self, head: FrameHead, changes: Iterable[LogChange]) -> None:
        """See FollowerData: the changes of a frame wait, or none of them does."""
        if not self._delays:
            self._applier.take(head, changes)
            self.applied_at_ms = head.cut_at_ms
            return
        # A leader whose clock is ahead is not waited for any longer than others.
        self._received_at_ms = min(head.cut_at_ms, self._clock_ms())
        waiting = list(changes)
        if waiting and head.position == 0 and not self._is_in_join:
            # Also of one that streamed and was too slow: it is brought up to date log by log, as in a join.
            self._begins_join = True
        for at in range(0, len(waiting), ENTRIES_MAX - 1):
            self._append(waiting[at : at + ENTRIES_MAX - 1])

    def joined(self) -> None:
        """See FollowerData: that will be so when all is applied."""
        if not self._delays:
            leader = self._leader
            self._applier.joined()
            self._commits.when_durable(lambda: self._begin_to_delay(leader))
        elif self._is_in_join or self._begins_join:
            self._append([], is_end=True)

    def _begin_to_delay(self, leader: ProvenLeader | None) -> None:
        self._delays |= leader is self._leader

    def drop_due(self) -> None:
        """See FollowerData."""
        self._applier.drop_due()

    def delayed_changes(self) -> WaitingChanges:
        """See FollowerData."""
        oldest_ms, newest_ms = (self._oldest_ms, self._newest_ms) if self.waits else (None, None)
        return WaitingChanges(
            **asdict(self._waiting), oldest_at_ms=oldest_ms, newest_at_ms=newest_ms, error=self._error
        )

    def _append(self, changes: list[LogChange], *, is_end: bool = False) -> None:
        leader = msgspec.msgpack.encode(self._leader)
        marks = [SpoolEntry(JOINING, "", octets=leader)] if self._begins_join else []
        plan = self._ahead.plan(self._end + len(marks), changes)
        entries = [*marks, *plan.entries]
        if is_end:
            entries.append(SpoolEntry(JOINED, "", octets=leader))
        self._spool.append(entries, self._received_at_ms)
        self._ahead.keep(plan)
        self._begins_join = False
        self._count(entries, self._received_at_ms)
        end = self._end
        self._commits.appended(self._spool.log)
        self._commits.when_durable(lambda: self._is_durable(end))

    def _is_durable(self, end: int) -> None:
        self._durable = max(self._durable, end)

    # -- applying -----------------------------------------------------------------------------

    async def apply_until(self, until_ms: int) -> None:
        """Apply what the leader had done by a time, as far as it is durable here.

        A frame or join that was begun is finished.

        Raises:
            StorageError: it cannot be read, or the disk refuses it; what was applied is.
        """
        async with self._applying:
            until_ms = max(until_ms, self._begun_ms)
            if self._applied_joining is not None and self._joins and self._joins[0].at_ms != _NEVER:
                until_ms = max(until_ms, self._joins[0].at_ms)
            while self._applied < self._durable and await self._apply_some(until_ms):
                self._commits.begin()
                await asyncio.sleep(0)
            await self._save_note()

    async def _apply_some(self, until_ms: int) -> bool:
        """Apply a part; whether there may be more to apply."""
        for waiting in self._spool.read(self._applied):
            if waiting.first >= self._durable or self._due_ms(waiting) > until_ms:
                self._oldest_ms = waiting.at_ms
                return False
            for offset, entry in enumerate(waiting.entries, waiting.first):
                if self._needs_note or (entry.kind == JOINED and self._applied > self._spool.note.applied):
                    await self._save_note()
                await self._apply(offset, waiting.at_ms, entry)
        return True

    def _due_ms(self, waiting: Waiting) -> int:
        """When the leader cut this or, if it is part of a join, the end of that."""
        join = next((each for each in self._joins if waiting.first <= each.end), None)
        return join.at_ms if join is not None and waiting.first >= join.begin else waiting.at_ms

    async def _apply(self, offset: int, at_ms: int, entry: SpoolEntry) -> None:
        if entry.kind == JOINING:
            self._applied_joining = _leader_of(entry.octets)
            self._applier.joining(self._applied_joining)
        elif entry.kind == JOINED:
            self._applier.joined()
            await self._commits.settle()
            self._applied_joining = None
        else:
            self._change(entry)
        self._needs_note = entry.kind in _QUARANTINES
        self._applied = offset + 1
        self.applied_at_ms = self._begun_ms = max(self._begun_ms, at_ms)
        self._waiting.add(entry, -1)
        self._ahead.note_applied(offset, entry)
        if offset == self._joined_at:
            self.leader_ahead = None
        while self._joins and self._joins[0].end <= offset:
            self._joins.popleft()

    def _change(self, entry: SpoolEntry) -> None:
        lost = self._ahead.lost
        if entry.kind in _BEGINS:
            lost.discard(entry.name)
        if entry.name in lost:
            return
        kind = ChangeKind(entry.kind)
        chunk = decode_chunk(entry.octets, check=False) if kind is ChangeKind.APPEND else None
        change = LogChange(kind, entry.name, entry.offset, chunk, entry.octets)
        if not self._applier.has_made(change):
            position = int(self._applied_joining is None)
            self._applier.take(FrameHead(position, 0, 0, 0, 0), [change])

    async def _save_note(self) -> None:
        """Write down how far is applied, once that is durable."""
        if self._applied == self._spool.note.applied:
            return
        await self._commits.settle()
        self._applier.drop_due()
        joining = self._applied_joining
        encoded = None if joining is None else msgspec.msgpack.encode(joining)
        self._spool.save(Note(self._applied, self._begun_ms, encoded))
        self._needs_note = False

    # -- promotion ----------------------------------------------------------------------------

    @property
    def is_torn(self) -> bool:
        """Whether the last that waits is a join whose end never came."""
        return self.waits and self._is_in_join

    def why_not(self, until_ms: int | None) -> str:
        """Why a promotion must not go on that applies what was cut until a time; empty if it may.

        None: nobody has said what is to become of what waits, and neither answer can be taken back.
        """
        if self.waits and until_ms is None:
            return (
                "this delayed follower holds changes back: --apply-delayed applies all of them first, --apply-until "
                "TIME those that the leader had made by then, and the others are set aside"
            )
        if until_ms is not None and until_ms < self.applied_at_ms:
            return "what the leader did after that time is applied already"
        return ""

    async def left_after(self, until_ms: int | None) -> WaitingChanges:
        """What would still wait if everything was applied that was cut until a time; None: nothing is applied.

        Raises:
            StorageError: the spool cannot be read.
        """
        if until_ms is None:
            return self.delayed_changes()
        left, oldest_ms, newest_ms = _Amount(), None, None
        for waiting in self._spool.all_from(self._applied):
            if oldest_ms is not None or self._due_ms(waiting) > until_ms:
                oldest_ms, newest_ms = oldest_ms or waiting.at_ms, waiting.at_ms
                for entry in waiting.entries:
                    left.add(entry)
            await asyncio.sleep(0)
        return WaitingChanges(**asdict(left), oldest_at_ms=oldest_ms, newest_at_ms=newest_ms)

    async def apply_only_until(self, until_ms: int) -> None:
        """Apply what was cut until a time, and nothing more by itself.

        Raises:
            StorageError: the disk refuses it; it goes on as before.
        """
        await self.halt()
        try:
            await self.apply_until(until_ms)
        except BaseException:
            self.start()
            raise

    async def finish(
        self, until_ms: int, quarantine: Callable[[Path], Quarantine] | None
    ) -> DivergentReport | None:
        """Apply what was cut until a time, quarantine the rest and have no spool any more; nothing comes meanwhile.

        Without `quarantine` the rest, which its leader has, is sent by that again.

        Returns:
            The report of what was quarantined, None if nothing was.

        Raises:
            StorageError: the disk refuses it; the call may be repeated.
        """
        await self.halt()
        await self._commits.settle()
        await self.apply_until(until_ms)
        report = None
        if self.waits and quarantine is not None:
            report = await asyncio.to_thread(self._spool.quarantine, self._applied, quarantine)
        self._commits.forget(self._spool.log)
        self._spool.remove()
        return report


def refuse_to_lead(data_dir: Path) -> None:
    """What a delayed follower holds back must neither be forgotten nor be applied without a word.

    Raises:
        PreconditionFailed: there is some.
        StorageError: the spool cannot be read.
    """
    spool = Spool(data_dir)
    if not spool.exists:
        return
    spool.open(lambda waiting: None)
    if spool.end > spool.note.applied:
        spool.close()
        raise PreconditionFailed(
            f"{data_dir}: this node was a delayed follower and holds changes back; start it with --follow again and "
            "run leveretctl promote_follower with --apply-delayed or --apply-until"
        )
    spool.remove()


def _leader_of(octets: bytes | memoryview) -> ProvenLeader:
    return msgspec.msgpack.decode(octets, type=ProvenLeader)


async def follower_data(
    data_dir: Path,
    applier: Applier,
    commits: GroupCommit,
    *,
    apply_delay_ms: int,
    has_joined: bool,
    clock_ms: Callable[[], int],
    on_damage: Callable[[Corrupt], None],
) -> Applier | Delaying:
    """What stands at the link: the applier, or for a follower that is to stay behind a Delaying that has started.

    What waits from before, when no delay is wanted any more, is applied first.

    Raises:
        StorageError: the spool cannot be read, or the disk refuses it.
    """
    spool = Spool(data_dir)
    if not apply_delay_ms and not spool.exists:
        return applier
    delaying = Delaying(
        spool,
        applier,
        commits,
        apply_delay_ms=apply_delay_ms,
        has_joined=has_joined,
        clock_ms=clock_ms,
        on_damage=on_damage,
    )
    await asyncio.to_thread(delaying.open)
    delaying.start()
    if apply_delay_ms:
        return delaying
    await delaying.finish(ALL_MS, None)
    return applier
