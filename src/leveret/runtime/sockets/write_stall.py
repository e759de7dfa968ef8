"""Notices that a peer takes no octets: one that is not read from, whose heartbeats cannot show that it is alive."""

from __future__ import annotations


class WriteStall:
    """The time for which a peer has taken nothing of what waits for its socket."""

    def __init__(self) -> None:
        """Begin with a peer that is read from."""
        self._unsent_bytes = 0
        self._took_at_ms = 0

    def is_read(self) -> None:
        """Note that the peer is read from: its own heartbeats are timed."""
        self._unsent_bytes = 0

    def is_lasting(self, unsent_bytes: int, now_ms: int, heartbeat_ms: int) -> bool:
        """Whether the peer, of which nothing is read, has taken no octet in the time of two heartbeats."""
        before, self._unsent_bytes = self._unsent_bytes, unsent_bytes
        if not before or unsent_bytes < before:
            self._took_at_ms = now_ms
        return now_ms - self._took_at_ms > 2 * heartbeat_ms
