"""Unsettled messages that pin old segments are stored again at the end of their log, at the offsets that they have.

A log gives disk back from its old end only. So a message that nobody settles would keep all that came after it. Where
what is settled takes more room than what is not, the unsettled messages in front are written once more, as records of
type RELOCATION (wire.relocation) behind all others, and the segments in which they stood are dropped as if they had
been settled. All that copies of a log see is a chunk at its end, and a drop: joins, mirrors, followers and comparisons
know nothing of it. A queue knows its messages by their offsets, and these stay.

**What is worth it.** Counted from the front, segment by segment: octets that would be given back, less twice those that
would be written (they take as much room again). If that sum is RELOCATED_BYTES_MIN or more anywhere, all up to where it
is largest is relocated. So what is written is never more than what is given back, a backlog behind is left where it is,
and what stays on disk is at most twice what is unsettled, and a segment.

**The order, and why.** (1) The messages are appended, a few at a time: any prefix of the log is a consistent queue, for
what they were read from is still there. (2) Nothing is dropped before all of them are on disk here, and wherever a
confirm of a message of this queue would have to wait for: followers in sync, mirrors that may lead. From then on every
node that others count on has them behind what is dropped. (3) Then the log's begin is moved on, and segments go, as
ever (storage.begin). A crash before (3) leaves messages that stand twice, of which the newer place counts; the next
look begins again. A settlement of a message stands behind its relocation, always: what is settled is not relocated.
A copy drops what its leader dropped only once it was sent all of the log, and has it on disk.
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
"""Less is not worth it."""
ROLL_EVERY_MS: Final = 4_000
"""A busy queue's newest segment ends early for this not more often."""
AGAIN_MS: Final = 60_000
"""After the disk refused it, or a message could not be read."""
_STEP_BYTES: Final = 256 * 1024
_STEP_READS: Final = 64
"""In one turn of the event loop at most: a millisecond or so."""
_CHUNK_OVERHEAD_BYTES: Final = 64

WhenSafe: TypeAlias = Callable[[Queue, Callable[[], None]], None]
"""Calls back once all that was appended to the queue's log so far is where a confirm would have to wait for it."""


class RelocatableLogs(Protocol):
    """Where the logs are: runtime.logs.queue_store.

    Attributes:
        keep_from: the first offset of a queue's log that somebody else needs; where it ends, if nobody does.
    """

    keep_from: Callable[[Queue], int]

    def held(self, queue: Queue) -> Log | None:
        """The queue's log, if it is served from here and can be."""

    def read(self, queue: Queue, offset: int, bytes_max: int) -> list[Run]:
        """Messages at and after an offset. Raises StorageError."""

    def append_relocated(self, queue: Queue, runs: list[Run]) -> None:
        """Store these messages again. Raises StorageError."""

    def call_when_safe(self, queue: Queue, then: Callable[[], None]) -> None:
        """See WhenSafe."""


class _Pass:
    """One queue's messages in front of `until`, of which those before `at` are stored again.

    Attributes:
        end: where the log ended when the last of them was; None before.
        is_safe: whether they are where they have to be.
    """

    __slots__ = ("at", "end", "is_safe", "until")

    def __init__(self, at: int, until: int) -> None:
        self.at = at
        self.until = until
        self.end: int | None = None
        self.is_safe = False

    def safe(self) -> None:
        """Called back."""
        self.is_safe = True


class Relocating:
    """See the module; one pass a queue at a time."""

    def __init__(self, logs: RelocatableLogs) -> None:
        """Nothing is relocated."""
        self._logs = logs
        self._passes: dict[Queue, _Pass] = {}
        self._not_before_ms: dict[Queue, int] = {}
        self._rolled_ms: dict[Queue, int] = {}
        self._failed: set[Queue] = set()

    @property
    def unfinished(self) -> list[Queue]:
        """Queues of which more is to be stored again in their next flush."""
        return [queue for queue, each in self._passes.items() if each.end is None]

    def is_busy(self, queue: Queue) -> bool:
        """Whether a pass is not over."""
        return queue in self._passes

    def forget(self, queue: Queue) -> None:
        """It is not looked at any more: nothing is to come, or another node serves it."""
        self._passes.pop(queue, None)
        self._rolled_ms.pop(queue, None)
        self._not_before_ms.pop(queue, None)

    def waits(self, queue: Queue) -> bool:
        """Whether a pass failed, and another one is to begin later."""
        return queue in self._not_before_ms

    def begin(self, queue: Queue, log: Log, now_ms: int, *, is_quiet: bool) -> bool:
        """Begin a pass if it is worth it; whether it is. The newest segment is part of it if that ends for it."""
        if queue in self._failed:
            self._failed.discard(queue)
            self._not_before_ms[queue] = now_ms + AGAIN_MS
        if (log.is_rolling and log.newest_bytes) or now_ms < self._not_before_ms.get(queue, 0):
            return False
        self._not_before_ms.pop(queue, None)
        if log.size_bytes - 2 * _live_bytes_about(queue) < RELOCATED_BYTES_MIN:
            return False
        is_rolled_seldom = now_ms - self._rolled_ms.get(queue, now_ms - ROLL_EVERY_MS) >= ROLL_EVERY_MS
        segments = log.extents_of_segments if is_quiet or is_rolled_seldom else log.extents_of_segments[:-1]
        until = worth_relocating(queue, segments, self._logs.keep_from(queue))
        if until is None:
            return False
        if until > log.newest_segment:
            log.roll()
            self._rolled_ms[queue] = now_ms
        queue.relocated.forget(queue.settled, log.first_offset)
        self._passes[queue] = _Pass(queue.settled.floor, until)
        return True

    def step(self, queue: Queue) -> None:
        """Store some more again; part of the queue's flush, behind its settlements."""
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
        # How often they came back is in the log, too; in front of what goes, until it is said again.
        if found.at >= found.until and not queue.returns.unlogged:
            found.end = log.next_offset
            self._logs.call_when_safe(queue, found.safe)

    def _next(self, queue: Queue, found: _Pass) -> list[Run]:
        """The next messages of a pass, which is moved on behind them. Raises StorageError."""
        taken: list[Run] = []
        size = reads = 0
        for first, end in _unmoved(queue, found.at, found.until):
            while first < end:
                if size >= _STEP_BYTES or reads >= _STEP_READS:
                    found.at = first
                    return taken
                reads += 1
                runs = self._logs.read(queue, first, 1)
                if not runs or runs[0].first != first:
                    raise StorageError(f"the message at offset {first} is not where it should be")
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
        """What is safe behind it lets segments go; with `durability = os` that it is on disk here is looked for."""
        found = self._passes.get(queue)
        if found is None or found.end is None or not found.is_safe:
            return
        if queue.definition.durable and log.synced_offset < found.end:
            return
        del self._passes[queue]
        queue.relocated_before = max(queue.relocated_before, found.until)


def worth_relocating(queue: Queue, segments: list[SegmentExtent], keep_from: int) -> int | None:
    """Up to the end of which of these segments messages are to be stored again; None if it is not worth it.

    See the module. Of what others need, from `keep_from` on, nothing would be given back.
    """
    stored_again = _live_bytes_relocated(queue, segments)
    best, best_end, gain = RELOCATED_BYTES_MIN - 1, None, 0
    for at, segment in enumerate(segments):
        if segment.next_offset > keep_from:
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
    """Octets of all that is not settled, roughly: what is certainly not worth it is seen by this."""
    return queue.message_bytes


def _live_bytes_relocated(queue: Queue, segments: list[SegmentExtent]) -> list[int]:
    """Octets of what is unsettled and was stored again, by the segment in which it is now."""
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
    """Unsettled offsets from `at` on whose messages stand in the log before `until`, and nowhere behind."""
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
