"""A whole node, sent to one follower: all its logs and state files, as one scope of a link.

Records from disk are sent in frames without a number; their end is sent with a position of the feed
(core.replication.sender). From that position on the follower receives each cut, and it counts for promises once it has
acked the position; a delayed follower never counts, because it may go back in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from leveret.core.replication.join import DeleteLog, QuarantineLog, Step
from leveret.core.replication.sender import WHOLE_NODE, SendEvent, SendPhase
from leveret.core.replication.sync_pace import SyncPace
from leveret.core.replication.unacked_age import UnackedAge
from leveret.model.errors import StorageError
from leveret.runtime.link.listening import AcceptClient
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.feed import Feed
from leveret.runtime.replication.identity import LinkEnd
from leveret.runtime.replication.sending_link import SendingLink
from leveret.runtime.replication.sent_logs import SentLogs
from leveret.session.link_handshake import ProvenFollower
from leveret.storage.tree import Tree
from leveret.wire import link as wire
from leveret.wire.link import LOGS_MAX, Frame, LinkError, LogExtent, Octets, Type, pack

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 1024 * 1024
FINAL_BYTES: Final = 8 * 1024 * 1024
"""If no more octets are missing, the rest is sent in one turn of the loop: a few milliseconds."""
_REPORT_BYTES_MAX: Final = 256 * 1024 * 1024
FINAL_LOGS: Final = 256
"""The same for the number of logs with missing records."""


@dataclass(slots=True)
class LeaderState:
    """The state that all followers of a node share.

    Attributes:
        damaged: returns the names of logs that this node has lost or cannot read.
        unreadable: called with another such log and the error; raises the error if the node cannot go on without it.
        hand_over: called when a follower takes over in an epoch; on return this node promises no more.
        noticed: called often, and when a follower becomes in sync or ceases to be.
        met: called with each connecting node, its epoch and URI; returns whether this node was replaced.
        accept_client: takes a client whose connection another node passes on.
    """

    tree: Tree
    feed: Feed
    commits: GroupCommit
    own: LinkEnd
    bandwidth_bytes_s: int | None
    clock_ms: Callable[[], int]
    noticed: Callable[[], None]
    met: Callable[[ProvenFollower], bool]
    damaged: Callable[[], set[str]]
    unreadable: Callable[[str, StorageError], None]
    hand_over: Callable[[ProvenFollower, int], None]
    answer: Callable[[str, dict[str, Any]], dict[str, Any]]
    accept_client: AcceptClient


class SentNode(SentLogs):
    """See the module; feed.FeedFollower.

    Attributes:
        follower: the node at the other end.
        apply_delay_ms: the time for which it keeps removed data; 0 if it is not delayed.
        joined_ms: the duration of its first join, from its proof on; None before the end of that join.
        raw_bytes: octets of frames before compression.
        skipped: logs that were closed during its join: once one of them is open again, it has to join again.
    """

    def __init__(self, link: SendingLink, leading: LeaderState, follower: ProvenFollower) -> None:
        """Begin; the follower reports its logs next."""
        self.follower = follower
        self.apply_delay_ms = 0
        self.joined_ms: int | None = None
        self.raw_bytes = 0
        self._leading = leading
        self._feed = leading.feed
        self.skipped: set[str] = set()
        self._extents: list[LogExtent] = []
        self._reported_bytes = 0
        self._unacked = UnackedAge()
        self._counts = False
        """Whether it has been seen in sync since it last joined."""
        self._knows_epochs = False
        self._steps_taken = 0
        self._began_s = asyncio.get_running_loop().time()
        super().__init__(link, WHOLE_NODE, leading.tree, SyncPace())

    @property
    def node_id(self) -> str:
        """See feed.FeedFollower."""
        return self.follower.node_id

    @property
    def is_live(self) -> bool:
        """See feed.FeedFollower."""
        return self.scope.is_live

    @property
    def state(self) -> str:
        """See outbound."""
        if self.scope.is_live:
            return "delayed" if self.apply_delay_ms else "streaming"
        return "catching_up" if self.scope.phase is SendPhase.CATCHING_UP else "joining"

    @property
    def is_in_sync(self) -> bool:
        """Whether promises wait for it."""
        return self.node_id in self._feed.in_sync.members

    @property
    def lag_s(self) -> float | None:
        """The age of the oldest frame that it has not acked; None in its first join, when it lacks older records."""
        return None if self.joined_ms is None else self._unacked.ms(self._feed.elapsed_ms()) / 1000

    # -- joining ------------------------------------------------------------------------------

    def reported(self, inventory: wire.Inventory) -> None:
        """Take a part of the follower's report; the comparison begins with the last part.

        Raises:
            LinkError: a log comes twice, or more come than any node has.
        """
        self._extents += inventory.logs
        self._reported_bytes += sum(len(each.path) + len(each.last) for each in inventory.logs)
        if len(self._extents) > LOGS_MAX or self._reported_bytes > _REPORT_BYTES_MAX:
            raise LinkError(f"the follower names more than {LOGS_MAX} logs, or very long ones")
        self.apply_delay_ms = inventory.apply_delay_ms
        if not inventory.is_last:
            return
        self.scope.happens(SendEvent.REPORTED)
        follower, own = self.follower, self._leading.own.identity.identity
        is_same_leadership = (follower.followed_epoch, follower.leader_id) == own.leadership
        # Two nodes that were promoted beside each other have one epoch: only of the leadership that this node followed
        # itself it is certain whose the chunks of an epoch are. A cluster's node has the chunks of many leaders.
        followed = own.followed_epoch, own.followed_leader_id
        is_same_line = bool(own.followed_leader_id) and (follower.epoch, follower.leader_id) == followed
        self._knows_epochs = is_same_line and not self._leading.own.cluster()
        self.compare(self._extents, is_clean=not follower.led and is_same_leadership)
        self.plan.all_files(inventory.files)
        self._feed.followers.append(self)
        self.link.wake(self)

    def revised(self, step: Step) -> Step | None:
        """See SentLogs: a node of a cluster closes a log for a moment when its leader changes."""
        if isinstance(step, DeleteLog | QuarantineLog) and self.tree.is_closed(step.path):
            self.plan.skip(step.path)
            return None
        return step

    def skip_closed(self) -> None:
        """See SentLogs. The follower would get only what comes after these logs are opened."""
        for name in self.tree.unopened() if self._leading.own.cluster() else ():
            self.plan.skip(name)

    def compared(self) -> None:
        """See SentLogs: copies of a cluster's node receive their prefixes after the records behind."""
        super().compared()
        extents, self._extents = self._extents, []
        for extent in extents if self._leading.own.cluster() else ():
            self.plan.lacks_before(extent.path, extent.first_offset)

    def paths(self) -> Iterable[str]:
        """See SentLogs."""
        return list(self.tree.logs)

    def ended(self, path: str) -> Mapping[int, int]:
        """See SentLogs; nothing is known of a follower's chunks that may be of another line of leaders."""
        return super().ended(path) if self._knows_epochs else {}

    def spared(self) -> set[str]:
        """See SentLogs."""
        return self._leading.damaged()

    def unreadable(self, name: str, error: StorageError) -> None:
        """See SentLogs."""
        self._leading.unreadable(name, error)

    # -- catching up --------------------------------------------------------------------------

    @property
    def step_bytes(self) -> int:
        """See SentLogs."""
        return STEP_BYTES

    @property
    def limit_bytes_s(self) -> int:
        """See SentLogs."""
        return self._leading.bandwidth_bytes_s or 0

    def is_little(self) -> bool:
        """See SentLogs."""
        # The limit grows with time: with thousands of busy queues the catch-up would never end otherwise.
        logs_max = FINAL_LOGS + self._steps_taken // FINAL_LOGS
        return self.plan.logs_left <= logs_max and self.plan.bytes_left(exactly=True) <= FINAL_BYTES

    def cut(self) -> None:
        """See SentLogs."""
        self._feed.cut()

    def send(self, frame: Frame) -> None:
        """See SentLogs."""
        self._steps_taken += 1
        self._write(self._message(frame, compress=self._feed.compresses), frame.octets)

    def _message(self, frame: Frame, *, compress: bool = False) -> list[Octets]:
        return frame.message(0, self.plan.bytes_left(), self._leading.clock_ms(), compress=compress)

    def _write(self, pieces: list[Octets], octets: int) -> None:
        self.raw_bytes += octets
        self.link.peer.write(*pieces)

    def go_live(self) -> None:
        """See SentLogs."""
        feed, identity = self._feed, self._leading.own.identity
        identity.identity.note_follower(self.follower.uri)
        # On disk before the follower learns that it has everything, and may take over.
        identity.save_changes()
        frame = Frame()
        feed.name_all(frame)
        self._write(self._message(frame), frame.octets)
        position = feed.begin_live()
        self.link.sender.frame(position)
        self._unacked.sent(position, feed.elapsed_ms())
        self.link.peer.write(pack(Type.STREAMING, wire.Number(position)))
        self.scope.begins_live(position, 0)
        self.link.sender.waits(self.scope)
        # Not in place of those of a join before it fell behind.
        self.skipped |= self.plan.skipped
        feed.count_live()
        if not self.apply_delay_ms:
            feed.in_sync.joined(self.node_id, position, feed.elapsed_ms())
        self._counts = False
        if self.joined_ms is None:
            self.joined_ms = round((asyncio.get_running_loop().time() - self._began_s) * 1000)
        logger.info(
            "follower_streaming node_id=%s position=%d joined_ms=%d octets=%d",
            self.node_id,
            feed.position,
            self.joined_ms,
            self.link.peer.sent_bytes,
        )

    # -- streaming ----------------------------------------------------------------------------

    def send_frame(self, position: int, pieces: list[Octets], octets: int) -> None:
        """See feed.FeedFollower."""
        self.link.sender.frame(position)
        self._unacked.sent(position, self._feed.elapsed_ms())
        self._write(pieces, octets)
        if self.link.is_too_slow:
            self._fall_behind()

    def lose(self, error: Exception) -> None:
        """See feed.FeedFollower."""
        self.link.peer.abort(error)

    def _fall_behind(self) -> None:
        waiting_bytes = self.link.peer.waiting_bytes
        logger.warning("follower_falls_behind node_id=%s waiting_bytes=%d", self.node_id, waiting_bytes)
        self.goes_back(self._feed.position, has=0, end=0)
        for name, at in self._feed.prefixes.items():
            self.plan.precede(name, at.top)
        self._feed.count_live()
        self._feed.in_sync.left(self.node_id)
        # Not now: a frame is being sent, and the changes that a kept promise makes in the tree belong to the next one.
        asyncio.get_running_loop().call_soon(self._leading.commits.keep)
        self._steps_taken = 0

    def acked(self, position: int) -> None:
        """Take the follower's ack of a position; 0 while it catches up."""
        if not self.is_live or position == 0:
            return
        self._unacked.acked(position)
        if self.apply_delay_ms:
            return
        feed, now_ms = self._feed, self._feed.elapsed_ms()
        if feed.in_sync.lag_bytes(self.node_id) is None:
            # The follower was dropped because it did not ack in time, and acks again.
            feed.in_sync.joined(self.node_id, feed.position, now_ms)
            self._counts = False
        feed.in_sync.acked(self.node_id, position, now_ms)
        self._leading.commits.keep()
        if not self._counts and self.is_in_sync:
            self._counts = True
            self._leading.noticed()

    def beat(self) -> None:
        """Send a heartbeat; end the link of a follower that has to join again."""
        if self.skipped and self.skipped & self.tree.logs.keys():
            self.link.peer.abort(
                LinkError("join again: a log is open that was closed when this follower joined")
            )
        elif self.is_live:
            # It falls behind at a cut only: the changes since the last one would be in no frame for it.
            self.link.sender.frame(self._feed.position)
            self._write(self._feed.heartbeat(), 0)
        else:
            self.link.peer.write(*self._message(Frame()))

    def leave(self) -> None:
        """Note that the link has ended, or counts as ended."""
        feed = self._feed
        if self in feed.followers:
            feed.followers.remove(self)
            feed.count_live()
            if not any(other.is_live and other.node_id == self.node_id for other in feed.followers):
                feed.in_sync.left(self.node_id)

    @property
    def waiting_bytes(self) -> int:
        """See feed.FeedFollower."""
        return self.link.peer.waiting_bytes
