"""Messages that a queue has to dead-letter: they are published elsewhere before they are settled in the queue.

With the strategy at-most-once, messages that expire or exceed a limit are taken from the head of the queue, with their
bodies. So one dispatch takes a bounded number of messages, and the next dispatch continues. Rejected messages are noted
as ranges of offsets, and read at the next flush instead of at the rejection, because reading may fail.

With at-least-once all dead messages are such ranges, which the log has too (`death_notes`), and a letter that a target
did not take waits as a range again, without its body, until `repeat_at_ms`. The letters that are under way, and those
that wait for another try, take together no more memory than UNFINISHED_BYTES_MAX, about; all others wait behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.death_notes import DeathNotes
from leveret.core.queues.messages import Run, bytes_of, count_of

DEAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The octets of dead letters in one dispatch, about; so a whole backlog may die without filling memory."""
UNFINISHED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The memory of a queue's letters under way with at-least-once, about. A sync of the disk has to be worth its wait."""
LETTER_BYTES: Final = 512
"""The memory that such a letter counts for beside its octets, so that another try of small ones takes some 0.1 s."""
NOT_STORED: Final = -1
"""The first offset of a run that was never in the log: refused at its publish, and dead-lettered."""
DEATH_BYTES: Final = 4096
"""The cost of a dead letter beside its body, in octets: as many small ones as fit take 10 ms if they differ."""
HEADER_BYTES: Final = 1024
"""The octets of headers that the cost of a dead letter covers."""
HEADER_COSTS: Final = 64
"""The cost of a further octet of headers, in octets: the entries are taken apart."""
DEAD_AT_ONCE: Final = DEAD_BYTES_MAX // DEATH_BYTES
"""The most messages that die in one step."""


class DeadRange(NamedTuple):
    """Dead messages by their offsets; `done` and `is_again` are those of their letters."""

    first: int
    end: int
    reason: str
    done: frozenset[DeliverySource] = frozenset()
    is_again: bool = False


class DeadLetters(NamedTuple):
    """Messages for the dead letter exchange; they stay unacked in the queue until they are safe there.

    `done` are the target queues that have them already, if a first attempt failed for others; then `is_again`.
    """

    runs: list[Run]
    reason: str
    done: frozenset[DeliverySource] = frozenset()
    is_again: bool = False


class DeadLettering:
    """The messages of one queue that are being dead-lettered.

    Attributes:
        letters: to be published with this dispatch.
        declared_dead: unacked messages that are still to be read.
        count: the number of messages that are dead and not settled yet.
        repeat_at_ms: the time at which letters that a target did not take are tried again; None without any.
        keeps: whether the strategy is at-least-once.
        notes: the dead messages that the log names.
    """

    __slots__ = (
        "_costs",
        "_refused",
        "_refused_bytes",
        "_unfinished_bytes",
        "_unstored",
        "count",
        "declared_dead",
        "keeps",
        "letters",
        "notes",
        "repeat_at_ms",
    )

    def __init__(self) -> None:
        """Begin without any."""
        self.letters: list[DeadLetters] = []
        self.declared_dead: deque[DeadRange] = deque()
        self.count = 0
        self.repeat_at_ms: int | None = None
        self.keeps = False
        self.notes = DeathNotes()
        self._costs = 0
        self._unfinished_bytes = 0
        self._refused: deque[DeadRange] = deque()
        self._refused_bytes = 0
        self._unstored: list[DeadLetters] = []

    def configure(self, *, keeps: bool) -> None:
        """Take changed settings: refused letters are tried again at the next dispatch."""
        self.keeps = keeps
        if self.repeat_at_ms is not None:
            self.repeat_at_ms = 0

    @property
    def is_full(self) -> bool:
        """Whether this dispatch has enough dead letters."""
        return self._costs >= DEAD_BYTES_MAX

    @property
    def _has_room(self) -> bool:
        """Whether further letters may be read: with at-least-once some may be under way, or refused, for long."""
        return not self.is_full and not (self.keeps and self._unfinished_bytes >= UNFINISHED_BYTES_MAX)

    def add(self, letters: DeadLetters) -> None:
        """Add letters to publish."""
        self.letters.append(letters)
        self._costs += _costs_of(letters)
        self._unfinished_bytes += _memory_of(letters)

    def fitting(self, run: Run, count: int) -> int:
        """The number of first messages of a run, of `count`, that are added together; one at least.

        So few large headers that a step stays short: those of messages that are alike are taken apart once.
        """
        if run.messages.head is not None or not _excess(run):
            return count
        return min(count, run.fitting(DEAD_BYTES_MAX // HEADER_COSTS))

    def take(self) -> list[DeadLetters]:
        """The letters to publish, once; their messages are settled when they are safe at the targets."""
        letters, self.letters = self.letters, []
        self._costs = 0
        return letters

    # -- the dead by their offsets ------------------------------------------------------------

    def declare_dead(self, first: int, end: int, reason: str) -> None:
        """Note messages that a dispatch will read and add."""
        self.count += end - first
        if self.keeps:
            self.notes.add(first, end, reason)
        last = self.declared_dead[-1] if self.declared_dead else None
        if last is not None and last.end == first and last.reason == reason and not last.is_again:
            self.declared_dead[-1] = last._replace(end=end)
        else:
            self.declared_dead.append(DeadRange(first, end, reason))

    def restored(self, settled: OffsetSet) -> Iterator[tuple[int, int]]:
        """Declare the messages dead that the log names and that are not settled; yield their ranges."""
        for died in sorted(self.notes):
            for first, end in settled.gaps(died.first, died.end):
                self.count += end - first
                self.declared_dead.append(DeadRange(first, end, died.reason))
                yield first, end

    @property
    def has_declared_dead(self) -> bool:
        """Whether `add_declared_dead` may have work, now or later."""
        return bool(self.declared_dead) or self.repeat_at_ms is not None

    def add_declared_dead(self, find: Callable[[int], Run], elapsed_ms: int) -> None:
        """Add messages that were declared dead until the dispatch is full; `find` reads the run with an offset."""
        if self.repeat_at_ms is not None and elapsed_ms >= self.repeat_at_ms:
            self._try_refused_again()
        while self.declared_dead and self._has_room:
            dead = self.declared_dead[0]
            run = find(dead.first)
            run = run.cut(dead.first, min(dead.end, run.end))
            count = min(len(run), DEAD_AT_ONCE) if self.keeps else len(run)
            run = run.cut(dead.first, dead.first + self.fitting(run, count))
            self.add(DeadLetters([run], dead.reason, dead.done, dead.is_again))
            if run.end == dead.end:
                self.declared_dead.popleft()
            else:
                self.declared_dead[0] = dead._replace(first=run.end)

    # -- the outcome --------------------------------------------------------------------------

    def settled(self, first: int, count: int) -> None:
        """Note settled messages."""
        self.count -= count
        self.notes.forget(first, first + count)

    def finished(self, letters: DeadLetters, again: Iterable[DeadLetters], repeat_at_ms: int) -> None:
        """Note the outcome of published letters: those of `again` are to be published again at that time."""
        self._unfinished_bytes -= _memory_of(letters)
        for each in again:
            octets = _memory_of(each)
            self._unfinished_bytes += octets
            if self.repeat_at_ms is None:
                self.repeat_at_ms = repeat_at_ms
            if any([run.first == NOT_STORED for run in each.runs]):
                self._unstored.append(each)
                continue
            self._refused_bytes += octets
            self._refused += [
                DeadRange(run.first, run.end, each.reason, each.done, is_again=True) for run in each.runs
            ]

    def _try_refused_again(self) -> None:
        """Read, and publish, the refused letters before all others."""
        self.repeat_at_ms = None
        self._unfinished_bytes -= self._refused_bytes
        self._refused_bytes = 0
        self.declared_dead.extendleft(reversed(self._refused))
        self._refused.clear()
        unstored, self._unstored = self._unstored, []
        for each in unstored:
            self._unfinished_bytes -= _memory_of(each)
            self.add(each)


def _costs_of(letters: DeadLetters) -> int:
    runs = letters.runs
    return bytes_of(runs) + DEATH_BYTES * count_of(runs) + HEADER_COSTS * sum(map(_excess, runs))


def _memory_of(letters: DeadLetters) -> int:
    runs = letters.runs
    return sum([run.memory_bytes for run in runs]) + LETTER_BYTES * count_of(runs)


def _excess(run: Run) -> int:
    """The octets of headers that cost more; messages that are alike have one header."""
    alike = run.messages.head
    if alike is not None:
        return max(0, len(alike.header) - HEADER_BYTES)
    return max(0, run.header_bytes - HEADER_BYTES * len(run))
