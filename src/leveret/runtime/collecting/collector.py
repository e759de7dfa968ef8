"""The collector of a vhost: copies chunks of replicated queues to the outgoing log, for downstreams.

A chunk is copied after the fdatasync that made it durable in its queue's log, so the outgoing log never has a
record that its queue could still lose. The data octets are the same; a trailer names queue, epoch and offset
(formats: wire.chunk). The data of a large chunk stay in its queue's log (runtime.collecting.by_reference). The
outgoing log is outside the confirm path, unless a policy has confirms wait for a downstream (remote_dc_confirms): a
timer starts its fdatasync, in a thread. Downstreams get only chunks
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

In a cluster each node collects what it leads (ADR 31). A chunk of a mirrored queue is collected when its confirms could
go out, because a downstream must not have what the next leader lacks. A node that begins to lead a queue copies what
the queue holds, and settles what is before that; so nothing is missing that the log of the leader before would have
had to say. A queue that another node leads has not ended: its copy here continues where it stopped, if this node leads
the queue again.

Downstreams see an **incarnation** as a queue's epoch: the epoch, and above INCARNATION_BITS the number of times
that the queue's policy was removed. So a queue that is replicated again is transferred whole, under an identity
without settlements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from leveret.config import Config
from leveret.core.queues.confirms import ConfirmOutcome
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.replication.clock_steps import ClockSteps
from leveret.model.errors import StorageError
from leveret.runtime.collecting.by_reference import may_be_by_reference
from leveret.runtime.collecting.closed_logs import ClosedLogs
from leveret.runtime.collecting.known_downstreams import KnownDownstreams
from leveret.runtime.collecting.lowest_offsets import Key
from leveret.runtime.collecting.outgoing_log import OutgoingLog, remove_log
from leveret.runtime.collecting.outgoing_sync import FLUSH_INTERVAL_S, OutgoingSync
from leveret.runtime.collecting.queue_chunks import first_wanted, relocated_chunks, wanted_bytes
from leveret.runtime.collecting.remote_dc_confirms import RemoteDcConfirms
from leveret.runtime.collecting.shared_incarnations import SharedIncarnations
from leveret.runtime.collecting.vhost_directories import VhostDirectories, vhost_of_directory
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.ports import ReplicationPort
from leveret.runtime.logs.queue_store import QueueStore
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.process.work_slices import in_slices, others_first
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.chunk import Header

logger = logging.getLogger(__name__)

ANEW_SHARE: Final = 0.5
"""If more than this share of the retained data would be collected anew, retention would drop it before its transfer."""
_COPY_BYTES: Final = 1024 * 1024


class Collector:
    """Keeps the outgoing logs of all tagged vhosts; see the module.

    Attributes:
        logs: the outgoing logs by vhost.
        closed: why others are not open.
        known_downstreams: the downstreams of all logs. remote_dc_confirms: publishers' confirms that wait for those.
        following: the queues whose records are collected as soon as they are promised.
        released: called when less of the queues' logs may be needed.
        has_resigned: whether nothing is collected and no log is opened; see `resign`.
        replication_port, incarnations: the mirrors of queues, and their incarnations; None on a single node.
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
        """Begin without logs; `queue_log` gives a queue's log."""
        self.logs: dict[str, OutgoingLog] = {}
        self.closed = ClosedLogs()
        self._tree = tree
        self._directories = VhostDirectories(tree)
        self._clock_ms = clock_ms
        self.released: Callable[[], None] = lambda: None
        self._queue_log = queue_log
        self._logs_of_queues = logs_of_queues
        # Then a queue's chunk is on disk when it is collected, and needs no copy.
        self._by_name = config.storage.durability == "fsync"
        self._segment_bytes_max = config.storage.segment_bytes_max
        self._retain_bytes_max = config.standby.retention_bytes_max
        most_ms = config.standby.retention_ms_max
        self._ages = None if most_ms is None else ClockSteps(most_ms, clock_ms(), elapsed_ms())
        self._truncates = config.standby.truncates_transferred
        self.known_downstreams = KnownDownstreams(self.logs)
        self.remote_dc_confirms = RemoteDcConfirms(self.logs)
        self._durable = commits.all_durable
        self.following: set[Queue] = set()
        self._retained: dict[Queue, int] = {}
        self._catching_up: dict[Queue, asyncio.Task[None]] = {}
        self._durable_end: dict[Queue, int] = {}
        self.has_resigned = False
        self.replication_port: ReplicationPort | None = None
        self.incarnations: SharedIncarnations | None = None
        self._ending: dict[Queue, asyncio.Task[None]] = {}
        self._sync = OutgoingSync(self.logs, commits.shared)

    def enter_cluster(self, port: ReplicationPort, incarnations: SharedIncarnations) -> None:
        """Collect as one of the nodes of a cluster; to be called before the first log is opened."""
        self.replication_port, self.incarnations = port, incarnations
        # A mirror's copy of a queue's log keeps nothing for the outgoing log of a node that led the queue before.
        self._by_name = False

    # -- which vhosts and queues --------------------------------------------------------------

    def open_vhost(self, vhost: str) -> OutgoingLog:
        """The vhost's outgoing log, made when the vhost is tagged for the first time.

        Raises:
            StorageError: the log cannot be served. A disk that refused something is tried again (`open_tagged`); a
                damaged log waits for an operator, and for the next start.
        """
        log = self.logs.get(vhost)
        if log is None:
            if why := self.closed.why_not_again(vhost):
                raise StorageError(why)
            directory = self._directories.of(vhost)
            try:
                log = OutgoingLog(
                    self._tree,
                    directory,
                    self._logs_of_queues,
                    segment_bytes_max=self._segment_bytes_max,
                    shared=self.incarnations,
                )
            except StorageError as error:
                logger.error("outgoing_log_down vhost=%s error=%s", vhost, error)
                self.closed.failed(vhost, error)
                raise
            log.has_stopped = self._sync.has_stopped
            self.logs[vhost] = log
            self.closed.opened(vhost)
            self.remote_dc_confirms.opened(vhost)
            self._sync.log_opened()
        return log

    def resign(self) -> None:
        """Cease to be an upstream: later changes of the queues do not reach downstreams.

        Downstreams keep their data. A log that is opened later has another identity, so no downstream takes it for
        the continuation.

        Raises:
            StorageError: the disk refused it; no downstream is served, and another try is possible.
        """
        self.has_resigned = True
        for vhost in list(self.logs):
            self.close_vhost(vhost, delete=False)
        for path in self._directories.beside(()):
            remove_log(self._tree, path)
        # Before any queue goes: a log that came back after a power loss would report the deletion.
        self._directories.sync()
        self.closed.clear()

    def open_tagged(self, vhost: str, queues: list[Queue]) -> None:
        """Open the log of a tagged vhost with these queues; a damaged one never stops the broker."""
        if vhost not in self.logs:
            with suppress(StorageError):
                self.open_vhost(vhost)
                self.close_missing(vhost, queues)

    def close_vhost(self, vhost: str, *, delete: bool) -> None:
        """Close the log of a vhost that is gone, or no longer tagged."""
        log = self.logs.pop(vhost, None)
        if log is not None:
            # They may exist for as long as the disk does not take the change.
            for queue in [each for each in self._collected() if each.key[0] == vhost]:
                self.pause(queue)
            log.close(delete=delete)
            if log.has_stopped and not delete:
                self.closed.stopped(vhost)
            self.remote_dc_confirms.closed(vhost)
            self.released()

    def remove_former(self, vhosts: Iterable[str]) -> None:
        """Remove the logs of all vhosts except these, because a new vhost of an old name is another one."""
        for path in self._directories.beside(vhosts):
            self._directories.try_to_remove(path)

    def remove_closed(self, vhost: str) -> None:
        """Remove the log of a deleted vhost from the time of its tag, also a damaged one."""
        path = self._directories.of(vhost)
        if vhost not in self.logs and path.exists():
            self._directories.try_to_remove(path)
        self.closed.forget(vhost)

    def follow(self, queue: Queue) -> None:
        """Collect this queue from now on, and in parallel the earlier records of its log."""
        if queue not in self.following and queue not in self._catching_up and not self.has_resigned:
            task = asyncio.get_running_loop().create_task(self._catch_up(queue))
            self._catching_up[queue] = task
            if queue.key[0] in self.logs:
                self.logs[queue.key[0]].catching_up.add(queue)

    async def _catch_up(self, queue: Queue) -> None:
        try:
            # Thousands may begin at once, each with a log to open.
            await others_first()
            await self.complete(queue)
        finally:
            if self._catching_up.get(queue) is asyncio.current_task():
                del self._catching_up[queue]
                self._durable_end.pop(queue, None)
                if queue.key[0] in self.logs:
                    self.logs[queue.key[0]].catching_up.discard(queue)

    async def complete(self, queue: Queue) -> None:
        """As `catch_up`, but never fails: the queue's log has everything, and `resume` tries again."""
        try:
            await self.catch_up(queue)
        except Exception as error:
            self._report_stopped(queue, error)

    def _report_stopped(self, queue: Queue, error: Exception) -> None:
        """Note that collecting stopped; `resume` continues it from the queue's log."""
        is_bug = not isinstance(error, StorageError)
        logger.error("collection_stopped vhost=%s queue=%s error=%s", *queue.key, error, exc_info=is_bug)
        if queue.key[0] in self.logs:
            self.logs[queue.key[0]].stopped.add(queue)

    async def catch_up(self, queue: Queue) -> None:
        """Copy the queue's records behind the last copied one, then collect live.

        Only durable records are copied: up to the log's present end, once that is durable, then in small steps all
        that became durable meanwhile, as `collect` noted. `collect` brings the later ones.

        Raises:
            StorageError: a log cannot be read or written; no record is skipped.
        """
        vhost = queue.key[0]
        if vhost not in self.logs:
            # It is opened with all queues of the vhost, as it has to end those that were deleted.
            raise StorageError(self.closed.why(vhost) or "the outgoing log is not open")
        outgoing = self.logs[vhost]
        log = self._queue_log(queue)
        await self._prepare(queue, outgoing, log)
        key, position = outgoing.pin(queue), outgoing.position_of(queue)
        # The queue's log lost its end with the power (durability = os) and gives those offsets to other messages.
        is_renumbered = outgoing.is_ahead_of(key, log)
        if is_renumbered or outgoing.names_moved(key, queue, log):
            outgoing.unpin(queue)
            outgoing.begin_incarnation(queue, renumbers=is_renumbered)
            self._end(outgoing, key, outgoing.last_position_of(key) or 0)
            key, position = outgoing.pin(queue), 0
        first = log.first_offset if key in outgoing.positions else first_wanted(queue, log)
        end = log.next_offset
        await self._durable()
        await self._kept_by_mirrors(queue)
        # Many wait for the same group commit.
        await others_first()
        if position < first and not outgoing.is_closed:
            # Everything before is durably settled, except relocated messages: these are copied as they were. Then the
            # log says so, because a downstream may have a message of it.
            position = await self._copy_relocated(queue, outgoing, log, position, first)
        while position < max(end, self._durable_end.get(queue, 0)) and not outgoing.is_closed:
            end = max(end, self._durable_end.get(queue, 0))
            for chunk in log.read(position, _COPY_BYTES, check=True):
                if chunk.header.next_offset > end:
                    break
                outgoing.copy(
                    queue, chunk.header, [bytes(chunk.data)], bytes(chunk.trailer), by_name=self._by_name
                )
                position = chunk.header.next_offset
            await asyncio.sleep(0)
        if not outgoing.is_closed:
            outgoing.positions.setdefault(key, position)
            outgoing.stopped.discard(queue)
            self.following.add(queue)
            # Not before: until then downstreams have its messages from these.
            self._end_former(queue, outgoing)

    async def _prepare(self, queue: Queue, outgoing: OutgoingLog, log: Log) -> None:
        """In a cluster, have an incarnation for the queue that all nodes know.

        Raises:
            StorageError: etcd did not take it.
        """
        if self.incarnations is None:
            return
        while (ending := self._ending.get(queue)) is not None:
            await asyncio.wait([ending])
        count = outgoing.own_count(queue)
        await self.incarnations.prepare(queue, count, renumbers=False)
        key = outgoing.present_key_of(queue)
        # Its log lost its end with the power, here and at its mirrors.
        if outgoing.is_ahead_of(key, log) or outgoing.names_moved(key, queue, log):
            await self.incarnations.prepare(queue, count, renumbers=True)

    def incarnation_changed(self, epoch: int) -> None:
        """Copy a queue anew whose incarnation changed, such as by the last act of the leader before."""
        for queue in self._collected():
            outgoing = self.logs.get(queue.key[0])
            if queue.epoch == epoch and outgoing is not None:
                pinned = outgoing.key_of(queue)
                outgoing.unpin(queue)
                if outgoing.pin(queue) != pinned:
                    self.pause(queue)
                    self.follow(queue)

    def _end_former(self, queue: Queue, outgoing: OutgoingLog) -> None:
        """Log the ends of a queue's earlier incarnations: the node that ended them may have been lost with its log."""
        for key in outgoing.former_keys_of(queue):
            if key not in outgoing.former_ended and queue.next_offset:
                outgoing.former_ended.add(key)
                self._end(outgoing, key, max(queue.next_offset, outgoing.last_position_of(key) or 0))

    async def _end_in_cluster(self, queues: list[Queue]) -> None:
        """End the collection of queues that this node leads, once all nodes know that their next incarnation is new."""
        assert self.incarnations is not None
        refused = ""
        while True:
            try:
                await self.incarnations.renew(queues)
                break
            except Exception as error:
                # Any error: until then the queues are not collected again.
                if repr(error) != refused:
                    refused = repr(error)
                    text = "end_of_queues_not_known queues=%d error=%s action=retry"
                    logger.error(text, len(queues), error, exc_info=not isinstance(error, StorageError))
                await asyncio.sleep(FLUSH_INTERVAL_S)
        for queue in queues:
            self._ending.pop(queue, None)
            outgoing = self.logs.get(queue.key[0])
            if outgoing is not None:
                self._end_former(queue, outgoing)

    async def _kept_by_mirrors(self, queue: Queue) -> None:
        """Wait until the mirrors that confirms wait for have everything so far.

        For ever if another node leads the queue first; `pause` ends that.
        """
        if self.replication_port is None:
            return
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome = ConfirmOutcome(lambda ok: kept.set_result(None) if ok and not kept.done() else None)
        self.replication_port.when_taken((queue,), outcome.part)
        outcome.seal()
        await kept

    async def _copy_relocated(
        self, queue: Queue, outgoing: OutgoingLog, log: Log, position: int, first: int
    ) -> int:
        """Copy the unsettled messages from `position` up to `first`, settle the rest, and return `first`.

        Relocated messages that were settled since then are settled by later records, which are copied next, or here if
        their chunk is gone, maybe with that record.

        Raises:
            StorageError: a log cannot be read or written.
        """
        besides = [(at, min(end, first)) for at, end, chunk in queue.relocated if at < first <= chunk]
        for begin, end in list(queue.settled.gaps(position, first)):
            for header, data in relocated_chunks(queue, log.epoch, begin, end):
                outgoing.copy(queue, header, [data], b"", by_name=False)
            await asyncio.sleep(0)
        if not outgoing.is_closed:
            key = outgoing.key_of(queue)
            outgoing.settle_earlier(key, first, self._clock_ms(), besides)
        return first

    def unfollow(self, queues: Iterable[Queue], *, deleted: bool = False) -> None:
        """Stop collecting the queues; downstreams learn that none of their messages is to be recovered.

        The next incarnations of all of them become durable together, with one wait for the disk, before any end is
        logged; in a cluster, etcd has them before.
        """
        queues = list(queues)
        if self.incarnations is not None and not deleted:
            self._unfollow_in_cluster(queues)
            return
        if self.incarnations is not None:
            self.incarnations.forget(queue.epoch for queue in queues if not queue.is_remote)
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
                ended.append((outgoing, key, max(queue.next_offset, outgoing.last_position_of(key) or 0)))
        for each in ended:
            self._end(*each)

    def _unfollow_in_cluster(self, queues: list[Queue]) -> None:
        collected: list[Queue] = []
        for queue in queues:
            self.pause(queue)
            outgoing = self.logs.get(queue.key[0])
            if outgoing is None or queue in self._ending:
                continue
            if outgoing.last_position_of(outgoing.key_of(queue)) is not None:
                collected.append(queue)
            else:
                self._end_former(queue, outgoing)
        if collected:
            task = asyncio.get_running_loop().create_task(self._end_in_cluster(collected))
            self._ending |= dict.fromkeys(collected, task)

    def pause(self, queue: Queue) -> None:
        """Stop copying the queue, until `follow` continues at the end of its copy."""
        self.following.discard(queue)
        self._retained.pop(queue, None)
        self._durable_end.pop(queue, None)
        if queue.key[0] in self.logs:
            self.logs[queue.key[0]].stopped.discard(queue)
            self.logs[queue.key[0]].catching_up.discard(queue)
            self.logs[queue.key[0]].unpin(queue)
        if (catching_up := self._catching_up.pop(queue, None)) is not None:
            catching_up.cancel()

    def _end(self, outgoing: OutgoingLog, key: Key, offset: int) -> None:
        """Log the end of an incarnation, later if the disk refuses it now."""
        outgoing.positions.pop(key, None)
        try:
            outgoing.end(key, offset, self._clock_ms())
        except StorageError as error:
            logger.error("end_of_queue_not_logged queue=%r error=%s", key[0], error)
            outgoing.unended.append((key, offset))

    def close_missing(self, vhost: str, queues: list[Queue]) -> None:
        """Log the ends, at the start, of queues that were deleted without an end; `queues` are all of the vhost.

        A queue that another node leads has not ended: its leader would say so.
        """
        outgoing = self.open_vhost(vhost)
        outgoing.forget_counts({queue.epoch for queue in queues})
        if not outgoing.incarnations:
            return
        self.unfollow(queue for queue in queues if not queue.replicated and not queue.is_remote)
        alive = {outgoing.key_of(queue) for queue in queues if queue.replicated or queue.is_remote}
        for key in outgoing.incarnations - alive:
            self._end(outgoing, key, outgoing.last_position_of(key) or 0)

    def collect(self, queue: Queue, header: Header, data: list[bytes], trailer: bytes) -> None:
        """Copy a durable chunk of a replicated queue. Never fails the broker."""
        if queue not in self.following:
            if queue in self._catching_up:
                self._durable_end[queue] = header.next_offset
            return
        try:
            self.logs[queue.key[0]].copy(queue, header, data, trailer, by_name=self._by_name)
        except Exception as error:
            self.following.discard(queue)
            self._report_stopped(queue, error)

    def needs_data(self, queue: Queue, header: Header) -> bool:
        """Whether `collect` copies the data of a chunk, and not a reference to it."""
        return queue.replicated and not (self._by_name and may_be_by_reference(queue, header))

    def keep_from(self, queue: Queue) -> int:
        """The first offset of the queue's log that is needed here; its end if no record is."""
        outgoing = self.logs.get(queue.key[0])
        if outgoing is None:
            # Records dropped before they could be copied were settled, or relocated; `catch_up` handles both.
            return queue.next_offset
        by_reference = outgoing.by_reference.first_of(queue.epoch)
        if queue.replicated:
            position = outgoing.position_of(queue)
            return position if by_reference is None else min(by_reference, position)
        if by_reference is not None:
            by_reference = outgoing.needs_of(queue.epoch, self._queue_log(queue), self._retain_bytes_max)
        return queue.next_offset if by_reference is None else by_reference

    def needed_from(self, epoch: int, log: Log) -> int | None:
        """The first offset of a deleted queue's log that is needed here; None if the log may go."""
        needs = (each.needs_of(epoch, log, self._retain_bytes_max) for each in self.logs.values())
        return next((first for first in needs if first is not None), None)

    @property
    def epochs(self) -> set[int]:
        """The epochs of all queues in any outgoing log."""
        return set().union(*(log.epochs for log in self.logs.values()))

    @property
    def by_reference_epochs(self) -> set[int]:
        """The epochs of all queues whose logs are needed here."""
        return set().union(*(log.by_reference.epochs for log in self.logs.values()))

    def resume(self, queues: list[Queue]) -> None:
        """Begin to collect queues that should be collected and are not, such as after a full disk."""
        for outgoing in self.logs.values():
            unended, outgoing.unended = outgoing.unended, []
            for key, offset in unended:
                self._end(outgoing, key, offset)
        for queue in queues:
            if queue.replicated and queue.damage is None and queue.key[0] in self.logs:
                self.follow(queue)

    def led(self, queue: Queue) -> None:
        """Collect a queue that this node leads now, or log its end, which the leader before may have failed to do."""
        if queue.replicated:
            self.resume([queue])
        elif queue.key[0] in self.logs:
            self.unfollow([queue])

    # -- durability and retention -------------------------------------------------------------

    async def run(self) -> None:
        """Sync and serve what was collected, until cancelled."""
        await self._sync.run()

    async def retain(self) -> None:
        """Drop records beyond the configured size or age, or transferred ones.

        First store the downstreams' positions. A clock that is set forward makes no record older.
        """
        if self._ages is not None:
            self._ages.look(self._clock_ms(), elapsed_ms())
        before_ms = None if self._ages is None else self._ages.before_ms
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
            if log.first_offset > first:
                dropped = True
                self.remote_dc_confirms.dropped(vhost, log.first_offset)
            self.known_downstreams.report_overtaken(vhost, log)
        if dropped:
            self.released()
        await self.count_missing()
        for queue in self.following:
            if isinstance(queue, Stream):
                self._report_retained(queue)

    async def count_missing(self) -> None:
        """Have each log count the messages that its queues hold and that retention has dropped from it, in slices."""
        counts = {(log, log.first_offset): 0 for log in self.logs.values()}
        async for queue in in_slices(self._collected()):
            log = self.logs.get(queue.key[0])
            if log is not None and (log, log.first_offset) in counts:
                counts[log, log.first_offset] += log.missing_of(queue)
        for (log, first), count in counts.items():
            if log.first_offset == first:  # else it has begun anew
                log.missing_messages = count

    def _collected(self) -> list[Queue]:
        """All queues that are collected, or are catching up."""
        return [*self.following, *self._catching_up]

    def _report_retained(self, stream: Stream) -> None:
        """Settle records that a stream's own retention dropped, so that they do not come back at the standby."""
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
        """Note that a downstream has everything of a vhost before `offset`; one that begins too late is reported."""
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
        known = log.downstreams.by_reference.get(reference)
        if known is not None and known.offset == offset:
            self.remote_dc_confirms.acked(vhost, reference, offset)

    def begin_downstream(self, vhost: str, reference: str) -> int | None:
        """The offset at which a new downstream begins; None if the vhost is not collected.

        Messages that retention has dropped and queues still hold are collected anew for it, all of them, if retention
        would keep them and no other downstream would miss the records that they displace. Otherwise it gets the
        number of missing messages.
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
                self._begin_anew(vhost, own)
                self.resume(own)
                logger.info(
                    "collected_anew vhost=%s downstream=%s missing_messages=%d", vhost, reference, missing
                )
        except StorageError as error:
            logger.error("not_collected_anew vhost=%s downstream=%s error=%s", vhost, reference, error)
            self.resume(own)
        return log.first_offset

    def _would_stay(self, queues: list[Queue]) -> bool:
        """Whether all records of these queues could be retained for some time. Raises StorageError."""
        size = sum(wanted_bytes(queue, self._queue_log(queue)) for queue in queues)
        return size <= self._retain_bytes_max * ANEW_SHARE

    def _begin_anew(self, vhost: str, queues: list[Queue]) -> None:
        """Drop everything in a vhost's log; its queues are not collected until `resume`.

        Raises:
            StorageError: the disk refused it.
        """
        log = self.logs[vhost]
        for queue in queues:
            self.pause(queue)
        log.begin_anew()
        self.remote_dc_confirms.dropped(vhost, log.first_offset)
        for queue in queues:
            if not isinstance(queue, Stream) and not queue.settling and queue.damage is None:
                # Settled messages are not collected anew: they would only displace unsettled ones.
                with suppress(StorageError):
                    self._queue_log(queue).drop_before(queue.log_floor)
        self.released()

    def forget_downstream(self, name: str) -> bool:
        """Forget a downstream in all vhosts; return whether one has this name.

        Raises:
            PreconditionFailed: several have the name; the text has their other names.
            StorageError: the disk refused it.
        """
        known = self.known_downstreams.forget(name)
        self.remote_dc_confirms.forget()
        self.released()
        return known

    def delete_all(self, queues: list[Queue]) -> list[dict[str, Any]]:
        """Delete every outgoing log; a tagged vhost's begins anew with its queues' present messages.

        Returns:
            A row a vhost or directory of a previous one: vhost, bytes.

        Raises:
            StorageError: the disk refused it.
        """
        rows = []
        for vhost, log in self.logs.items():
            rows.append({"vhost": vhost, "bytes": log.bytes})
            self._begin_anew(vhost, [queue for queue in queues if queue.key[0] == vhost])
        for path in self._directories.beside(self.logs):
            size = sum(file.stat().st_size for file in path.iterdir())
            rows.append({"vhost": vhost_of_directory(path.name), "bytes": size})
            remove_log(self._tree, path)
        # Damaged logs are gone now, too.
        self.closed.clear()
        return rows

    def close(self) -> None:
        """Sync the rest, and close."""
        for task in self._ending.values():
            task.cancel()
        for log in self.logs.values():
            log.close(delete=False)
        self._sync.close()
