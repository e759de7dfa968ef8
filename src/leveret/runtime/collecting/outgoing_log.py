"""One vhost's outgoing log: its content, its position in each queue, and the positions of its downstreams.

`runtime.collecting.collector` fills it. State files stand beside its segments: the incarnations of queues
(`lives.json`), the log's name (`identity.json`, made with the log, so that a log that replaces another one is not
taken for its continuation), the positions of downstreams (`downstreams.json`), and the positions in queues of which
no record is retained (`positions.json`; `runtime.collecting.positions_checkpoint`).
"""

from __future__ import annotations

import logging
import secrets
from builtins import bytes as octets_type
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.rules.validation import queue_type
from leveret.model.errors import StorageError
from leveret.model.reasons import Reason
from leveret.runtime.collecting.by_reference import (
    ByReference,
    by_reference_bytes,
    is_naming,
    may_be_by_reference,
    reference_of,
    whole,
)
from leveret.runtime.collecting.downstreams import Downstreams
from leveret.runtime.collecting.log_identity import ID_BITS, OutgoingLogIdentity
from leveret.runtime.collecting.lowest_offsets import Key, LowestOffsets, count_unsettled_before
from leveret.runtime.collecting.positions_checkpoint import PositionsCheckpoint
from leveret.runtime.collecting.shared_incarnations import SharedIncarnations
from leveret.runtime.logs.committed_log import CommittedLog
from leveret.runtime.logs.queue_store import QueueStore
from leveret.storage.log import Log
from leveret.storage.log_reader import Extent
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.state_file import StateFile
from leveret.storage.tree import Tree
from leveret.wire.chunk import (
    Attribute,
    Chunk,
    ChunkError,
    ChunkType,
    Header,
    decode_trailer,
    encode_attribute,
    encode_entry,
    encode_trailer,
    fingerprint_of,
)
from leveret.wire.incarnation import INCARNATION_BITS, epoch_of, next_count
from leveret.wire.record import COUNT_MAX, Settlement, encode_settlements
from leveret.wire.site_order import EARLIER_LEADER
from leveret.wire.stream_entry import pack_entries

logger = logging.getLogger(__name__)

STATE_FILES: Final = ("lives.json", "failed_sync.json", "identity.json", "downstreams.json", "positions.json")
"""The state files: incarnations, a failed sync, the log's name, and the positions of downstreams and queues."""
STOPPED: Final = "an fdatasync failed: no more records are served before a restart"
_UNNAMED_BYTES_MAX: Final = 1024 * 1024
"""The most octets of a queue behind its last reference that do not end the retention of its log."""
_READ_BYTES: Final = 16 * 1024
"""The octets of one read, in a log whose chunks are mostly references, or small."""
_GONE: Final = "the outgoing log is closed: its vhost is gone or is not tagged standby_replication"


class _Chunk(NamedTuple):
    """A chunk to append; `crc` is None if it is still to be computed, and `attributes` come behind the log's own."""

    kind: int
    entries: int
    records: int
    data: bytes | list[bytes]
    crc: int | None
    attributes: Sequence[bytes] = ()


class OutgoingLog(CommittedLog):
    """See the module.

    Attributes:
        by_reference: its references to chunks in its queues' logs.
        log_id: the name of the log; a log that replaces it has another one.
        writer: drawn at each opening, so that logs served by different writers are told apart.
        positions: by queue and incarnation, the offset up to which the queue is copied.
        downstreams: the positions of its downstreams.
        missing_messages: the messages that its queues hold and it has dropped, by the last `count_missing`.
        has_stopped: whether an fdatasync failed, so that no more is committed before a restart; committed records are
            served.
        stopped: queues whose copy a disk refused, until their copy is complete again.
        copied: called with this log and a queue whenever a chunk of the queue was copied.
        waiting: tells the number of confirms that wait for downstreams.
        catching_up: queues whose earlier records are being copied.
        former_ended: incarnations, of any node, that this log has ended since it was opened.
        unended: incarnations whose end a disk refused to log, with their end offsets.
    """

    def __init__(
        self,
        tree: Tree,
        directory: Path,
        queues: QueueStore,
        *,
        segment_bytes_max: int,
        shared: SharedIncarnations | None = None,
    ) -> None:
        """Recover the log, its position in every queue, and the positions of its downstreams.

        Referenced data are read from the logs of `queues` on demand. In a cluster a queue may have moved to another
        node, with its log.

        Raises:
            StorageError: the log, or a state file in its directory, is damaged.
        """
        self._tree = tree
        self.missing_messages = 0
        self.has_stopped = False
        self.stopped: set[Queue] = set()
        self.catching_up: set[Queue] = set()
        self._shared = shared
        self._pinned: dict[Queue, Key] = {}
        self.former_ended: set[Key] = set()
        self.unended: list[tuple[Key, int]] = []
        self.copied: Callable[[OutgoingLog, Queue], None] = lambda log, queue: None
        self.waiting: Callable[[], int] = lambda: 0
        self.by_reference = ByReference()
        self._queues = queues
        self._unreadable_id = -1
        self._lowest_offsets: LowestOffsets[Key] = LowestOffsets()
        self._incarnations_file, self._failed_file, identity_file, downstreams_file, positions_file = (
            tree.file(directory / name) for name in STATE_FILES
        )
        self._checkpoint = PositionsCheckpoint(positions_file)
        self._incarnations = _counts_in(self._incarnations_file)
        self._incarnations_saved = True
        self.downstreams = Downstreams(downstreams_file)
        last_chunk_id = -1

        def on_chunk(chunk: Chunk) -> None:
            nonlocal last_chunk_id
            last_chunk_id = chunk.header.chunk_id
            # Of an already open log all chunks are read, and the newest segment is not the one being read.
            self._recovered(chunk, log.segment_with(chunk.header.chunk_id))

        cut_at = self._failed_file.load().get("committed_offset")
        log = tree.log(directory, segment_bytes_max=segment_bytes_max)
        log.open(on_chunk, with_messages=False, cut_at=cut_at)
        if cut_at is not None:
            logger.warning("outgoing_log_cut log=%s offset=%d octets=%d", directory, cut_at, log.torn_bytes)
            self._failed_file.save({})
        super().__init__(log, last_chunk_id, gone=_GONE)
        self.positions = self._checkpoint.load(log)
        self.writer = secrets.randbits(ID_BITS)
        self._identity = OutgoingLogIdentity(identity_file, log)
        if self._identity.is_new:
            self.downstreams.clear()
        self.downstreams.cut(log.next_offset)
        # The start hardly read older records.
        self._cached_from = self.log.next_offset

    @property
    def uncollected(self) -> int:
        """About the number of records to come from stopped queues, for downstreams that have all of the log."""
        records = sum(max(1, queue.next_offset - self.position_of(queue)) for queue in self.stopped)
        return records + len(self.unended)

    @property
    def catching_up_records(self) -> int:
        """About the number of records of these queues that are still to be copied."""
        return sum(max(0, each.next_offset - self._copied_of(each)) for each in self.catching_up)

    def _copied_of(self, queue: Queue) -> int:
        return max(self.position_of(queue), min(queue.log_floor, queue.next_offset))

    @property
    def confirms_waiting(self) -> int:
        """The number of publishers' confirms that wait until downstreams have what it holds."""
        return self.waiting()

    @property
    def log_id(self) -> int:
        """See the class."""
        return self._identity.log_id

    def fingerprint_before(self, offset: int) -> int | None:
        """The fingerprint (`chunk.fingerprint_of`) of the chunk that ends at `offset`.

        It is 0 if no chunk ends there, and None if that chunk is not retained.

        Raises:
            StorageError: the chunk cannot be read.
        """
        if not self.log.first_offset < offset <= self.log.next_offset:
            return None
        [(header, _)] = self.log.headers_before(offset, 1)
        return fingerprint_of(header) if header.next_offset == offset else 0

    def epoch_before(self, offset: int) -> int | None:
        """The epoch in which the record before `offset` was written; None if unknown."""
        return self._identity.epoch_before(offset)

    def _recovered(self, chunk: Chunk, segment: int) -> None:
        key, offset = b"", 0
        epoch = by_reference = has_ended = 0
        for kind, name, value in decode_trailer(chunk.trailer):
            if kind == Attribute.QUEUE_EPOCH:
                key, epoch = name, value
            elif kind == Attribute.QUEUE_OFFSET:
                offset = value
            elif kind == Attribute.BY_REFERENCE:
                by_reference = value
            elif kind == Attribute.ENDED:
                has_ended = value
        if by_reference:
            self.by_reference.note(
                epoch, offset, by_reference_bytes(by_reference), segment=segment, end=chunk.header.next_offset
            )
        if chunk.header.type == ChunkType.USER:
            self._lowest_offsets.note((key, epoch), segment, offset)
        # Without that attribute, from an earlier version, the end is logged again (Collector.close_missing).
        self._checkpoint.note((key, epoch), segment, None if has_ended else offset + chunk.header.records)

    @property
    def epochs(self) -> set[int]:
        """The epochs of all queues in the log."""
        return self.by_reference.epochs | {
            epoch_of(incarnation) for _, incarnation in (*self._lowest_offsets.keys, *self.incarnations)
        }

    @property
    def incarnations(self) -> set[Key]:
        """The incarnations that have not ended, and of which downstreams may have records."""
        return self.positions.keys() | self._checkpoint.former.keys()

    def last_position_of(self, key: Key) -> int | None:
        """The offset up to which downstreams may have the incarnation; None if it is not among `incarnations`."""
        last_position = max(self.positions.get(key, -1), self._checkpoint.former.get(key, -1))
        return last_position if last_position >= 0 else None

    def key_of(self, queue: Queue) -> Key:
        """The log's key for the queue: its name, and its incarnation."""
        pinned = self._pinned.get(queue)
        return self.present_key_of(queue) if pinned is None else pinned

    def present_key_of(self, queue: Queue) -> Key:
        """The key under which the copy of a queue would begin now."""
        counts = self._shared.counts(queue.epoch) if self._shared is not None else ()
        return _key(queue, counts[-1] if counts else self.own_count(queue))

    def former_keys_of(self, queue: Queue) -> list[Key]:
        """The keys of the incarnations of a queue that have ended, as all nodes of the cluster know them."""
        counts = self._shared.counts(queue.epoch) if self._shared is not None else ()
        return [_key(queue, count) for count in counts[:-1]]

    def own_count(self, queue: Queue) -> int:
        """The count of a queue's incarnations by this node alone."""
        return self._incarnations.get(str(queue.epoch), 0)

    def pin(self, queue: Queue) -> Key:
        """Keep the queue's key until `unpin`, because its copy must not change its key on the way."""
        return self._pinned.setdefault(queue, self.present_key_of(queue))

    def unpin(self, queue: Queue) -> None:
        """See `pin`."""
        self._pinned.pop(queue, None)

    def position_of(self, queue: Queue) -> int:
        """The queue's offset up to which its log was copied."""
        return self.positions.get(self.key_of(queue), 0)

    def is_ahead_of(self, key: Key, log: Log) -> bool:
        """Whether it has records of an incarnation of a queue that are behind the end of the queue's log."""
        return (self.last_position_of(key) or 0) > log.next_offset

    def names_moved(self, key: Key, queue: Queue, log: Log) -> bool:
        """Whether an incarnation refers to messages that are elsewhere in the queue's log by now.

        Nothing kept their place while the vhost had no tag, so they may have been stored again, behind others.
        """
        named = self.by_reference.first_of_incarnation(key[1])
        if named is None or named >= log.first_offset:
            return False
        moved = queue.relocated.find(named)
        return moved is not None and moved.first < log.first_offset

    def begin_incarnation(self, queue: Queue, *, renumbers: bool = False) -> None:
        """Give the queue another incarnation, under which no message here is settled.

        `renumbers`: it may give offsets in this log to other messages.
        """
        count = self._incarnations.get(str(queue.epoch), 0)
        self._incarnations[str(queue.epoch)] = next_count(count, renumbers=renumbers)
        self._incarnations_saved = False

    def forget_counts(self, epochs: Set[int]) -> None:
        """Forget the counts of queues but of these epochs: the others are deleted, durably, and none comes again."""
        self._incarnations = {
            epoch: count for epoch, count in self._incarnations.items() if int(epoch) in epochs
        }

    def end(self, key: Key, offset: int, timestamp_ms: int) -> None:
        """Settle everything of an incarnation that ended at `offset`; the next one is durable before that.

        Raises:
            StorageError: the disk refused it.
        """
        self.settle_below(
            key, offset, timestamp_ms, at=offset, attributes=[encode_attribute(Attribute.ENDED, b"", 1)]
        )
        self._checkpoint.note(key, self.log.newest_segment, None)

    # -- what the collector appends -----------------------------------------------------------

    def copy(self, queue: Queue, header: Header, data: list[bytes], trailer: bytes, *, by_name: bool) -> None:
        """Append a chunk of the queue's log unless it is here already; `by_name` allows a reference.

        Its data come in pieces.
        A stream's entries are packed as messages (wire.stream_entry), with the stored positions of its readers and
        publishers; without a message, these go with a settlement of nothing.

        Raises:
            StorageError: the disk refused it, or the stream's entries cannot be separated.
        """
        key = self.key_of(queue)
        if header.chunk_id < self.positions.get(key, 0):
            return
        if self.by_reference.bytes_of.get(self.log.newest_segment, 0) >= self.log.segment_bytes_max:
            # Its own octets are few: retention drops whole segments, with the referenced data.
            self.log.roll()
        is_named = by_name and may_be_by_reference(queue, header)
        chunk = _chunk_of(queue, header, data, trailer, is_named=is_named)
        if chunk is not None:
            kind = queue_type(queue.definition.arguments) if header.type == ChunkType.USER else ""
            self._append(key, header.chunk_id, header.timestamp_ms, chunk, kind)
        segment = self.log.newest_segment
        if header.type == ChunkType.USER:
            self._lowest_offsets.note(key, segment, header.chunk_id)
        if is_named:
            end = self.log.next_offset
            self.by_reference.note(key[1], header.chunk_id, header.data_bytes, segment=segment, end=end)
        self.positions[key] = header.next_offset
        self.copied(self, queue)

    def settle_below(
        self,
        key: Key,
        offset: int,
        timestamp_ms: int,
        *,
        at: int,
        besides: Iterable[tuple[int, int]] = (),
        attributes: Sequence[bytes] = (),
        reason: int = Reason.DROPPED,
    ) -> None:
        """Append a settlement of all offsets below `offset` except `besides`, at the place `at` of the queue."""
        ranges, begin = [], 0
        for unsettled, behind in (*besides, (offset, offset)):
            ranges += [
                Settlement(reason, first, min(COUNT_MAX, unsettled - first))
                for first in range(begin, unsettled, COUNT_MAX)
            ]
            begin = behind
        data = encode_entry(encode_settlements(ranges))
        self._append(key, at, timestamp_ms, _Chunk(ChunkType.TRACKING, 1, 1, data, None, attributes))

    def settle_earlier(
        self, key: Key, first: int, timestamp_ms: int, besides: Iterable[tuple[int, int]]
    ) -> None:
        """Settle what the queue does not hold any more below `first`, the begin of its copy, except `besides`.

        In a cluster earlier leaders may have dead-lettered some of it, so downstreams take it for moves.
        """
        reason = Reason.DROPPED if self._shared is None else EARLIER_LEADER
        self.settle_below(key, first, timestamp_ms, at=first - 1, besides=besides, reason=reason)

    def _append(
        self, key: Key, offset: int, timestamp_ms: int, chunk: _Chunk, kind_of_queue: str = ""
    ) -> None:
        self._identity.begin_leadership()
        if not self._incarnations_saved:
            # Before any record of a new incarnation, or a start would give its records to the one before.
            self._incarnations_file.save(self._incarnations)
            self._incarnations_saved = True
        trailer = encode_trailer(
            encode_attribute(Attribute.QUEUE_EPOCH, *key),
            encode_attribute(Attribute.QUEUE_OFFSET, kind_of_queue.encode(), offset),
            *chunk.attributes,
        )
        header = self.log.append(
            chunk.kind, chunk.entries, chunk.records, chunk.data, timestamp_ms, trailer, chunk.crc
        )
        self.last_appended_id = header.chunk_id
        self._checkpoint.note(key, self.log.newest_segment, offset + chunk.records)

    def count_missing(self, queues: Iterable[Queue]) -> None:
        """Count the messages that queues hold and the log lacks, after retention or deletions."""
        self.missing_messages = sum(map(self.missing_of, queues))

    def missing_of(self, queue: Queue) -> int:
        """The number of the messages of one queue for that count."""
        key = self.key_of(queue)
        begin = self._lowest_offsets.begin_of(key)
        # Messages that are not copied yet are not missing.
        return count_unsettled_before(queue, self.positions.get(key, 0) if begin is None else begin)

    # -- what is read of it, and goes ---------------------------------------------------------

    @property
    def bytes(self) -> int:
        """The retained octets, also those in the logs of queues."""
        return self.log.size_bytes + self.by_reference.bytes

    def read(self, offset: int, bytes_max: int) -> list[octets_type | memoryview]:
        """See CommittedLog; returns whole chunks, also referenced ones."""
        chunks: list[octets_type | memoryview] = []
        size = 0
        for header, octets in self._committed(offset, bytes_max, _READ_BYTES):
            try:
                chunks.append(self._whole(header, octets) if is_naming(header) else octets)
            except StorageError:
                if not chunks:
                    raise
                # Whole chunks are served first; a reader that goes on behind them gets the error.
                break
            size += len(chunks[-1])
            if size >= bytes_max:
                break
        return chunks

    def _whole(self, header: Header, octets: octets_type) -> memoryview:
        try:
            return whole(header, octets, self._queues, may_have_moved=self._shared is not None)
        except (ChunkError, StorageError) as error:
            if header.chunk_id != self._unreadable_id:
                logger.error("collected_chunk_unreadable log=%s error=%s", self.log.directory, error)
                self._unreadable_id = header.chunk_id
            raise StorageError(f"outgoing log, offset {header.chunk_id}: {error}") from error

    def retain(self, *, bytes_max: int, written_before_ms: int | None, transferred: bool) -> None:
        """Drop records beyond a size or an age or, if `transferred`, those that all downstreams have.

        The age is counted from the collecting, not from the message: a queue may hold old messages when it is first
        collected, or collected anew, and downstreams have as much time to transfer these.

        Raises:
            StorageError: the disk refused it.
        """
        first = self.log.retained_from(
            before=self.transferred_offset if transferred else 0,
            bytes_max=bytes_max,
            written_before_ms=written_before_ms,
            beside=self.by_reference.bytes_of,
        )
        if first <= self.first_offset:
            return
        self._checkpoint.save(first)
        try:
            self.log.drop_before(first)
        finally:
            self._forget_dropped()

    def needs_of(self, epoch: int, log: Log, bytes_max: int) -> int | None:
        """The first offset of a collected queue's log that is needed; None if none is.

        The log is kept until every known downstream has its referenced data, unless it holds much more from there on,
        or more than is retained: an idle outgoing log, which drops nothing, must not fill the disk.
        """
        by_reference = self.by_reference
        first = by_reference.first_of(epoch)
        if first is None or (
            self.downstreams.by_reference and self.transferred_offset >= by_reference.end_of(epoch)
        ):
            return None
        room = min(bytes_max, 2 * by_reference.bytes_of_queue(epoch) + _UNNAMED_BYTES_MAX)
        return first if log.bytes_from(first) <= room else None

    def _forget_dropped(self) -> None:
        self._lowest_offsets.forget_before(self.first_offset)
        self.by_reference.forget_before(self.first_offset)
        self._checkpoint.forget_before(self.first_offset)

    # -- downstreams --------------------------------------------------------------------------

    def note_downstream(self, reference: str, offset: int, now_ms: int) -> bool:
        """Note that a downstream has everything before `offset`; see Downstreams.note."""
        return self.downstreams.note(
            reference,
            offset,
            now_ms,
            first=self.first_offset,
            committed=self.committed_offset,
            missing_messages=self.missing_messages,
        )

    @property
    def transferred_offset(self) -> int:
        """The offset before which all known downstreams have everything; the log's begin when none is known."""
        return self.downstreams.all_have(self.first_offset)

    def is_transferred_by_others(self, reference: str) -> bool:
        """Whether all known downstreams except that one have everything, also records that are not served yet."""
        return self.downstreams.others_have(reference, self.log.next_offset)

    def take_transferred(self) -> list[Extent]:
        """The extents that all known downstreams have got since the last call, which are unlikely to be read soon."""
        end = self.transferred_offset
        if end <= self._cached_from:
            return []
        try:
            extents = self.log.extents(self._cached_from, end)
        except StorageError as error:
            logger.warning("outgoing_log_not_uncached log=%s error=%s", self.log.directory, error)
            return []
        self._cached_from = end
        return extents

    # -- durability ---------------------------------------------------------------------------

    def begin_commit(self) -> tuple[list[int], int, int]:
        """The descriptors to sync, and the end and last chunk that are committed after that."""
        return self.log.unsynced(), self.log.next_offset, self.last_appended_id

    def sync_failed(self) -> None:
        """Record a failed sync, so that the next start cuts off the uncommitted records, of which none was served.

        Raises:
            StorageError: the disk refuses this record, too.
        """
        self._failed_file.save({"committed_offset": self.committed_offset})

    def begin_anew(self) -> None:
        """Drop everything in the log; offsets go on, so that a downstream with all of it lacks nothing.

        Raises:
            StorageError: the disk refused it.
        """
        # Before the drop: downstreams' copies of these incarnations must end, and no other record has their
        # positions.
        self.log.sync()
        self._checkpoint.begin_anew(self.log.next_offset)
        self.log.empty()
        self._forget_dropped()
        self._checkpoint.clear()
        self.positions.clear()
        self.count_missing([])
        self.committed_offset, self.last_chunk_id = self.log.next_offset, -1
        self.last_appended_id = -1
        self._report()

    def close(self, *, delete: bool) -> None:
        """Serve nothing more; with `delete` remove the log."""
        if delete:
            try:
                remove_log(self._tree, self.log.directory)
            except (OSError, StorageError) as error:
                logger.error("outgoing_log_not_removed error=%s", error)
        else:
            self._close_log()
        self.stop_serving()

    def _close_log(self) -> None:
        """Close the log; the next opening takes all records in it for durable, unless a sync has failed."""
        try:
            if not self.has_stopped:
                self.log.sync()
        except OutOfDescriptors as error:
            # No octets are lost by that: the next opening syncs them.
            logger.error("outgoing_log_not_synced error=%s", error)
        except StorageError as error:
            logger.critical("outgoing_fdatasync_failed error=%s action=restart_the_node", error)
            self.has_stopped = True
            with suppress(StorageError):
                self.sync_failed()
        with suppress(StorageError):
            # Downstreams report their positions again if these cannot be stored.
            self.downstreams.save()
        self.log.close()


def _counts_in(file: StateFile) -> dict[str, int]:
    """The counts of queues' incarnations, by epoch.

    Raises:
        StorageError: the file is damaged, or has something else.
    """
    found: dict[str, int] = file.load()
    try:
        msgspec.convert(found, dict[int, int], str_keys=True)
    except msgspec.ValidationError as error:
        raise StorageError(f"{file.path}: {error}; restore it from a copy") from None
    return found


def key_by_counts(queue: Queue, shared: SharedIncarnations | None) -> Key:
    """The key of a queue in the outgoing logs of a cluster, whose nodes all know its counts."""
    counts = shared.counts(queue.epoch) if shared is not None else ()
    return _key(queue, counts[-1] if counts else 0)


def _key(queue: Queue, count: int) -> Key:
    return queue.name_octets, queue.epoch + (count << INCARNATION_BITS)


def remove_log(tree: Tree, directory: Path) -> None:
    """Remove an outgoing log and its state files, damaged or not.

    Raises:
        StorageError: the disk refused it.
    """
    for name in STATE_FILES:
        tree.file(directory / name).remove()
    tree.log(directory).delete()


def _chunk_of(
    queue: Queue, header: Header, data: list[bytes], trailer: bytes, *, is_named: bool
) -> _Chunk | None:
    """What a chunk of a queue's log becomes; None if downstreams need nothing of it.

    Raises:
        StorageError: a stream's entries cannot be separated.
    """
    entries, records = header.entries, header.records
    if is_named:
        return _Chunk(header.type, entries, records, b"", None, [reference_of(header)])
    if isinstance(queue, Stream):
        return _chunk_of_stream(queue, header, b"".join(data), _stored_positions_of(trailer))
    if header.type == ChunkType.RELOCATION:
        # Downstreams have its messages, at the same offsets, from their first place.
        settlement = encode_entry(encode_settlements([Settlement(Reason.ACKED, header.chunk_id, 1)]))
        return _Chunk(ChunkType.TRACKING, entries, records, settlement, None)
    return _Chunk(header.type, entries, records, data, header.crc)


def _chunk_of_stream(queue: Queue, header: Header, data: bytes, positions: list[bytes]) -> _Chunk | None:
    if header.type != ChunkType.USER:
        return _Chunk(header.type, 1, 1, encode_entry(b""), None, positions) if positions else None
    try:
        packed, entries = pack_entries(data)
    except ChunkError as error:
        raise StorageError(f"stream '{queue.key[1]}', offset {header.chunk_id}: {error}") from None
    return _Chunk(header.type, entries, entries, packed, None, positions)


def _stored_positions_of(trailer: bytes) -> list[bytes]:
    """The stored positions of a stream's readers and publishers in a chunk's trailer."""
    return [
        encode_attribute(*attribute)
        for attribute in decode_trailer(trailer)
        if attribute[0] in (Attribute.SEQUENCE, Attribute.OFFSET)
    ]
