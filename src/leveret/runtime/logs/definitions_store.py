"""The definitions log: every change of a durable entity, in order, one record each.

Beside the changes it holds **marks** (chunks of type TRACKING): the epochs of queues that have a log. A mark is
appended after the first chunk of the queue's log, so a marked queue without a log has lost it.

**Compaction.** When the log is far larger than its live entities, all of these are logged once more, as ordinary puts
from the start of a new segment, a few with each later append. Once the last of them is durable, the segments before
the first are deleted. There is no other format and no switch-over: each put holds the entity's state at its place in
the log, so a replay ends in the same state, also after a crash half-way. Offsets go on, and so do the epochs made
from them.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Final, TypeVar

import msgspec

from leveret.core.broker.broker import Broker
from leveret.core.broker.topology import ExchangeState
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.definitions import Change, Definitions, Delete, Put, decode_change, encode_change
from leveret.model.errors import Corrupt, Refusal, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.log_home import take_down
from leveret.storage.log import Log
from leveret.wire.chunk import ENTRIES_MAX, Chunk, ChunkType, encode_entry, split_entries

logger = logging.getLogger(__name__)

T = TypeVar("T")

COMPACT_BYTES_MIN: Final = 16 * 1024 * 1024
"""A smaller log is read in well under a second and not compacted."""
COMPACT_RATIO: Final = 4
"""The ratio of the log's size to its live entities' from which on it is compacted."""
_READ_BYTES: Final = 1024 * 1024
_ACCESS: Final = ("users", "permissions", "topic_permissions")
RELOG_AT_ONCE: Final = 512
"""The live entities that are logged again with one append: about 3 ms of the event loop."""


class DefinitionsStore:
    """Reads the definitions at start, appends changes afterwards.

    Attributes:
        definitions: the definitions in the log.
        last_epoch: the highest epoch when the log was opened; new queues get higher ones.
    """

    def __init__(self, log: Log, commit: GroupCommit, clock_ms: Callable[[], int]) -> None:
        """Read the log, and open it unless it is open.

        Raises:
            Corrupt: the definitions cannot be read; the node must not start without them.
            StorageError: the disk refused to be read or synced.
        """
        self.definitions = Definitions()
        self._marked: set[int] = set()
        self._to_mark: set[int] = set()
        self._batch: list[int] = []
        self._batch_of = -1
        self._commit = commit
        self._clock_ms = clock_ms
        self._log = log
        self._log.open(self._recovered)
        self._relogging: Iterator[bool] | None = None
        self._relogged_from = 0
        self._relogged_to: int | None = None
        live = {queue.epoch for queue in self._queues()}
        self.last_epoch = max(self._log.next_offset, *live, *self._marked, 0)
        self._marked &= live
        self._compact_above_bytes = COMPACT_BYTES_MIN

    def _recovered(self, chunk: Chunk) -> None:
        self.replayed(chunk)

    def replayed(self, chunk: Chunk) -> list[Change]:
        """Take over a chunk of the log; return the changes in it.

        Raises:
            Corrupt: the chunk holds no changes.
        """
        changes: list[Change] = []
        marks = chunk.header.type == ChunkType.TRACKING
        for index, entry in enumerate(split_entries(chunk.data)):
            try:
                if marks:
                    self._marked.update(epoch for (epoch,) in struct.iter_unpack(">Q", entry))
                else:
                    changes.append(decode_change(entry))
                    self._apply(changes[-1])
            except (msgspec.DecodeError, struct.error) as error:
                offset = chunk.header.chunk_id + index
                raise Corrupt(
                    str(self._log.directory), "", offset, -1, f"not a change of a definition: {error}"
                ) from None
        return changes

    def former_queues(self) -> Iterator[d.Queue]:
        """Yield all queues that the log defines, also deleted ones; a compaction removes these.

        Raises:
            StorageError: the log cannot be read.
        """
        offset = self._log.first_offset
        while offset < self._log.next_offset:
            for chunk in self._log.read(offset, _READ_BYTES, check=True):
                offset = chunk.header.next_offset
                if chunk.header.type != ChunkType.TRACKING:
                    for entry in split_entries(chunk.data):
                        change = decode_change(entry)
                        if isinstance(change, Put) and isinstance(change.entity, d.Queue):
                            yield change.entity

    def restore(self, broker: Broker) -> None:
        """Give an empty broker everything in the log."""
        broker.epochs.last = self.last_epoch
        for entity in self.definitions.entities():
            take_over(broker, Put(entity))
        broker.changes.clear()

    def _apply(self, change: Change) -> None:
        match change:
            case Put(d.Queue() as entity):
                self._unmark(entity.key, entity.epoch)
            case Delete("queues", key):
                self._unmark(key, 0)
        self.definitions.apply(change)

    def _unmark(self, key: tuple[str, ...], epoch: int) -> None:
        """Remove the mark of the replaced or deleted queue of a name, unless it has this epoch."""
        queue = self.definitions.by_kind["queues"].get(key)
        if isinstance(queue, d.Queue) and queue.epoch != epoch:
            self._marked.discard(queue.epoch)
            self._to_mark.discard(queue.epoch)

    def _queues(self) -> Iterator[d.Queue]:
        for queue in self.definitions.by_kind["queues"].values():
            if isinstance(queue, d.Queue):
                yield queue

    @property
    def next_offset(self) -> int:
        """The number of records ever logged."""
        return self._log.next_offset

    # -- which queues have a log --------------------------------------------------------------

    @property
    def marked(self) -> Set[int]:
        """The epochs of all queues that are marked as having a log."""
        return self._marked

    @property
    def synced_offset(self) -> int:
        """The offset up to which the log is on disk."""
        return self._log.synced_offset

    def has_log(self, epoch: int) -> bool:
        """Whether the queue of this epoch is marked as having a log."""
        return epoch in self._marked

    def record_existence(self, epoch: int) -> None:
        """Mark a queue whose log has its first chunk, so that a missing log will be a loss and no empty queue.

        If the disk refuses the mark, the next start makes it.
        """
        if epoch not in self._marked:
            try:
                self._append_existence([epoch])
            except StorageError as error:
                logger.warning("log_not_marked epoch=%d error=%s", epoch, error)
            else:
                self._commit.appended(self._log)

    def record_existence_once_synced(self, epoch: int) -> None:
        """As `record_existence`, once the group commit has synced everything appended so far.

        The names of a new log become durable with that sync, and a mark whose log lost its names with the power would
        take the queue down. A confirm may come before the mark, because then the names are durable, and the next
        start finds the log and marks it.
        """
        if epoch not in self._marked and epoch not in self._to_mark:
            if self._batch_of != self._commit.begun:
                # A round that began before does not cover this append.
                self._batch, self._batch_of = [], self._commit.begun
                self._commit.when_synced(partial(self._mark, self._batch))
            self._batch.append(epoch)
            self._to_mark.add(epoch)

    def _mark(self, batch: list[int]) -> None:
        """Mark the queues whose logs have durable names by now, except deleted ones."""
        epochs = [epoch for epoch in batch if epoch in self._to_mark and epoch not in self._marked]
        self._to_mark.difference_update(batch)
        try:
            for marks in _parts(epochs):
                self._append_existence(marks)
        except StorageError as error:
            logger.warning("logs_not_marked count=%d error=%s", len(epochs), error)
        if epochs:
            self._commit.appended(self._log)

    def _append_existence(self, epochs: Sequence[int]) -> None:
        data = encode_entry(struct.pack(f">{len(epochs)}Q", *epochs))
        self._log.append(ChunkType.TRACKING, 1, 1, data, self._clock_ms())
        self._marked.update(epochs)

    # -- changes ------------------------------------------------------------------------------

    def append(self, changes: Sequence[Change]) -> None:
        """Log changes; durable after the next group commit.

        Raises:
            StorageError: the disk refused them; some may be logged, which is harmless when they are logged again.
        """
        for at in range(0, len(changes), ENTRIES_MAX):
            self._append(changes[at : at + ENTRIES_MAX])
        self._compact_a_little()
        self._commit.appended(self._log)

    def _append(self, changes: Sequence[Change]) -> None:
        data = b"".join([encode_entry(encode_change(change)) for change in changes])
        count = len(changes)
        if count:
            self._log.append(ChunkType.USER, count, count, data, self._clock_ms())
        for change in changes:
            self._apply(change)

    # -- compaction ---------------------------------------------------------------------------

    def compact_at_start(self) -> None:
        """Compact a far too large log at the start, in one step, before any change is logged.

        Raises:
            StorageError: the records cannot be synced.
        """
        if self._log.size_bytes <= COMPACT_BYTES_MIN:
            return
        live_bytes = sum(len(encode_change(Put(entity))) for entity in self.definitions.entities())
        self._compact_above_bytes = max(COMPACT_BYTES_MIN, COMPACT_RATIO * live_bytes)
        while self._log.size_bytes > self._compact_above_bytes:
            if self._relog_some():
                self._log.sync()
                self._drop_old()
                return

    def _compact_a_little(self) -> None:
        if self._relogged_to is not None:
            self._drop_old()
        elif (
            self._relogging is not None or self._log.size_bytes > self._compact_above_bytes
        ) and self._relog_some():
            self._commit.when_durable(self._drop_old)

    def _relog_some(self) -> bool:
        """Log a few live entities again; return whether these were the last.

        If the disk refuses them, the compaction waits until the log has grown; the changes themselves are logged.
        """
        if self._relogging is None:
            self._relogged_from = self._log.roll().first_offset
            self._relogging = self._relog()
        try:
            if next(self._relogging, False):
                return False
            self._relogged_to = self._log.next_offset
        except StorageError as error:
            logger.warning("definitions_not_compacted error=%s", error)
            self._compact_above_bytes = self._log.size_bytes + COMPACT_BYTES_MIN
        self._relogging = None
        return self._relogged_to is not None

    def _relog(self) -> Iterator[bool]:
        """Log all live entities, each in its present state; yields true while there may be more."""
        for marks in _parts(self._marked):
            self._append_existence([epoch for epoch in marks if epoch in self._marked])
            yield True
        for entities in self.definitions.by_kind.values():
            for keys in _parts(entities):
                self._append([Put(entities[key]) for key in keys if key in entities])
                yield True

    def _drop_old(self) -> None:
        """Delete the segments before the relogged entities, once all of these are durable."""
        if self._relogged_to is None or self._log.synced_offset < self._relogged_to:
            return
        before_bytes = self._log.size_bytes
        try:
            self._log.drop_before(self._relogged_from)
        except StorageError as error:
            logger.warning("definitions_not_compacted error=%s", error)
            return
        self._relogged_to = None
        self._compact_above_bytes = max(COMPACT_BYTES_MIN, COMPACT_RATIO * self._log.size_bytes)
        logger.info("definitions_compacted bytes=%d before=%d", self._log.size_bytes, before_bytes)

    def close(self) -> None:
        """Sync and close."""
        self._log.sync()
        self._log.close()


def take_over(
    broker: Broker, change: Change, apply: Callable[[Broker, Change], None] = Broker.apply_decided
) -> Exception | None:
    """Apply a change that was made elsewhere, or before; one that the broker refuses is logged and skipped.

    So is one that meets a bug, which would meet it at the next start, and at each other node, again. Only a change of
    an existing user or permission is not skipped: access that was taken away would stay.

    Returns:
        The unexpected error; None for none.
    """
    try:
        apply(broker, change)
    except Refusal as error:
        logger.error("definition_not_restored change=%s error=%s", name_of(change), error)
    except Exception as error:
        kind, key = place_of(change)
        if kind in _ACCESS and key in broker.definitions.by_kind[kind]:
            raise
        logger.critical("definition_failed change=%s action=skip", name_of(change), exc_info=True)
        return error
    return None


def refresh_policies(
    broker: Broker, is_over: Callable[[], bool], failed: Callable[[Queue | ExchangeState, Exception], None]
) -> bool:
    """See Broker; what meets a bug is passed to `failed`, and has its earlier policies, or some of the new ones."""
    while True:
        try:
            return broker.refresh_policies(is_over)
        except Exception as error:
            if broker.refreshing is None:
                raise
            failed(broker.refreshing, error)


def policy_failed(each: Queue | ExchangeState, error: Exception) -> None:
    """Report that policies could not be applied, and take the queue down; an exchange goes on without them."""
    logger.critical(
        "policy_failed vhost=%s name=%s", each.definition.vhost, each.definition.name, exc_info=error
    )
    if isinstance(each, Queue):
        take_down(each, StorageError(f"its policies cannot be applied: {error!r}"))


def place_of(change: Change) -> tuple[str, tuple[str, ...]]:
    """Return kind and key of the changed entity."""
    if isinstance(change, Put):
        return change.entity.kind, change.entity.key
    return change.kind, change.key


def name_of(change: Change) -> str:
    """A change as the log shows it: without values, which may be secrets."""
    if isinstance(change, Put):
        return f"put {change.entity.kind} {'/'.join(change.entity.key)}"
    return f"delete {change.kind} {'/'.join(change.key)}"


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    """The present items in lists that each fit one append."""
    held = list(items)
    for at in range(0, len(held), RELOG_AT_ONCE):
        yield held[at : at + RELOG_AT_ONCE]
