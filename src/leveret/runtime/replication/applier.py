"""A follower's data: applies the changes of its leader to its own tree.

A chunk is verified when its frame is decoded, before it is written. Changes are applied in the order of their arrival.
They are acked only after a group commit of this node has synced them.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from leveret.core.replication.join import Bounds
from leveret.core.replication.receiver import Copied
from leveret.model.errors import StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.process.work_slices import in_thread_to_its_end
from leveret.runtime.replication.prefix_segment import DIRECTORY as PREFIXES
from leveret.runtime.replication.prefix_segment import CopiedPrefix, remove_directory
from leveret.runtime.replication.sent_logs import check_name
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.directory import make_directory
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.chunk import HEADER_BYTES, Chunk
from leveret.wire.link import ChangeKind, FrameHead, LinkError, LogChange, LogExtent

logger = logging.getLogger(__name__)


_ANY_EPOCH: Final = 1 << 64
_NOT_HERE: Final = Copied(None, _ANY_EPOCH)
_DIVERGENT: Final = frozenset({ChangeKind.TRUNCATE, ChangeKind.QUARANTINE})
_OF_ITSELF: Final = frozenset({ChangeKind.DROP, ChangeKind.FILE, ChangeKind.REMOVE, ChangeKind.HEAD})
"""Changes that keep a node's consistency unchanged, whichever other changes are missing."""


class QuarantineFactory(Protocol):
    """Stores divergent records: storage.quarantine.quarantine.Quarantine."""

    def add(self, path: str, at_offset: int = 0) -> object:
        """Copy the log's records from that offset on; the copy is on disk on return."""


class WaitingChanges(NamedTuple):
    """The received changes that a delayed follower can leave out when it is promoted.

    Attributes:
        messages, records, octets: their amount: published messages, records of all kinds, octets.
        oldest_at_ms, newest_at_ms: the times of the leader's first and last cut of them, by its clock.
        error: the reason why due removals fail; empty if they do not.
    """

    messages: int = 0
    records: int = 0
    octets: int = 0
    oldest_at_ms: int | None = None
    newest_at_ms: int | None = None
    error: str = ""


class FollowerData(Protocol):
    """The receiver of a link's frames: an Applier, or a Delaying in front of one."""

    apply_delay_ms: int

    def inventory(self) -> Iterable[LogExtent]:
        """Return the extent of each log of this node. Raises StorageError."""

    def copied(self, name: str) -> Copied | None:
        """See core.replication.receiver.CopiedLogs."""

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """Return the headers of at most `count` chunks of a log before an offset, newest first. Raises StorageError."""

    def joining(self, leader: ProvenLeader) -> None:
        """Begin a join: the leader compares its logs with the copies; its next frames may quarantine records."""

    def keeping(self, changes: Sequence[LogChange]) -> Coroutine[Any, Any, None] | None:
        """Return long work to be done before `take` gets these changes; None for none. Raises StorageError."""

    def take(self, head: FrameHead, changes: Iterable[LogChange]) -> None:
        """Make the changes of a frame. Raises StorageError, LinkError: the caller begins the link anew."""

    def joined(self) -> None:
        """End the join: this node has received all records of the leader."""

    def drop_due(self) -> None:
        """Drop the segments that waited for records which are durable now. Raises StorageError."""

    def delayed_changes(self) -> WaitingChanges | None:
        """Return the changes that can be left out; None for a node without a delay."""


class CopyOwner:
    """The node whose copies an Applier changes; it overrides the methods for what concerns it."""

    def replayed(self, name: str, log: Log, chunk: Chunk) -> None:
        """Take a chunk that was appended to a log."""

    def rewriting(self) -> None:
        """Prepare for changes after which this node may lack promised records, until a join has ended.

        Called before a log is truncated, quarantined or begins anew, and before earlier records of the leader are
        copied.
        """

    def joining(self, leader: ProvenLeader) -> None:
        """Prepare for the first change of a join."""

    def joined(self, leader: ProvenLeader) -> None:
        """Note that all records of the leader are on this node's disk."""

    def rewritten(self, name: str) -> None:
        """Note that a log began anew, was truncated or received a prefix segment, while the leader sends its cuts."""

    def quarantine_now(self, leader: ProvenLeader, name: str, at: int) -> None:
        """Quarantine the divergent records of a log from an offset on; it is truncated because the leader's copy was.

        Raises:
            LinkError: this node quarantines nothing outside of a join.
        """
        raise LinkError(f"log {name} is to be quarantined, and no join is under way")


class Applier:
    """See the module.

    Attributes:
        apply_delay_ms: the time for which removed data are kept.
        tree: the changed tree.
        quarantine: the quarantine of the present join, for divergent chunks.
        has_rewritten: whether a log began anew, or was truncated or quarantined.
    """

    def __init__(self, tree: Tree, commits: GroupCommit, owner: CopyOwner) -> None:
        """Start without a change of the tree; `commits` syncs the changes."""
        self.apply_delay_ms = 0
        self.tree = tree
        self._commits = commits
        self.quarantine: QuarantineFactory | None = None
        self.has_rewritten = False
        self._owner = owner
        self._leader: ProvenLeader | None = None
        self._is_copying = False
        self._is_streaming = False
        """Whether the present frame is a cut of the leader, and not records that the leader read from disk."""
        self._prefixes: dict[str, CopiedPrefix] = {}
        self._drops: dict[str, tuple[int, int]] = {}
        self._last: dict[str, bytes] = {}
        self._newest_ms: int | None = None
        self._begun: set[str] = set()
        """The logs that began at offset 0 and may have no file yet."""
        self._quarantined: set[tuple[str, int]] = set()
        """The logs, and the offsets, from which on a thread has quarantined them for the next frame."""

    # -- extents ------------------------------------------------------------------------------

    def inventory(self) -> Iterator[LogExtent]:
        """Yield the extent of each log of this node; each step may read a file.

        Raises:
            StorageError: a log cannot be read.
        """
        for name, log in tuple(self.tree.logs.items()):
            yield self.extent(name, log)

    def extent(self, name: str, log: Log) -> LogExtent:
        """Return the extent of one log of this node; may read a file.

        Raises:
            StorageError: the log cannot be read.
        """
        last = self._last.get(name)
        if last is None:
            last = b""
            for header in self.headers(name, log.next_offset, 1):
                last = header
        return LogExtent(name, log.first_offset, log.next_offset, last)

    def copied(self, name: str) -> Copied:
        """See core.replication.receiver.CopiedLogs. A follower accepts every log, with every epoch."""
        log = self.tree.logs.get(name)
        if log is not None:
            return Copied(Bounds(log.first_offset, log.next_offset), _ANY_EPOCH)
        check_name(self.tree, name)
        return _NOT_HERE

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """Return the headers of at most `count` chunks of a log that begin before an offset, newest first.

        Raises:
            StorageError: they cannot be read.
        """
        log = self.tree.logs.get(name)
        if log is None or not log.size_bytes:
            return []
        return [octets for _, octets in log.headers_before(before, count)]

    @property
    def last_timestamp_ms(self) -> int:
        """The timestamp of the newest of all chunks, by its leader's clock; 0 without chunks."""
        if self._newest_ms is None:
            self._newest_ms = max((log.last_timestamp_ms for log in self.tree.logs.values()), default=0)
        return self._newest_ms

    def delayed_changes(self) -> WaitingChanges | None:
        """See FollowerData."""
        return None

    # -- changes ------------------------------------------------------------------------------

    def joining(self, leader: ProvenLeader) -> None:
        """See FollowerData; waiting drops end, as in `reported`."""
        self._leader = leader
        self._is_copying = self._is_streaming = False
        for prefix in self._prefixes.values():
            prefix.forget()
        self._prefixes.clear()
        self._drops.clear()
        self._quarantined.clear()
        # The leader sends unfinished prefix segments again.
        remove_directory(self.tree.root / PREFIXES, self.tree.removed)
        self._owner.joining(leader)

    def joined(self) -> None:
        """See FollowerData; the owner's `joined` comes once all records are durable, unless another join has begun."""
        leader = self._leader
        assert leader is not None
        self._is_copying = False
        self.make_empty()
        self._commits.when_durable(lambda: self._joined(leader))

    def _joined(self, leader: ProvenLeader) -> None:
        if leader is self._leader and not self._is_copying:
            self._owner.joined(leader)

    def keeping(self, changes: Sequence[LogChange]) -> Coroutine[Any, Any, None] | None:
        """See FollowerData: a thread quarantines the records that these changes remove in a join, perhaps gigabytes."""
        quarantine, first = self.quarantine, dict[str, LogChange]()
        for change in changes if quarantine is not None else ():
            first.setdefault(change.name, change)
        divergent = [
            (change.name, self._at(change, log))
            for change in first.values()
            if change.kind in _DIVERGENT and (log := self.tree.logs.get(change.name)) is not None
        ]
        return self._quarantining(quarantine, divergent) if quarantine is not None and divergent else None

    async def _quarantining(self, quarantine: QuarantineFactory, divergent: list[tuple[str, int]]) -> None:
        # After a sync no segment gets its final name while they are listed.
        await self._commits.all_durable()
        for name, at in divergent:
            await in_thread_to_its_end(quarantine.add, name, at)
        self._quarantined.update(divergent)

    def _at(self, change: LogChange, log: Log) -> int:
        return change.offset if change.kind is ChangeKind.TRUNCATE else log.first_offset

    def take(self, head: FrameHead, changes: Iterable[LogChange]) -> None:
        """Make the changes of a frame.

        Raises:
            StorageError, LinkError: see `apply`.
        """
        self._is_streaming = bool(head.position)
        for change in changes:
            if not head.position and not self._is_copying and change.kind not in _OF_ITSELF:
                # Records from disk come log by log: until the join ends, this is no state that the leader ever had.
                self._owner.rewriting()
                self._is_copying = True
            self.apply(change)
        self._quarantined.clear()
        if self._is_streaming:
            self.make_empty()

    def has_made(self, change: LogChange) -> bool:
        """Return whether a repeated change was made before, and must not be made again."""
        log = self.tree.logs.get(change.name)
        if log is None:
            return False
        if change.kind is ChangeKind.TRUNCATE:
            return log.next_offset <= change.offset
        if change.chunk is None or change.chunk.header.chunk_id >= log.next_offset:
            return False
        # The chunk came before a restart, and may not be on disk yet.
        self._commits.appended(log)
        return True

    def apply(self, change: LogChange) -> None:
        """Make one change.

        Raises:
            StorageError: the disk refuses it, or it does not fit the copy: the caller begins the link anew.
            LinkError: the change is invalid.
        """
        match change.kind:
            case ChangeKind.APPEND if change.chunk is not None:
                self._append(change.name, change.offset, change.chunk, change.octets)
            case ChangeKind.DROP:
                self._drop(change.name, change.offset)
            case ChangeKind.DELETE:
                self._delete(change.name)
            case ChangeKind.BEGIN:
                self._begin(change.name, change.offset)
            case ChangeKind.TRUNCATE | ChangeKind.QUARANTINE:
                self._rewrite()
                self._keep(change)
                self.remove_divergent(change)
            case ChangeKind.FILE:
                self._replace(change.name, bytes(change.octets))
            case ChangeKind.REMOVE:
                self._remove(change.name)
            case ChangeKind.HEAD if change.chunk is not None:
                self._precede(change.name, change.offset, change.chunk, change.octets)
            case _:
                raise LinkError(f"change of kind {change.kind} is none")

    def _replace(self, name: str, octets: bytes) -> None:
        """Replace a state file, perhaps in the directory of a log whose first chunk is still to come."""
        path = self.tree.path_of(name)
        try:
            make_directory(path.parent)
        except OSError as error:
            raise StorageError(f"{path.parent}: cannot be made: {error}") from error
        file = self.tree.file(path)
        # A join sends all state files, and most are unchanged.
        if file.octets() != octets:
            file.replace(octets)

    def _remove(self, name: str) -> None:
        """Remove a state file; it may be the last file in the directory of a deleted log."""
        path = self.tree.path_of(name)
        self.tree.file(path).remove()
        if path.parent != self.tree.root and self.tree.name_of(path.parent) not in self.tree.logs:
            with suppress(OSError):
                path.parent.rmdir()

    def _append(self, name: str, segment: int, chunk: Chunk, octets: bytes | memoryview) -> None:
        log = self.tree.logs.get(name) or self.open(name, segment)
        log.append_raw(chunk.header, octets, segment)
        self._commits.appended(log)
        self._last[name] = bytes(octets[:HEADER_BYTES])
        if self._newest_ms is not None:
            self._newest_ms = max(self._newest_ms, chunk.header.timestamp_ms)
        self._owner.replayed(name, log, chunk)

    def open(self, name: str, first_offset: int = 0) -> Log:
        """Open a log; a new one begins at that offset. Raises StorageError."""
        log = self.tree.log(self.tree.path_of(name))
        return log.open(first_offset=first_offset, with_messages=False, sync=False)

    def begin_rewriting(self) -> None:
        """Note that the caller will truncate logs on its own: until that is done, they are no copy of a leader."""
        self._owner.rewriting()
        self.has_rewritten = True

    def _precede(self, name: str, segment: int, chunk: Chunk, octets: bytes | memoryview) -> None:
        """Append a chunk to a prefix segment; ignore a repeated one, or one whose segment's begin did not come."""
        if name not in self.tree.logs:
            return
        if name in self._drops and chunk.header.chunk_id == segment:
            # The leader has dropped that segment, or lacked it, and has it again.
            first_offset, on_disk = self._drops[name]
            self._drops[name] = min(first_offset, segment), on_disk
        prefix = self._prefixes.get(name)
        if prefix is None:
            prefix = self._prefixes[name] = CopiedPrefix(
                name, self.tree, self._commits, self._not_moved_in, lambda: self._owner.rewritten(name)
            )
        if prefix.is_next(segment, chunk):
            prefix.append(segment, chunk, octets)

    def _not_moved_in(self, error: StorageError) -> None:
        logger.error("prefix_not_moved_in error=%s action=copy_at_next_join", error)

    def _rewrite(self) -> None:
        # The newest chunk may go.
        self._newest_ms = None
        if self._is_streaming:
            return
        if not self.has_rewritten:
            self._owner.rewriting()
            self.has_rewritten = True

    def _begin(self, name: str, offset: int) -> None:
        if name in self.tree.logs:
            self._rewrite()
            self._delete(name)
        log = self.open(name, offset)
        if offset:
            # The next chunk may take long: make the empty log's begin durable for the next start.
            log.make()
        else:
            self._begun.add(name)
        self.tree.begun(log)
        if self._is_streaming:
            self._owner.rewritten(name)

    def make_empty(self) -> None:
        """Give each log that began without a chunk a file.

        The leader's log may be empty, for it lost records that it had confirmed to nobody, and the definitions say that
        the log exists. Without a file, a start or a promotion would take the log for lost. A join sends the begins of
        all logs first, and most get a file with their first chunk, so its end is early enough.

        Raises:
            StorageError: the disk refuses it; the next call makes the others.
        """
        for name in list(self._begun):
            log = self.tree.logs.get(name)
            if log is not None and not log.size_bytes:
                log.make()
            self._begun.discard(name)

    def _drop(self, name: str, first_offset: int) -> None:
        log = self.tree.logs.get(name)
        if name in self._prefixes:
            self._prefixes[name].drop(first_offset)
        if log is not None:
            # Relocated messages of the dropped segments may be here, but not on disk yet.
            self._drops[name] = first_offset, log.want_sync()
            self._commits.appended(log)
            self._drop_if_due(name)

    def drop_due(self) -> None:
        """Drop the segments that the leader dropped; a drop that still waits for a sync is left to the next call.

        Raises:
            StorageError: the disk refuses one of them; all others are made.
        """
        refused: StorageError | None = None
        for name in list(self._drops):
            try:
                self._drop_if_due(name)
            except StorageError as error:
                refused = error
        if refused is not None:
            raise refused

    def _drop_if_due(self, name: str) -> None:
        first_offset, on_disk = self._drops[name]
        log = self.tree.logs.get(name)
        if log is not None:
            if log.synced_offset < on_disk:
                return
            log.drop_before(first_offset)
        if log is None or log.first_offset >= first_offset:
            del self._drops[name]

    def _delete(self, name: str) -> None:
        log = self.tree.logs.get(name)
        self.forget(name)
        if log is not None:
            self._commits.forget(log)
            log.delete()

    def reported(self, name: str) -> None:
        """Cancel a waiting drop of a log whose extent is reported to a leader, which then says where its log begins.

        Its log may begin earlier, if it lacks the records that settle the dropped ones, or got earlier segments since.
        """
        self._drops.pop(name, None)

    def forget(self, name: str) -> None:
        """Cancel waiting changes of a log, because another owner changes it from now on."""
        self._last.pop(name, None)
        self._drops.pop(name, None)
        self._begun.discard(name)
        prefix = self._prefixes.pop(name, None)
        if prefix is not None:
            prefix.remove()

    # -- divergent records --------------------------------------------------------------------

    def _keep(self, change: LogChange) -> None:
        log = self.tree.logs.get(change.name)
        if log is None:
            return
        at = self._at(change, log)
        if (change.name, at) in self._quarantined:
            self._quarantined.remove((change.name, at))
        elif self.quarantine is not None:
            self.quarantine.add(change.name, at)
        elif self._is_streaming and self._leader is not None:
            self._owner.quarantine_now(self._leader, change.name, at)
        else:
            raise LinkError(f"log {change.name} is to be quarantined, and no join is under way")

    def remove_divergent(self, change: LogChange) -> None:
        """Truncate a log, or delete it, after its records are in quarantine: a crash in between repeats both.

        Raises:
            StorageError: the disk refuses it, or the log is missing.
        """
        name, log = change.name, self.tree.logs.get(change.name)
        if change.kind is ChangeKind.QUARANTINE:
            if log is not None:
                # Followers of this node quarantine it as well.
                for receiver in self.tree.receivers:
                    receiver.truncated(name, log.first_offset)
                self._delete(name)
                logger.warning("divergent_log_quarantined log=%s", name)
            return
        if log is None:
            raise StorageError(f"log {name} is to be cut at offset {change.offset}, and is not here")
        self._commits.forget(log)
        log.close()
        del self.tree.logs[name]
        self._last.pop(name, None)
        if name in self._drops:
            # Of the records that the drop waits for, only these are left.
            first_offset, on_disk = self._drops[name]
            self._drops[name] = first_offset, min(on_disk, change.offset)
        cut = self.tree.log(log.directory)
        cut.open(with_messages=False, cut_at=change.offset)
        self.tree.truncated(cut)
        if self._is_streaming:
            self._owner.rewritten(name)
        logger.warning("divergent_tail_quarantined log=%s offset=%d", name, change.offset)
