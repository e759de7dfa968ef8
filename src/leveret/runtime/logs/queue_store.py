"""The logs of queues: gathered messages and settlements become chunks, and chunks become the runs that queues read.

The order within a flush: messages are appended first, then delivered, then settlements are appended. So a settlement
is always behind its message, and any prefix of the log is a consistent queue. The group commit makes the promises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from leveret.core.queues.death_notes import REASONS as DEATHS
from leveret.core.queues.death_notes import Died
from leveret.core.queues.messages import Messages, Run, count_of
from leveret.core.queues.queue import Queue
from leveret.core.queues.relocated import Relocated, RelocatedRange
from leveret.core.queues.return_counts import Returned
from leveret.core.queues.sequences import NumberedRun
from leveret.model.errors import Corrupt, StorageError
from leveret.model.reasons import Reason
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.log_home import LogHome, directory_of, take_down
from leveret.runtime.logs.reclaiming import Reclaiming
from leveret.runtime.logs.relocating import WhenSafe
from leveret.runtime.logs.replay import Replay, encode_range
from leveret.runtime.process.clock import elapsed_ms
from leveret.session.stored import RUN_COSTS, runs_of
from leveret.storage.log import Log
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.segment import Segment
from leveret.storage.staged import StagedDirectory
from leveret.storage.tree import Tree
from leveret.wire.chunk import (
    ENTRIES_MAX,
    Attribute,
    Chunk,
    ChunkError,
    ChunkType,
    Header,
    decode_trailer,
    encode_attribute,
    encode_entry,
    encode_trailer,
)
from leveret.wire.record import COUNT_MAX, Settlement, encode_settlements
from leveret.wire.relocation import RelocatedBlock, decode_relocation, encode_relocation
from leveret.wire.staged_segment import LogEnd

logger = logging.getLogger(__name__)

READ_BYTES: Final = 512 * 1024
READ_AT_ONCE: Final = 4096
"""The most messages of one read, about: splitting so many that all differ takes 5 ms."""
TRY_AGAIN_MS: Final = 60_000
"""The wait before another try to open a damaged log, which a scrub may have repaired."""
CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024

OnAppend = Callable[[Queue, Header, list[bytes], bytes], None]
"""(queue, header, data in pieces, trailer) of a chunk that was just appended to the queue's log."""


class QueueStore:
    """One log a queue.

    Attributes:
        on_append: called with every appended chunk.
        keep_from: returns the first offset of a queue's log that others need, or its end.
        needed_from: the same for the log of a deleted queue, by its epoch; None if no record is needed.
        needs_data: whether `on_append` needs the data of a chunk.
        home: the directory of durable queues' logs.
        staged: the directory of segments that a recovery writes.
        when_safe: see relocating.WhenSafe.
        reclaiming: the logs that may begin anew.
        replays: the states of queues that another node serves; None on a node that serves them.
    """

    def __init__(
        self, tree: Tree, commit: GroupCommit, clock_ms: Callable[[], int], segment_bytes_max: int
    ) -> None:
        """Durable queues have their logs in `queues`, others in `transient`, which is emptied at start."""
        self.on_append: OnAppend = _ignore
        self.keep_from: Callable[[Queue], int] = _keep_nothing
        self.needs_data: Callable[[Queue, Header], bool] = _needs_no_data
        self.needed_from: Callable[[int, Log], int | None] = _need_nothing
        self.when_safe: WhenSafe = lambda queue, then: commit.when_durable(then)
        self.home = LogHome(tree.root / Queue.log_kind, tree.removed)
        self._tree = tree
        self._transient = LogHome(tree.root / "transient", tree.removed)
        self._commit = commit
        self._clock_ms = clock_ms
        self._segment_bytes_max = segment_bytes_max
        self.replays: dict[Queue, Replay] | None = None
        self._logs: dict[Queue, Log] = {}
        self._ended: set[int] = set()
        self._ended_read: Log | None = None
        self._unreadable: dict[int, tuple[int, StorageError]] = {}
        self.reclaiming = Reclaiming(self)
        self.staged = StagedDirectory(tree.root, tree.removed)
        self.staged.remove()
        with suppress(OSError):
            tree.removed.remove(self._transient.directory)

    # -- life of a log ------------------------------------------------------------------------

    def log(self, queue: Queue) -> Log:
        """The queue's log, made on first use.

        Raises:
            StorageError: the disk refused it; another use makes the log.
        """
        log = self._logs.get(queue)
        if log is None:
            log = self._describe(queue)
            if not log.is_open:
                log.open(defer_names=True)
            self._logs[queue] = log
        return log

    def _describe(self, queue: Queue) -> Log:
        home = self.home if queue.definition.durable else self._transient
        return self._tree.log(
            home.place(queue.epoch),
            segment_bytes_max=self._segment_bytes_max,
            durable=queue.definition.durable,
        )

    def recover(self, queue: Queue) -> None:
        """Restore the queue from its log; a damaged log takes the queue down, and no other.

        Raises:
            OutOfDescriptors: the log may be whole, and cannot be read now.
        """
        log = self._describe(queue)
        queue.relocated, queue.relocated_before = Relocated(), 0
        replay = Replay(queue)
        if not self.home.recover(queue, log, replay.add):
            return
        self._logs[queue] = log
        self._commit.appended(log)
        if self.replays is not None:
            self.replays[queue] = replay
            replay.show(log)
            return
        try:
            replay.restore(log)
            self.reclaiming.note(queue, log)
        except OutOfDescriptors:
            del self._logs[queue]
            raise
        except StorageError as error:
            take_down(queue, error)

    def replayed(self, queue: Queue, log: Log, chunk: Chunk) -> None:
        """Take a chunk appended to the log of a queue that another node serves."""
        if self.replays is not None:
            self._logs[queue] = log
            replay = self.replays.get(queue)
            if replay is None:
                replay = self.replays[queue] = Replay(queue)
            replay.add(chunk)
            replay.show(log)

    def forget(self, queue: Queue) -> None:
        """Forget a deleted queue that another node served; this store does not delete its log."""
        self._logs.pop(queue, None)
        if self.replays is not None:
            self.replays.pop(queue, None)

    def step_down(self, queue: Queue) -> None:
        """Hand the queue over to another node: its log stays, as a mirror's, and leaves this store."""
        log = self._logs.pop(queue, None)
        if log is not None and queue.definition.durable:
            self._commit.forget(log)
            log.close()
            self._tree.logs.pop(self._tree.name_of(log.directory), None)

    def queue_of(self, log: Log) -> Queue | None:
        """The queue of a log; None if it is no log of a queue here."""
        return next((queue for queue, held in self._logs.items() if held is log), None)

    def _log_at(self, epoch: int) -> Log:
        """The log of a durable queue, open or not."""
        return self._tree.log(self.home.place(epoch), segment_bytes_max=self._segment_bytes_max)

    def log_of(self, epoch: int) -> Log | None:
        """The log of a durable queue, which may be deleted; None if the log is gone for good.

        Raises:
            StorageError: the log cannot be read, or is missing; it may be repaired while its queue exists.
        """
        found = self._tree.logs.get(f"{self.home.directory.name}/{directory_of(epoch)}")
        if found is not None:
            self._note_read(epoch, found)
            return found
        log = self._log_at(epoch)
        must_exist = self.home.has_log(epoch)
        found_ms, error = self._unreadable.get(epoch, (0, None))
        if error is not None and elapsed_ms() - found_ms < TRY_AGAIN_MS:
            raise error
        if not must_exist and not log.directory.exists():
            return None
        try:
            self._note_read(epoch, log.open(must_exist=must_exist, with_messages=False))
            return log
        except StorageError as damage:
            # Finding the error may take long, so not every read tries.
            now_ms = elapsed_ms()
            recent = {each: it for each, it in self._unreadable.items() if now_ms - it[0] < TRY_AGAIN_MS}
            self._unreadable = recent | {epoch: (now_ms, damage)}
            raise

    def _note_read(self, epoch: int, log: Log) -> None:
        """Keep one log open, while thousands of deleted queues' logs are read one after the other."""
        if epoch in self._ended and log is not self._ended_read:
            if self._ended_read is not None:
                self._ended_read.close()
            self._ended_read = log

    def is_ended(self, epoch: int) -> bool:
        """Whether the queue is deleted, and its log waits to be removed."""
        return epoch in self._ended

    def delete(self, queue: Queue) -> None:
        """Remove a deleted queue's log; the part that is still needed goes later.

        Raises:
            StorageError: the disk refused it.
        """
        log = self._logs.pop(queue, None)
        if log is None:
            log = self._describe(queue)
        if queue.definition.durable and self.needed_from(queue.epoch, log) is not None:
            self._ended.add(queue.epoch)
            self._release(queue.epoch)
        else:
            log.delete()

    def release(self) -> None:
        """Drop records that are no longer needed. If the disk refuses that, they go another time."""
        for queue, log in self._logs.items():
            self.drop_settled(queue, log)
        self.release_ended()

    def release_ended(self) -> None:
        """Drop records of deleted queues' logs that are no longer needed."""
        for epoch in tuple(self._ended):
            try:
                self._release(epoch)
            except StorageError as error:
                logger.error("log_not_released epoch=%d error=%s", epoch, error)

    def _release(self, epoch: int) -> None:
        log = self._log_at(epoch)
        first = self.needed_from(epoch, log)
        if first is None:
            log.delete()
            self._ended.discard(epoch)
            self._unreadable.pop(epoch, None)
        elif log.is_open:
            log.drop_before(first)
            # A reader opens it again; there may be thousands of them.
            log.close()

    def remove_orphans(self, epochs: set[int], named: set[int]) -> None:
        """Delete the logs of queues that are not among `epochs`; those in `named` go when they are no longer needed."""
        self._ended = {epoch for epoch in named - epochs if self.home.place(epoch).exists()}
        self.home.remove_orphans(epochs | named)

    def close(self) -> None:
        """Close every log."""
        for log in self._logs.values():
            log.close()

    # -- appending ----------------------------------------------------------------------------

    def append_messages(self, queue: Queue) -> None:
        """Append the queue's gathered messages.

        Raises:
            StorageError: the disk refused them; they are dropped, to be nacked.
        """
        gathered = queue.gathered.take()
        numbered = queue.sequences.take_numbered()
        if not gathered:
            return
        if queue.damage is not None:
            raise StorageError(f"queue '{queue.key[1]}' is down: {queue.damage}")
        log = self.log(queue)
        batches = _split(gathered)
        end = 0
        for arrived in batches:
            # A chunk is stored or refused as a whole: whoever counts on places in the order of arrival sees no other.
            batch = queue.arranged(arrived)
            data = [piece for messages in batch for piece in messages.pieces()]
            count = sum([len(messages.bodies) for messages in batch])
            expires = any([messages.expiration_ms is not None for messages in batch])
            end += count
            is_last = arrived is batches[-1]
            sequences = sequences_in(numbered, end - count, end, is_last=is_last) if numbered else {}
            trailer = self._trailer(queue, log, sequences, expires=expires)
            header = self._append(queue, log, ChunkType.USER, count, data, trailer)
            queue.appended(header.chunk_id, batch, header.timestamp_ms)
            if sequences:
                queue.sequences.note_logged(sequences)

    def end_of(self, queue: Queue) -> LogEnd:
        """The end of the queue's log, for a segment that is written elsewhere to stand behind it.

        Raises:
            StorageError: the log is damaged, or the disk refuses it.
        """
        if queue.damage is not None:
            raise StorageError(f"queue '{queue.key[1]}' is down: {queue.damage}")
        log = self.log(queue)
        return LogEnd(
            queue.epoch,
            log.epoch,
            log.next_offset,
            log.last_seal,
            dict(queue.sequences.logged),
            tuple(queue.chunk_epochs.before(log.epoch)),
            log.segment_bytes_max,
        )

    @property
    def is_followed(self) -> bool:
        """Whether each change of a log is sent to followers of this node."""
        return bool(self._tree.receivers)

    def take_in(self, queue: Queue, staged: Segment, chunks: list[Chunk], body_bytes: int) -> None:
        """Make a checked segment with these chunks (without data) the next one of the queue's log (`Log.take_in`).

        Raises:
            StorageError: it does not follow, or the disk refused it; nothing has changed.
        """
        log = self.log(queue)
        chunks = list(self.staged.chunks(staged, chunks, lambda header: self.needs_data(queue, header)))
        log.take_in(staged)
        expires = False
        for chunk in chunks:
            self.on_append(queue, chunk.header, [bytes(chunk.data)], bytes(chunk.trailer))
            for kind, name, value in decode_trailer(chunk.trailer):
                if kind == Attribute.SEQUENCE:
                    queue.sequences.note_logged({name: value})
                expires |= kind == Attribute.EXPIRES
            queue.chunk_epochs.appended(chunk.header.epoch, chunk.header.next_offset)
        queue.taken_in(log.next_offset, body_bytes, expires=expires)
        queue.return_counts.log_again()
        queue.dead_lettering.notes.log_again()
        self._make_durable(queue, log, staged.first_offset)

    def append_stored(self, queue: Queue, chunk: Chunk, body_bytes: int) -> None:
        """Append the messages of a checked chunk, which was written for another place in the log.

        Raises:
            StorageError: the disk refused them; nothing has changed.
        """
        if queue.damage is not None:
            raise StorageError(f"queue '{queue.key[1]}' is down: {queue.damage}")
        log = self.log(queue)
        attributes = list(decode_trailer(chunk.trailer))
        sequences = {name: value for kind, name, value in attributes if kind == Attribute.SEQUENCE}
        expires = any(kind == Attribute.EXPIRES for kind, _, _ in attributes)
        trailer = self._trailer(queue, log, sequences, expires=expires)
        header = self._append(
            queue, log, ChunkType.USER, chunk.header.records, [bytes(chunk.data)], trailer, chunk.header.crc
        )
        queue.sequences.note_logged(sequences)
        queue.taken_in(header.next_offset, body_bytes, expires=expires)

    def append_settlements(self, queue: Queue) -> None:
        """Append the queue's settlements, then drop segments whose messages are all settled.

        Raises:
            StorageError: the disk refused them; a later flush logs them.
        """
        settling, returned = queue.settling, queue.return_counts.unlogged
        died = queue.dead_lettering.notes.unlogged
        if self.reclaiming.take_due(queue) and not settling and not returned and not died:
            self.begin_segment(queue)
            self.reclaiming.note(queue, self.log(queue))
        if settling or returned or died:
            log = self.log(queue)
            if queue.definition.durable:
                # Further counts of returns, and notes of deaths, wait for the next flush, with clients served in
                # between; a new segment would need all of them again.
                self._append_tracking(queue, log, returned, died)
            # Nobody reads the log of a transient queue after the node's end, so memory alone knows what is settled.
            queue.settling = []
            queue.return_counts.logged(returned)
            queue.dead_lettering.notes.logged(died)
            self._drop_settled(queue, log)
            self.reclaiming.note(queue, log)
        self.reclaiming.relocating.step(queue)

    def _append_tracking(self, queue: Queue, log: Log, returned: list[Returned], died: list[Died]) -> None:
        """Append the queue's settlements, counts of returns and notes of deaths."""
        ranges = [
            Settlement(reason, at, min(end - at, COUNT_MAX))
            for reason, first, end in queue.settling
            for at in range(first, end, COUNT_MAX)
        ] or [Settlement(Reason.ACKED, log.next_offset, 1)]
        data = [encode_entry(encode_settlements(ranges))]
        trailer = self._trailer(queue, log, {}, returned=returned, died=died)
        header = self._append(queue, log, ChunkType.TRACKING, 1, data, trailer)
        queue.logged_settlement(header.chunk_id)

    def held(self, queue: Queue) -> Log | None:
        """See reclaiming.ReclaimableLogs."""
        log = self._logs.get(queue)
        return log if self.replays is None and queue.damage is None else None

    def drop_settled(self, queue: Queue, log: Log) -> None:
        """See reclaiming.ReclaimableLogs."""
        # Settled messages may not go before their settlement is logged.
        if not queue.settling:
            try:
                self._drop_settled(queue, log)
            except StorageError as error:
                logger.error("log_not_released vhost=%s queue=%s error=%s", *queue.key, error)

    def _drop_settled(self, queue: Queue, log: Log) -> None:
        if log.first_offset < log.newest_segment:
            log.drop_before(min(queue.log_floor, self.keep_from(queue)))

    def append_relocated(self, queue: Queue, runs: list[Run]) -> None:
        """See relocating.RelocatableLogs."""
        blocks = [RelocatedBlock(run.first, len(run), run.arrived_ms, run.taken().entries()) for run in runs]
        log, data = self.log(queue), encode_relocation(blocks)
        trailer = self._trailer(queue, log, {}, expires=queue.may_expire)
        header = self._append(queue, log, ChunkType.RELOCATION, 1, [data], trailer)
        queue.relocated.add(header.chunk_id, [(block.first, block.end) for block in blocks], len(data))
        queue.logged_settlement(header.chunk_id)

    def call_when_safe(self, queue: Queue, then: Callable[[], None]) -> None:
        """See relocating.RelocatableLogs."""
        if queue.definition.durable:
            log = self.log(queue)
            log.want_sync()
            self._commit.appended(log)
            self.when_safe(queue, then)
        else:
            then()

    def begin_segment(self, queue: Queue) -> int:
        """Begin a segment with a chunk that settles only itself, and carries the state of each segment's start.

        So a mirror that begins there has a chunk, with the state of the log before it.

        Returns:
            The first offset of the segment.

        Raises:
            StorageError: the disk refused it.
        """
        if queue.damage is not None:
            raise StorageError(f"queue '{queue.key[1]}' is down: {queue.damage}")
        log = self.log(queue)
        log.roll()
        offset = log.next_offset
        data = [encode_entry(encode_settlements([Settlement(Reason.ACKED, offset, 1)]))]
        self._append(queue, log, ChunkType.TRACKING, 1, data, self._trailer(queue, log, {}))
        queue.logged_settlement(offset)
        return offset

    def _append(
        self,
        queue: Queue,
        log: Log,
        kind: int,
        records: int,
        data: list[bytes],
        trailer: bytes,
        crc: int | None = None,
    ) -> Header:
        starts_segment = log.starts_segment
        header = log.append(kind, records, records, data, self._clock_ms(), trailer, crc)
        if starts_segment:
            queue.return_counts.log_again()
            queue.dead_lettering.notes.log_again()
        queue.chunk_epochs.appended(header.epoch, header.next_offset)
        if queue.definition.durable:
            self._make_durable(queue, log, header.chunk_id)
        self.on_append(queue, header, data, trailer)
        return header

    def _make_durable(self, queue: Queue, log: Log, first_offset: int) -> None:
        """Have the group commit sync what begins at that offset; the first records of a log make it exist."""
        self._commit.appended(log)
        if not first_offset:
            self.home.record_existence_once_synced(queue.epoch)

    def _trailer(
        self,
        queue: Queue,
        log: Log,
        new: dict[bytes, int],
        *,
        expires: bool = False,
        returned: Iterable[Returned] = (),
        died: Iterable[Died] = (),
    ) -> bytes:
        """The trailer of a chunk: new publisher sequences, or all of them at the start of a segment.

        So the newest segment, which is never dropped, has every publisher's last sequence, and the ends of epochs
        (core.queues.chunk_epochs). It also marks messages with a time to live of their own, because a start reads no
        messages.
        """
        starts_segment = log.starts_segment
        if (
            not (starts_segment or new or returned or died or expires)
            and queue.chunk_epochs.last == log.epoch
        ):
            return b""
        sequences = queue.sequences.logged | new if starts_segment else new
        attributes = [encode_attribute(Attribute.SEQUENCE, name, value) for name, value in sequences.items()]
        if starts_segment or queue.chunk_epochs.last != log.epoch:
            attributes += [
                encode_attribute(Attribute.EPOCH_END, epoch.to_bytes(8), end)
                for epoch, end in queue.chunk_epochs.before(log.epoch)
            ]
        attributes += [
            encode_attribute(Attribute.RETURNED, encode_range(first, end), returns)
            for first, end, returns in returned
        ]
        attributes += [
            encode_attribute(Attribute.DIED, encode_range(first, end), DEATHS.index(reason))
            for first, end, reason in died
        ]
        if expires:
            attributes.append(encode_attribute(Attribute.EXPIRES, b"", 1))
        return encode_trailer(*attributes)

    # -- reading ------------------------------------------------------------------------------

    def read(self, queue: Queue, offset: int, bytes_max: int = READ_BYTES) -> list[Run]:
        """The core's Reader: messages from `offset` on, of about `bytes_max` octets.

        Raises:
            StorageError: the log cannot be read at `offset`; whole messages before damage are returned.
        """
        log = self.log(queue)
        runs: list[Run] = []
        left = READ_AT_ONCE
        while offset < log.next_offset and not runs:
            place = queue.relocated.find(offset) if queue.relocated else None
            if place is not None and place.first <= offset:
                return self._relocated_runs(queue, log, offset, place)
            if offset < log.first_offset:
                offset = min(log.first_offset, log.first_offset if place is None else place.first)
                continue
            try:
                for chunk in log.read(offset, bytes_max, check=True):
                    if left <= 0:
                        break
                    if chunk.header.type == ChunkType.USER:
                        found = self._runs(log, chunk, offset)
                        runs += found
                        left -= count_of(found) + RUN_COSTS * len(found)
                    offset = max(offset, chunk.header.next_offset)
            except StorageError:
                if not runs:
                    raise
        return runs

    def _relocated_runs(self, queue: Queue, log: Log, offset: int, place: RelocatedRange) -> list[Run]:
        """Messages from `offset` on in the chunk that holds them, up to one in another place."""
        chunk = next(log.read(place.chunk_id, 1, check=True))
        runs: list[Run] = []
        try:
            for block in decode_relocation(chunk.data):
                if block.end <= offset:
                    continue
                # Messages between two blocks were settled by then, or are in a chunk of their own.
                if runs and next(queue.settled.gaps(runs[-1].end, block.first), None) is not None:
                    break
                runs += runs_of(block.data, block.first, offset, block.timestamp_ms)
        except ChunkError as error:
            raise Corrupt(str(log.directory), "", place.chunk_id, -1, str(error)) from None
        return runs

    def _runs(self, log: Log, chunk: Chunk, offset: int) -> list[Run]:
        try:
            header = chunk.header
            return runs_of(
                bytes(chunk.data), header.chunk_id, offset, header.timestamp_ms, count_max=READ_AT_ONCE
            )
        except ChunkError as error:
            raise Corrupt(str(log.directory), "", chunk.header.chunk_id, -1, str(error)) from None

    def oldest_timestamp_ms(self, queue: Queue) -> int | None:
        """The arrival time of the queue's oldest message, None for an empty queue."""
        if not queue.message_count:
            return None
        return self.read(queue, queue.settled.floor, 1)[0].arrived_ms


def sequences_in(numbered: list[NumberedRun], first: int, end: int, *, is_last: bool) -> dict[bytes, int]:
    """The publishers' last numbers in the chunk of the gathered messages from `first` up to `end`.

    A chunk names the numbers of its own messages only, because after a crash it may be the last one.
    """
    sequences: dict[bytes, int] = {}
    for place, count, reference, sequence in numbered:
        if not count:
            if is_last:
                sequences[reference] = sequence
        elif place > first and place - count < end:
            sequences[reference] = sequence - max(0, place - end)
    return sequences


def _split(gathered: list[Messages]) -> list[list[Messages]]:
    """The gathered messages in batches that each fit one chunk; nearly always one."""
    if len(gathered) == 1:
        return [[part] for part in gathered[0].parts(ENTRIES_MAX, CHUNK_BYTES_MAX)]
    batches: list[list[Messages]] = [[]]
    count = size = 0
    for messages in gathered:
        for part in messages.parts(ENTRIES_MAX, CHUNK_BYTES_MAX):
            added = part.entry_bytes
            if batches[-1] and (count + len(part) > ENTRIES_MAX or size + added > CHUNK_BYTES_MAX):
                batches.append([])
                count = size = 0
            batches[-1].append(part)
            count += len(part)
            size += added
    return batches


def _ignore(queue: Queue, header: Header, data: list[bytes], trailer: bytes) -> None:
    """Do nothing."""


def _need_nothing(epoch: int, log: Log) -> int | None:
    """A deleted queue's log goes at once."""
    return None


def _needs_no_data(queue: Queue, header: Header) -> bool:
    """No chunk is copied."""
    return False


def _keep_nothing(queue: Queue) -> int:
    """No other part needs the log."""
    return queue.next_offset
