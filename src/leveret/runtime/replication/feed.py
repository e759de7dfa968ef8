"""Changes of the tree become frames, one a flush; promises wait until followers have the frames.

The group commit calls `cut` at the end of each flush: all changes since the last cut are one frame, which goes to every
follower that streams. **Why one frame**: the flush orders its appends so that any prefix of the node is consistent (a
settlement behind its message; the original of a dead letter settled only when the copies are durable). A follower
applies whole frames in order, so it is always at such a prefix.

The group commit binds a promise to the position behind the last cut. It is kept when the local disk has everything up
to that position *and* each follower in the in-sync set has acked the position, after its own fdatasync. Both syncs run
at the same time.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from leveret.core.replication.in_sync import InSync
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.replication.catching_up import CatchUpPlan, PrefixPosition, read_prefix
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.tree import ChangeReceiver, Tree
from leveret.wire.chunk import Header
from leveret.wire.link import (
    ChangeKind,
    Frame,
    LinkError,
    Octets,
    file_change,
    log_change,
    name_change,
    whole_change,
)

logger = logging.getLogger(__name__)

_SAMPLES_MAX: Final = 8192
_PREFIX_BYTES: Final = 1024 * 1024
"""The octets of prefix segments that are read at once; none while as many wait for a follower's socket."""


class FeedFollower(Protocol):
    """A follower with a link, as the feed sees it.

    Attributes:
        plan: the missing records of a follower that is not live.
    """

    plan: CatchUpPlan

    @property
    def is_live(self) -> bool:
        """Whether it receives each frame at its cut."""

    def is_undecided(self, path: str) -> bool:
        """Return whether its copy of a log may still prove divergent, and so must not be deleted."""

    @property
    def node_id(self) -> str:
        """The id of the node."""

    def send_frame(self, position: int, pieces: list[Octets], octets: int) -> None:
        """Send a live follower the frame of the cut that ends at that position, with so many octets of changes."""

    def lose(self, error: Exception) -> None:
        """End the link of a live follower that cannot be sent the next frame."""

    @property
    def waiting_bytes(self) -> int:
        """The octets that its socket has not taken."""


class Feed(ChangeReceiver):
    """storage.tree.ChangeReceiver, and the group commit's replication barrier; see the module.

    Attributes:
        position: the octets of all changes cut so far, plus 1.
        records: the number of records in these changes.
        in_sync: the followers that promises wait for.
        followers: all followers with a link.
        prefixes: the logs that received prefix segments, and the part of those that live followers were sent.
        compresses: whether frames are compressed.
        elapsed_ms: the clock of `in_sync`; the time of day may be set back, and a late follower would not be dropped.
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
        """Follow the changes of `tree` from now on. Without `waits` promises wait for no follower.

        No promise is kept while `may_promise` returns False: this node may have been replaced.
        """
        # A follower that has not begun to stream has position 0.
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
        tree.receivers.append(self)

    # -- changes of the tree ------------------------------------------------------------------

    def appended(self, name: str, segment: int, header: Header, octets: list[Octets]) -> None:
        """See ChangeReceiver."""
        self._has_changed = True
        if self._live:
            number = self._number(name)
            # The octets of a follower with followers lie in its link's buffer, which is reused.
            kept: list[Octets] = [each if isinstance(each, bytes) else bytes(each) for each in octets]
            self._frame.add(log_change(ChangeKind.APPEND, number, segment), kept, header.records)
        for follower in self._behind():
            follower.plan.noted(name)

    def dropped(self, name: str, first_offset: int) -> None:
        """See ChangeReceiver."""
        self._has_changed = True
        if self._live:
            self._frame.add(log_change(ChangeKind.DROP, self._number(name), first_offset))
        for follower in self._behind():
            follower.plan.dropped(name, first_offset)

    def deleted(self, name: str) -> None:
        """See ChangeReceiver."""
        self._has_changed = True
        if self._live:
            self._frame.add(whole_change(ChangeKind.DELETE, self._number(name)))
        for follower in self._behind():
            if not follower.is_undecided(name):
                follower.plan.deleted(name)
        # Queues' logs are named after epochs, which never come back: the name would stay unused.
        self._numbers.pop(name, None)
        self.prefixes.pop(name, None)

    def begun(self, name: str, offset: int) -> None:
        """See ChangeReceiver."""
        self.prefixes.pop(name, None)
        if self._live:
            self._frame.add(log_change(ChangeKind.BEGIN, self._number(name), offset))
        for follower in self._behind():
            follower.plan.begun(name)

    def truncated(self, name: str, offset: int) -> None:
        """See ChangeReceiver."""
        if self._live:
            self._frame.add(log_change(ChangeKind.TRUNCATE, self._number(name), offset))
        for follower in self._behind():
            follower.plan.truncated(name, offset)

    def prepended(self, name: str, until: int) -> None:
        """See ChangeReceiver; `read_prefixes` reads the prefix from disk."""
        at = self.prefixes.get(name)
        if self._live and (at is None or at.top < until):
            self.prefixes[name] = PrefixPosition(until, until)
        for follower in self._behind():
            follower.plan.precede(name, until)

    def read_prefixes(self) -> None:
        """Add the next part of new prefixes to the frame, unless a follower is behind."""
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
            except OutOfDescriptors as error:
                logger.warning("prefix_waits log=%s error=%s", name, error)
                return

    def replaced(self, name: str, octets: bytes | None) -> None:
        """See ChangeReceiver."""
        self._has_changed = True
        if self._live:
            self._frame.add(file_change(name, octets))
        for follower in self._behind():
            follower.plan.file(name, octets)

    def _behind(self) -> Iterable[FeedFollower]:
        """Return the followers that are not live: each change is noted for them."""
        if self._live == len(self.followers):
            return ()
        return [follower for follower in self.followers if not follower.is_live]

    # -- names --------------------------------------------------------------------------------

    def _number(self, name: str) -> int:
        """Return the log's number in frames; a new number is first defined in the frame."""
        number = self._numbers.get(name)
        if number is None:
            self._last_number += 1
            number = self._numbers[name] = self._last_number
            self._frame.add(name_change(number, name))
        return number

    def name_all(self, frame: Frame) -> None:
        """Define all present numbers in a frame; later frames use them."""
        for name, number in self._numbers.items():
            frame.add(name_change(number, name))

    # -- frames -------------------------------------------------------------------------------

    def cut(self) -> int:
        """Send the changes since the last cut; return the position behind them.

        Changes have a position even without a live follower. A promise must not be bound to the position before them: a
        follower that is gone may have acked that one, and stays recorded as in sync until a smaller record is written.
        """
        frame = self._frame
        if frame.octets or self._has_changed:
            self._has_changed = False
            self.position += max(1, frame.octets)
            self.in_sync.shipped(self.position, self.elapsed_ms())
        if frame.octets:
            self._frame = Frame()
            self.records += frame.records
            live = [follower for follower in self.followers if follower.is_live]
            try:
                pieces = frame.message(
                    self.position, self.records, self._clock_ms(), compress=self.compresses
                )
            except LinkError as error:
                for follower in live:
                    follower.lose(error)
                live = []
            self._samples.append((self.position, self.records))
            if len(self._samples) > _SAMPLES_MAX:
                del self._samples[: _SAMPLES_MAX // 2]
            for follower in live:
                follower.send_frame(self.position, pieces, frame.octets)
        return self.position

    def begin_live(self) -> int:
        """Return the position at which a follower goes live: a new one, which no follower has acked yet.

        The records that it received while it caught up have no position. If it joined at the present position, an
        earlier ack of that position would seem to cover those records.
        """
        self.position += 1
        self.in_sync.shipped(self.position, self.elapsed_ms())
        for follower in tuple(self.followers):
            if follower.is_live:
                follower.send_frame(self.position, self.heartbeat(), 0)
        return self.position

    def heartbeat(self) -> list[Octets]:
        """Return a frame without changes, as a sign of life with the leader's position."""
        return Frame().message(self.position, self.records, self._clock_ms())

    def records_at(self, position: int) -> int:
        """Return the approximate number of records up to a position; an old position counts as the oldest sample."""
        index = bisect_right(self._samples, position, key=lambda sample: sample[0])
        return (
            self._samples[index - 1][1] if index else (self._samples[0][1] if self._samples else self.records)
        )

    def count_live(self) -> None:
        """Count the live followers; called right after a cut when a follower begins or ceases to be live."""
        self._live = sum(follower.is_live for follower in self.followers)
        if not self._live:
            self.prefixes.clear()

    # -- the replication barrier --------------------------------------------------------------

    def committed(self) -> int:
        """Return the position up to which promises may be kept."""
        if not self._may_promise():
            return -1
        return self.in_sync.committed() if self._waits else self.position

    def confirmable(self) -> int:
        """Return the position up to which publishes may be confirmed."""
        if not self._may_promise():
            return -1
        return self.in_sync.confirmable() if self._waits else self.position
