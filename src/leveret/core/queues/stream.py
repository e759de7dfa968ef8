"""A stream: a queue whose messages stay after they were read, until retention drops them.

The state of a stream is the state of its log (`LogBounds`), and two tables: the last publishing id of each publisher
with a reference, so that a message that is published twice is stored once; and the stored offset of each reader.
Nothing is settled; a reader is a position. Readers of the stream protocol get chunks as they stand on disk, past this
class. Readers of AMQP 0-9-1 are `QueueConsumer`s as with any queue: each has a position of its own, and an
acknowledgement only gives it room for more messages.

Only durable messages are delivered (`committed_offset`): no reader may see a message that a crash could take back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final, Protocol, cast

from leveret.core.queues.consumers import QueueConsumer
from leveret.core.queues.messages import Run, count_of
from leveret.core.queues.queue import DEALT_AT_ONCE, Queue, Reader
from leveret.core.queues.queue_settings import QueueSettings
from leveret.core.queues.sequences import Sequences
from leveret.core.rules.validation import interval_of
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import LeveretError, PreconditionFailed, Unsupported
from leveret.model.reasons import Reason
from leveret.model.stream import OffsetSpec, OffsetType

OFFSETS_MAX: Final = 65_536
"""The most readers whose stored offset is kept: each is in memory, and in the first chunk of each segment."""
OFFSET_ARGUMENT: Final = "x-stream-offset"


class LogBounds(Protocol):
    """The bounds of a served log, known without reading it."""

    @property
    def first_offset(self) -> int:
        """The first offset that is retained."""

    @property
    def committed_offset(self) -> int:
        """The offset up to which the log is durable; later chunks are not served."""

    @property
    def end_offset(self) -> int:
        """The offset behind the last record, durable or not; no message is beyond it."""

    @property
    def last_chunk_id(self) -> int:
        """The first offset of the last durable chunk, -1 when there is none."""

    @property
    def last_timestamp_ms(self) -> int:
        """The time of that chunk."""

    @property
    def bytes(self) -> int:
        """The retained octets."""

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset of the first chunk that is not older than a time."""


class StreamConsumer(QueueConsumer, Protocol):
    """A consumer of a stream: the additional operations."""

    prefetch: int
    arguments: dict[str, Any]

    def begins_at(self, offset: int) -> None:
        """Note the offset at which it begins; another leader would find another one for `next` or a time."""


class EmptyLog:
    """The bounds of an empty stream."""

    first_offset = committed_offset = end_offset = last_timestamp_ms = bytes = 0
    last_chunk_id = -1

    def offset_at(self, timestamp_ms: int) -> int:
        """The offset of the next message."""
        return 0


def first_wanted(log: LogBounds, spec: OffsetSpec) -> int:
    """The offset at which a reader begins; dropped offsets are skipped, and one in the future is the next.

    An offset before the end is no future one, even if it is not committed here yet: after a change of leaders a reader
    does not begin before the messages that it has had.
    """
    match spec.kind:
        case OffsetType.FIRST:
            return log.first_offset
        case OffsetType.LAST:
            return log.last_chunk_id if log.last_chunk_id >= 0 else log.committed_offset
        case OffsetType.NEXT:
            return log.committed_offset
        case OffsetType.TIMESTAMP:
            return log.offset_at(spec.value)
    return min(max(spec.value, log.first_offset), log.end_offset)


def check_offset_argument(value: Any) -> Any:
    """Check the consumer argument `x-stream-offset`, and return it unchanged.

    Raises:
        PreconditionFailed: the value is no offset specification.
    """
    offset_of_argument(value, 0)
    return value


def offset_of_argument(value: Any, now_ms: int) -> OffsetSpec:
    """Decode the consumer argument `x-stream-offset`: absent is next, a time is in seconds, an interval reaches back.

    Raises:
        PreconditionFailed: the value is none of these.
    """
    names = {"first": OffsetType.FIRST, "last": OffsetType.LAST, "next": OffsetType.NEXT}
    if value is None:
        return OffsetSpec(OffsetType.NEXT)
    if isinstance(value, str) and value in names:
        return OffsetSpec(names[value])
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return OffsetSpec(OffsetType.OFFSET, value)
    if hasattr(value, "timestamp"):
        return OffsetSpec(OffsetType.TIMESTAMP, int(value.timestamp() * 1000))
    back_ms = interval_of(value)
    if back_ms is None:
        raise PreconditionFailed(f"invalid arg 'x-stream-offset': {value!r} is no offset specification")
    return OffsetSpec(OffsetType.TIMESTAMP, now_ms - back_ms)


class StreamBatch:
    """The messages of one publish, in order.

    Attributes:
        reference: the publisher's, empty without deduplication.
        ids: the publishing ids of all published messages, to be confirmed.
        entries: as they stand in a chunk, without those that had been published before.
        entry_ids: publishing ids, one an entry.
        records: the number of messages; more than entries if some are batches themselves.
        filters: the filter values of the messages, b"" for messages without one; None if none has one.
        done: called with None when they are durable, or with the error if they are not stored.
    """

    __slots__ = ("done", "entries", "entry_ids", "filters", "ids", "records", "reference")

    def __init__(
        self,
        reference: bytes,
        ids: Sequence[int],
        entries: list[bytes],
        records: int,
        filters: set[bytes] | None,
    ) -> None:
        """See the class; `done` does nothing until it is set."""
        self.reference = reference
        self.ids = self.entry_ids = ids
        self.entries = entries
        self.records = records
        self.filters = filters
        self.done: Callable[[LeveretError | None], None] = _forget

    def extend(self, ids: Sequence[int], entries: list[bytes], records: int, filters: set[bytes]) -> None:
        """Add messages that the publisher published next, before the stream takes the batch."""
        # Thousands of frames may each add one message, so the ids are copied once.
        known: list[int] = self.ids if isinstance(self.ids, list) else list(self.ids)
        known.extend(ids)
        self.ids = self.entry_ids = known
        self.entries += entries
        self.records += records
        if self.filters is not None:
            self.filters |= filters


class Stream(Queue):
    """One stream's decisions; see the module.

    Attributes:
        log: the bounds of its log.
        offsets, unlogged_offsets: the stored offsets of readers, and those that are not in the log yet.
        incoming: the batches of the stream protocol for the next flush.
        next_offset_min: the least offset of the next message.
        read_before: the end of the last read; if that returned no messages, none before it can be read.
    """

    log_kind = "streams"

    def __init__(self, definition: QueueDefinition, read: Reader) -> None:
        """Make an empty stream; the store gives it the bounds and the tables of its log."""
        super().__init__(definition, read)
        # Publishing ids may begin at 0.
        self.sequences = Sequences(none=-1)
        self._read = read
        self.log: LogBounds = EmptyLog()
        self.offsets: dict[bytes, int] = {}
        self.unlogged_offsets: dict[bytes, int] = {}
        self.incoming: list[StreamBatch] = []
        self.next_offset_min = 0
        self.read_before = 0
        self._readers: dict[QueueConsumer, _Position] = {}

    # -- what is there ------------------------------------------------------------------------

    @property
    def message_count(self) -> int:
        """The number of retained offsets."""
        return self.log.committed_offset - self.log.first_offset

    @property
    def delivered_before(self) -> int:
        """See Queue; clients get everything up to the committed end."""
        return self.log.committed_offset

    @property
    def has_arrivals(self) -> bool:
        """See Queue; messages of the stream protocol count, too."""
        return bool(self.incoming) or super().has_arrivals

    @property
    def may_hold_messages(self) -> bool:
        """See Queue; published messages that are not durable yet count, too."""
        is_uncommitted = bool(self.incoming) or self.next_offset > self.log.committed_offset
        return is_uncommitted or super().may_hold_messages

    @property
    def message_bytes(self) -> int:
        """Octets of the log."""
        return self.log.bytes

    @property
    def ready_count(self) -> int:
        """The number of all messages: reading removes none."""
        return self.message_count

    @property
    def is_behind(self) -> bool:
        """Always false: unread messages cost nothing."""
        return False

    # -- publishing ---------------------------------------------------------------------------

    def must_keep(self, is_persistent: bool) -> bool:
        """Always true: messages are read only from disk, whatever their delivery mode."""
        return True

    def publish(self, batch: StreamBatch) -> None:
        """Take messages for the next flush, without those that their publisher had published before."""
        if batch.reference and batch.ids:
            self._deduplicate(batch)
        self.incoming.append(batch)

    def _deduplicate(self, batch: StreamBatch) -> None:
        last = self.last_sequence(batch.reference)
        ids = batch.ids
        if ids[0] <= last or any(after <= before for before, after in pairwise(ids)):
            rising = list(_rising(ids, batch.entries, last))
            kept = [entry for _, entry in rising]
            batch.records -= sum(map(records_of, batch.entries)) - sum(map(records_of, kept))
            batch.entries, batch.entry_ids = kept, [publishing_id for publishing_id, _ in rising]
        self.sequences.unlogged[batch.reference] = max(last, *ids)

    def align(self, offset: int) -> int:
        """Place the next message at this offset, unless the stream is beyond it; return its offset."""
        self.next_offset_min = max(self.next_offset_min, offset)
        return max(self.next_offset_min, self.next_offset)

    # -- stored offsets -----------------------------------------------------------------------

    def store_offset(self, reference: bytes, offset: int) -> None:
        """Store a reader's offset; logged with the next flush."""
        if self.offset_of(reference) != offset:
            self.unlogged_offsets[reference] = offset

    def offset_of(self, reference: bytes) -> int | None:
        """The offset that a reader stored last."""
        return self.unlogged_offsets.get(reference, self.offsets.get(reference))

    def note_offsets(self, offsets: dict[bytes, int]) -> None:
        """Note offsets that are in the log; of too many readers those are forgotten that stored one longest ago."""
        for reference, offset in offsets.items():
            self.offsets.pop(reference, None)
            self.offsets[reference] = offset
        for reference in list(islice(self.offsets, max(0, len(self.offsets) - OFFSETS_MAX))):
            del self.offsets[reference]

    def live_offsets(self) -> dict[bytes, int]:
        """The useful stored offsets: those from the first retained offset on.

        The others stay in memory: without its offset a reader would begin at its default, which may be the end.
        """
        first = self.log.first_offset
        return {reference: offset for reference, offset in self.offsets.items() if offset >= first}

    # -- consuming by AMQP 0-9-1 --------------------------------------------------------------

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """See Queue; the consumer begins at its `x-stream-offset`.

        Raises:
            PreconditionFailed: no prefetch count, or no such offset. Unsupported: a consumer without acknowledgements.
        """
        vhost, name = self.key
        where = f"queue '{name}' in vhost '{vhost}'"
        asked = cast(StreamConsumer, consumer)
        if not asked.prefetch:
            raise PreconditionFailed(f"consumer prefetch count is not set for '{where}'")
        if asked.no_ack:
            raise Unsupported(f"automatic acknowledgement not supported by stream queues {where}")
        self._readers[consumer] = _Position(check_offset_argument(asked.arguments.get(OFFSET_ARGUMENT)))
        super().add_consumer(consumer)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """See Queue."""
        super().remove_consumer(consumer)
        self._readers.pop(consumer, None)

    def prepare(self) -> bool:
        """See Queue; always true."""
        return True

    def offer(self, now_ms: int) -> None:
        """Do nothing: each reader has a place of its own, which no method of others changes."""

    def dispatch(self, now_ms: int = 0, elapsed_ms: int = 0) -> None:
        """Deliver durable messages to each consumer, from its position on, as far as it has capacity, in turns."""
        self.wait_ms = None
        if self.pending_returns or not self.consumers:
            return
        dealt = 0
        for consumer in list(self._readers):
            if dealt >= DEALT_AT_ONCE:
                self.wait_ms = 0
                return
            # Next time others come first.
            position = self._readers[consumer] = self._readers.pop(consumer)
            if position.offset < 0:
                position.offset = first_wanted(self.log, offset_of_argument(position.argument, now_ms))
                cast(StreamConsumer, consumer).begins_at(position.offset)
            while (room := consumer.capacity()) > 0 and (runs := self._next(position, room)):
                count = count_of(runs)
                dealt += count
                self.unacked_count += count
                self.counters.deliver += count
                consumer.deliver(self, runs, False)

    def _next(self, position: _Position, limit: int) -> list[Run]:
        if not position.window and position.offset < self.log.committed_offset:
            position.window.extend(self._read(self, position.offset))
            if not position.window:
                self._pass_unreadable(position)
        runs: list[Run] = []
        while position.window and limit > 0:
            run = position.window.popleft()
            if len(run) > limit:
                position.window.appendleft(run.cut(run.first + limit, run.end))
                run = run.cut(run.first, run.first + limit)
            runs.append(run)
            limit -= len(run)
            position.offset = run.end
        return runs

    def _pass_unreadable(self, position: _Position) -> None:
        """Go on behind batches of an unknown compression: in another dispatch, for there may be gigabytes of them."""
        if self.read_before > position.offset:
            position.offset = self.read_before
            if position.offset < self.log.committed_offset:
                self.wait_ms = 0

    def settle(self, first: int, count: int, reason: int = Reason.ACKED) -> None:
        """Take an acknowledgement: the consumer has capacity again, and the message stays."""
        self.unacked_count -= count

    def requeue(self, first: int, count: int) -> None:
        """Forget unacked messages of a channel that ends: a stream delivers nothing twice to one reader."""
        self.unacked_count -= count

    # -- what a stream does not do ------------------------------------------------------------

    def take_one(self, now_ms: int) -> tuple[list[Run], bool]:
        """Refuse `basic.get`."""
        raise self._unsupported("basic.get")

    def check_refusable(self) -> None:
        """Refuse `basic.nack` and `basic.reject`."""
        raise self._unsupported("basic.nack and basic.reject")

    def drop_ready(self, reason: int) -> int:
        """Refuse a purge."""
        raise self._unsupported("queue.purge")

    def _unsupported(self, what: str) -> Unsupported:
        vhost, name = self.key
        return Unsupported(f"{what} not supported by stream queues queue '{name}' in vhost '{vhost}'")


class _Position:
    """The position of a consumer: its next offset, and the messages read from there on.

    `offset` is -1 until the first dispatch, because an interval reaches back from its time.
    """

    __slots__ = ("argument", "offset", "window")

    def __init__(self, argument: Any) -> None:
        self.argument = argument
        self.offset = -1
        self.window: deque[Run] = deque()


def retained_before_ms(settings: QueueSettings, now_ms: int) -> int | None:
    """The time before which a segment's last message must be for retention to drop it; None for no such limit."""
    return None if settings.max_age_ms is None else now_ms - settings.max_age_ms


def records_of(entry: bytes) -> int:
    """The number of messages in an entry of a chunk."""
    return int.from_bytes(entry[1:3], "big") if entry[0] & 0x80 else 1


def _rising(ids: Sequence[int], entries: list[bytes], last: int) -> Iterator[tuple[int, bytes]]:
    for publishing_id, entry in zip(ids, entries, strict=True):
        if publishing_id > last:
            last = publishing_id
            yield publishing_id, entry


def _forget(error: LeveretError | None) -> None:
    """Do nothing."""
