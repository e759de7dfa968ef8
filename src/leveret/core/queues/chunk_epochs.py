"""Up to where a log has chunks of each epoch, also of those that it has dropped.

So a copy whose last chunk is gone here is told from one that is divergent: chunks of one epoch have one maker, who
appended them one after the other. If this log had chunks of that epoch up to an offset, then a copy that ends before
it with a chunk of the same epoch has nothing that was not here.

Every end is one that was reached, never one that was guessed: a copy may be taken for divergent that is late, and
keeps its messages for nothing, but not the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

EPOCHS_MAX: Final = 64
"""So many are logged, the newest; a copy of an older one counts as divergent, and is quarantined."""


class ChunkEpochs:
    """Those of one log.

    Attributes:
        ends: by epoch, the offset behind its last chunk.
        last: the epoch of the newest chunk, 0 without any.
    """

    __slots__ = ("ends", "last")

    def __init__(self) -> None:
        """No chunk was seen."""
        self.ends: dict[int, int] = {}
        self.last = 0

    def appended(self, epoch: int, end: int) -> None:
        """The newest chunk is of this epoch, and ends here."""
        self.last = epoch
        self.ends[epoch] = end

    def logged(self, epoch: int, end: int) -> None:
        """A chunk says that there were chunks of this epoch up to here."""
        self.ends[epoch] = max(end, self.ends.get(epoch, 0))

    def before(self, epoch: int) -> Iterator[tuple[int, int]]:
        """What a chunk of this epoch has to say of those before it."""
        others = sorted((each for each in self.ends.items() if each[0] != epoch), key=lambda each: each[1])
        return iter(others[-EPOCHS_MAX:])
