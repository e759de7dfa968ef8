"""A log that this node leads, as all its mirrors see it; and the states that one of them is in."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from leveret.core.mirror_policy import SYNC_BATCH_MESSAGES
from leveret.core.sync_pace import SyncPace
from leveret.storage.log import Log
from leveret.wire.chunk import decode_header
from leveret.wire.link import Held

if TYPE_CHECKING:
    from leveret.runtime.mirroring.stream import Stream


class State(StrEnum):
    """See stream."""

    JOINING = "joining"
    SYNCHRONISING = "synchronising"
    UNSYNCHRONISED = "unsynchronised"
    LIVE = "live"
    GONE = "gone"


class LedLog:
    """A log that this node leads.

    Attributes:
        automatic: whether a new mirror is sent the head without being asked to.
        expected: the nodes that promises wait for.
        batch_messages: most messages that are sent at once to synchronise.
        floor: the first offset that is not settled, as far as was told: nobody needs to have what is before it.
        cursor: messages before it may have been handed to consumers.
        before: the epoch of its last chunk when this node began to lead it, and where it ended then; None if unknown.
        streams: by the mirror's node.
    """

    __slots__ = (
        "_due_ms",
        "_limit",
        "_pace",
        "automatic",
        "batch_messages",
        "before",
        "cursor",
        "expected",
        "floor",
        "name",
        "streams",
    )

    def __init__(self, name: str) -> None:
        """Nobody mirrors it."""
        self.name = name
        self.automatic = False
        self.expected: frozenset[str] = frozenset()
        self.batch_messages = SYNC_BATCH_MESSAGES
        self.floor = 0
        self.cursor = 0
        self.before: tuple[int, int] | None = None
        self.streams: dict[str, Stream] = {}
        self._limit = 0
        self._pace = SyncPace(0, 0)
        self._due_ms = 0

    def wait_ms(self, limit_bytes_s: int, now_ms: int) -> int:
        """How long a sync of this log has to wait before it sends more; a new limit holds at once."""
        if limit_bytes_s != self._limit:
            self._limit, self._pace, self._due_ms = limit_bytes_s, SyncPace(limit_bytes_s, now_ms), now_ms
        return max(0, self._due_ms - now_ms)

    def is_late(self, held: Held, log: Log | None) -> bool:
        """Whether a mirror whose last chunk was dropped here is late for certain, and not divergent.

        Chunks of one epoch have one maker, one after the other: if there is one here of the epoch of the mirror's
        last, and behind it, all that the mirror has once was here. What is looked at is the oldest one that is held,
        and what this node had when it began to lead.
        """
        if log is None or not held.last:
            return False
        theirs, ours = decode_header(held.last).epoch, log.epoch
        for header, _ in log.headers_before(log.first_offset + 1, 1):
            ours = header.epoch
        before = self.before
        return theirs == ours or (
            before is not None and theirs == before[0] and held.next_offset <= before[1]
        )

    def paid(self, octets: int, now_ms: int) -> None:
        """So much was sent to synchronise."""
        self._due_ms = now_ms + self._pace.sent(octets, now_ms)
