"""The leader's end of the link to one follower: admits the follower, and receives its reports and acks.

The scope of the link is the whole node, see sent_node. Operators see its phases as states:

    joining        the leader waits for the inventory, or compares it with its logs, see core.replication.join
    catching_up    missing records are read and sent, see catching_up; no promise waits for the follower
    streaming      the follower receives each frame at its cut; it is in sync once it has acked the first position
    delayed        as streaming, but never in sync, because the follower may go back in time

If frames pile up for a slow follower, it goes back to catching_up: the frames are on disk anyway.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from leveret.core.replication.sender import WHOLE_NODE, SendPhase
from leveret.runtime.link.arrival import HANDSHAKE_TIMEOUT_S, proven, welcome_client
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.link.questions import Questions, in_thread
from leveret.runtime.replication.identity import NodeIdentity
from leveret.runtime.replication.sending_link import SendingLink
from leveret.runtime.replication.sent_node import Leading, SentNode
from leveret.session.link_handshake import (
    NONCE_BYTES,
    HandshakeMessage,
    LeaderHandshake,
    ProvenFollower,
    SecretsDiffer,
    refusal,
)
from leveret.wire import link
from leveret.wire.link import LinkError, Type, decode, pack

logger = logging.getLogger(__name__)


class Outbound(SendingLink):
    """See the module.

    Attributes:
        sending: the scope of the link; None before the follower has proven the secret.
    """

    def __init__(
        self,
        leading: Leading,
        peer: LinkPeer,
        on_proven: Callable[[Outbound], None],
        on_ended: Callable[[Outbound], None],
    ) -> None:
        """Serve a new connection; `on_proven` is called once its node has proven the secret as a follower."""
        super().__init__(peer, "", "the follower", leading.feed.elapsed_ms)
        self.sending: SentNode | None = None
        self.questions = Questions(in_thread(leading.answer))
        self.connected_at_ms = leading.clock_ms()
        self.acked_bytes = 0
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
        self._began_s = asyncio.get_running_loop().time()
        peer.receiver = self

    @property
    def follower(self) -> ProvenFollower | None:
        """The follower; None before it has proven the secret."""
        return self.sending.follower if self.sending is not None else None

    @property
    def node_id(self) -> str:
        """The follower's id; empty before it has proven the secret."""
        return self.node

    @property
    def acked_position(self) -> int:
        """The last acked cut; 0 for none."""
        return max(0, self.sender.acks.cut)

    @property
    def state(self) -> str:
        """The follower's state, see the module; empty before it has proven the secret."""
        return self.sending.state if self.sending is not None else ""

    # -- messages -----------------------------------------------------------------------------

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link_peer.Receiver."""
        self.heard()
        sending = self.sending
        if sending is None:
            self._shake(HandshakeMessage(kind, bytes(payload)))
            return
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

    def _shake(self, said: HandshakeMessage) -> None:
        leading = self._leading
        follower = proven(self.peer, self._handshake, said, refused="replication_refused")
        if follower is None:
            return
        self.peer.is_trusted = True
        is_replaced, own = leading.met(follower), leading.own.identity.identity
        if follower.kind == "proxy":
            self._let_in(follower)
            return
        reason = self._why_not(follower, own, is_replaced=is_replaced)
        if follower.kind == "follow" and reason:
            self.peer.say(refusal(reason))
            self.peer.close()
            return
        # A follower learns the leadership of the data that it will receive; another leader, the latest leadership.
        leadership = own.leadership if follower.kind == "follow" else own.seen
        self.peer.say(
            self._handshake.welcome(
                leadership=leadership,
                uri=leading.own.own_uri(),
                former=own.former_leaders,
                cluster=leading.own.cluster(),
            )
        )
        if follower.kind == "fence":
            self.peer.close()
            return
        self.begin(follower)
        self._on_proven(self)
        logger.info(
            "follower_connected name=%s address=%s node_id=%s",
            follower.name,
            self.peer.address,
            follower.node_id,
        )

    def begin(self, follower: ProvenFollower) -> None:
        """Begin the scope of a proven follower, which reports its logs next."""
        self.node = follower.node_id
        self.sending = SentNode(self, self._leading, follower)

    def _let_in(self, by: ProvenFollower) -> None:
        """Serve a client that a node passes on; from then on the connection is no link."""
        own = self._leading.own
        serve = welcome_client(
            self._leading.let_in,
            by,
            self.peer,
            lambda: self._handshake.welcome(leadership=own.identity.identity.seen, uri=own.own_uri()),
        )
        if serve is not None:
            self._on_ended(self)
            serve()

    def _why_not(self, follower: ProvenFollower, own: NodeIdentity, *, is_replaced: bool) -> str:
        """Return why this follower cannot follow this node now; empty if it can."""
        if is_replaced:
            return f"this node was replaced by one with epoch {follower.epoch}: follow that one"
        if own.role == "follower" and (own.rewriting or not own.followed_epoch):
            return "this node follows another one, and does not have everything yet"
        if follower.epoch > own.epoch:
            return f"this node's data have epoch {own.epoch}, and the follower's have epoch {follower.epoch}"
        return ""

    def ended(self, error: Exception | None) -> None:
        """See link_peer.Receiver."""
        self.stop_steps()
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

    def leave(self) -> None:
        """Have promises no longer wait for the follower because of this link."""
        if self.sending is not None:
            self.sending.leave()

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

    def beat(self) -> None:
        """Send a heartbeat; end the link of a silent follower."""
        if self.end_if_silent():
            return
        if self.sending is not None:
            self.sending.beat()
        elif asyncio.get_running_loop().time() - self._began_s > HANDSHAKE_TIMEOUT_S:
            self.peer.abort(LinkError(f"it did not identify itself within {HANDSHAKE_TIMEOUT_S:.0f} s"))

    # -- status -------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """Return the row of a proven follower in `followers` of the node's status."""
        sending, feed = self.sending, self._leading.feed
        assert sending is not None
        lag, behind = (
            feed.in_sync.lag(self.node_id, feed.elapsed_ms()) if sending.is_live else None,
            self.acked_position,
        )
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
            "lag_bytes": lag.lag_bytes
            if lag
            else max(0, feed.position - behind)
            if sending.is_live
            else left,
            "lag_records": max(0, feed.records - feed.records_at(behind)) if sending.is_live else None,
            "lag_s": round(lag.lag_s, 3) if lag else None,
            "apply_delay_s": sending.apply_delay_ms / 1000,
            "sent_bytes": self.peer.sent_bytes,
            "acked_bytes": self.acked_bytes,
            "compression_ratio": round(sending.raw_bytes / sent, 3) if feed.compresses else 1.0,
            "progress": sending.progress.row(left) if sending.state == "catching_up" else None,
        }
