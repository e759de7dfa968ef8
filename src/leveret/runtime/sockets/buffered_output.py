"""Output that is sent in order, some of it only once the disk has the records that it depends on."""

from __future__ import annotations

from collections import deque


class BufferedOutput:
    """The output that a socket may not get yet.

    Attributes:
        size_bytes: the size of the waiting output.
    """

    def __init__(self) -> None:
        """Nothing waits."""
        self.size_bytes = 0
        self._parts: deque[tuple[int, list[bytes | memoryview]]] = deque()

    def __bool__(self) -> bool:
        """Whether any output waits."""
        return bool(self._parts)

    def add(self, hold: int, pieces: list[bytes | memoryview]) -> None:
        """Add octets, in pieces, that wait for `release(hold)`; with `hold` 0 they wait only for those before them."""
        self._parts.append((hold, pieces))
        self.size_bytes += sum(map(len, pieces))

    def release(self, hold: int) -> list[bytes | memoryview]:
        """Remove and return everything before the first octets that wait for a later hold.

        Holds are released in order.
        """
        free: list[bytes | memoryview] = []
        while self._parts and self._parts[0][0] <= hold:
            free += self._parts.popleft()[1]
        self.size_bytes -= sum(map(len, free))
        return free
