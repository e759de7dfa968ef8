"""The leader's end of the link to one follower, which has proven the secret: receives its reports and acks.

The scope of the link is the whole node, see sent_node. Operators see its phases as states:

    joining        the leader waits for the inventory, or compares it with its logs, see core.replication.join
    catching_up    missing records are read and sent, see catching_up; no promise waits for the follower
    streaming      the follower receives each frame at its cut; it is in sync once it has acked the first position
    delayed        as streaming, but never in sync, because the follower may go back in time

If frames pile up for a slow follower, it goes back to catching_up: the frames are on disk anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from leveret.core.replication.sender import WHOLE_NODE, SendPhase
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.link.questions import Questions, in_thread
from leveret.runtime.replication.sending_link import SendingLink
from leveret.runtime.replication.sent_node import LeaderState, SentNode
from leveret.session.link_handshake import ProvenFollower
from leveret.wire import link
from leveret.wire.link import LinkError, Type, decode, pack

logger = logging.getLogger(__name__)


class Outbound(SendingLink):
    """See the module.

    Attributes:
        sending: the scope of the link.
    """

    def __init__(
        self,
        leading: LeaderState,
        peer: LinkPeer,
        follower: ProvenFollower,
        on_ended: Callable[[Outbound], None],
    ) -> None:
        """Begin with a follower after its handshake; it reports its logs next."""
        super().__init__(peer, follower.node_id, "the follower", leading.feed.elapsed_ms)
        self.sending = SentNode(self, leading, follower)
        self.questions = Questions(in_thread(leading.answer))
        self.connected_at_ms = leading.clock_ms()
        self.acked_bytes = 0
        self._leading = leading
        self._on_ended = on_ended
        peer.receiver = self

    @property
    def follower(self) -> ProvenFollower:
        """The follower."""
        return self.sending.follower

    @property
    def node_id(self) -> str:
        """The follower's id."""
        return self.node

    @property
    def acked_position(self) -> int:
        """The last acked cut; 0 for none."""
        return max(0, self.sender.acks.cut)

    @property
    def state(self) -> str:
        """The follower's state, see the module."""
        return self.sending.state

    # -- messages -----------------------------------------------------------------------------

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        sending = self.sending
        match kind:
            case Type.ACK:
                self._acked(sending, decode(kind, payload, link.Acked))
            case Type.TAKE_OVER:
                self._hand_over(sending, decode(kind, payload, link.Number).number)
            case Type.INVENTORY:
                if sending.scope.phase is not SendPhase.REPORTING:
                    raise LinkError("an inventory is not due")
                sending.reported(decode(kind, payload, link.Inventory))
            case Type.HEADERS:
                sending.probed(decode(kind, payload, link.Headers))
            case Type.QUESTION | Type.ANSWER:
                self.questions.received(self.peer, kind, payload)
            case _:
                raise LinkError(f"message {kind.name} is not due from a follower")

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        self.stop_steps()
        self.questions.ended()
        state = self.state
        self.sender.end(WHOLE_NODE)
        logger.warning(
            "follower_disconnected name=%s address=%s state=%s reason=%s",
            self.follower.name,
            self.peer.address,
            state,
            error or "it closed the link",
        )
        self._on_ended(self)

    def _hand_over(self, sending: SentNode, epoch: int) -> None:
        """Hand over to a follower that is about to lead: send it all changes, and promise none from now on."""
        if not sending.is_live:
            raise LinkError("a follower takes over that does not stream")
        if epoch <= self._leading.own.identity.identity.epoch:
            raise LinkError(f"a follower takes over in epoch {epoch}, which is not above this node's")
        self._leading.hand_over(sending.follower, epoch)
        self._leading.feed.cut()
        self.peer.write(pack(Type.HANDED_OVER, link.Number(self._leading.feed.position)))

    def _acked(self, sending: SentNode, acked: link.Acked) -> None:
        self.sender.acked(acked.position)
        self.acked_bytes = acked.octets
        sending.acked(acked.position)

    # -- status -------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """Return the row of the follower in `followers` of the node's status."""
        sending, feed = self.sending, self._leading.feed
        owed = feed.in_sync.lag_bytes(self.node_id) if sending.is_live else None
        behind, lag_s = self.acked_position, sending.lag_s
        left, sent = sending.plan.bytes_left(), max(1, self.peer.sent_bytes)
        return {
            "node_id": self.node_id,
            "name": sending.follower.name,
            "address": self.peer.address,
            "uri": sending.follower.uri,
            "state": sending.state,
            "in_sync": sending.is_in_sync,
            "connected_at_ms": self.connected_at_ms,
            "joined_ms": sending.joined_ms,
            "lag_bytes": owed
            if owed is not None
            else max(0, feed.position - behind)
            if sending.is_live
            else left,
            "lag_records": max(0, feed.records - feed.records_at(behind)) if sending.is_live else None,
            "lag_s": None if lag_s is None else round(lag_s, 3),
            "apply_delay_s": sending.apply_delay_ms / 1000,
            "sent_bytes": self.peer.sent_bytes,
            "acked_bytes": self.acked_bytes,
            "compression_ratio": round(sending.raw_bytes / sent, 3) if feed.compresses else 1.0,
            "progress": sending.progress.row(left) if sending.state == "catching_up" else None,
        }
