"""The outgoing log of a vhost: copies of the chunks of its replicated queues, for downstreams.

A chunk is copied after the fdatasync that made it durable in its queue's log, data octets unchanged,
with a trailer that says which queue, epoch and offset it came from (formats: wire.chunk). So the
outgoing log never holds what its queue could still lose. It is outside the confirm path: its own
fdatasync runs on a timer, in its own thread, and downstreams are served only what that covered.

On start it is completed from the queue logs: the last position of each queue is read back from the
outgoing log, and the queue's log is copied from there. A queue that is deleted, or that its policy
no longer names, ends with a settlement of all its offsets, so that no downstream brings it back.

Should its fdatasync fail, it serves nothing more, and what it had not served is cut off at the next start
and copied again. Damage in what was served is another matter: a downstream counts by offsets that would
come to mean something else. Such a log stays down until an operator removes it.

What downstreams see as a queue's epoch is a **life**: the epoch, and above LIFE_BITS how often its policy
was taken away. So a queue that is replicated again comes whole, under an identity that is not settled.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from leveret.core.queue import Queue
from leveret.model.errors import StorageError
from leveret.model.reasons import Reason
from leveret.runtime.committed_log import CommittedLog
from leveret.storage.log import Log, sync_descriptors
from leveret.storage.summary import summarise
from leveret.storage.tree import Tree
from leveret.wire.chunk import (
    Attribute,
    Chunk,
    ChunkType,
    Header,
    decode_trailer,
    encode_attribute,
    encode_entry,
    encode_trailer,
)
from leveret.wire.record import COUNT_MAX, Settlement, decode_settlements, encode_settlements

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S: Final = 0.05
LIFE_BITS: Final = 40
_COPY_BYTES: Final = 1024 * 1024
_GONE: Final = "the outgoing log is closed: its vhost is gone or is not tagged standby_replication"
_Key = tuple[bytes, int]


class OutgoingLog(CommittedLog):
    """One vhost's outgoing log."""

    def __init__(self, tree: Tree, directory: Path, *, segment_bytes_max: int) -> None:
        """Recover the log and the position of every queue in it.

        Raises:
            StorageError: the log, or the file of lives in its directory, is damaged.
        """
        self.positions: dict[_Key, int] = {}
        self._lives_file = tree.file(directory / "lives.json")
        self._lives: dict[str, int] = self._lives_file.load()
        self._lives_saved = True
        self._failed_file = tree.file(directory / "failed_sync.json")
        self.offsets: dict[str, int] = {}
        last_chunk_id = -1

        def on_chunk(chunk: Chunk) -> None:
            nonlocal last_chunk_id
            last_chunk_id = chunk.header.chunk_id
            self._recovered(chunk)

        cut_at = self._failed_file.load().get("committed_offset")
        log = tree.log(directory, segment_bytes_max=segment_bytes_max)
        log.open(on_chunk, with_messages=False, cut_at=cut_at)
        if cut_at is not None:
            logger.warning("outgoing_log_cut log=%s offset=%d octets=%d", directory, cut_at, log.torn_bytes)
            self._failed_file.save({})
        super().__init__(log, last_chunk_id, gone=_GONE)

    def _recovered(self, chunk: Chunk) -> None:
        key, offset = b"", 0
        epoch = 0
        for kind, name, value in decode_trailer(chunk.trailer):
            if kind == Attribute.QUEUE_EPOCH:
                key, epoch = name, value
            elif kind == Attribute.QUEUE_OFFSET:
                offset = value
        if chunk.header.type == ChunkType.TRACKING and _closes(chunk, offset):
            self.positions.pop((key, epoch), None)
        else:
            self.positions[key, epoch] = offset + chunk.header.records

    def key_of(self, queue: Queue) -> _Key:
        """How the log names the queue: its name, and its life."""
        return queue.name_octets, queue.epoch + (self._lives.get(str(queue.epoch), 0) << LIFE_BITS)

    def position_of(self, queue: Queue) -> int:
        """The queue's offset up to which its log was copied."""
        return self.positions.get(self.key_of(queue), 0)

    def begin_life(self, queue: Queue) -> None:
        """From now on the queue goes by a name that nothing here is settled under."""
        self._lives[str(queue.epoch)] = self._lives.get(str(queue.epoch), 0) + 1
        self._lives_saved = False

    def end(self, key: _Key, offset: int, timestamp_ms: int) -> None:
        """Settle everything of a life that ended at `offset`; the next life is durable before that.

        Raises:
            StorageError: the disk refused it.
        """
        if not self._lives_saved:
            self._lives_file.save(self._lives)
            self._lives_saved = True
        self.settle_below(key, offset, timestamp_ms, at=offset)

    # -- what the collector appends -----------------------------------------------------------

    def copy(self, queue: Queue, header: Header, data: bytes) -> None:
        """Append a chunk of the queue's log unless it is here already."""
        key = self.key_of(queue)
        if header.chunk_id < self.positions.get(key, 0):
            return
        self._append(
            key,
            header.type,
            header.entries,
            header.records,
            data,
            header.timestamp_ms,
            header.chunk_id,
            header.crc,
        )
        self.positions[key] = header.next_offset

    def settle_below(self, key: _Key, offset: int, timestamp_ms: int, *, at: int) -> None:
        """Append a settlement of all offsets below `offset`, at the place `at` of the queue."""
        ranges = [
            Settlement(Reason.DROPPED, first, min(COUNT_MAX, offset - first))
            for first in range(0, offset, COUNT_MAX)
        ]
        data = encode_entry(encode_settlements(ranges))
        self._append(key, ChunkType.TRACKING, 1, 1, data, timestamp_ms, at, None)

    def _append(
        self,
        key: _Key,
        kind: int,
        entries: int,
        records: int,
        data: bytes,
        timestamp_ms: int,
        offset: int,
        crc: int | None,
    ) -> None:
        trailer = encode_trailer(
            encode_attribute(Attribute.QUEUE_EPOCH, *key),
            encode_attribute(Attribute.QUEUE_OFFSET, b"", offset),
        )
        header = self.log.append(kind, entries, records, data, timestamp_ms, trailer, crc)
        self.last_appended_id = header.chunk_id

    def begin_commit(self) -> tuple[list[int], int, int]:
        """Descriptors to sync, and the end and last chunk that are committed once that is done."""
        return self.log.unsynced(), self.log.next_offset, self.last_appended_id

    def sync_failed(self) -> None:
        """What is not committed may be anything on disk, and nobody was served it: let the next start cut it off.

        Raises:
            StorageError: the disk refuses to remember that, too.
        """
        self._failed_file.save({"committed_offset": self.committed_offset})

    def close(self, *, delete: bool) -> None:
        """Serve nothing more; with `delete` nothing is left of the log."""
        if delete:
            try:
                for file in (self._lives_file, self._failed_file):
                    file.remove()
                self.log.delete()
            except (OSError, StorageError) as error:
                logger.error("outgoing_log_not_removed error=%s", error)
        else:
            self.log.close()
        self.stop_serving()


def _closes(chunk: Chunk, offset: int) -> bool:
    """Whether a settlement record covers everything before itself: the queue's end."""
    ranges = list(decode_settlements(chunk.data[4:]))
    return bool(ranges) and ranges[0].first == 0 and sum(r.count for r in ranges) == offset > 0


class Collector:
    """Keeps the outgoing logs of all tagged vhosts; see the module."""

    def __init__(
        self,
        tree: Tree,
        clock_ms: Callable[[], int],
        queue_log: Callable[[Queue], Log],
        durable: Callable[[], Awaitable[None]],
        *,
        segment_bytes_max: int,
        retain_bytes_max: int,
        retain_ms: int | None,
    ) -> None:
        """`queue_log` gives a queue's log, `durable` waits until what was appended so far is on disk."""
        self.logs: dict[str, OutgoingLog] = {}
        self._tree = tree
        self._directory = tree.root / "outgoing"
        self._clock_ms = clock_ms
        self._queue_log = queue_log
        self._segment_bytes_max = segment_bytes_max
        self._retain_bytes_max = retain_bytes_max
        self._retain_ms = retain_ms
        self._durable = durable
        self._following: set[Queue] = set()
        self._catching_up: dict[Queue, asyncio.Task[None]] = {}
        self._durable_end: dict[Queue, int] = {}
        self._unended: list[tuple[OutgoingLog, _Key, int]] = []
        self._broken: dict[str, str] = {}
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
                log = OutgoingLog(self._tree, directory, segment_bytes_max=self._segment_bytes_max)
            except StorageError as error:
                logger.error("outgoing_log_down vhost=%s error=%s", vhost, error)
                self._broken[vhost] = str(error)
                raise
            self.logs[vhost] = log
        return log

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
            log.close(delete=delete)

    def follow(self, queue: Queue) -> None:
        """Collect this queue from now on, and beside live traffic what its log holds already."""
        if queue not in self._following and queue not in self._catching_up:
            task = asyncio.get_running_loop().create_task(self._catch_up(queue))
            self._catching_up[queue] = task

    async def _catch_up(self, queue: Queue) -> None:
        try:
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
            logger.error("collection_stopped vhost=%s queue=%s error=%s", *queue.key, error)

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
        if position > log.next_offset:
            # The queue's log lost its end with the power (durability = os) and hands those offsets out again.
            outgoing.begin_life(queue)
            self._end(outgoing, key, outgoing.positions.pop(key))
            key, position = outgoing.key_of(queue), 0
        if position < log.first_offset:
            # The segments between were dropped: all they held is settled. Say so, a message of them may be out.
            outgoing.settle_below(key, log.first_offset, self._clock_ms(), at=log.first_offset - 1)
            position = log.first_offset
        end = log.next_offset
        await self._durable()
        while position < max(end, self._durable_end.get(queue, 0)) and not outgoing.is_closed:
            end = max(end, self._durable_end.get(queue, 0))
            for chunk in log.read(position, _COPY_BYTES, check=True):
                if chunk.header.next_offset > end:
                    break
                outgoing.copy(queue, chunk.header, bytes(chunk.data))
                position = chunk.header.next_offset
            await asyncio.sleep(0)
        if not outgoing.is_closed:
            outgoing.positions.setdefault(key, position)
            self._following.add(queue)

    def unfollow(self, queue: Queue, *, deleted: bool = False) -> None:
        """Stop collecting; downstreams learn that nothing of the queue is to be recovered."""
        self._following.discard(queue)
        catching_up = self._catching_up.pop(queue, None)
        if catching_up is not None:
            catching_up.cancel()
        outgoing = self.logs.get(queue.key[0])
        if outgoing is None:
            return
        key = outgoing.key_of(queue)
        if outgoing.positions.pop(key, None) is not None:
            if not deleted:
                outgoing.begin_life(queue)
            self._end(outgoing, key, queue.next_offset)

    def _end(self, outgoing: OutgoingLog, key: _Key, offset: int) -> None:
        """End a life in the log, later if the disk refuses it now."""
        try:
            outgoing.end(key, offset, self._clock_ms())
        except StorageError as error:
            logger.error("end_of_queue_not_logged queue=%r error=%s", key[0], error)
            self._unended.append((outgoing, key, offset))

    def close_missing(self, vhost: str, queues: list[Queue]) -> None:
        """At start: end every queue that went while nobody could say so."""
        outgoing = self.open_vhost(vhost)
        for queue in queues:
            if not queue.replicated and outgoing.key_of(queue) in outgoing.positions:
                self.unfollow(queue)
        alive = {outgoing.key_of(queue) for queue in queues if queue.replicated}
        for key in [key for key in outgoing.positions if key not in alive]:
            self._end(outgoing, key, outgoing.positions.pop(key))

    def collect(self, queue: Queue, header: Header, data: bytes) -> None:
        """A durable chunk of a replicated queue: copy it. Never fails the broker."""
        if queue not in self._following:
            if queue in self._catching_up:
                self._durable_end[queue] = header.next_offset
            return
        try:
            self.logs[queue.key[0]].copy(queue, header, data)
        except StorageError as error:
            # The queue's log still has it: `resume` takes collection up again from there.
            logger.error("collection_stopped vhost=%s queue=%s error=%s", *queue.key, error)
            self._following.discard(queue)

    def keep_from(self, queue: Queue) -> int:
        """The first offset of the queue's log that is still needed here."""
        outgoing = self.logs.get(queue.key[0])
        if not queue.replicated or outgoing is None:
            # What is dropped before it could be copied was settled; `catch_up` says so.
            return queue.settled.floor
        return outgoing.position_of(queue)

    def resume(self, queues: list[Queue]) -> None:
        """Begin to collect what should be and is not, such as what a full disk had stopped."""
        unended, self._unended = self._unended, []
        for outgoing, key, offset in unended:
            if not outgoing.is_closed:
                self._end(outgoing, key, offset)
        for queue in queues:
            if queue.replicated and queue.damage is None and queue.key[0] not in self._broken:
                self.follow(queue)

    # -- durability and retention -------------------------------------------------------------

    async def run(self) -> None:
        """Sync and serve, every FLUSH_INTERVAL_S, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            pending = [(log, *log.begin_commit()) for log in self.logs.values()]
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
                    return
                for log, _, end, last in pending:
                    log.log.synced()
                    log.commit(end, last)
                    for segment in log.log.take_sealed():
                        self._executor.submit(summarise, segment)

    def retain(self) -> None:
        """Drop what is beyond the configured size or age."""
        older = None if self._retain_ms is None else self._clock_ms() - self._retain_ms
        for vhost, log in self.logs.items():
            try:
                log.log.retain(bytes_max=self._retain_bytes_max, older_than_ms=older)
            except StorageError as error:
                logger.error("retention_failed vhost=%s error=%s", vhost, error)

    def close(self) -> None:
        """Sync what is left and close."""
        for log in self.logs.values():
            try:
                log.log.sync()
            except OSError as error:
                logger.critical("outgoing_fdatasync_failed error=%s action=restart_the_node", error)
                with suppress(StorageError):
                    log.sync_failed()
            log.log.close()
        self._executor.shutdown(wait=True)


def directory_name(vhost: str) -> str:
    """A vhost's name as a directory name that tells it from all others, also from `.` and `..`."""
    quoted = quote(vhost, safe="").replace(".", "%2E") or "%"
    if len(quoted) <= 200:
        return quoted
    return "sha256-" + hashlib.sha256(vhost.encode()).hexdigest()
