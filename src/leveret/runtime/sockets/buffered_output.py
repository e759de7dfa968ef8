"""Output of which some may go only once the disk has what it rests on; the order never changes."""

from __future__ import annotations

from collections import deque


class BufferedOutput:
    """What a socket may not be given yet.

    Attributes:
        size_bytes: how much waits.
    """

    def __init__(self) -> None:
        """Nothing waits."""
        self.size_bytes = 0
        self._parts: deque[tuple[int, bytes]] = deque()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._parts)

    def add(self, hold: int, octets: bytes) -> None:
        """Octets that wait for `release(hold)`, or with `hold` 0 only for those before them."""
        self._parts.append((hold, octets))
        self.size_bytes += len(octets)

    def release(self, hold: int) -> bytes:
        """Everything that no hold after `hold` keeps; holds are released in the order they were taken."""
        free: list[bytes] = []
        while self._parts and self._parts[0][0] <= hold:
            free.append(self._parts.popleft()[1])
        octets = b"".join(free)
        self.size_bytes -= len(octets)
        return octets
