"""The mirror's part of mirroring: copies of logs that other nodes lead, in this node's own tree.

    mirror(name, leader)    copy that log from that node, from now on
    await release(name)     stop, and keep the copy: this node is to lead the log, or no node leads it now
    await discard(name)     stop, and delete the copy

A log that is led here has no copy, and no link ever touches it. Divergent records are quarantined before a copy is
truncated (storage.quarantine).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from leveret.model.errors import Corrupt, LeveretError, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.mirroring.copy_link import CopyLink, Dial
from leveret.runtime.mirroring.log_table import LogTable
from leveret.runtime.mirroring.mirror_copy import MirrorCopy
from leveret.runtime.process.work_slices import in_thread_to_its_end
from leveret.runtime.replication.applier import Applier, CopyOwner
from leveret.runtime.replication.prefix_segment import pieces_directory, remove_directory
from leveret.storage.log import Log
from leveret.storage.quarantine.count import contents
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DIRECTORY, DivergentLog, DivergentReport
from leveret.storage.segment import has_segments
from leveret.storage.tree import Tree
from leveret.wire import link as wire
from leveret.wire.chunk import Chunk, Header
from leveret.wire.link import ChangeKind, LogChange, LogExtent

logger = logging.getLogger(__name__)


class Ends(NamedTuple):
    """The extent of a log here.

    Attributes:
        epoch: the epoch of its last chunk, 0 without a chunk.
        first_offset, next_offset: its first offset, and the offset behind its last record.
        last: the header of its last chunk, empty without a chunk.
    """

    epoch: int
    first_offset: int
    next_offset: int
    last: bytes


class CopyReader(Protocol):
    """Reads a copy while it is made."""

    def appended(self, header: Header) -> None:
        """A chunk was appended."""

    def delivered(self, offset: int) -> None:
        """The leader may have delivered all messages before this offset."""

    def end(self) -> None:
        """The copy is closed."""


class MirrorCopies(CopyOwner):
    """See the module; also the state that its links share, see copy_link.LinkedCopies; applier.CopyOwner.

    Attributes:
        commits, dial: of this node.
        damaged: logs that cannot be opened although other nodes count on their copies here.
        readers: the readers of growing copies, by the log's name.
    """

    def __init__(
        self,
        tree: Tree,
        commits: GroupCommit,
        data_dir: Path,
        dial: Dial,
        *,
        node: str,
        logs: LogTable,
        clock_ms: Callable[[], int],
    ) -> None:
        """Mirror nothing yet.

        Args:
            tree: the node's own tree; copies are open in it like other logs.
            commits: makes copies durable.
            data_dir: the directory for divergent records.
            dial: see copy_link.Dial; called with the leader's name and "mirror".
            node: this node's name.
            logs: the owners of the node's logs, and which of them the node leads.
            clock_ms: the time.
        """
        self.commits = commits
        self.dial = dial
        self.damaged: set[str] = set()
        self._tree = tree
        self._data_dir = data_dir
        self._node = node
        self._logs = logs
        self._clock_ms = clock_ms
        self.readers: dict[str, CopyReader] = {}
        self._applier = Applier(tree, commits, self)
        self._copies: dict[str, MirrorCopy] = {}
        self._links: dict[str, CopyLink] = {}
        self._cursors: dict[str, int] = {}
        self._serial = 0
        self._asides = asyncio.Lock()

    # -- begin and end of mirroring -----------------------------------------------------------

    def mirror(self, name: str, leader: str, *, is_counted_on: bool = False) -> None:
        """Copy the log of that name from that node from now on, also if another node was its leader so far.

        The common part of an existing copy is kept. A copy that cannot be opened is put away; but if other nodes count
        on it (`is_counted_on`), the log becomes `damaged`, and nothing is copied. The same holds for a copy that is
        missing, or was found to be damaged or gone since it was opened.

        Raises:
            ValueError: the log is led here.
            StorageError: no log can have that name, or a disk operation fails.
        """
        if self._logs.is_led(name) or leader == self._node:
            raise ValueError(f"log {name} is led here: it cannot be mirrored from {leader}")
        self._tree.path_of(name)
        copy = self._copies.get(name)
        damage: StorageError | None = None
        if copy is not None and copy.damage is not None and not copy.is_busy:
            damage = copy.damage
            self._end_damaged(copy)
            copy = None
        if copy is not None and copy.leader == leader:
            return
        if copy is None:
            copy = self._begin_copy(name, leader, damage, is_counted_on=is_counted_on)
            if copy is None:
                return
        else:
            self._links[copy.leader].remove(name)
            copy.led_by(leader)
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = CopyLink(self, leader)
        link.add(copy)

    def _begin_copy(
        self, name: str, leader: str, damage: StorageError | None, *, is_counted_on: bool
    ) -> MirrorCopy | None:
        """Make a copy, or continue the one that is on disk unless it has `damage`; None: the log is `damaged`."""
        damage = damage or self._open(name, is_counted_on=is_counted_on)
        if damage is not None and is_counted_on:
            logger.error("damaged_mirror log=%s leader=%s error=%s action=stands_aside", name, leader, damage)
            self.damaged.add(name)
            return None
        if damage is not None:
            self.put_away(name, str(damage))
            # The damage may be in a segment of the prefix; and no segment is of use without the copy behind it.
            remove_directory(pieces_directory(self._tree.root, name), self._tree.removed)
        self.damaged.discard(name)
        self._applier.forget(name)
        self._make_if_empty(name)
        copy = self._copies[name] = MirrorCopy(name, leader, self._tree, self.commits, self._fail)
        return copy

    def readable(self, name: str) -> Log | None:
        """Return the log of a growing copy for a reader; None if no copy can be read."""
        copy = self._copies.get(name)
        if copy is None or copy.is_busy or copy.damage is not None:
            return None
        # A missing log never had a record.
        return copy.log or self._applier.open(name)

    def replayed(self, name: str, log: Log, chunk: Chunk) -> None:
        """See CopyOwner."""
        reader = self.readers.get(name)
        if reader is not None:
            reader.appended(chunk.header)

    def _end_reader(self, name: str) -> None:
        """End the reader of a copy that is closed, or begins anew."""
        reader = self.readers.pop(name, None)
        if reader is not None:
            reader.end()

    def gone(self, log: Log, error: Corrupt) -> bool:
        """Note that files of an open log were removed; return whether the log is a copy.

        The copy's leader learns of it before this node acks any record of these files.
        """
        copy = next((each for each in self._copies.values() if each.holds(log)), None)
        if copy is not None and copy.damage is None:
            self._fail(copy, error)
        return copy is not None

    def hold(self, name: str) -> None:
        """Open a log that this node neither leads nor mirrors for now, so that the node's followers get it, too."""
        if name in self._copies or self._logs.is_led(name) or not self._tree.is_closed(name):
            return
        damage = self._open(name, is_counted_on=False)
        if damage is not None:
            logger.error("damaged_copy log=%s error=%s action=left", name, damage)

    def _end_damaged(self, copy: MirrorCopy) -> None:
        """Close a damaged copy; its files, if there are any, stay."""
        del self._copies[copy.name]
        self._end_reader(copy.name)
        self._links[copy.leader].remove(copy.name)
        copy.end()
        self._close(copy)

    def _open(self, name: str, *, is_counted_on: bool) -> StorageError | None:
        """Open the copy, if there is one; return the error if it cannot be read, or is missing and should exist."""
        directory, log = self._tree.path_of(name), self._tree.logs.get(name)
        if log is None and not (directory.exists() and has_segments(directory)):
            is_lost = is_counted_on and self._logs.has_log(name)
            return StorageError(f"log {directory} is missing, with all that was in it") if is_lost else None
        try:
            if log is None:
                log = self._tree.log(directory).open(with_messages=False, sync=False)
        except Corrupt as error:
            return error
        # The records that the node reports are on disk before it acks any.
        self.commits.appended(log)
        return None

    def _make_if_empty(self, name: str) -> None:
        """Give a copy without a chunk a file, if this node has had records of the log.

        The leader's log may be empty, for it lost records that it had confirmed to nobody. This copy counts as
        synchronised then, and the mark of the log stays: without a file, a start or a promotion would take the log for
        lost.

        Raises:
            StorageError: the disk refuses it.
        """
        if not self._logs.has_log(name):
            return
        log = self._tree.logs.get(name) or self._applier.open(name)
        if not log.size_bytes:
            log.make()

    def put_away(self, name: str, damage: str) -> None:
        """Move the files of an unreadable, closed log into quarantine; `damage` is the reason.

        Raises:
            StorageError: a disk operation fails.
        """
        if not self._tree.path_of(name).exists():
            return
        at = datetime.fromtimestamp(self._clock_ms() / 1000, UTC)
        place = self._data_dir / DIRECTORY / f"damaged-{at:%Y%m%dT%H%M%SZ}"
        logger.error("damaged_mirror_quarantined log=%s to=%s error=%s", name, place, damage)
        self._tree.put_away(name, place)

    async def release(self, name: str) -> None:
        """Stop copying a log and keep the copy; on return all received records are durable, and the log is closed.

        A node that leads it then opens it as at a start.

        Raises:
            StorageError: the node stops.
        """
        copy = await self._stop(name)
        if copy is not None:
            await self.commits.all_durable()
            self._close(copy)

    async def discard(self, name: str) -> None:
        """Stop copying a log and delete the copy: this node is no longer its mirror.

        Raises:
            ValueError: the log is led here.
            StorageError: a disk operation fails.
        """
        if self._logs.is_led(name):
            raise ValueError(f"log {name} is led here: it is not deleted as a mirror")
        copy = await self._stop(name)
        if name in self._copies:
            return
        if copy is not None:
            copy.prefix.forget()
        remove_directory(pieces_directory(self._tree.root, name), self._tree.removed)
        self._cursors.pop(name, None)
        self._applier.forget(name)
        log = self._tree.log(self._tree.path_of(name))
        self.commits.forget(log)
        log.delete()

    def may_be_the_only_one(self, name: str, lost_epoch: int) -> bool:
        """Whether a copy may have messages that no other node has: its leader began in `lost_epoch` without all.

        Raises:
            StorageError: the log cannot be read.
        """
        ends = self.ends(name)
        return ends is not None and ends.epoch < lost_epoch

    async def compare(self, name: str, leader: str) -> bool:
        """Mirror a log until its leader has compared the copy, and what the leader lacks is in quarantine.

        Returns:
            Whether it was compared; False if its mirroring ended first.

        Raises:
            ValueError, StorageError: see `mirror`.
        """
        self.mirror(name, leader)
        copy = self._copies[name]
        await copy.compared.wait()
        return self._copies.get(name) is copy

    async def contents(self, name: str) -> DivergentLog | None:
        """Return the readable content of a log that is not led here; None if there is none. Raises StorageError."""
        return await asyncio.to_thread(contents, self._tree.path_of(name), name)

    async def quarantine_all(self, name: str, leader: str) -> None:
        """Quarantine all of a copy that its leader is about to give up.

        Raises:
            ValueError: the log is led here.
            StorageError: a disk operation fails.
        """
        if self._logs.is_led(name):
            raise ValueError(f"log {name} is led here: it is not quarantined as a mirror")
        await self.release(name)
        async with self._asides:
            quarantine = self._quarantine(self._tree.epoch, self._tree.epoch, leader, is_lost=True)
            found = await in_thread_to_its_end(quarantine.add, name)
            await in_thread_to_its_end(quarantine.finish)
        self._warn_of_lost(name, found)

    def _quarantine(self, from_epoch: int, to_epoch: int, leader: str, *, is_lost: bool) -> Quarantine:
        join = DivergentReport.begun(
            self._clock_ms(),
            from_epoch=from_epoch,
            to_epoch=to_epoch,
            node_id=self._node,
            leader_id=leader,
        )
        return Quarantine(self._data_dir, join, self._logs.key_of, is_lost=is_lost)

    def _warn_of_lost(self, name: str, found: DivergentLog | None) -> None:
        if found is not None and found.is_lost and found.unsettled:
            vhost, queue = self._logs.key_of(name) or ("", name)
            logger.warning(
                "lost_messages_quarantined vhost=%s queue=%s messages=%d see=list_divergent_messages",
                vhost,
                queue,
                found.unsettled,
            )

    async def _stop(self, name: str) -> MirrorCopy | None:
        self.damaged.discard(name)
        copy = self._copies.pop(name, None)
        self._end_reader(name)
        if copy is not None:
            copy.end()
            self._links[copy.leader].remove(name)
            if copy.busy is not None:
                await asyncio.wait([copy.busy])
        return copy

    def _close(self, copy: MirrorCopy) -> None:
        """Close the copy's log, unless the node mirrors or leads it again by now."""
        copy.prefix.forget()
        name = copy.name
        if name in self._copies or self._logs.is_led(name):
            return
        self._applier.forget(name)
        log = self._tree.logs.pop(name, None)
        if log is not None:
            self.commits.forget(log)
            log.close()

    async def close(self) -> None:
        """End every link; the copies stay unchanged."""
        for link in list(self._links.values()):
            link.stop()
        busy = [copy.busy for copy in self._copies.values() if copy.busy is not None]
        if busy:
            await asyncio.wait(busy)

    # -- state of the copies ------------------------------------------------------------------

    def ends(self, name: str) -> Ends | None:
        """Return the extent of a log that is not led here, mirrored or not; None if there is none.

        The records of an open log are durable after the next round of the group commit. Those of a closed log are
        durable already, also after a kill of the process.

        Raises:
            StorageError: the log cannot be read.
        """
        log = self._tree.logs.get(name)
        if log is not None:
            return _ends(log)
        directory = self._tree.path_of(name)
        if not directory.exists() or not has_segments(directory):
            return None
        found = Log(directory, epoch=0).open(with_messages=False)
        try:
            return _ends(found)
        finally:
            found.close()

    def cursor(self, name: str) -> int | None:
        """Return that log's cursor: messages before it may have been delivered; None if none was received.

        A node that begins to lead after a restart, before it has mirrored anything, has received none.
        """
        return self._cursors.get(name)

    def take_cursor(self, name: str) -> int | None:
        """As `cursor`, once: this node leads the log from now on."""
        return self._cursors.pop(name, None)

    def _cut_cursor(self, name: str, offset: int) -> None:
        """Forget what was delivered behind an offset, where the leader has, or will have, other records."""
        if name in self._cursors:
            self._cursors[name] = min(offset, self._cursors[name])

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each mirrored log: name, leader, connected, error, and the offsets of the copy."""
        rows = []
        for name, copy in sorted(self._copies.items()):
            log, link = copy.log, self._links[copy.leader]
            rows.append(
                {
                    "name": name,
                    "leader": copy.leader,
                    "connected": link.is_connected and copy.is_accepting,
                    "error": copy.error or link.error,
                    "first_offset": log.first_offset if log is not None else 0,
                    "next_offset": log.next_offset if log is not None else 0,
                }
            )
        return rows

    # -- state shared by the links: copy_link.LinkedCopies ------------------------------------------

    def describe(self, copy: MirrorCopy) -> wire.Copy:
        """See copy_link.LinkedCopies."""
        self._serial += 1
        copy.reported(self._serial)
        name, log = copy.name, copy.log
        if log is None:
            return wire.Copy(copy.serial, LogExtent(name, 0, 0, b""), None)
        piece = copy.prefix.piece()
        head = piece.extent(name) if piece is not None else None
        self._applier.reported(name)
        extent = self._applier.extent(name, log)
        return wire.Copy(
            copy.serial, LogExtent(name, copy.prefix.first_offset, extent.next_offset, extent.last), head
        )

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """See copy_link.LinkedCopies."""
        return self._applier.headers(name, before, count)

    def drop_due(self) -> None:
        """See copy_link.LinkedCopies."""
        try:
            self._applier.drop_due()
        except StorageError as error:
            logger.warning("mirror_not_dropped error=%s", error)

    def damaged_copy(self, copy: MirrorCopy) -> None:
        """See copy_link.LinkedCopies."""
        self._logs.copy_again(copy.name)

    def idle(self, link: CopyLink) -> None:
        """See copy_link.LinkedCopies."""
        if self._links.get(link.node) is link:
            del self._links[link.node]

    def change(self, copy: MirrorCopy, change: LogChange) -> None:
        """See copy_link.LinkedCopies."""
        if change.kind not in (ChangeKind.TRUNCATE, ChangeKind.QUARANTINE):
            # After a divergent part nothing is taken until the copy without it was reported.
            copy.compared.set()
        match change.kind:
            case ChangeKind.APPEND:
                self._applier.apply(change)
                # The existence record is on disk with the chunk, before the ack: before any node counts on the chunk.
                self._logs.record_existence(copy.name)
            case ChangeKind.CURSOR:
                cursor = self._cursors[copy.name] = max(change.offset, self._cursors.get(copy.name, 0))
                reader = self.readers.get(copy.name)
                if reader is not None:
                    reader.delivered(cursor)
            case ChangeKind.TRUNCATE | ChangeKind.QUARANTINE:
                self._end_reader(copy.name)
                self._cut_cursor(copy.name, change.offset)
                copy.quarantines(asyncio.create_task(self._quarantine_range(copy, change)))
            case ChangeKind.HEAD if change.chunk is not None:
                copy.prefix.append(change.offset, change.chunk, change.octets)
            case ChangeKind.BEGIN:
                self._end_reader(copy.name)
                self._cut_cursor(copy.name, change.offset)
                self._logs.begins_anew(copy.name)
                copy.prefix.remove()
                self._applier.apply(change)
                self._make_if_empty(copy.name)
            case ChangeKind.DROP:
                self._applier.apply(change)
                copy.prefix.drop(change.offset)
            case _:
                self._applier.apply(change)

    async def _quarantine_range(self, copy: MirrorCopy, change: LogChange) -> None:
        """Quarantine divergent records in a thread, truncate the copy, and report it to the leader again."""
        try:
            async with self._asides:
                await self._quarantine_copy(copy, change)
        except Exception as error:
            # Any other error, too: an immediate retry would repeat it for ever.
            is_bug = not isinstance(error, LeveretError)
            logger.error("mirror_not_quarantined log=%s error=%s", copy.name, error, exc_info=is_bug)
            self._fail(copy, error)
        finally:
            # In the next turn of the loop the copy is not busy any more.
            asyncio.get_running_loop().call_soon(self._report_again, copy)

    def _fail(self, copy: MirrorCopy, error: Exception) -> None:
        if self._copies.get(copy.name) is copy:
            self._links[copy.leader].fail(copy, error)

    async def _quarantine_copy(self, copy: MirrorCopy, change: LogChange) -> None:
        log = copy.log
        if log is None:
            return
        ends = _ends(log)
        is_head = change.kind is ChangeKind.QUARANTINE and log.first_offset < copy.lost_before
        at = change.offset if change.kind is ChangeKind.TRUNCATE else log.first_offset
        until = min(copy.lost_before, ends.next_offset) if is_head else None
        is_lost = ends.epoch < copy.lost_epoch
        quarantine = self._quarantine(ends.epoch, copy.epoch, copy.leader, is_lost=is_lost)
        kept = await in_thread_to_its_end(quarantine.add, copy.name, at, until)
        # After a crash up to here, or during the truncation, the records are divergent again, and the quarantine
        # continues.
        self._forget(copy, change, log, is_head=is_head)
        self._make_if_empty(copy.name)
        await in_thread_to_its_end(quarantine.finish)
        logger.warning(
            "mirror_diverged log=%s leader=%s offset=%d end=%d", copy.name, copy.leader, at, ends.next_offset
        )
        self._warn_of_lost(copy.name, kept)

    def _forget(self, copy: MirrorCopy, change: LogChange, log: Log, *, is_head: bool) -> None:
        """Remove quarantined records from the copy; after a quarantined prefix whole segments of the rest stay."""
        if is_head:
            copy.prefix.remove()
            log.drop_before(copy.lost_before)
            if log.first_offset >= copy.lost_before:
                return
        self._applier.remove_divergent(change)

    def _report_again(self, copy: MirrorCopy) -> None:
        if self._copies.get(copy.name) is not copy:
            return
        if copy.damage is not None:
            # While the copy was busy, the damage could not be handled.
            self._logs.copy_again(copy.name)
        elif not copy.error:
            self._links[copy.leader].report(copy.name)


def _ends(log: Log) -> Ends:
    for header, octets in log.headers_before(log.next_offset, 1):
        return Ends(header.epoch, log.first_offset, log.next_offset, octets)
    return Ends(0, log.first_offset, log.next_offset, b"")
