"""What waits while the disk is behind: publishers, and long work that appends to many logs.

Two things are bounded. Unsynced octets: a later confirm would wait for all of them. And unsynced logs: each keeps a
segment open until the group commit has synced it, and the node may have more logs than descriptors. If an append found
only unsynced segments open at the bound, one of them would have to be synced in the event loop (storage.open_segments).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.runtime.logs.commit import GroupCommit

UNSYNCED_BYTES_MAX: Final = 64 * 1024 * 1024
"""While more than this is unsynced, publishers are not read from."""
UNAWAITED_BYTES_MAX: Final = 1024 * 1024
"""Without a confirm, more than this is unsynced only while a sync runs."""


class Backpressure:
    """See the module."""

    def __init__(self, commit: GroupCommit) -> None:
        """Nothing is unsynced, and nobody waits."""
        self._commit = commit
        self._unsynced_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self._asks_again = False

    def is_due(self, gathered_logs: int = 0) -> bool:
        """Whether publishers should wait, while so many more logs are about to be appended to."""
        return self._unsynced_bytes > UNSYNCED_BYTES_MAX or self.has_many_logs(gathered_logs)

    def has_many_logs(self, gathered_logs: int = 0) -> bool:
        """Whether so many logs are unsynced that no other log should be appended to."""
        commit = self._commit
        return commit.unsynced_logs + gathered_logs > commit.unsynced_logs_max

    def appended(self, count_bytes: int) -> bool:
        """Note appended octets; return whether so many are unsynced that a sync should begin."""
        self._unsynced_bytes += count_bytes
        return self._unsynced_bytes > UNAWAITED_BYTES_MAX

    def durable(self, count_bytes: int) -> None:
        """Note that so many octets are durable."""
        self._unsynced_bytes -= count_bytes
        self.relieve()

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once the disk has caught up."""
        self._waiting.append(callback)

    def relieve(self) -> None:
        """Call back those that wait, if the disk has caught up."""
        if not self._waiting:
            return
        if self.is_due():
            self._relieve_after_round()
            return
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _relieve_after_round(self) -> None:
        """Not every log that is synced has octets that are counted here."""
        if not self._asks_again:
            self._asks_again = True
            self._commit.when_synced(self._ask_again)

    def _ask_again(self) -> None:
        self._asks_again = False
        self.relieve()
