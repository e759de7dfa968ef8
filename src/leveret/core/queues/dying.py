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
"""Dead letters of one dispatch, about; the next goes on, so that a whole backlog may die without filling memory."""
NOT_STORED: Final = -1
"""First offset of a run that never stood in the log: refused at its publish, and dead-lettered."""
DEATH_BYTES: Final = 1024
"""What burying a message costs beside its body: as many small ones as fit take 10 ms to publish and to settle."""
DEAD_AT_ONCE: Final = DEAD_BYTES_MAX // DEATH_BYTES
"""So many die in one piece at most."""


class DeadLetters(NamedTuple):
    """Messages that are to be published to the dead letter exchange; unacked here until they are safe there.

    `done` are queues that took them already, when others could not.
    """

    runs: list[Run]
    reason: str
    done: frozenset[DeliverySource] = frozenset()


class Dying:
    """Those of one queue.

    Attributes:
        letters: to be published with this dispatch.
        condemned: what is unacked and still to be read, (first, end, reason).
        count: how many messages of the queue are dead, and not settled yet.
    """

    __slots__ = ("_octets", "condemned", "count", "letters")

    def __init__(self) -> None:
        """Nobody is."""
        self.letters: list[DeadLetters] = []
        self.condemned: deque[tuple[int, int, str]] = deque()
        self.count = 0
        self._octets = 0

    @property
    def is_full(self) -> bool:
        """Whether enough died for now."""
        return self._octets >= DEAD_BYTES_MAX

    def add(self, letters: DeadLetters) -> None:
        """Have these published; also again, when not every queue could take them, to those that are not `done`."""
        runs = letters.runs
        self.letters.append(letters)
        self._octets += bytes_of(runs) + DEATH_BYTES * count_of(runs)

    def take(self) -> list[DeadLetters]:
        """What is to be published, once; each message is settled where it died when it is safe there."""
        letters, self.letters = self.letters, []
        self._octets = 0
        return letters

    def declare_dead(self, first: int, end: int, reason: str) -> None:
        """Note what a dispatch is to read and to add."""
        self.count += end - first
        condemned = self.condemned
        if condemned and condemned[-1][1:] == (first, reason):
            condemned[-1] = (condemned[-1][0], end, reason)
        else:
            condemned.append((first, end, reason))

    def add_condemned(self, find: Callable[[int], Run]) -> None:
        """Add what was condemned, as much as is not too much; `find` reads the run with the message at an offset."""
        while self.condemned and not self.is_full:
            first, end, reason = self.condemned[0]
            run = find(first)
            run = run.cut(first, min(end, run.end))
            self.add(DeadLetters([run], reason))
            if run.end == end:
                self.condemned.popleft()
            else:
                self.condemned[0] = (run.end, end, reason)
