"""Unsettled messages that pin old segments are stored again at the end of their log, with their offsets unchanged.

A log gives disk back from its old end only. So one message that stays unsettled would keep all records behind it. If
the settled messages take more room than the unsettled ones, the unsettled messages in front are written once more, as
records of type RELOCATION (wire.relocation) behind all others, and their old segments are dropped as if they had been
settled. The copies of a log get a chunk at its end, and a drop: joins, mirrors, followers and comparisons need no
code for it. A queue knows its messages by their offsets, and these stay.

**The gain.** Counted from the front, segment by segment, it is the octets that would be given back, less twice the
octets that would be written (they take as much room again). If the sum reaches RELOCATED_BYTES_MIN anywhere, all
messages up to its maximum are relocated. So no more is written than is given back, a backlog behind is left in its
place, and the log takes at most twice the size of its unsettled messages, and a segment. Segments with a message of
the last second do not count: its consumer has hardly had it, and settles it without this work.

**The order, and why.** (1) The messages are appended, a few at a time: any prefix of the log is a consistent queue,
because the originals are still there. (2) No segment is dropped before all of them are on disk here, and at every
node that a confirm of this queue waits for: followers in sync, mirrors that may lead. From then on every node that
may lead has them behind the dropped segments. (3) Then the log's begin is moved on, and segments go, as in every drop
(storage.begin). A crash before (3) leaves messages in two places, of which the newer counts; the next look begins
again. A settlement of a message is always behind its relocation, because settled messages are not relocated. A copy
drops its leader's dropped segments only once it has all of the log on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

from leveret.core.queues.messages import Run
from leveret.core.queues.queue import Queue
from leveret.model.errors import StorageError
from leveret.storage.log import Log
from leveret.storage.log_reader import SegmentExtent

logger = logging.getLogger(__name__)

RELOCATED_BYTES_MIN: Final = 1024 * 1024
"""The least gain of a relocation."""
AGAIN_MS: Final = 60_000
"""The wait after the disk refused a relocation, or a message could not be read."""
_STEP_BYTES: Final = 256 * 1024
_STEP_READS: Final = 64
"""The most reads in one turn of the event loop: a millisecond or so."""
_CHUNK_OVERHEAD_BYTES: Final = 64

WhenSafe: TypeAlias = Callable[[Queue, Callable[[], None]], None]
"""Calls back once all appends to the queue's log so far are wherever a confirm would wait for them."""


class RelocatableLogs(Protocol):
    """The logs' owner: runtime.logs.queue_store.

    Attributes:
        keep_from: returns the first offset of a queue's log that others need, or its end.
    """

    keep_from: Callable[[Queue], int]

    def held(self, queue: Queue) -> Log | None:
        """The queue's log, if this node serves it and can."""

    def read(self, queue: Queue, offset: int, bytes_max: int) -> list[Run]:
        """Messages from an offset on. Raises StorageError."""

    def append_relocated(self, queue: Queue, runs: list[Run]) -> None:
        """Store these messages again. Raises StorageError."""

    def call_when_safe(self, queue: Queue, then: Callable[[], None]) -> None:
        """See WhenSafe."""


class _Pass:
    """One relocation: a queue's messages before `until`, of which those before `at` are stored again.

    Attributes:
        end: the log's end after the last of them; None before.
        is_safe: whether the nodes that a confirm waits for have them.
    """

    __slots__ = ("at", "end", "is_safe", "until")

    def __init__(self, at: int, until: int) -> None:
        self.at = at
        self.until = until
        self.end: int | None = None
        self.is_safe = False

    def safe(self) -> None:
        """Note that the relocated messages are safe."""
        self.is_safe = True


class Relocating:
    """The relocations; at most one for each queue at a time."""

    def __init__(self, logs: RelocatableLogs) -> None:
        """Begin without relocations."""
        self._logs = logs
        self._passes: dict[Queue, _Pass] = {}
        self._not_before_ms: dict[Queue, int] = {}
        self._failed: set[Queue] = set()

    @property
    def unfinished(self) -> list[Queue]:
        """The queues with messages to store again in their next flush."""
        return [queue for queue, each in self._passes.items() if each.end is None]

    def is_busy(self, queue: Queue) -> bool:
        """Whether a relocation of the queue is unfinished."""
        return queue in self._passes

    def forget(self, queue: Queue) -> None:
        """Forget a queue that has no relocation left, or that another node serves."""
        self._passes.pop(queue, None)
        self._not_before_ms.pop(queue, None)
        self._failed.discard(queue)

    def waits(self, queue: Queue) -> bool:
        """Whether a relocation failed, and another one begins later."""
        return queue in self._not_before_ms

    def begin(self, queue: Queue, log: Log, now_ms: int, before: int) -> bool:
        """Begin a relocation of segments before an offset if its gain is large enough; return whether it is.

        Ends the newest segment if that is one of these.
        """
        if queue in self._failed:
            self._failed.discard(queue)
            self._not_before_ms[queue] = now_ms + AGAIN_MS
        if (log.is_rolling and log.newest_bytes) or now_ms < self._not_before_ms.get(queue, 0):
            return False
        self._not_before_ms.pop(queue, None)
        if log.size_bytes - 2 * _live_bytes_about(queue) < RELOCATED_BYTES_MIN:
            return False
        until = worth_relocating(queue, log.extents_of_segments, min(before, self._logs.keep_from(queue)))
        if until is None:
            return False
        if until > log.newest_segment:
            log.roll()
        queue.relocated.forget(queue.settled, log.first_offset)
        self._passes[queue] = _Pass(queue.settled.floor, until)
        return True

    def step(self, queue: Queue) -> None:
        """Store some more messages again, in the queue's flush, behind its settlements."""
        found = self._passes.get(queue)
        if found is None or found.end is not None:
            return
        log = self._logs.held(queue)
        if log is None:
            self.forget(queue)
            return
        try:
            runs = self._next(queue, found)
            if runs:
                self._logs.append_relocated(queue, runs)
        except StorageError as error:
            logger.error("not_relocated vhost=%s queue=%s error=%s action=retry", *queue.key, error)
            del self._passes[queue]
            self._failed.add(queue)
            return
        # Counts of returns and notes of deaths are in the log, too, perhaps in the segments that go; they must be
        # logged again first.
        unlogged = queue.return_counts.unlogged or queue.dead_lettering.notes.unlogged
        if found.at >= found.until and not unlogged:
            found.end = log.next_offset
            self._logs.call_when_safe(queue, found.safe)

    def _next(self, queue: Queue, found: _Pass) -> list[Run]:
        """The next messages of a relocation, which advances behind them. Raises StorageError."""
        taken: list[Run] = []
        size = reads = 0
        for first, end in _unmoved(queue, found.at, found.until):
            while first < end:
                if size >= _STEP_BYTES or reads >= _STEP_READS:
                    found.at = first
                    return taken
                reads += 1
                # Neighbours are read together: a read looks for its first message from a step of the index on.
                runs = self._logs.read(queue, first, _STEP_BYTES - size if end - first > 1 else 1)
                if not runs or runs[0].first != first:
                    raise StorageError(f"the message at offset {first} is missing at its place")
                for run in runs:
                    stop = min(end, run.end)
                    if run.first != first or first >= stop or size >= _STEP_BYTES:
                        break
                    part = run.cut(first, stop)
                    stop = first + part.fitting(_STEP_BYTES - size)
                    taken.append(part.cut(first, stop))
                    size += taken[-1].taken().entry_bytes
                    first = stop
        found.at = found.until
        return taken

    def complete(self, queue: Queue, log: Log) -> None:
        """Drop the segments once their messages are safe behind them.

        With `durability = os` this checks the disk first.
        """
        found = self._passes.get(queue)
        if found is None or found.end is None or not found.is_safe:
            return
        if queue.definition.durable and log.synced_offset < found.end:
            return
        del self._passes[queue]
        queue.relocated_before = max(queue.relocated_before, found.until)


def worth_relocating(queue: Queue, segments: list[SegmentExtent], before: int) -> int | None:
    """The end offset of the segments to relocate; None if the gain is too small.

    See the module. Segments that do not end before that offset stay: others need them, or their messages are new.
    """
    stored_again = _live_bytes_relocated(queue, segments)
    best, best_end, gain = RELOCATED_BYTES_MIN - 1, None, 0
    for at, segment in enumerate(segments):
        if segment.next_offset > before:
            break
        live = sum(
            queue.settled.count_gaps(first, end)
            for first, end in queue.relocated.outside(segment.first_offset, segment.next_offset)
        )
        each = segment.user_bytes // max(1, segment.user_records) + _CHUNK_OVERHEAD_BYTES
        gain += segment.size - 2 * (live * each + stored_again[at])
        if gain > best:
            best, best_end = gain, segment.next_offset
    return best_end


def _live_bytes_about(queue: Queue) -> int:
    """The octets of all unsettled messages, roughly: enough to exclude relocations without a gain."""
    return queue.message_bytes


def _live_bytes_relocated(queue: Queue, segments: list[SegmentExtent]) -> list[int]:
    """The octets of unsettled messages that were relocated, by their present segment."""
    of_chunk: dict[int, int] = {}
    for first, end, chunk_id in queue.relocated:
        of_chunk[chunk_id] = of_chunk.get(chunk_id, 0) + queue.settled.count_gaps(first, end)
    found = []
    for segment in segments:
        octets = 0
        for chunk_id, live in of_chunk.items():
            if segment.first_offset <= chunk_id < segment.next_offset:
                size, count = queue.relocated.octets.get(chunk_id, (0, 1))
                octets += size * live // count
        found.append(octets)
    return found


def _unmoved(queue: Queue, at: int, until: int) -> Iterator[tuple[int, int]]:
    """Yield the unsettled ranges from `at` on whose messages are in the log before `until`, and not behind."""
    for first, end in queue.settled.gaps(at, until):
        while first < end:
            place = queue.relocated.find(first)
            if place is not None and place.first <= first:
                stop = min(end, place.end)
                if place.chunk_id < until:
                    yield first, stop
            else:
                stop = end if place is None else min(end, place.first)
                yield first, stop
            first = stop
