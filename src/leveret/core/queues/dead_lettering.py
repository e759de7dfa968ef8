"""Messages that a queue has to dead-letter: they are published elsewhere before they are settled in the queue.

Messages that expire or exceed a limit are taken from the head of the queue, with their bodies. So one dispatch takes a
bounded number of messages, and the next dispatch continues. Rejected messages are noted as ranges of offsets, and read
at the next flush instead of at the rejection, because reading may fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.messages import Run, bytes_of, count_of

DEAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The octets of dead letters in one dispatch, about; so a whole backlog may die without filling memory."""
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


class DeadLetters(NamedTuple):
    """Messages for the dead letter exchange; they stay unacked in the queue until they are safe there.

    `done` are the target queues that have them already, if a first attempt failed for others.
    """

    runs: list[Run]
    reason: str
    done: frozenset[DeliverySource] = frozenset()


class DeadLettering:
    """The messages of one queue that are being dead-lettered.

    Attributes:
        letters: to be published with this dispatch.
        declared_dead: unacked messages that are still to be read, as (first, end, reason).
        count: the number of messages that are dead and not settled yet.
    """

    __slots__ = ("_octets", "count", "declared_dead", "letters")

    def __init__(self) -> None:
        """Begin without any."""
        self.letters: list[DeadLetters] = []
        self.declared_dead: deque[tuple[int, int, str]] = deque()
        self.count = 0
        self._octets = 0

    @property
    def is_full(self) -> bool:
        """Whether this dispatch has enough dead letters."""
        return self._octets >= DEAD_BYTES_MAX

    def add(self, letters: DeadLetters) -> None:
        """Add letters to publish; also again, for the target queues that are not in `done`."""
        runs = letters.runs
        self.letters.append(letters)
        self._octets += bytes_of(runs) + DEATH_BYTES * count_of(runs) + HEADER_COSTS * sum(map(_excess, runs))

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
        self._octets = 0
        return letters

    def declare_dead(self, first: int, end: int, reason: str) -> None:
        """Note messages that a dispatch will read and add."""
        self.count += end - first
        declared_dead = self.declared_dead
        if declared_dead and declared_dead[-1][1:] == (first, reason):
            declared_dead[-1] = (declared_dead[-1][0], end, reason)
        else:
            declared_dead.append((first, end, reason))

    def add_declared_dead(self, find: Callable[[int], Run]) -> None:
        """Add messages that were declared dead until the dispatch is full; `find` reads the run with an offset."""
        while self.declared_dead and not self.is_full:
            first, end, reason = self.declared_dead[0]
            run = find(first)
            run = run.cut(first, min(end, run.end))
            run = run.cut(first, first + self.fitting(run, len(run)))
            self.add(DeadLetters([run], reason))
            if run.end == end:
                self.declared_dead.popleft()
            else:
                self.declared_dead[0] = (run.end, end, reason)


def _excess(run: Run) -> int:
    """The octets of headers that cost more; messages that are alike have one header."""
    alike = run.messages.head
    if alike is not None:
        return max(0, len(alike.header) - HEADER_BYTES)
    return max(0, run.header_bytes - HEADER_BYTES * len(run))
