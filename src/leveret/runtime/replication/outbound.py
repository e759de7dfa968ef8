"""The leader's side of one follower: it admits the follower, brings it up to date from disk, then sends cut frames.

The scope of the link is the whole node (core.replication.sender). Operators see its phases as states:

    joining        its inventory is waited for, or compared with the leader's logs, see core.replication.join
    catching_up    missing records are read and sent, see catching_up; no promise waits for it
    streaming      it is sent each frame as it is cut, and is in sync once it has acked the position where that began
    delayed        as streaming, but it is never in sync, as it may go back in time

A follower so slow that frames pile up here goes back to catching_up: the frames are on disk anyway.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from leveret.core.replication.sender import WHOLE_NODE, ReplicationSender, SendEvent, SendPhase
from leveret.model.errors import StorageError
from leveret.runtime.link.arrival import HANDSHAKE_TIMEOUT_S, proven
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.link.questions import Questions, in_thread
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.catching_up import STEP_BYTES, CatchUpPlan
from leveret.runtime.replication.feed import Feed
from leveret.runtime.replication.identity import LinkEnd, NodeIdentity
from leveret.runtime.replication.progress import progress_row
from leveret.runtime.replication.reconciliation import Reconciliation
from leveret.runtime.replication.sending_steps import SendingSteps
from leveret.session.link_handshake import (
    NONCE_BYTES,
    HandshakeMessage,
    LeaderHandshake,
    ProvenFollower,
    SecretsDiffer,
    refusal,
)
from leveret.storage.tree import Tree
from leveret.wire import link
from leveret.wire.link import LinkError, LogExtent, Octets, Type, decode, pack

logger = logging.getLogger(__name__)

LIVE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A follower that has so much of what it is sent before it goes back to catching up."""
FINAL_BYTES: Final = 8 * 1024 * 1024
"""With so little missing the rest is sent in one turn of the loop: a few milliseconds."""
FINAL_LOGS: Final = 256
"""And with so few logs that have something missing."""
SILENCE_S: Final = 15.0


@dataclass(slots=True)
class Leading:
    """The state that all followers of a node share.

    Attributes:
        damaged: names of logs that this node has lost or cannot read.
        unreadable: told of another one, and why; raises that if this node is nothing without it.
        hand_over: told that a follower takes over in an epoch; promises nothing more when it returns.
        noticed: called often, and when a follower is in sync or is not any more.
        met: told of every node that comes, and its epoch and URI; returns whether this node was replaced.
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


class Outbound:
    """See the module.

    Attributes:
        sender: what was sent, and what the follower has acked.
        scope: how far it is.
        follower: who it is; None before it has proven itself.
    """

    def __init__(
        self,
        leading: Leading,
        peer: LinkPeer,
        on_proven: Callable[[Outbound], None],
        on_ended: Callable[[Outbound], None],
    ) -> None:
        """Serve who has just connected; `on_proven` is told once it is known which follower that is."""
        self.sender = ReplicationSender("the follower")
        self.scope = self.sender.begin(WHOLE_NODE)
        self.follower: ProvenFollower | None = None
        self.peer = peer
        self.questions = Questions(in_thread(leading.answer))
        self.connected_at_ms = leading.clock_ms()
        self.joined_ms: int | None = None
        self.apply_delay_ms = 0
        self.acked_bytes = 0
        self.bytes_total = 0
        self.raw_bytes = 0
        self._leading = leading
        self._on_proven = on_proven
        self._on_ended = on_ended
        self._handshake = LeaderHandshake(
            bytes(leading.own.secret.octets),
            node_id=leading.own.identity.identity.node_id,
            name=leading.own.name,
            nonce=os.urandom(NONCE_BYTES),
            channel=peer.channel,
        )
        self._counts = False
        """Whether it has been seen in sync since it last joined."""
        self._extents: list[LogExtent] = []
        self._reconciliation: Reconciliation | None = None
        self._plan: CatchUpPlan | None = None
        self._steps: SendingSteps | None = None
        self._steps_taken = 0
        self._due_ms = 0
        self._began_s = asyncio.get_running_loop().time()
        self._heard_at_s = self._began_s
        peer.receiver = self

    @property
    def node_id(self) -> str:
        """The follower's, empty before it has proven itself."""
        return self.follower.node_id if self.follower else ""

    @property
    def is_live(self) -> bool:
        """Whether it gets frames as they are cut."""
        return self.scope.is_live

    @property
    def acked_position(self) -> int:
        """The last cut that it has acked."""
        return max(0, self.sender.acks.cut)

    @property
    def state(self) -> str:
        """See the module; empty before it has proven itself."""
        if self.follower is None:
            return ""
        if self.scope.is_live:
            return "delayed" if self.apply_delay_ms else "streaming"
        return "catching_up" if self.scope.phase is SendPhase.CATCHING_UP else "joining"

    @property
    def is_in_sync(self) -> bool:
        """Whether promises wait for it."""
        return self.node_id in self._leading.feed.in_sync.members

    # -- messages -----------------------------------------------------------------------------

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link_peer.Receiver."""
        self._heard_at_s = asyncio.get_running_loop().time()
        if self.follower is None:
            self._shake(HandshakeMessage(kind, bytes(payload)))
            return
        match kind:
            case Type.ACK:
                self._acked(decode(kind, payload, link.Acked))
            case Type.TAKE_OVER:
                self._hand_over(decode(kind, payload, link.Number).number)
            case Type.INVENTORY:
                self._take_inventory(decode(kind, payload, link.Inventory))
            case Type.HEADERS:
                self._take_headers(decode(kind, payload, link.Headers))
            case Type.QUESTION | Type.ANSWER:
                self.questions.received(self.peer, kind, payload)
            case _:
                raise LinkError(f"message {kind.name} is not due from a follower")

    def _shake(self, said: HandshakeMessage) -> None:
        leading = self._leading
        follower = proven(self.peer, self._handshake, said, refused="replication_refused")
        if follower is None:
            return
        self.peer.is_trusted = True
        is_replaced, own = leading.met(follower), leading.own.identity.identity
        reason = self._why_not(follower, own, is_replaced=is_replaced)
        if follower.kind == "follow" and reason:
            self.peer.say(refusal(reason))
            self.peer.close()
            return
        # Who comes to follow is told of what it will have; who leads, of any later leader.
        leadership = own.leadership if follower.kind == "follow" else own.seen
        self.peer.say(
            self._handshake.welcome(
                leadership=leadership, uri=leading.own.own_uri(), former=own.former_leaders
            )
        )
        if follower.kind == "fence":
            self.peer.close()
            return
        self.follower = follower
        self._on_proven(self)
        logger.info(
            "follower_connected name=%s address=%s node_id=%s",
            follower.name,
            self.peer.address,
            follower.node_id,
        )

    def _why_not(self, follower: ProvenFollower, own: NodeIdentity, *, is_replaced: bool) -> str:
        """Why nobody, or not this one, can follow this node now; empty if it can."""
        if is_replaced:
            return f"this node was replaced by one with epoch {follower.epoch}: follow that one"
        if own.role == "follower" and (own.rewriting or not own.followed_epoch):
            return "this node follows another one, and does not have everything yet"
        if follower.epoch > own.epoch:
            return f"this node's data have epoch {own.epoch}, and there is one with epoch {follower.epoch}"
        return ""

    def ended(self, error: Exception | None) -> None:
        """See link_peer.Receiver."""
        if self._steps is not None:
            self._steps.cancel()
        self.questions.ended()
        state = self.state
        self.sender.end(WHOLE_NODE)
        if self.follower is not None:
            logger.warning(
                "follower_disconnected name=%s address=%s state=%s reason=%s",
                self.follower.name,
                self.peer.address,
                state,
                error or "it closed the link",
            )
        elif error is not None and not isinstance(error, SecretsDiffer):
            logger.info("replication_link_ended peer=%s reason=%s", self.peer.address, error)
        self._on_ended(self)

    def _hand_over(self, epoch: int) -> None:
        """The follower is about to lead: it gets all that is here, and nothing is promised from now on."""
        assert self.follower is not None
        if not self.is_live:
            raise LinkError("a follower takes over that does not stream")
        if epoch <= self._leading.own.identity.identity.epoch:
            raise LinkError(f"a follower takes over in epoch {epoch}, which is not above this node's")
        self._leading.hand_over(self.follower, epoch)
        self._leading.feed.cut()
        self.peer.write(pack(Type.HANDED_OVER, link.Number(self._leading.feed.position)))

    # -- joining ------------------------------------------------------------------------------

    def _take_inventory(self, inventory: link.Inventory) -> None:
        if self.scope.phase is not SendPhase.REPORTING:
            raise LinkError("an inventory is not due")
        self._extents += inventory.logs
        self.apply_delay_ms = inventory.apply_delay_ms
        if inventory.is_last:
            self._begin_reconciliation(inventory.files)

    def _begin_reconciliation(self, files: list[str]) -> None:
        leading, follower = self._leading, self.follower
        assert follower is not None
        self.scope.happens(SendEvent.REPORTED)
        own = leading.own.identity.identity
        is_same_leadership = (follower.followed_epoch, follower.leader_id) == own.leadership
        spared = leading.damaged()
        # From here on what changes is noted, so nothing is missed while this lasts.
        self._plan = CatchUpPlan(leading.tree, {}, spared, leading.unreadable)
        self._plan.all_files(files)
        self._reconciliation = Reconciliation(
            leading.tree,
            self._plan,
            self._extents,
            spared,
            is_clean=not follower.led and is_same_leadership,
            unreadable=leading.unreadable,
            ask=lambda probe: self.peer.write(pack(Type.PROBE, probe)),
        )
        leading.feed.followers.append(self)
        self._extents = []
        self._steps = SendingSteps(self.peer, leading.feed.elapsed_ms, self.node_id)
        self._steps.wake(self)

    def _take_headers(self, found: link.Headers) -> None:
        if self._reconciliation is None or self.scope.phase is not SendPhase.COMPARING:
            raise LinkError("headers are not due")
        self._reconciliation.probed(found)
        self._wake()

    def _wake(self) -> None:
        if self._steps is not None:
            self._steps.wake(self)

    # -- catching up: sending_steps.SteppedScope ----------------------------------------------

    @property
    def is_ended(self) -> bool:
        """See sending_steps.SteppedScope."""
        return self.peer.is_closed

    def wait_ms(self, now_ms: int) -> int:
        """See sending_steps.SteppedScope."""
        return max(0, self._due_ms - now_ms)

    async def step(self, now_ms: Callable[[], int]) -> bool:
        """See sending_steps.SteppedScope."""
        plan, reconciliation = self._plan, self._reconciliation
        if plan is None or self.is_ended:
            return False
        if self.scope.phase is SendPhase.COMPARING and reconciliation is not None:
            await reconciliation.run(lambda: self.peer.is_closed)
            if self.peer.is_closed or not reconciliation.is_over:
                return False
            self.scope.happens(SendEvent.COMPARED)
            return True
        if not plan.is_noted:
            await plan.note_all()
            self.bytes_total = plan.bytes_left()
            return True
        return self._catch_up(plan, now_ms())

    def _catch_up(self, plan: CatchUpPlan, now_ms: int) -> bool:
        # More are allowed from time to time: where thousands of queues are busy it would never end.
        logs_max = FINAL_LOGS + self._steps_taken // FINAL_LOGS
        is_little = plan.logs_left <= logs_max and plan.bytes_left(exactly=True) <= FINAL_BYTES
        if is_little and self.peer.waiting_bytes < STEP_BYTES:
            # What was appended and not cut is on disk, and sent from there: no later frame may have it too.
            self._leading.feed.cut()
            while not plan.is_nothing:
                self._send_step(plan)
            self._go_live()
            return False
        sent, limit = self._send_step(plan), self._leading.bandwidth_bytes_s
        self._steps_taken += 1
        if limit:
            self._due_ms = now_ms + sent * 1000 // limit
        return True

    def _send_step(self, plan: CatchUpPlan) -> int:
        feed = self._leading.feed
        frame = plan.step(STEP_BYTES)
        left = plan.bytes_left()
        pieces = frame.message(0, left, self._leading.clock_ms(), compress=feed.compresses)
        self._write(pieces, frame.octets)
        return frame.octets

    def _go_live(self) -> None:
        feed, identity = self._leading.feed, self._leading.own.identity
        if identity.identity.note_follower(self.follower.uri if self.follower else ""):
            # On disk before it knows that it has everything, and may take over.
            identity.save()
        frame = link.Frame()
        feed.name_all(frame)
        self._write(frame.message(0, 0, self._leading.clock_ms()), frame.octets)
        position = feed.begin_live()
        self.sender.frame(position)
        self.peer.write(pack(Type.STREAMING, link.Number(position)))
        self.scope.begins_live(position, 0)
        self.sender.waits(self.scope)
        self._plan = self._reconciliation = None
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
            self.peer.sent_bytes,
        )

    # -- streaming ----------------------------------------------------------------------------

    def send_frame(self, position: int, pieces: list[Octets], octets: int) -> None:
        """See feed.FeedFollower."""
        self.sender.frame(position)
        self._write(pieces, octets)
        if self.peer.waiting_bytes > LIVE_BYTES_MAX:
            self._fall_behind()

    def _write(self, pieces: list[Octets], octets: int) -> None:
        self.raw_bytes += octets
        self.peer.write(*pieces)

    def _fall_behind(self) -> None:
        """All that was cut is on its way; from here on it is read from disk again."""
        leading = self._leading
        feed, tree = leading.feed, leading.tree
        logger.warning(
            "follower_falls_behind node_id=%s waiting_bytes=%d", self.node_id, self.peer.waiting_bytes
        )
        sent = {name: log.next_offset for name, log in tree.logs.items()}
        self._plan = CatchUpPlan(tree, sent, leading.damaged(), leading.unreadable)
        self.scope.falls_behind(feed.position, has=0, end=0)
        feed.count_live()
        feed.in_sync.left(self.node_id)
        # Not now: a frame is being handed out, and what a promise changes in the tree belongs into the next one.
        asyncio.get_running_loop().call_soon(leading.commits.keep)
        self._steps_taken = 0
        self._wake()

    def _acked(self, acked: link.Acked) -> None:
        self.sender.acked(acked.position)
        self.acked_bytes, position = acked.octets, acked.position
        if not self.is_live or position == 0 or self.apply_delay_ms:
            return
        in_sync = self._leading.feed.in_sync
        now_ms = self._leading.feed.elapsed_ms()
        if in_sync.lag(self.node_id, now_ms) is None:
            # It was dropped for its silence, and is back.
            in_sync.joined(self.node_id, self._leading.feed.position, now_ms)
            self._counts = False
        in_sync.acked(self.node_id, position, now_ms)
        self._leading.commits.keep()
        if not self._counts and self.is_in_sync:
            self._counts = True
            self._leading.noticed()

    def beat(self) -> None:
        """Say that the leader is there; end the link of one that is not."""
        now_s = asyncio.get_running_loop().time()
        silent_s = now_s - self._heard_at_s
        if silent_s > SILENCE_S:
            self.peer.abort(LinkError(f"nothing was heard of it for {silent_s:.0f} s"))
        elif self.follower is None:
            if now_s - self._began_s > HANDSHAKE_TIMEOUT_S:
                self.peer.abort(LinkError(f"it did not say who it is within {HANDSHAKE_TIMEOUT_S:.0f} s"))
        else:
            left = self._plan.bytes_left() if self._plan is not None else 0
            if self.is_live:
                self.send_frame(self._leading.feed.position, self._leading.feed.heartbeat(), 0)
            else:
                self.peer.write(*link.Frame().message(0, left, self._leading.clock_ms()))

    # -- what happens in the tree while it catches up -----------------------------------------

    def noted(self, name: str) -> None:
        """See feed.FeedFollower."""
        if self._plan is not None:
            self._plan.noted(name)

    def noted_drop(self, name: str, first_offset: int) -> None:
        """See feed.FeedFollower."""
        if self._plan is not None:
            self._plan.dropped(name, first_offset)

    def noted_delete(self, name: str) -> None:
        """See feed.FeedFollower."""
        # What the follower has of a log that is compared may be divergent: then it is not to be deleted.
        is_undecided = self._reconciliation is not None and self._reconciliation.is_undecided(name)
        if self._plan is not None and not is_undecided:
            self._plan.deleted(name)

    def noted_file(self, name: str, octets: bytes | None) -> None:
        """See feed.FeedFollower."""
        if self._plan is not None:
            self._plan.file(name, octets)

    # -- how it is ----------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """One row of `followers` in the node's status."""
        feed = self._leading.feed
        lag, behind = (
            feed.in_sync.lag(self.node_id, feed.elapsed_ms()) if self.is_live else None,
            self.acked_position,
        )
        left = self._plan.bytes_left() if self._plan is not None else 0
        sent = max(1, self.peer.sent_bytes)
        return {
            "node_id": self.node_id,
            "name": self.follower.name if self.follower else "",
            "address": self.peer.address,
            "uri": self.follower.uri if self.follower else "",
            "state": self.state,
            "in_sync": self.is_in_sync,
            "connected_at_ms": self.connected_at_ms,
            "joined_ms": self.joined_ms,
            "lag_bytes": lag.lag_bytes if lag else max(0, feed.position - behind) if self.is_live else left,
            "lag_records": max(0, feed.records - feed.records_at(behind)) if self.is_live else None,
            "lag_s": round(lag.lag_s, 3) if lag else None,
            "apply_delay_s": self.apply_delay_ms / 1000,
            "sent_bytes": self.peer.sent_bytes,
            "acked_bytes": self.acked_bytes,
            "compression_ratio": round(self.raw_bytes / sent, 3) if feed.compresses else 1.0,
            "progress": self._progress(left) if self.state == "catching_up" else None,
        }

    def _progress(self, left: int) -> dict[str, Any]:
        total = max(self.bytes_total, left)
        return progress_row(total - left, total, asyncio.get_running_loop().time() - self._began_s)
