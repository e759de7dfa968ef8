"""The logs of streams: appending, committing, reading, retention.

A chunk is one flush of one stream. Its data are the entries as publishers sent them, so readers of the stream
protocol get it as it stands in the file. Its trailer holds the last publishing id of each publisher in it, and the
offsets that readers stored since the last chunk (without messages, in a chunk of type TRACKING with one empty
record). The first chunk of a segment repeats all ids and offsets, so that the newest segment, which retention never
drops, has all of them.

Readers are served up to the committed end, see `runtime.logs.committed_log`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from typing import Final, NamedTuple, Protocol

from leveret.core.queues.confirms import ConfirmOutcome
from leveret.core.queues.messages import Run, bytes_of, count_of
from leveret.core.queues.queue import Queue
from leveret.core.queues.sequences import NumberedRun
from leveret.core.queues.stream import Stream, StreamBatch, records_of, retained_before_ms
from leveret.model.errors import Corrupt, LedElsewhere, LeveretError, PreconditionFailed, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.committed_log import CommittedLog
from leveret.runtime.logs.log_home import LogHome
from leveret.runtime.logs.queue_store import OnAppend, sequences_in
from leveret.runtime.logs.relocating import WhenSafe
from leveret.session.stream.messages import entries_of, runs_of
from leveret.storage.log import Log
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
from leveret.wire.record import COUNT_MAX

logger = logging.getLogger(__name__)

CHUNK_BYTES_MAX: Final = 1_000_000
"""The most octets of a chunk: it is one frame to a reader, of at most a mebibyte; a larger message is alone in one."""
READ_BYTES: Final = 512 * 1024
READ_AT_ONCE: Final = 4096
"""The most messages of one read for AMQP 0-9-1; a small compressed batch may have 65,535."""
UNPACKED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The octets at which such a read ends; they may have been a thousandth of that in the log."""
FILTERS_MAX: Final = 128
"""The most filter values of a chunk; with more it is sent to every reader."""

UNKNOWN_FILTERS: Final = frozenset(b"%d" % number for number in range(FILTERS_MAX + 1))
"""Stands for unknown filter values, so that their chunk is sent to every reader."""


class HoldingConfirms(Protocol):
    """Confirms that wait for another site, see runtime.collecting.remote_dc_confirms."""

    def concerns(self, queue: object) -> bool:
        """Whether they do for this stream."""

    def hold(self, queue: Stream, messages: int, answer: Callable[[bool], None]) -> None:
        """Answer once the other site has everything that the stream has now."""


class StreamStore:
    """One log a stream.

    Attributes:
        home: the logs' directory.
        on_append: called with every appended chunk.
        on_commit: each is called with every stream whose committed end rose.
        when_confirmable: calls back when everything appended to a stream so far is where a confirm has to have it.
        has_mirrors: whether other nodes may have copies: then a start does not know what they have.
        downstreams: another site that confirms to publishers of the stream protocol wait for; None for none.
    """

    def __init__(
        self, tree: Tree, commit: GroupCommit, clock_ms: Callable[[], int], segment_bytes_max: int
    ) -> None:
        """Streams have their logs in `streams`; `segment_bytes_max` applies unless a stream has its own."""
        self.on_append: OnAppend = _ignore
        self.on_commit: list[Callable[[Stream], None]] = []
        self.when_confirmable: WhenSafe = lambda stream, then: commit.when_confirmable(then)
        self.has_mirrors = False
        self._recovered: set[Stream] = set()
        self._uncommitted: dict[Stream, dict[int, list[StreamBatch]]] = {}
        """Batches whose publishers wait for their confirms."""
        self.downstreams: HoldingConfirms | None = None
        self.home = LogHome(tree.root / Stream.log_kind, tree.removed)
        self._tree = tree
        self._commit = commit
        self._clock_ms = clock_ms
        self._segment_bytes_max = segment_bytes_max
        self._logs: dict[Stream, CommittedLog] = {}

    # -- life of a log ------------------------------------------------------------------------

    def committed(self, stream: Stream) -> CommittedLog:
        """The stream's log, made on first use.

        Raises:
            StorageError: the stream's log is damaged, or the disk refuses it.
        """
        found = self._logs.get(stream)
        if found is None:
            if stream.damage is not None:
                raise StorageError(f"stream '{stream.key[1]}' is down: {stream.damage}")
            log = self._describe(stream)
            found = self._keep(stream, log if log.is_open else log.open(defer_names=True), -1)
        return found

    def log(self, stream: Stream) -> Log:
        """The same log, without its committed end. Raises StorageError."""
        return self.committed(stream).log

    def _describe(self, stream: Stream) -> Log:
        return self._tree.log(
            self.home.place(stream.epoch),
            segment_bytes_max=stream.settings.segment_bytes_max or self._segment_bytes_max,
        )

    def _keep(self, stream: Stream, log: Log, last_chunk_id: int) -> CommittedLog:
        kept = CommittedLog(log, last_chunk_id, gone="the stream was deleted")
        self._logs[stream] = stream.log = kept
        return kept

    def queue_of(self, log: Log) -> Stream | None:
        """The stream of a log; None if it is no log of a stream here."""
        return next((stream for stream, held in self._logs.items() if held.log is log), None)

    def recover(self, stream: Stream) -> None:
        """Restore the stream from its log; a damaged log takes the stream down, and no other.

        Raises:
            OutOfDescriptors: the log may be whole, and cannot be opened now.
        """
        log = self._describe(stream)
        last_chunk_id = -1

        def on_chunk(chunk: Chunk) -> None:
            nonlocal last_chunk_id
            if chunk.header.type == ChunkType.USER:
                last_chunk_id = chunk.header.chunk_id
            _remember(stream, chunk)

        if self.home.recover(stream, log, on_chunk):
            kept = self._keep(stream, log, last_chunk_id)
            self._commit.appended(log)
            if self.has_mirrors:
                kept.hold_back(0)
                self._recovered.add(stream)

    def commit_recovered(self, stream: Stream, committed_offset: int) -> None:
        """Serve a stream just recovered up to this offset, which is committed; the rest once its mirrors have that.

        Raises:
            StorageError: the log cannot be read.
        """
        kept = self._logs.get(stream)
        if kept is not None and stream in self._recovered:
            self._recovered.discard(stream)
            kept.hold_back(committed_offset)
            kept.last_appended_id = kept.last_chunk_of_all()
            self._promise(stream, kept, [])
            self._commit.begin()

    def replayed(self, stream: Stream, log: Log, chunk: Chunk) -> None:
        """Take a chunk appended to the log of a stream that another node serves."""
        kept = self._logs.get(stream) or self._keep(stream, log, -1)
        _remember(stream, chunk)
        kept.commit(
            log.next_offset,
            chunk.header.chunk_id if chunk.header.type == ChunkType.USER else kept.last_chunk_id,
        )

    def forget(self, stream: Stream) -> None:
        """Forget a deleted stream that another node served; this store does not delete its log."""
        self._logs.pop(stream, None)
        self._recovered.discard(stream)

    def step_down(self, stream: Stream) -> None:
        """Hand the stream over to another node: its log stays, as a mirror's, and leaves this store."""
        kept = self._logs.get(stream)
        self.forget(stream)
        if kept is not None:
            vhost, name = stream.key
            self._stop_serving(
                stream, kept, LedElsewhere(f"stream '{name}' in vhost '{vhost}' has another leader")
            )
            self._commit.forget(kept.log)
            kept.log.close()
            self._tree.logs.pop(self._tree.name_of(kept.log.directory), None)

    def _stop_serving(self, stream: Stream, kept: CommittedLog, error: LeveretError) -> None:
        """Notify the readers and publishers of a stream.

        They hear of it before their batches fail: so what has no confirm is published again at the next leader.
        """
        kept.stop_serving(error)
        batches = [*chain.from_iterable(self._uncommitted.pop(stream, {}).values()), *stream.incoming]
        stream.incoming = []
        if batches:
            asyncio.get_running_loop().call_soon(_fail, batches, error)

    def begin_segment(self, stream: Stream) -> int:
        """Begin a segment with a chunk without messages, which carries the state of each segment's start.

        Raises:
            StorageError: the disk refused it.
        """
        kept = self.committed(stream)
        kept.log.roll()
        trailer = self._trailer(stream, kept.log, {}, {}, None)
        header = self._append(stream, kept, ChunkType.TRACKING, [encode_entry(b"")], 1, trailer)
        stream.backlog.next_offset = kept.log.next_offset
        self._promise(stream, kept, [])
        return header.chunk_id

    def delete(self, stream: Stream) -> None:
        """Remove a deleted stream's log, and notify its readers.

        Raises:
            StorageError: the disk refused it.
        """
        held = self._logs.get(stream)
        self.forget(stream)
        if held is not None:
            self._stop_serving(stream, held, held.ended)
            held.log.delete()
        else:
            self._describe(stream).delete()

    def remove_orphans(self, epochs: set[int], named: set[int]) -> None:
        """Delete the logs of streams that are not among `epochs`; those in `named` alone are not needed either."""
        self.home.remove_orphans(epochs)

    def close(self) -> None:
        """Close every log."""
        for held in self._logs.values():
            held.log.close()

    # -- appending ----------------------------------------------------------------------------

    def append_messages(self, stream: Stream) -> None:
        """Append the messages of both protocols since the last flush.

        Raises:
            StorageError: the disk refused them; they are dropped, and their publishers are notified.
        """
        batches, stream.incoming = stream.incoming, []
        gathered = stream.gathered.take()
        sequences = stream.sequences.unlogged
        numbered = stream.sequences.take_numbered()
        # Times of arrival are not stored: in RabbitMQ's streams a message has its chunk's time.
        converted = entries_of(gathered) if gathered else []
        if converted:
            batches.append(StreamBatch(b"", (), converted, len(converted), None))
        if not batches:
            return
        try:
            kept = self._log_at(stream)
            self._append_parts(stream, kept, _split(batches, sequences, numbered, len(converted)), batches)
        except StorageError as error:
            for batch in batches:
                batch.done(error)
            raise
        count = sum(batch.records for batch in batches)
        stream.published_total += count
        stream.counters.publish += count
        stream.backlog.next_offset = kept.log.next_offset
        self._promise(stream, kept, [batch for batch in batches if batch.ids])

    def _log_at(self, stream: Stream) -> CommittedLog:
        """The log, continued up to the offset that its next message is to have."""
        offset = stream.next_offset_min
        kept = self.committed(stream)
        if kept.log.next_offset < offset:
            kept.log.begin_at(offset)
            if kept.log.next_offset == offset:
                # Mirrors may have an empty copy, which begins where the log did before.
                self._tree.begun(kept.log)
        while (missing := offset - kept.log.next_offset) > 0:
            # As at the messages' origin, records without messages take these offsets.
            trailer = self._trailer(stream, kept.log, {}, {}, None)
            records = min(missing, COUNT_MAX)
            self._append(stream, kept, ChunkType.TRACKING, [encode_entry(b"")], records, trailer)
        return kept

    def _append_parts(
        self, stream: Stream, kept: CommittedLog, parts: list[_Part], batches: list[StreamBatch]
    ) -> None:
        filters = _filters_of(batches)
        offsets = stream.unlogged_offsets
        for part in parts:
            newest = part is parts[-1]
            trailer = self._trailer(stream, kept.log, part.sequences, offsets if newest else {}, filters)
            header = self._append(stream, kept, ChunkType.USER, part.entries, part.records, trailer)
            kept.last_appended_id = header.chunk_id
            stream.sequences.note_logged(part.sequences)
        if parts:
            stream.note_offsets(offsets)
            stream.unlogged_offsets = {}

    def append_settlements(self, stream: Stream) -> None:
        """Append readers' offsets that no chunk of messages has; then apply retention if a segment began.

        Raises:
            StorageError: the disk refused them; they are kept for the next flush.
        """
        if stream.unlogged_offsets:
            kept = self.committed(stream)
            trailer = self._trailer(stream, kept.log, {}, stream.unlogged_offsets, None)
            self._append(stream, kept, ChunkType.TRACKING, [encode_entry(b"")], 1, trailer)
            stream.note_offsets(stream.unlogged_offsets)
            stream.unlogged_offsets = {}
            stream.backlog.next_offset = kept.log.next_offset
            self._promise(stream, kept, [])

    def _append(
        self,
        stream: Stream,
        kept: CommittedLog,
        kind: int,
        entries: list[bytes],
        records: int,
        trailer: bytes,
    ) -> Header:
        log = kept.log
        log.segment_bytes_max = stream.settings.segment_bytes_max or self._segment_bytes_max
        starts_segment = log.starts_segment
        # The log's times must not fall, even if the clock was set back, because they are searched.
        now_ms = max(self._clock_ms(), log.last_timestamp_ms)
        header = log.append(kind, len(entries), records, entries, now_ms, trailer)
        stream.chunk_epochs.appended(header.epoch, header.next_offset)
        self._commit.appended(log)
        if header.chunk_id == log.first_offset:
            self.home.record_existence_once_synced(stream.epoch)
        self.on_append(stream, header, entries, trailer)
        if starts_segment:
            self._retain(stream, kept)
        return header

    def _trailer(
        self,
        stream: Stream,
        log: Log,
        sequences: dict[bytes, int],
        offsets: dict[bytes, int],
        filters: set[bytes] | None,
    ) -> bytes:
        if log.starts_segment:
            # The last publisher comes last, as a start restores it.
            logged = stream.sequences.logged
            sequences = {name: logged[name] for name in logged if name not in sequences} | sequences
            offsets = stream.live_offsets() | offsets
        epochs = stream.chunk_epochs
        has_begun = log.starts_segment or epochs.last != log.epoch
        ends = list(epochs.before(log.epoch)) if has_begun else []
        if not sequences and not offsets and not ends and filters is None:
            return b""
        found = [encode_attribute(Attribute.SEQUENCE, name, value) for name, value in sequences.items()]
        found += [encode_attribute(Attribute.OFFSET, name, value) for name, value in offsets.items()]
        found += [encode_attribute(Attribute.EPOCH_END, epoch.to_bytes(8), end) for epoch, end in ends]
        if filters is not None:
            many = len(filters) > FILTERS_MAX
            found += [encode_attribute(Attribute.FILTER, name, many) for name in ({b""} if many else filters)]
        return encode_trailer(*found)

    def _promise(self, stream: Stream, kept: CommittedLog, batches: list[StreamBatch]) -> None:
        end, last = kept.log.next_offset, kept.last_appended_id
        answer: Callable[[bool], None] = partial(self._answer, stream, batches)
        if batches:
            self._uncommitted.setdefault(stream, {})[id(batches)] = batches
        if batches and self.downstreams is not None and self.downstreams.concerns(stream):
            outcome = ConfirmOutcome(answer)
            answer = outcome.part()
            self.downstreams.hold(stream, sum(batch.records for batch in batches), outcome.part())
            outcome.seal()
        self.when_confirmable(stream, partial(self._committed, stream, kept, end, last, answer))

    def _answer(self, stream: Stream, batches: list[StreamBatch], ok: bool) -> None:
        """Tell publishers whether their messages are safe where a confirm has to be true."""
        if batches and self._uncommitted.get(stream, {}).pop(id(batches), None) is None:
            # The stream was deleted or has another leader, and its publishers know.
            return
        wrong: LeveretError | None = None
        if stream.damage is not None:
            wrong = StorageError(f"stream '{stream.key[1]}' is down: {stream.damage}")
        elif not ok:
            wrong = PreconditionFailed(
                f"no downstream has the messages of stream '{stream.key[1]}' (remote-dc-confirm)"
            )
        for batch in batches:
            batch.done(wrong)

    def _committed(
        self,
        stream: Stream,
        kept: CommittedLog,
        end: int,
        last_chunk_id: int,
        answer: Callable[[bool], None],
    ) -> None:
        answer(True)
        if stream.damage is None and not kept.is_closed:
            kept.commit(end, last_chunk_id)
            for listener in self.on_commit:
                listener(stream)

    # -- retention ----------------------------------------------------------------------------

    def retain(self) -> None:
        """Delete the segments that are beyond their streams' limits, never the newest of a stream."""
        for stream, kept in self._logs.items():
            try:
                self._retain(stream, kept)
            except StorageError as error:
                logger.error("retention_failed vhost=%s queue=%s error=%s", *stream.key, error)

    def _retain(self, stream: Stream, kept: CommittedLog) -> None:
        settings = stream.settings
        before_ms = retained_before_ms(settings, self._clock_ms())
        if settings.max_length_bytes is not None or before_ms is not None:
            kept.log.retain(bytes_max=settings.max_length_bytes, older_than_ms=before_ms)

    def oldest_timestamp_ms(self, stream: Stream) -> int | None:
        """The arrival time of the oldest retained messages, None for an empty stream."""
        kept = self.committed(stream)
        chunk = next(kept.log.read(kept.first_offset, 1), None)
        return None if chunk is None else chunk.header.timestamp_ms

    # -- reading for AMQP 0-9-1 ---------------------------------------------------------------

    def read(self, stream: Stream, offset: int) -> list[Run]:
        """The core's Reader: durable messages from the offset on, of about half a megabyte, or READ_AT_ONCE.

        There may be none that can be read; the stream's `read_before` is the end of what was read.

        Raises:
            StorageError: the log cannot be read at `offset`.
        """
        kept = self.committed(stream)
        runs: list[Run] = []
        left, left_bytes = READ_AT_ONCE, UNPACKED_BYTES_MAX
        if offset < kept.committed_offset:
            for chunk in kept.log.read(offset, READ_BYTES, check=True):
                header = chunk.header
                if header.next_offset > kept.committed_offset or left <= 0 or left_bytes <= 0:
                    break
                if header.type == ChunkType.USER:
                    found = self._runs(stream, kept, chunk, offset, left, left_bytes)
                    runs += found
                    left, left_bytes = left - count_of(found), left_bytes - bytes_of(found)
                offset = max(offset, header.next_offset)
        stream.read_before = offset
        return runs

    def _runs(
        self, stream: Stream, kept: CommittedLog, chunk: Chunk, offset: int, count_max: int, octets_max: int
    ) -> list[Run]:
        first = chunk.header.chunk_id
        try:
            return runs_of(
                bytes(chunk.data),
                first,
                offset,
                stream.name_octets,
                count_max=count_max,
                octets_max=octets_max,
            )
        except ChunkError as error:
            raise Corrupt(str(kept.log.directory), "", first, -1, str(error)) from None


def _fail(batches: list[StreamBatch], error: LeveretError) -> None:
    for batch in batches:
        batch.done(error)


def _remember(stream: Stream, chunk: Chunk) -> None:
    """Take over the publishers' sequences and the readers' offsets of a chunk."""
    for kind, name, value in decode_trailer(chunk.trailer):
        if kind == Attribute.SEQUENCE:
            stream.sequences.note_logged({name: value})
        elif kind == Attribute.OFFSET:
            stream.note_offsets({name: value})
        elif kind == Attribute.EPOCH_END:
            stream.chunk_epochs.logged(int.from_bytes(name), value)
    stream.chunk_epochs.appended(chunk.header.epoch, chunk.header.next_offset)
    stream.backlog.next_offset = chunk.header.next_offset


def _filters_of(batches: list[StreamBatch]) -> set[bytes] | None:
    """The filter values of a chunk, with b"" if a message has none; None if no message has one."""
    filters: set[bytes] = set()
    for batch in batches:
        filters |= {b""} if batch.filters is None else batch.filters
    return None if filters == {b""} else {name[:255] for name in filters}


class _Part(NamedTuple):
    """The content of one chunk: entries, the number of messages in them, and their publishers' last ids."""

    entries: list[bytes]
    records: int
    sequences: dict[bytes, int]


def _split(
    batches: list[StreamBatch], sequences: dict[bytes, int], numbered: list[NumberedRun], gathered: int
) -> list[_Part]:
    """The parts for a chunk each; nearly always one, with all sequences.

    Each of several has the sequences of its own messages only, because after a crash it may be the last one.

    Args:
        batches: the published batches; messages gathered by AMQP 0-9-1 are the last one.
        sequences: the publishers' last ids in all of them.
        numbered: the numbered runs among the gathered messages.
        gathered: the number of gathered messages.
    """
    entries = [entry for batch in batches for entry in batch.entries]
    if len(entries) <= ENTRIES_MAX and sum(map(len, entries)) <= CHUNK_BYTES_MAX:
        return [_Part(entries, sum(batch.records for batch in batches), sequences)] if entries else []
    cuts, size = [0], 0
    for at, entry in enumerate(entries):
        if at > cuts[-1] and (at - cuts[-1] == ENTRIES_MAX or size + len(entry) > CHUNK_BYTES_MAX):
            cuts.append(at)
            size = 0
        size += len(entry)
    parts: list[_Part] = []
    for first, end in pairwise([*cuts, len(entries)]):
        part, before = entries[first:end], len(entries) - gathered
        own = _ids_in(batches, first, end)
        own |= sequences_in(numbered, first - before, end - before, is_last=end == len(entries))
        parts.append(_Part(part, sum(map(records_of, part)), own))
    return parts


def _ids_in(batches: list[StreamBatch], first: int, end: int) -> dict[bytes, int]:
    """The last publishing id of each publisher among the entries from `first` up to `end` of all batches together."""
    found: dict[bytes, int] = {}
    at = 0
    for batch in batches:
        last = min(end, at + len(batch.entries)) - at
        if batch.reference and last > max(0, first - at):
            found[batch.reference] = batch.entry_ids[last - 1]
        at += len(batch.entries)
    return found


def _ignore(queue: Queue, header: Header, data: list[bytes], trailer: bytes) -> None:
    """Do nothing."""
