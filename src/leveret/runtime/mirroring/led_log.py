"""A log that this node leads, as its streams to mirrors see it; and the states of such a stream."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from enum import StrEnum

from leveret.core.replication.sync_pace import SyncPace
from leveret.core.rules.mirror_policy import SYNC_BATCH_MESSAGES
from leveret.storage.log import Log
from leveret.wire.chunk import decode_header
from leveret.wire.link import LogExtent


class MirrorState(StrEnum):
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
        ends: up to where it has, or had, chunks of each epoch (core.queues.chunk_epochs), as far as is known.
        lost_before, lost_epoch: see wire.link.Mirroring.
        pace: of what its mirrors are sent to synchronise.
    """

    __slots__ = (
        "_cuts",
        "automatic",
        "batch_messages",
        "cursor",
        "ends",
        "expected",
        "floor",
        "lost_before",
        "lost_epoch",
        "name",
        "pace",
    )

    def __init__(self, name: str, cut: int, end: int) -> None:
        """Nobody mirrors it; it ends there, at the last cut."""
        self.name = name
        self._cuts = deque([(cut, end)])
        """The last cuts that changed it, and its ends then."""
        self.automatic = False
        self.expected: frozenset[str] = frozenset()
        self.batch_messages = SYNC_BATCH_MESSAGES
        self.floor = 0
        self.cursor = 0
        self.ends: Mapping[int, int] = {}
        self.lost_before = self.lost_epoch = 0
        self.pace = SyncPace()

    @property
    def cut(self) -> int:
        """The last cut that changed it."""
        return self._cuts[-1][0]

    def ends_at(self, cut: int, end: int, *, forget_to: int) -> None:
        """It ends there since that cut; nobody asks any more for the end at a cut before `forget_to`."""
        cuts = self._cuts
        cuts.append((cut, end))
        while len(cuts) > 1 and cuts[1][0] <= forget_to:
            cuts.popleft()

    def end_at(self, cut: int) -> int:
        """Where it ended at that cut."""
        index = bisect_right(self._cuts, cut, key=lambda each: each[0])
        return self._cuts[max(0, index - 1)][1]

    def is_late(self, extent: LogExtent, log: Log | None) -> bool:
        """Whether a mirror whose last chunk was dropped here is late for certain, and not divergent.

        Chunks of one epoch have one maker, one after the other: if there is one here of the epoch of the mirror's
        last, and behind it, all that the mirror has once was here. What is looked at is the oldest one that is held,
        and what is known of those that were.
        """
        if log is None or not extent.last:
            return False
        theirs, ours = decode_header(extent.last).epoch, log.epoch
        for header, _ in log.headers_before(log.first_offset + 1, 1):
            ours = header.epoch
        return theirs == ours or extent.next_offset <= self.ends.get(theirs, 0)

    def has_what_was_lost(self, extent: LogExtent) -> bool:
        """Whether a mirror has messages in front that this log lacks, as it was led on without them."""
        if not extent.last or extent.first_offset >= self.lost_before:
            return False
        return decode_header(extent.last).epoch < self.lost_epoch
