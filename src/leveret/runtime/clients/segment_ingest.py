"""Takes staged segments into a queue's log: as a whole by a rename, or chunk by chunk.

A segment was written behind the end that the log had (wire.staged_segment). If the log still ends there, and no other
node copies it, the file becomes the log's next segment: no message is read. If somebody published, consumed or acked
meanwhile, or a follower or mirror copies the log, its chunks are appended one by one, with the octets of their data as
they are. Both give the same messages in the same order, each chunk with the plan's number of its last message.

The order of the steps, and a crash between any two of them: 1. the file is checked and synced where it is staged (it
counts for nothing); 2. it is renamed into the log (nothing is promised; a start finds all of it, or nothing); 3. the
group commit syncs the directory and the end of the segment before it; 4. the recovery is told. A recovery that is run
again asks for the number of the last message, and goes on behind it: what is in the log is never taken in twice. An
attempt that was given up may still be appending then: whichever of the two finds that a chunk does not begin behind
the last message ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.model.errors import LeveretError, NotFound, PreconditionFailed, StorageError
from leveret.runtime.clients.recovery_ingest import RecoveryIngest
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.engine import Engine
from leveret.runtime.logs.queue_store import QueueStore
from leveret.storage.segment import Segment
from leveret.wire.chunk import Attribute, Chunk, decode_trailer
from leveret.wire.staged_segment import LogEnd, StagedSegment

logger = logging.getLogger(__name__)

CLOCK_DIFFERENCE_MS_MAX: Final = 10_000
"""The greatest difference of the times of a segment's messages, which begin their time to live, from the present."""


_BEGUN_S: Final = 5.0
"""The longest wait for the sync of a new log: a disk that refuses it ends it with no word."""


class SegmentIngest:
    """Staged segments of one queue and one publisher, in the order in which they are announced."""

    def __init__(
        self,
        broker: Broker,
        key: tuple[str, str],
        engine: Engine,
        commit: GroupCommit,
        store: QueueStore,
        messages: RecoveryIngest,
    ) -> None:
        """Take segments into the queue of this vhost and name; `messages` knows what it has of a recovery."""
        self._broker = broker
        self._key = key
        self._engine = engine
        self._commit = commit
        self._store = store
        self._messages = messages
        self._running: asyncio.Task[None] | None = None

    def last_sequence(self, reference: str) -> int:
        """See RecoveryQueue."""
        return self._messages.last_sequence(reference)

    def end(self) -> LogEnd:
        """The end of the queue's log.

        Raises:
            NotFound: there is no such queue. StorageError: its log is damaged.
        """
        queue = self._queue()
        if isinstance(queue, Stream):
            raise PreconditionFailed(f"'{queue.key[1]}' is a stream: its entries are published")
        end = self._store.end_of(queue)
        return end._replace(
            takes_segments="x-max-priority" not in queue.definition.arguments,
            staging=self._store.staged.inode,
        )

    def take_in(
        self,
        reference: str,
        announced: StagedSegment,
        done: Callable[[], None],
        failed: Callable[[LeveretError], None],
    ) -> None:
        """Take a segment in; calls `done` once its messages are durable, or `failed` if they are not in the queue."""
        before = self._running

        async def run() -> None:
            if before is not None:
                await before
            try:
                await self._take_in(reference, announced, done)
            except LeveretError as error:
                failed(error)
            except Exception:
                # The segments behind it wait for this task, and the recovery for an outcome.
                logger.exception("segment_not_taken_in vhost=%s queue=%s", *self._key)
                failed(StorageError(f"queue '{self._key[1]}': a segment is not taken in; see the node's log"))

        self._running = asyncio.get_running_loop().create_task(run(), name="staged segment")

    async def _take_in(self, reference: str, announced: StagedSegment, done: Callable[[], None]) -> None:
        self._check(reference, announced.first, announced.last)
        staged = self._store.staged
        segment, chunks = await asyncio.to_thread(staged.read, announced.directory, announced.base)
        numbers = [_number(chunk, reference) for chunk in chunks]
        counts = [number + 1 - chunk.header.records for number, chunk in zip(numbers, chunks, strict=True)]
        if (
            counts != [announced.first, *(number + 1 for number in numbers[:-1])]
            or numbers[-1] != announced.last
        ):
            raise StorageError(f"{segment.path}: its messages are not those that were announced")
        await self._begun_on_disk()
        # The queue may be another one by now, or another process may have brought these messages.
        self._check(reference, announced.first, announced.last)
        queue = self._queue()
        if self._fits(queue, segment, chunks, reference):
            self._store.take_in(queue, segment, chunks, announced.body_bytes)
            self._flush(queue)
        else:
            await self._append(queue, segment, chunks, reference, announced)
        # No outcome is reported for messages in removed files: the recovery ends, and is run again.
        # In a cluster also its mirrors have them then: a plan that is done does not bring them again.
        self._engine.when_safe(queue, lambda: done() if queue.damage is None else None)
        self._commit.begin()

    async def _begun_on_disk(self) -> None:
        """Wait, for a while, for a group commit of a new log.

        The name of a second segment may be on disk only once those of the log and of the first one are, so without the
        wait `Log.take_in` syncs these itself, in the event loop. That is right too, and takes long beside a recovery's
        writes.
        """
        log = self._store.log(self._queue())
        if log.synced_offset <= log.first_offset < log.next_offset:
            synced = asyncio.Event()
            self._commit.when_synced(synced.set)
            self._commit.begin()
            with suppress(TimeoutError):
                await asyncio.wait_for(synced.wait(), _BEGUN_S)

    def _queue(self) -> Queue:
        queue = self._broker.queues.get(self._key)
        if queue is None or queue.is_remote:
            raise NotFound(f"there is no queue '{self._key[1]}' in vhost '{self._key[0]}' at this node")
        return queue

    def _check(self, reference: str, first: int, last: int) -> None:
        """Check that the queue keeps messages, and has those before number `first` and no others."""
        self._messages.check()
        there = self.last_sequence(reference)
        if first != there + 1:
            raise PreconditionFailed(
                f"queue '{self._key[1]}' has recovered messages up to number {there}: a segment of those from "
                f"{first} to {last} is not taken in"
            )

    def _fits(self, queue: Queue, segment: Segment, chunks: list[Chunk], reference: str) -> bool:
        """Whether the segment can be the log's next one as it is."""
        if queue.gathered:
            self._engine.append_now(queue)
        port, end, first = self._engine.replication_port, self._store.end_of(queue), chunks[0]
        now_ms = self._engine.clock_ms()
        expires = any(kind == Attribute.EXPIRES for kind, _, _ in decode_trailer(first.trailer))
        return (
            not self._store.is_followed
            and not (port is not None and port.concerns(queue))
            and segment.first_offset == end.next_offset
            and all(each.header.epoch == end.epoch for each in chunks)
            and all(abs(now_ms - each.header.timestamp_ms) < CLOCK_DIFFERENCE_MS_MAX for each in chunks)
            and first.trailer
            == end.first_trailer({reference.encode(): _number(first, reference)}, expires=expires)
        )

    async def _append(
        self, queue: Queue, segment: Segment, chunks: list[Chunk], reference: str, announced: StagedSegment
    ) -> None:
        """Append the chunks of a segment that does not fit, with other clients served in between."""
        first, octets, records = announced.first, announced.body_bytes, announced.last + 1 - announced.first
        for chunk in self._store.staged.chunks(segment, chunks):
            if self._queue() is not queue:
                raise NotFound(f"queue '{queue.key[1]}' in vhost '{queue.key[0]}' was deleted meanwhile")
            if queue.gathered:
                self._engine.append_now(queue)
            # Another attempt of the recovery may have gone on behind the chunk before.
            self._check(reference, first, announced.last)
            first += chunk.header.records
            # The octets that are left are shared, so that those of all chunks together are exact.
            share = octets * chunk.header.records // records
            octets, records = octets - share, records - chunk.header.records
            self._store.append_stored(queue, chunk, share)
            self._flush(queue)
            await asyncio.sleep(0)
        self._store.staged.discard(segment)

    def _flush(self, queue: Queue) -> None:
        self._broker.dirty[queue] = None
        self._engine.flush()


def _number(chunk: Chunk, reference: str) -> int:
    """The number of a chunk's last message; 0 if it has none of this recovery."""
    name = reference.encode()
    found = [
        value
        for kind, said, value in decode_trailer(chunk.trailer)
        if kind == Attribute.SEQUENCE and said == name
    ]
    return found[0] if found else 0
