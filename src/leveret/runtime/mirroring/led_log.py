"""A log that this node leads, as its streams to mirrors see it; and the states of such a stream."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from enum import StrEnum

from leveret.core.replication.sync_pace import SyncPace
from leveret.core.rules.mirror_policy import SYNC_BATCH_MESSAGES
from leveret.wire.chunk import decode_header
from leveret.wire.link import LogExtent


class MirrorState(StrEnum):
    """The states of a stream: see source_stream."""

    JOINING = "joining"
    SYNCHRONISING = "synchronising"
    UNSYNCHRONISED = "unsynchronised"
    LIVE = "live"
    GONE = "gone"


class LedLog:
    """A log that this node leads.

    Attributes:
        automatic: whether a new mirror is sent the prefix without a request.
        batch_messages: the most messages that are sent at once to synchronise.
        floor: the first unsettled offset, as far as the queue reported it: mirrors do not need earlier records.
        cursor: messages before it may have been handed to consumers.
        lost_before, lost_epoch: see wire.link.Mirroring.
        pace: the pace at which its mirrors are sent missing records.
    """

    __slots__ = (
        "_cuts",
        "automatic",
        "batch_messages",
        "cursor",
        "floor",
        "lost_before",
        "lost_epoch",
        "name",
        "pace",
    )

    def __init__(self, name: str, cut: int, end: int) -> None:
        """Start without a mirror; at the last cut, `cut`, the log ended at `end`."""
        self.name = name
        self._cuts = deque([(cut, end)])
        """The last cuts that changed the log, each with the log's end at that cut."""
        self.automatic = False
        self.batch_messages = SYNC_BATCH_MESSAGES
        self.floor = 0
        self.cursor = 0
        self.lost_before = self.lost_epoch = 0
        self.pace = SyncPace()

    @property
    def cut(self) -> int:
        """The last cut that changed the log."""
        return self._cuts[-1][0]

    def ends_at(self, cut: int, end: int, *, forget_to: int) -> None:
        """Note the log's end since that cut; `end_at` is not called for cuts before `forget_to` any more."""
        cuts = self._cuts
        cuts.append((cut, end))
        while len(cuts) > 1 and cuts[1][0] <= forget_to:
            cuts.popleft()

    def end_at(self, cut: int) -> int:
        """Return the log's end at that cut."""
        index = bisect_right(self._cuts, cut, key=lambda each: each[0])
        return self._cuts[max(0, index - 1)][1]

    def has_what_was_lost(self, extent: LogExtent) -> bool:
        """Whether a mirror has earlier messages that this log lacks, because its leader began to lead without them."""
        if not extent.last or extent.first_offset >= self.lost_before:
            return False
        return decode_header(extent.last).epoch < self.lost_epoch
