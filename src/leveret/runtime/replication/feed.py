"""Changes of the tree become frames, one a group commit; promises wait until followers have the frames.

`cut` is called by the group commit at the end of each flush: all changes since the last cut are one frame,
which goes to every follower that streams. **Why one frame**: the flush orders its appends so that any prefix
of the node is consistent (a settlement behind its message; the original of a dead letter settled only when the copies
are durable). A follower applies whole frames in order, so it is always at such a prefix.

A promise that the group commit makes is bound to the position behind the last cut. It is kept when the local
disk has everything up to there *and* each follower in the in-sync set has acked that position, which it does
after its own fdatasync. Both go on at the same time.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, Protocol

from leveret.core.replication.in_sync import InSync
from leveret.model.errors import StorageError
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.replication.catching_up import PrefixPosition, read_prefix
from leveret.storage.tree import Tree
from leveret.wire.chunk import Header
from leveret.wire.link import ChangeKind, Frame, Octets, file_change, log_change, name_change, whole_change

logger = logging.getLogger(__name__)

_SAMPLES_MAX: Final = 8192
_PREFIX_BYTES: Final = 1024 * 1024
"""Of segments in front of logs so much is read at once, and no more while followers have as much to take."""


class FeedFollower(Protocol):
    """A follower that has a link, as the feed sees it."""

    @property
    def is_live(self) -> bool:
        """Whether it is sent each frame as it is cut."""

    @property
    def node_id(self) -> str:
        """Which node it is."""

    def send_frame(self, position: int, pieces: list[Octets], octets: int) -> None:
        """The frame of the cut that ends at that position, with so many octets of changes; only if it is live."""

    def note_appended(self, name: str) -> None:
        """There is more in a log; only if it is not live."""

    def note_dropped(self, name: str, first_offset: int) -> None:
        """A log begins later; only if it is not live."""

    def note_deleted(self, name: str) -> None:
        """A log is gone; only if it is not live."""

    def note_begun(self, name: str) -> None:
        """A log began anew; only if it is not live."""

    def note_truncated(self, name: str, offset: int) -> None:
        """A log was cut; only if it is not live."""

    def note_prepended(self, name: str, until: int) -> None:
        """A segment stands in front of a log that began at `until`; only if it is not live."""

    def note_file(self, name: str, octets: bytes | None) -> None:
        """A state file was replaced or removed; only if it is not live."""

    @property
    def waiting_bytes(self) -> int:
        """Octets that it has not taken from its link."""


class Feed:
    """storage.tree.Changes, and what the group commit asks before it keeps promises; see the module.

    Attributes:
        position: octets of changes that were cut so far, and 1.
        records: records in them.
        in_sync: which followers a promise waits for.
        followers: all that are told.
        prefixes: the logs in front of which segments were moved, and how far those are sent to live followers.
        compresses: whether frames are compressed.
        elapsed_ms: the time of `in_sync`; the time of day may be set back, and a late follower would not be dropped.
    """

    def __init__(
        self,
        tree: Tree,
        in_sync: InSync,
        clock_ms: Callable[[], int],
        *,
        waits: bool,
        compress: bool,
        may_promise: Callable[[], bool] = lambda: True,
        elapsed_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        """Follow what changes in `tree` from now on. Without `waits` a promise waits for no follower.

        Nothing is promised while `may_promise` says no: this node may have been replaced.
        """
        # Position 0 is that of a follower that has not begun to stream.
        self.position = 1
        self.records = 0
        self.in_sync = in_sync
        self.followers: list[FeedFollower] = []
        self.prefixes: dict[str, PrefixPosition] = {}
        self._tree = tree
        self._clock_ms = clock_ms
        self.elapsed_ms = elapsed_ms
        self._waits = waits
        self._may_promise = may_promise
        self.compresses = compress
        self._samples: list[tuple[int, int]] = []
        self._numbers: dict[str, int] = {}
        self._last_number = 0
        self._frame = Frame()
        self._has_changed = False
        self._live = 0
        in_sync.shipped(self.position, elapsed_ms())
        tree.changes = self

    # -- what the tree tells ------------------------------------------------------------------

    def appended(self, name: str, segment: int, header: Header, octets: list[Octets]) -> None:
        """See storage.tree.Changes."""
        self._has_changed = True
        if self._live:
            number = self._number(name)
            # What a follower appends, and passes on to its own, is in its link's buffer, which it needs again.
            kept: list[Octets] = [each if isinstance(each, bytes) else bytes(each) for each in octets]
            self._frame.add(log_change(ChangeKind.APPEND, number, segment), kept, header.records)
        if self._live < len(self.followers):
            for follower in self.followers:
                if not follower.is_live:
                    follower.note_appended(name)

    def dropped(self, name: str, first_offset: int) -> None:
        """See storage.tree.Changes."""
        self._has_changed = True
        if self._live:
            self._frame.add(log_change(ChangeKind.DROP, self._number(name), first_offset))
        for follower in self.followers:
            if not follower.is_live:
                follower.note_dropped(name, first_offset)

    def deleted(self, name: str) -> None:
        """See storage.tree.Changes."""
        self._has_changed = True
        if self._live:
            self._frame.add(whole_change(ChangeKind.DELETE, self._number(name)))
        for follower in self.followers:
            if not follower.is_live:
                follower.note_deleted(name)
        # The epochs that queues' logs are named after never come back: so a name would stay for nothing.
        self._numbers.pop(name, None)
        self.prefixes.pop(name, None)

    def begun(self, name: str, offset: int) -> None:
        """See storage.tree.Changes."""
        self.prefixes.pop(name, None)
        if self._live:
            self._frame.add(log_change(ChangeKind.BEGIN, self._number(name), offset))
        for follower in self.followers:
            if not follower.is_live:
                follower.note_begun(name)

    def truncated(self, name: str, offset: int) -> None:
        """See storage.tree.Changes."""
        if self._live:
            self._frame.add(log_change(ChangeKind.CUT, self._number(name), offset))
        for follower in self.followers:
            if not follower.is_live:
                follower.note_truncated(name, offset)

    def prepended(self, name: str, until: int) -> None:
        """See storage.tree.Changes; what stands in front is read from disk, see `read_prefixes`."""
        if self._live and name not in self.prefixes:
            self.prefixes[name] = PrefixPosition(until, until)
        for follower in self.followers:
            if not follower.is_live:
                follower.note_prepended(name, until)

    def read_prefixes(self) -> None:
        """Have the next part of what stands in front of logs since then in the frame, unless a follower is behind."""
        for name, at in tuple(self.prefixes.items()):
            log = self._tree.logs.get(name)
            waiting = max((each.waiting_bytes for each in self.followers if each.is_live), default=0)
            if waiting > _PREFIX_BYTES or self._frame.octets > _PREFIX_BYTES:
                return
            if log is None and self._tree.is_closed(name):
                continue
            if log is None or at.top <= log.first_offset:
                del self.prefixes[name]
                continue
            try:
                self.prefixes[name] = read_prefix(self._frame, self._number(name), log, at, _PREFIX_BYTES)
            except StorageError as error:
                # The log's owner finds the damage; the copies go on without what is in front.
                logger.error("prefix_not_sent log=%s error=%s", name, error)
                del self.prefixes[name]

    def replaced(self, name: str, octets: bytes | None) -> None:
        """See storage.tree.Changes."""
        self._has_changed = True
        if self._live:
            self._frame.add(file_change(name, octets))
        for follower in self.followers:
            if not follower.is_live:
                follower.note_file(name, octets)

    # -- names --------------------------------------------------------------------------------

    def _number(self, name: str) -> int:
        """What stands for the log in frames; where it is new, the frame says so first."""
        number = self._numbers.get(name)
        if number is None:
            self._last_number += 1
            number = self._numbers[name] = self._last_number
            self._frame.add(name_change(number, name))
        return number

    def name_all(self, frame: Frame) -> None:
        """All numbers that frames may use without saying so again."""
        for name, number in self._numbers.items():
            frame.add(name_change(number, name))

    # -- frames -------------------------------------------------------------------------------

    def cut(self) -> int:
        """Send what changed since the last cut; the position behind it.

        What nobody is sent has a position, too. A promise must not be bound to the last one before it: a follower that
        is gone may have acked that, and be recorded as in sync until a smaller record is written.
        """
        frame = self._frame
        if frame.octets or self._has_changed:
            self._has_changed = False
            self.position += max(1, frame.octets)
            self.in_sync.shipped(self.position, self.elapsed_ms())
        if frame.octets:
            self._frame = Frame()
            self.records += frame.records
            pieces = frame.message(self.position, self.records, self._clock_ms(), compress=self.compresses)
            self._samples.append((self.position, self.records))
            if len(self._samples) > _SAMPLES_MAX:
                del self._samples[: _SAMPLES_MAX // 2]
            for follower in tuple(self.followers):
                if follower.is_live:
                    follower.send_frame(self.position, pieces, frame.octets)
        return self.position

    def begin_live(self) -> int:
        """A follower goes live: a position that none has acked yet, also where nothing was cut meanwhile.

        What it was sent while it caught up has no position. Were the present one its own, an ack that it sent
        before would say that it has all that.
        """
        self.position += 1
        self.in_sync.shipped(self.position, self.elapsed_ms())
        for follower in tuple(self.followers):
            if follower.is_live:
                follower.send_frame(self.position, self.heartbeat(), 0)
        return self.position

    def heartbeat(self) -> list[Octets]:
        """A frame without changes: says that the leader is there, and how far it is."""
        return Frame().message(self.position, self.records, self._clock_ms())

    def records_at(self, position: int) -> int:
        """How many records are up to a position, about; those of a position long ago count as the oldest known."""
        index = bisect_right(self._samples, position, key=lambda sample: sample[0])
        return (
            self._samples[index - 1][1] if index else (self._samples[0][1] if self._samples else self.records)
        )

    def count_live(self) -> None:
        """To be called when a follower begins or ceases to be live, right after a cut."""
        self._live = sum(follower.is_live for follower in self.followers)
        if not self._live:
            self.prefixes.clear()

    # -- what the group commit asks -----------------------------------------------------------

    def committed(self) -> int:
        """The position up to which promises may be kept."""
        if not self._may_promise():
            return -1
        return self.in_sync.committed() if self._waits else self.position

    def confirmable(self) -> int:
        """The position up to which publishers may be told."""
        if not self._may_promise():
            return -1
        return self.in_sync.confirmable() if self._waits else self.position
