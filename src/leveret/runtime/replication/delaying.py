"""A follower that stays behind on purpose: what it receives waits in a spool, and is applied when its time has come.

So what happened to the leader can be looked at, and undone by promoting this node, for as long as the delay. The
spool (storage.spool) is on disk before anything in it is acked. What this node tells its leader that it has is
what is applied and what waits (`ahead`), so a join sends nothing twice.

**When.** A frame is due a delay after the leader cut it, by the two nodes' clocks. What a node lacks when it joins
is sent log by log, so a part of it is no state that the leader ever was in: all of it is due when the join's end
is, and is never applied in part. The first join of a node that has nothing is applied at once.

**Applying twice.** `applied.json` says up to where all is applied and durable. It is behind what is applied, so
after a crash some is applied again, and that must do no harm. A chunk that is there already, octet for octet, is
passed over; a drop, or what is in a file, can be repeated in order. What begins, cuts or removes a log can not be
repeated together with what came before it, and what sets chunks aside neither with what came behind: between the
two the note is brought up to date.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from leveret.model.errors import LeveretError
from leveret.runtime.commit import GroupCommit
from leveret.runtime.replication.ahead import Ahead
from leveret.runtime.replication.applier import Applier
from leveret.session.link_handshake import Leader
from leveret.storage.spool import JOINED, JOINING, Entry, Note, Spool, Waiting
from leveret.wire.chunk import ENTRIES_MAX, ChunkType, decode_chunk, decode_header
from leveret.wire.link import Change, FrameHead, Held, Kind

logger = logging.getLogger(__name__)

ALL_MS: Final = (1 << 63) - 1
"""A time that never comes: all was cut before it."""
_SLICE_BYTES: Final = 1024 * 1024
_PAUSE_S: Final = (0.1, 1.0)
"""At least, and at most, until it is looked again for what is due: clocks may be set."""
_MARKS: Final = frozenset({JOINING, JOINED})
_REWRITES: Final = frozenset({Kind.BEGIN, Kind.CUT, Kind.DELETE, Kind.ASIDE})
_SETS_ASIDE: Final = frozenset({Kind.CUT, Kind.ASIDE})
_WITH_MESSAGES: Final = ("queues/", "streams/")


@dataclass(slots=True)
class Amount:
    """How much of what a leader did: messages published, records of all kinds, octets of changes."""

    messages: int = 0
    records: int = 0
    octets: int = 0

    def add(self, entry: Entry, times: int = 1) -> None:
        """This change too; with -1, no more."""
        self.octets += times * len(entry.rest)
        if entry.kind == Kind.APPEND:
            header = decode_header(entry.rest)
            self.records += times * header.records
            if header.type == ChunkType.USER and entry.name.startswith(_WITH_MESSAGES):
                self.messages += times * header.records


@dataclass(slots=True)
class _Join:
    """Changes of a join: from one offset of the spool up to and with another, None as long as it is not through."""

    begin: int
    end: int | None = None
    at_ms: int = ALL_MS


class _Gate:
    """Decides, change by change, how far may be applied what was cut until a time."""

    def __init__(self, joins: deque[_Join], until_ms: int, *, in_part: bool) -> None:
        """With `in_part` also of a join that is not through."""
        self._joins = joins
        self._until_ms = until_ms
        self._in_part = in_part
        self._open_to = 0

    def passes(self, offset: int, at_ms: int) -> bool:
        """Whether this change may be; all before it are."""
        if offset < self._open_to:
            return True
        join = next((each for each in self._joins if each.end is None or each.end >= offset), None)
        if join is None or offset < join.begin or (join.end is None and self._in_part):
            return at_ms <= self._until_ms
        if join.end is None or join.at_ms > self._until_ms:
            return False
        self._open_to = join.end + 1
        return True


class Delaying:
    """See the module; takes the place of an Applier at the link.

    Attributes:
        apply_delay_ms: how far this node stays behind.
        applied_at_ms: when the leader cut what was applied last; 0 if that is not known.
        waiting: how much waits.
        error: why what is due is not applied; empty if it is.
        leader_joined: the leader that this node will be in step with once all is applied; None if it is already.
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
        joining: Callable[[Leader], None],
        joined: Callable[[Leader], None],
    ) -> None:
        """Nothing is open.

        Args:
            spool: where changes wait.
            applier: makes them.
            commits: makes spool and logs durable.
            apply_delay_ms: how long they wait.
            has_joined: whether this node was ever in step with a leader; if not, its first join is not delayed.
            clock_ms: the time.
            joining: called before what a leader found missing is applied.
            joined: called when all of that is applied, and durable.
        """
        self.apply_delay_ms = apply_delay_ms
        self.applied_at_ms = 0
        self.waiting = Amount()
        self.error = ""
        self.leader_joined: Leader | None = None
        self._spool = spool
        self._applier = applier
        self._commits = commits
        self._is_delaying = has_joined
        self._clock_ms = clock_ms
        self._on_joining = joining
        self._on_joined = joined
        self._ahead = Ahead(applier, spool.entry_at)
        # Offsets of the spool: applied <= durable <= end.
        self._applied = self._durable = self._end = 0
        self._joins: deque[_Join] = deque()
        self._joined_at = -1
        self._oldest_ms = 0
        self._leader: Leader | None = None
        self._begins_join = False
        """A join has begun, and the spool has nothing of it yet."""
        self._received_at_ms = 0
        self._applied_joining: Leader | None = None
        self._touched: dict[str, bool] = {}
        """What was changed since the last note, and whether chunks were set aside."""
        self._applying = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover what waits. Reads all of it, so it is for a thread; nothing else may be done with this meanwhile.

        Raises:
            Corrupt: the spool is damaged.
            StorageError: the disk refuses it.
        """
        self._spool.open(self._recovered)
        note = self._spool.note
        self._applied = self._ahead.applied = note.applied
        self._durable = self._end = self._spool.next_offset
        self.applied_at_ms = note.at_ms
        self._is_delaying |= self._applied < self._end
        if note.joining is not None:
            self._applied_joining = msgspec.convert(note.joining, Leader)
            self._on_joining(self._applied_joining)

    def _recovered(self, waiting: Waiting) -> None:
        note = self._spool.note
        if not self._end:
            self._applied = self._ahead.applied = self._end = note.applied
            if note.joining is not None:
                self._joins.append(_Join(note.applied))
        for offset, entry in enumerate(waiting.entries, waiting.first_offset):
            if entry.kind not in _MARKS:
                self._ahead.recovered(offset, entry)
        self._count(waiting.entries, waiting.at_ms)

    def _count(self, entries: Iterable[Entry], at_ms: int) -> None:
        """These wait behind all others."""
        if self._applied == self._end:
            self._oldest_ms = at_ms
        for entry in entries:
            self.waiting.add(entry)
            if entry.kind == JOINING and not self._is_in_join:
                self._joins.append(_Join(self._end))
            elif entry.kind == JOINED:
                self.leader_joined, self._joined_at = _leader_of(entry), self._end
                if self._is_in_join:
                    self._joins[-1].end, self._joins[-1].at_ms = self._end, at_ms
            self._end += 1

    @property
    def _is_in_join(self) -> bool:
        return bool(self._joins) and self._joins[-1].end is None

    def start(self) -> None:
        """Apply from now on what is due."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Apply nothing more."""
        if self._task is not None:
            self._task.cancel()
        self._spool.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.apply_until(self._clock_ms() - self.apply_delay_ms)
                self.error = ""
            except Exception as error:
                self._failed(error)
            await asyncio.sleep(self._pause_s())

    def _failed(self, error: Exception) -> None:
        text = f"what is due is not applied: {str(error) or type(error).__name__}"
        if text != self.error:
            is_bug = not isinstance(error, LeveretError)
            logger.error("delayed_changes_not_applied error=%s", error, exc_info=is_bug)
        self.error = text

    def _pause_s(self) -> float:
        least, most = _PAUSE_S
        if self.error or self.oldest_at_ms is None:
            return most
        due_ms = self.oldest_at_ms + self.apply_delay_ms - self._clock_ms()
        return min(max(least, due_ms / 1000), most)

    # -- what the link asks and brings: inbound.Hands -----------------------------------------

    def inventory(self) -> list[Held]:
        """What this node has of each log, once all is applied.

        Raises:
            StorageError: a log cannot be read.
        """
        return self._ahead.inventory()

    def files(self, applied: Iterable[str]) -> list[str]:
        """Names of the state files, once all is applied; `applied` are those that are."""
        return self._ahead.files(applied)

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """See Applier.

        Raises:
            StorageError: they cannot be read.
        """
        return self._ahead.headers(name, before, count)

    def joining(self, leader: Leader) -> None:
        """A leader compares what it has with what this node has: what it sends next may set things aside."""
        self._leader = leader
        if self._is_delaying:
            self._begins_join = True
        else:
            self._on_joining(leader)

    def take(self, head: FrameHead, changes: Iterable[Change]) -> None:
        """Have a frame's changes wait.

        Raises:
            StorageError: the disk refuses it.
            LinkError: they do not fit what is here: the link is to be begun anew.
        """
        self._received_at_ms = head.cut_at_ms
        if not self._is_delaying:
            self._applier.take(head, changes)
            return
        waiting = list(changes)
        if waiting and head.position == 0 and not self._is_in_join:
            # Also of one that has streamed and was too slow: it is brought up to date log by log, as in a join.
            self._begins_join = True
        for at in range(0, len(waiting), ENTRIES_MAX - 1):
            self._append(waiting[at : at + ENTRIES_MAX - 1])

    def joined(self, done: Callable[[], None]) -> None:
        """This node has, or will have, all that the leader has; `done` is called only if that is now.

        Raises:
            StorageError: the disk refuses it.
        """
        if not self._is_delaying:
            self._applier.joined(done)
            self._is_delaying = True
        elif self._is_in_join or self._begins_join:
            self._append([], is_end=True)

    def drop_due(self) -> None:
        """See Applier."""
        self._applier.drop_due()

    def _append(self, changes: list[Change], *, is_end: bool = False) -> None:
        assert self._leader is not None
        leader = msgspec.msgpack.encode(self._leader)
        entries = [Entry(JOINING, "", rest=leader)] if self._begins_join else []
        try:
            for offset, change in enumerate(changes, self._end + len(entries)):
                entries.append(self._ahead.plan(offset, change))
            if is_end:
                entries.append(Entry(JOINED, "", rest=leader))
            self._spool.append(entries, self._received_at_ms)
        except LeveretError:
            self._ahead.forget()
            raise
        self._ahead.keep()
        self._begins_join = False
        self._count(entries, self._received_at_ms)
        end = self._end
        self._commits.appended(self._spool.log)
        self._commits.when_durable(lambda: self._is_durable(end))

    def _is_durable(self, end: int) -> None:
        self._durable = max(self._durable, end)

    # -- applying -----------------------------------------------------------------------------

    async def apply_until(self, until_ms: int, *, in_part: bool = False) -> None:
        """Apply what the leader had done by a time, of what is durable; with `in_part` see `_Gate`.

        Raises:
            StorageError: it cannot be read, or the disk refuses it; what was applied is.
        """
        async with self._applying:
            gate = _Gate(self._joins, until_ms, in_part=in_part)
            while self._applied < self._durable and await self._apply_slice(gate):
                self._commits.begin()
                await asyncio.sleep(0)
            await self._save_note()

    async def apply_all_until(self, until_ms: int, *, in_part: bool = False) -> None:
        """As `apply_until`, also of what is not durable yet; nothing may come meanwhile."""
        await self._commits.settle()
        await self.apply_until(until_ms, in_part=in_part)

    async def _apply_slice(self, gate: _Gate) -> bool:
        """Apply a part; whether there may be more to apply."""
        for waiting in self._spool.read(self._applied, _SLICE_BYTES):
            for offset, entry in enumerate(waiting.entries, waiting.first_offset):
                if offset >= self._durable or not gate.passes(offset, waiting.at_ms):
                    self._oldest_ms = waiting.at_ms
                    return False
                await self._apply(offset, waiting.at_ms, entry)
        return True

    async def _apply(self, offset: int, at_ms: int, entry: Entry) -> None:
        if self._must_not_repeat(entry):
            await self._save_note()
        self._make(entry)
        self._touched[entry.name] = entry.kind in _SETS_ASIDE
        self._applied = offset + 1
        self.applied_at_ms = max(self.applied_at_ms, at_ms)
        self.waiting.add(entry, -1)
        self._ahead.note_applied(offset, entry)
        if offset == self._joined_at:
            self.leader_joined = None
        while self._joins and self._joins[0].end is not None and self._joins[0].end <= offset:
            self._joins.popleft()

    def _must_not_repeat(self, entry: Entry) -> bool:
        """Whether the change must not be repeated together with those since the last note."""
        if entry.kind in _MARKS:
            return bool(self._touched)
        has_set_aside = self._touched.get(entry.name)
        return has_set_aside is not None and (has_set_aside or entry.kind in _REWRITES)

    def _make(self, entry: Entry) -> None:
        name, lost = entry.name, self._ahead.lost
        if entry.kind == JOINING:
            self._applied_joining = _leader_of(entry)
            self._on_joining(self._applied_joining)
        elif entry.kind == JOINED:
            self._on_joined(_leader_of(entry))
            self._applied_joining = None
        elif name not in lost or (entry.kind in _REWRITES and entry.kind != Kind.CUT):
            lost.discard(name)
            change = _change_of(entry)
            if not self._applier.has_made(change):
                self._applier.apply(change)

    async def _save_note(self) -> None:
        """Write down how far is applied, once that is durable."""
        if self._applied == self._spool.note.applied:
            return
        await self._commits.settle()
        self._applier.drop_due()
        joining = None if self._applied_joining is None else msgspec.to_builtins(self._applied_joining)
        note = Note(self._applied, self.applied_at_ms, joining)
        await asyncio.to_thread(self._spool.save, note)
        self._touched.clear()
        self._spool.drop_applied()

    # -- how it is ----------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether anything does."""
        return self._applied < self._end

    @property
    def oldest_at_ms(self) -> int | None:
        """When the leader cut the oldest that waits; None if nothing does."""
        return self._oldest_ms if self.waits else None

    @property
    def is_torn(self) -> bool:
        """Whether the last that waits is a join that is not through."""
        return self.waits and self._is_in_join

    async def count_until(self, until_ms: int, *, in_part: bool = False) -> tuple[Amount, int | None]:
        """How much `apply_all_until` would apply, and when the leader cut the first that it would not; None: all.

        Raises:
            StorageError: the spool cannot be read.
        """
        if until_ms == ALL_MS and (in_part or not self._is_in_join):
            return replace(self.waiting), None
        gate = _Gate(self._joins, until_ms, in_part=in_part)
        amount, at = Amount(), self._applied
        while at < self._end:
            for waiting in self._spool.read(at, _SLICE_BYTES):
                for offset, entry in enumerate(waiting.entries, waiting.first_offset):
                    if not gate.passes(offset, waiting.at_ms):
                        return amount, waiting.at_ms
                    amount.add(entry)
                    at = offset + 1
            await asyncio.sleep(0)
        return amount, None


def _leader_of(entry: Entry) -> Leader:
    return msgspec.msgpack.decode(entry.rest, type=Leader)


def _change_of(entry: Entry) -> Change:
    kind = Kind(entry.kind)
    chunk = decode_chunk(entry.rest, check=False) if kind is Kind.APPEND else None
    return Change(kind, entry.name, entry.offset, chunk, entry.rest)
