"""The collector of a vhost: copies chunks of replicated queues to the outgoing log, for downstreams.

A chunk is copied after the fdatasync that made it durable in its queue's log, so the outgoing log never has a
record that its queue could still lose. The data octets are the same; a trailer names queue, epoch and offset
(formats: wire.chunk). The data of a large chunk stay in its queue's log (runtime.collecting.by_reference). The
outgoing log is outside the confirm path: a timer starts its fdatasync, in a thread. Downstreams get only chunks
that this fdatasync has covered and that followers in sync have.

A start completes the outgoing log from the queues' logs: it reads the last position of each queue from the outgoing
log, and copies the queue's log from there. If a queue is deleted, or its policy no longer replicates it, a
settlement of all its offsets ends it, so that no downstream recovers it.

If the fdatasync fails, the log serves no more chunks; the next start truncates the log at the served end, and
copies the rest again. Damage in the served part is different: a downstream counts by offsets, and they would mean
other records. Such a log stays down until an operator removes it.

Streams are collected as well, with the offsets of readers and the ids of publishers in the trailers of their
chunks; records that a stream's own retention drops are settled here. Downstreams report their positions
(`outgoing_log`). Records that all downstreams have may be dropped, if the operator configured so. A downstream that
retention has overtaken is reported. For a new downstream, records that retention has dropped and that queues still
have are collected again, or reported as missing.

Downstreams see an **incarnation** as a queue's epoch: the epoch, and above INCARNATION_BITS the number of times
that the queue's policy was removed. So a queue that is replicated again is transferred whole, under an identity
without settlements.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from isal.isal_zlib import crc32

from leveret.config import Config
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.model.errors import StorageError
from leveret.runtime.collecting.known_downstreams import KnownDownstreams
from leveret.runtime.collecting.lowest_offsets import Key
from leveret.runtime.collecting.outgoing_log import OutgoingLog, remove_log
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.queue_store import QueueStore
from leveret.runtime.process.work_slices import others_first
from leveret.storage.directory import sync_directory
from leveret.storage.log import Log
from leveret.storage.log_reader import uncache
from leveret.storage.summary import summarise
from leveret.storage.sync import sync_descriptors
from leveret.storage.tree import Tree
from leveret.wire.chunk import ChunkType, Header

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S: Final = 0.05
ANEW_SHARE: Final = 0.5
"""More than this of what is retained is not collected anew: retention would take it again before it is transferred."""
_COPY_BYTES: Final = 1024 * 1024


class Collector:
    """Keeps the outgoing logs of all tagged vhosts; see the module.

    Attributes:
        logs: by vhost.
        known_downstreams: of all of them.
        released: called when logs of queues may be needed no more, or less of them.
        has_resigned: nothing is collected, and no log is opened; see `resign`.
    """

    def __init__(
        self,
        tree: Tree,
        clock_ms: Callable[[], int],
        queue_log: Callable[[Queue], Log],
        logs_of_queues: QueueStore,
        commits: GroupCommit,
        config: Config,
    ) -> None:
        """Collect nothing yet; `queue_log` gives a queue's log."""
        self.logs: dict[str, OutgoingLog] = {}
        self._has_logs = asyncio.Event()
        self._tree = tree
        self._directory = tree.root / "outgoing"
        self._clock_ms = clock_ms
        self.released: Callable[[], None] = _ignore
        self._queue_log = queue_log
        self._logs_of_queues = logs_of_queues
        # Then what is in the log of a queue is on disk when it is collected, and need not be copied.
        self._by_name = config.storage.durability == "fsync"
        self._segment_bytes_max = config.storage.segment_bytes_max
        self._retain_bytes_max = config.standby.retention_bytes_max
        self._retain_ms = config.standby.retention_ms_max
        self._truncates = config.standby.truncates_transferred
        self.known_downstreams = KnownDownstreams(self.logs)
        self._durable = commits.settle
        self._shared = commits.shared
        self._following: set[Queue] = set()
        self._retained: dict[Queue, int] = {}
        self._catching_up: dict[Queue, asyncio.Task[None]] = {}
        self._durable_end: dict[Queue, int] = {}
        self._broken: dict[str, str] = {}
        self._has_stopped = False
        self.has_resigned = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outgoing")

    # -- which vhosts and queues --------------------------------------------------------------

    def open_vhost(self, vhost: str) -> OutgoingLog:
        """The vhost's outgoing log, made when it is tagged for the first time.

        Raises:
            StorageError: it cannot be served; it is not tried again before the next start.
        """
        log = self.logs.get(vhost)
        if log is None:
            if vhost in self._broken:
                raise StorageError(self._broken[vhost])
            directory = self._directory / directory_name(vhost)
            try:
                log = OutgoingLog(
                    self._tree, directory, self._logs_of_queues, segment_bytes_max=self._segment_bytes_max
                )
            except StorageError as error:
                logger.error("outgoing_log_down vhost=%s error=%s", vhost, error)
                self._broken[vhost] = str(error)
                raise
            log.has_stopped = self._has_stopped
            self.logs[vhost] = log
            self._has_logs.set()
        return log

    def resign(self) -> None:
        """Be no upstream any more: what becomes of the queues from now on is no news for downstreams.

        They keep what they have. A log that is opened later is another one, and nobody takes it for the continuation,
        not even who never asks in between.

        Raises:
            StorageError: the disk refused it; nobody is served, and it may be tried again.
        """
        self.has_resigned = True
        for vhost in list(self.logs):
            self.close_vhost(vhost, delete=False)
        for path in self._beside(()):
            remove_log(self._tree, path)
        if self._directory.exists():
            # Before any queue goes: a log that the power brought back would tell of that.
            sync_directory(self._directory)
        self._broken.clear()

    def open_tagged(self, vhost: str, queues: list[Queue]) -> None:
        """Open the log of a tagged vhost with these queues; one that is damaged never stops the broker."""
        if vhost not in self.logs:
            with suppress(StorageError):
                self.open_vhost(vhost)
                self.close_missing(vhost, queues)

    def close_vhost(self, vhost: str, *, delete: bool) -> None:
        """The vhost is gone, or is not tagged any more."""
        log = self.logs.pop(vhost, None)
        if log is not None:
            # They may be there for as long as the disk does not take the change.
            for queue in [each for each in self._collected() if each.key[0] == vhost]:
                self.pause(queue)
            log.close(delete=delete)
            self.released()

    def remove_former(self, vhosts: Iterable[str]) -> None:
        """Remove the logs of all vhosts but these, for a new one of such a name is another one."""
        for path in self._beside(vhosts):
            self._remove(path)

    def remove_closed(self, vhost: str) -> None:
        """A vhost is gone: remove the log that it had while it was tagged, and one that is damaged."""
        path = self._directory / directory_name(vhost)
        if vhost not in self.logs and path.exists():
            self._remove(path)
        self._broken.pop(vhost, None)

    def _beside(self, vhosts: Iterable[str]) -> list[Path]:
        """Directories that are of none of these vhosts."""
        own = {directory_name(vhost) for vhost in vhosts}
        found = sorted(self._directory.iterdir()) if self._directory.exists() else []
        return [path for path in found if path.name not in own]

    def _remove(self, path: Path) -> None:
        """Never fails the broker: the next start tries again."""
        try:
            remove_log(self._tree, path)
        except (OSError, StorageError) as error:
            logger.error("outgoing_log_not_removed error=%s", error)

    def follow(self, queue: Queue) -> None:
        """Collect this queue from now on, and beside live traffic what its log holds already."""
        if queue not in self._following and queue not in self._catching_up and not self.has_resigned:
            task = asyncio.get_running_loop().create_task(self._catch_up(queue))
            self._catching_up[queue] = task

    async def _catch_up(self, queue: Queue) -> None:
        try:
            # Thousands may begin at once, each with a log to open.
            await others_first()
            await self.complete(queue)
        finally:
            if self._catching_up.get(queue) is asyncio.current_task():
                del self._catching_up[queue]
                self._durable_end.pop(queue, None)

    async def complete(self, queue: Queue) -> None:
        """As `catch_up`, but never fails: the queue's log still has everything, `resume` tries again."""
        try:
            await self.catch_up(queue)
        except StorageError as error:
            self._report_stopped(queue, error)

    def _report_stopped(self, queue: Queue, error: StorageError) -> None:
        """The queue's log still has everything: `resume` takes collection up again from there."""
        logger.error("collection_stopped vhost=%s queue=%s error=%s", *queue.key, error)
        if queue.key[0] in self.logs:
            self.logs[queue.key[0]].stopped.add(queue)

    async def catch_up(self, queue: Queue) -> None:
        """Copy what the queue's log holds beyond the last copy, then collect live.

        Only what is durable is copied: the log's end of now, once the disk has it, then in small steps all
        that became durable meanwhile, as `collect` noted. What is not durable then, `collect` will bring.

        Raises:
            StorageError: a log cannot be read or written; nothing is skipped.
        """
        outgoing = self.open_vhost(queue.key[0])
        log = self._queue_log(queue)
        key = outgoing.key_of(queue)
        position = outgoing.position_of(queue)
        last_position = outgoing.last_position_of(key)
        if last_position is not None and last_position > log.next_offset:
            # The queue's log lost its end with the power (durability = os) and hands those offsets out again.
            outgoing.begin_incarnation(queue, renumbers=True)
            self._end(outgoing, key, last_position)
            key, position = outgoing.key_of(queue), 0
        first = log.first_offset if key in outgoing.positions else _first_wanted(queue, log)
        end = log.next_offset
        await self._durable()
        # Many waited for the same round.
        await others_first()
        if position < first and not outgoing.is_closed:
            # All that is before was settled, and that is durable, but for what is stored again behind it: that is
            # copied as it was. Then say so, a message of it may be out.
            position = await self._copy_relocated(queue, outgoing, log, position, first)
        while position < max(end, self._durable_end.get(queue, 0)) and not outgoing.is_closed:
            end = max(end, self._durable_end.get(queue, 0))
            for chunk in log.read(position, _COPY_BYTES, check=True):
                if chunk.header.next_offset > end:
                    break
                outgoing.copy(
                    queue, chunk.header, bytes(chunk.data), bytes(chunk.trailer), by_name=self._by_name
                )
                position = chunk.header.next_offset
            await asyncio.sleep(0)
        if not outgoing.is_closed:
            outgoing.positions.setdefault(key, position)
            outgoing.stopped.discard(queue)
            self._following.add(queue)

    async def _copy_relocated(
        self, queue: Queue, outgoing: OutgoingLog, log: Log, position: int, first: int
    ) -> int:
        """Copy what is unsettled from `position` on and in front of `first`, settle the rest; where to go on.

        What was stored again and is settled since is settled behind that, by what is copied next.

        Raises:
            StorageError: it cannot be read or written.
        """
        besides = [(each.first, min(each.end, first)) for each in queue.relocated if each.first < first]
        for begin, end in list(queue.settled.gaps(position, first)):
            for run in queue.backlog.each(begin, end):
                count, data = len(run.bodies), run.head.entry.join([b"", *run.bodies])
                header = Header(
                    ChunkType.USER,
                    count,
                    count,
                    run.arrived_ms,
                    log.epoch,
                    run.first,
                    crc32(data),
                    len(data),
                    0,
                )
                outgoing.copy(queue, header, data, b"", by_name=False)
            await asyncio.sleep(0)
        if not outgoing.is_closed:
            key = outgoing.key_of(queue)
            outgoing.settle_below(key, first, self._clock_ms(), at=first - 1, besides=besides)
        return first

    def unfollow(self, queues: Iterable[Queue], *, deleted: bool = False) -> None:
        """Stop collecting; downstreams learn that nothing of the queues is to be recovered.

        The next incarnations of all of them are made durable together, which is a wait for the disk, before any end.
        """
        ended: list[tuple[OutgoingLog, Key, int]] = []
        for queue in queues:
            self.pause(queue)
            outgoing = self.logs.get(queue.key[0])
            if outgoing is None:
                continue
            key = outgoing.key_of(queue)
            if outgoing.last_position_of(key) is not None:
                if not deleted:
                    outgoing.begin_incarnation(queue)
                ended.append((outgoing, key, queue.next_offset))
        for each in ended:
            self._end(*each)

    def pause(self, queue: Queue) -> None:
        """Copy nothing more of the queue, until `follow` goes on where its copy ends."""
        self._following.discard(queue)
        self._retained.pop(queue, None)
        if queue.key[0] in self.logs:
            self.logs[queue.key[0]].stopped.discard(queue)
        catching_up = self._catching_up.pop(queue, None)
        if catching_up is not None:
            catching_up.cancel()

    def _end(self, outgoing: OutgoingLog, key: Key, offset: int) -> None:
        """End an incarnation in the log, later if the disk refuses it now."""
        outgoing.positions.pop(key, None)
        try:
            outgoing.end(key, offset, self._clock_ms())
        except StorageError as error:
            logger.error("end_of_queue_not_logged queue=%r error=%s", key[0], error)
            outgoing.unended.append((key, offset))

    def close_missing(self, vhost: str, queues: list[Queue]) -> None:
        """At start: end every queue that went while nobody could say so."""
        outgoing = self.open_vhost(vhost)
        if not outgoing.incarnations:
            return
        self.unfollow(queue for queue in queues if not queue.replicated)
        alive = {outgoing.key_of(queue) for queue in queues if queue.replicated}
        for key in outgoing.incarnations - alive:
            self._end(outgoing, key, outgoing.last_position_of(key) or 0)

    def collect(self, queue: Queue, header: Header, data: bytes, trailer: bytes) -> None:
        """A durable chunk of a replicated queue: copy it. Never fails the broker."""
        if queue not in self._following:
            if queue in self._catching_up:
                self._durable_end[queue] = header.next_offset
            return
        try:
            self.logs[queue.key[0]].copy(queue, header, data, trailer, by_name=self._by_name)
        except StorageError as error:
            self._following.discard(queue)
            self._report_stopped(queue, error)

    def keep_from(self, queue: Queue) -> int:
        """The first offset of the queue's log that is still needed here; where it ends, if nothing is."""
        outgoing = self.logs.get(queue.key[0])
        if outgoing is None:
            # What is dropped before it could be copied was settled, or is stored again; `catch_up` sees to both.
            return queue.next_offset
        by_reference = outgoing.by_reference.first_of(queue.epoch)
        if queue.replicated:
            position = outgoing.position_of(queue)
            return position if by_reference is None else min(by_reference, position)
        if by_reference is not None:
            by_reference = outgoing.needs_of(queue.epoch, self._queue_log(queue), self._retain_bytes_max)
        return queue.next_offset if by_reference is None else by_reference

    def needed_from(self, epoch: int, log: Log) -> int | None:
        """The first offset of a deleted queue's log that is still needed here; None if it may go."""
        needs = (each.needs_of(epoch, log, self._retain_bytes_max) for each in self.logs.values())
        return next((first for first in needs if first is not None), None)

    @property
    def epochs(self) -> set[int]:
        """Of all queues that anything here knows of."""
        return set().union(*(log.epochs for log in self.logs.values()))

    @property
    def by_reference_epochs(self) -> set[int]:
        """Of all queues whose logs are needed here."""
        return set().union(*(log.by_reference.epochs for log in self.logs.values()))

    def resume(self, queues: list[Queue]) -> None:
        """Begin to collect what should be and is not, such as what a full disk had stopped."""
        for outgoing in self.logs.values():
            unended, outgoing.unended = outgoing.unended, []
            for key, offset in unended:
                self._end(outgoing, key, offset)
        for queue in queues:
            if queue.replicated and queue.damage is None and queue.key[0] not in self._broken:
                self.follow(queue)

    # -- durability and retention -------------------------------------------------------------

    async def run(self) -> None:
        """Sync and serve, every FLUSH_INTERVAL_S while there is an outgoing log, until cancelled."""
        loop = asyncio.get_running_loop()
        refused = ""
        while True:
            if not self.logs:
                self._has_logs.clear()
                await self._has_logs.wait()
            await asyncio.sleep(FLUSH_INTERVAL_S)
            try:
                pending = self._begin_commits()
            except StorageError as error:
                # Such as when there are no descriptors for a moment. Nothing counts as synced: it is due again.
                if str(error) != refused:
                    refused = str(error)
                    logger.error("collected_not_synced error=%s action=retry", error)
                continue
            refused = ""
            descriptors = [fd for _, fds, _, _ in pending for fd in fds]
            if descriptors:
                try:
                    await loop.run_in_executor(self._executor, sync_descriptors, descriptors)
                except OSError as error:
                    # What was not synced may be gone from memory too: nothing more is served until a restart
                    # has completed the outgoing logs from the queues' logs. The broker itself goes on.
                    logger.critical("outgoing_fdatasync_failed error=%s action=restart_the_node", error)
                    for log, *_ in pending:
                        with suppress(StorageError):
                            log.sync_failed()
                    self._stop_all()
                    return
                # Not before followers in sync have it: who takes over completes its logs in an order of its own, and
                # what had been served from offsets that come to mean something else would be missing at downstreams.
                try:
                    await self._shared()
                except StorageError:
                    return
                for log, _, end, last in pending:
                    try:
                        log.log.synced()
                    except StorageError as error:
                        logger.critical("outgoing_log_gone error=%s action=restart_the_node", error)
                        self._stop_all()
                        return
                    log.commit(end, last)
                    for segment in log.log.take_sealed():
                        self._executor.submit(summarise, segment)
            for log in self.logs.values():
                if transferred := log.take_transferred():
                    self._executor.submit(uncache, transferred)

    def _stop_all(self) -> None:
        """Who has all that was committed is not to take it for all there is."""
        self._has_stopped = True
        for log in self.logs.values():
            log.has_stopped = True

    def _begin_commits(self) -> list[tuple[OutgoingLog, list[int], int, int]]:
        """What each log has to sync, see `begin_commit`; of all or of none."""
        pending: list[tuple[OutgoingLog, list[int], int, int]] = []
        try:
            for log in self.logs.values():
                pending.append((log, *log.begin_commit()))
        except StorageError:
            for fd in (fd for _, fds, _, _ in pending for fd in fds):
                os.close(fd)
            raise
        return pending

    def retain(self) -> None:
        """Drop what is beyond the configured size or age, or is transferred; first keep how far downstreams are."""
        before_ms = None if self._retain_ms is None else self._clock_ms() - self._retain_ms
        dropped = False
        for vhost, log in self.logs.items():
            first = log.first_offset
            try:
                log.downstreams.save()
                log.retain(
                    bytes_max=self._retain_bytes_max,
                    written_before_ms=before_ms,
                    transferred=self._truncates,
                )
            except StorageError as error:
                logger.error("retention_failed vhost=%s error=%s", vhost, error)
            dropped |= log.first_offset > first
            self.known_downstreams.report_overtaken(vhost, log)
        if dropped:
            self.released()
        self.count_missing()
        for queue in self._following:
            if isinstance(queue, Stream):
                self._report_retained(queue)

    def count_missing(self) -> None:
        """Have each log know how much its queues hold that retention has taken from it."""
        queues: dict[str, list[Queue]] = {vhost: [] for vhost in self.logs}
        for queue in self._collected():
            if queue.key[0] in queues:
                queues[queue.key[0]].append(queue)
        for vhost, own in queues.items():
            self.logs[vhost].count_missing(own)

    def _collected(self) -> list[Queue]:
        """Every queue that is collected, or is being caught up with."""
        return [*self._following, *self._catching_up]

    def _report_retained(self, stream: Stream) -> None:
        """What a stream's own retention took is not to come back at the standby either."""
        first = stream.log.first_offset
        if first <= self._retained.get(stream, 0):
            return
        outgoing = self.logs[stream.key[0]]
        try:
            outgoing.settle_below(outgoing.key_of(stream), first, self._clock_ms(), at=first - 1)
            self._retained[stream] = first
        except StorageError as error:
            logger.error("end_of_retained_not_logged vhost=%s queue=%s error=%s", *stream.key, error)

    # -- what an operator asks ----------------------------------------------------------------

    def note_downstream(self, vhost: str, reference: str, offset: int) -> None:
        """A downstream has everything of a vhost before `offset`; one that begins too late is told of."""
        log = self.logs.get(vhost)
        if log is None:
            return
        if log.note_downstream(reference, offset, self._clock_ms()):
            logger.warning(
                "downstream_begins_incomplete vhost=%s downstream=%s missing_messages=%d "
                "reason=retention_took_what_queues_hold",
                vhost,
                reference,
                log.missing_messages,
            )
        self.known_downstreams.report_used_twice(log, reference)

    def begin_downstream(self, vhost: str, reference: str) -> int | None:
        """Where a downstream begins that has nothing yet; None if nothing is collected of the vhost.

        What its queues hold and retention has taken is collected anew for it, all of it: if retention leaves it
        there, and no other downstream would miss what gives way to it. Else it is told how much is missing.
        """
        log = self.logs.get(vhost)
        if log is None:
            return None
        own = [queue for queue in self._collected() if queue.key[0] == vhost]
        log.downstreams.follow_name(reference)
        log.count_missing(own)
        missing = log.missing_messages
        try:
            if missing and log.is_transferred_by_others(reference) and self._would_stay(own):
                self._begin_anew(log, own)
                self.resume(own)
                logger.info(
                    "collected_anew vhost=%s downstream=%s missing_messages=%d", vhost, reference, missing
                )
        except StorageError as error:
            logger.error("not_collected_anew vhost=%s downstream=%s error=%s", vhost, reference, error)
            self.resume(own)
        return log.first_offset

    def _would_stay(self, queues: list[Queue]) -> bool:
        """Whether all that these queues hold could be retained, for some time.

        Raises:
            StorageError: the log of one cannot be read.
        """
        size = sum(_wanted_bytes(queue, self._queue_log(queue)) for queue in queues)
        return size <= self._retain_bytes_max * ANEW_SHARE

    def _begin_anew(self, log: OutgoingLog, queues: list[Queue]) -> None:
        """Drop all that is in a log; these queues, which are all of its vhost, are collected no more until `resume`.

        Raises:
            StorageError: the disk refused it.
        """
        for queue in queues:
            self.pause(queue)
        log.begin_anew()
        for queue in queues:
            if not isinstance(queue, Stream) and not queue.settling and queue.damage is None:
                # What is settled is not collected anew: it would only push out what is held.
                with suppress(StorageError):
                    self._queue_log(queue).drop_before(queue.log_floor)
        self.released()

    def forget_downstream(self, name: str) -> bool:
        """Keep nothing for a downstream any more, in any vhost; whether one is shown under this name.

        Raises:
            PreconditionFailed: several have the name; it says what else they are called.
            StorageError: the disk refused it.
        """
        known = self.known_downstreams.forget(name)
        self.released()
        return known

    def delete_all(self, queues: list[Queue]) -> list[dict[str, Any]]:
        """Delete every outgoing log; a tagged vhost's begins anew with what its queues hold now.

        Returns:
            A row a vhost or directory of a previous one: vhost, bytes.

        Raises:
            StorageError: the disk refused it.
        """
        rows = []
        for vhost, log in self.logs.items():
            rows.append({"vhost": vhost, "bytes": log.bytes})
            self._begin_anew(log, [queue for queue in queues if queue.key[0] == vhost])
        for path in self._beside(self.logs):
            size = sum(file.stat().st_size for file in path.iterdir())
            rows.append({"vhost": vhost_of_directory(path.name), "bytes": size})
            remove_log(self._tree, path)
        # A damaged log is gone now, too.
        self._broken.clear()
        self.resume(queues)
        return rows

    def close(self) -> None:
        """Sync what is left and close."""
        for log in self.logs.values():
            log.close(delete=False)
        self._executor.shutdown(wait=True)


def _first_wanted(queue: Queue, log: Log) -> int:
    """From which segment on a queue's log is what it needs for itself; those before it are kept for others."""
    if isinstance(queue, Stream) or queue.settling:
        return log.first_offset
    first = log.segment_before(min(queue.log_floor + 1, log.next_offset))
    return log.next_offset if first is None else first


def _wanted_bytes(queue: Queue, log: Log) -> int:
    """Octets of that."""
    return log.bytes_from(_first_wanted(queue, log))


def _ignore() -> None:
    """Nobody kept anything."""


def directory_name(vhost: str) -> str:
    """A vhost's name as a directory name that tells it from all others, also from `.` and `..`."""
    quoted = quote(vhost, safe="").replace(".", "%2E") or "%"
    if len(quoted) <= 200:
        return quoted
    return "sha256-" + hashlib.sha256(vhost.encode()).hexdigest()


def vhost_of_directory(name: str) -> str:
    """The vhost that `directory_name` made this of; a name that is told by its digest only stays that."""
    return "" if name == "%" else unquote(name)
