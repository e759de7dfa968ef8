"""When the garbage collector runs, so that no pass of it holds up the event loop for long.

Reference counts free almost everything; the collector finds only what refers to itself, such as an ended connection.
Each pass stops everything, in proportion to the objects that it visits. Python begins a pass when so many more objects
were made than freed, whichever objects were freed. So work that replaces old objects by new ones, like a publish to
thousands of queues, made no pass for long and then one of 75,000 young objects, of 40 ms. Young objects are therefore
also visited at regular times, while there are few.

A visit of all objects takes 100 ms with 4,000 queues. Python begins one by counts of objects, which tell nothing of
garbage. So all objects are visited only after memory has doubled, which bounds what garbage can hold. The freed memory
is given back then: if it stayed with the process, the next doubling would begin from there, and memory had no bound.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from leveret.runtime.process.allocator import give_back_memory

_NEVER: Final = 2**31 - 1
THRESHOLDS: Final = (7000, 1, _NEVER)
"""Python's own passes: over 7,000 new objects at once, and each third time also over those of the two passes before."""
YOUNG_EVERY: Final = 10
"""Beats between two visits of the young objects: 0.1 s of work."""
GROWTH_BYTES_MIN: Final = 64 * 1024 * 1024
"""The least growth of memory after which all objects are visited: ended connections of a busy hour, some 10 KB each."""
_YOUNG: Final = 1
"""Generations 0 and 1 together."""


class Garbage:
    """See the module."""

    def __init__(
        self,
        used_bytes: Callable[[], int],
        collect: Callable[[int], int] = gc.collect,
        give_back: Callable[[], None] = give_back_memory,
    ) -> None:
        """Take the ways to all that lies outside.

        Args:
            used_bytes: measures the process's memory.
            collect: visits the objects up to a generation.
            give_back: visits all objects, and gives freed memory back to the system.
        """
        self._used_bytes = used_bytes
        self._collect = collect
        self._give_back = give_back
        self._beats = 0
        self._kept_bytes = used_bytes()

    def beat(self) -> None:
        """Take one of the regular calls of a loop that works."""
        self._beats += 1
        if self._beats >= YOUNG_EVERY:
            self._beats = 0
            self._collect(_YOUNG)

    def check(self) -> None:
        """Visit all objects if memory has doubled since they were last visited."""
        if self._used_bytes() - self._kept_bytes >= max(GROWTH_BYTES_MIN, self._kept_bytes):
            self._give_back()
            self._kept_bytes = self._used_bytes()
