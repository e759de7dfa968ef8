"""The end offset of the chunks of each epoch in a log, dropped chunks included.

With these ends a copy whose last chunk is dropped here is told from a divergent copy. All chunks of one epoch have one
writer, which appended them one after the other. If this log had chunks of an epoch up to an offset, then a copy that
ends before that offset with a chunk of the same epoch has only chunks that were here.

Every recorded end was reached; none is a guess. So a late copy may be taken for divergent, which quarantines messages
without need, but a divergent copy is never taken for a late one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

EPOCHS_MAX: Final = 64
"""The number of logged epochs, the newest; a copy of an older epoch counts as divergent, and is quarantined."""


class ChunkEpochs:
    """The chunk epochs of one log.

    Attributes:
        ends: by epoch, the offset behind its last chunk.
        last: the epoch of the newest chunk, 0 without any.
    """

    __slots__ = ("ends", "last")

    def __init__(self) -> None:
        """Begin without chunks."""
        self.ends: dict[int, int] = {}
        self.last = 0

    def appended(self, epoch: int, end: int) -> None:
        """Note the newest chunk, its epoch and its end."""
        self.last = epoch
        self.ends[epoch] = end

    def logged(self, epoch: int, end: int) -> None:
        """Note from a chunk's trailer that there were chunks of this epoch up to here."""
        self.ends[epoch] = max(end, self.ends.get(epoch, 0))

    def before(self, epoch: int) -> Iterator[tuple[int, int]]:
        """The ends of other epochs that a chunk of this epoch has to carry."""
        others = sorted((each for each in self.ends.items() if each[0] != epoch), key=lambda each: each[1])
        return iter(others[-EPOCHS_MAX:])
