"""Counters of login attempts by protocol, since the node's start or the last reset."""

from __future__ import annotations


class Attempts:
    """Logins over one protocol."""

    __slots__ = ("failed", "succeeded")

    def __init__(self) -> None:
        """None yet."""
        self.succeeded = self.failed = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.succeeded + self.failed


class Logins:
    """The attempts by protocol, with RabbitMQ's names of the protocols."""

    def __init__(self) -> None:
        """None yet."""
        self.by_protocol: dict[str, Attempts] = {}

    def count(self, protocol: str, *, succeeded: bool) -> None:
        """Count an attempt."""
        attempts = self.by_protocol.setdefault(protocol, Attempts())
        if succeeded:
            attempts.succeeded += 1
        else:
            attempts.failed += 1

    def forget(self) -> None:
        """Reset all counts."""
        self.by_protocol.clear()
