"""A node's replication listener: accepts followers, and has the state that all of them share."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import ListenerKind
from leveret.runtime.link.heartbeat import LinkHeartbeat
from leveret.runtime.link.listening import LinkListener, accept_passed_on
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.replication.outbound import Outbound
from leveret.runtime.replication.sent_node import LeaderState
from leveret.runtime.sockets.tls import ListenerTls
from leveret.session.link_handshake import REPLICATION, LeaderHandshake, ProvenFollower, refusal
from leveret.wire.link import LinkError

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
BEAT_S: Final = 1.0
_SILENT_BEATS_MAX: Final = 15
"""The link of a follower that is silent for longer ends; a follower repeats its last ack in each beat."""
_LINKS_MAX: Final = 256


class ReplicationListener(LinkListener):
    """See the module.

    Attributes:
        followers: the links of followers that have proven the secret.
    """

    def __init__(self, leading: LeaderState) -> None:
        """Start without a socket."""
        super().__init__(
            ListenerKind.REPLICATION,
            links_max=_LINKS_MAX,
            refused="replication_refused",
            ended="replication_link_ended",
        )
        self.followers: list[Outbound] = []
        self._leading = leading
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, ip: str, port: int, tls: ListenerTls | None) -> None:
        """Listen, with TLS if it is given.

        Raises:
            LeveretError: the address is not available.
        """
        self.listen(Address(ip, port), tls, peers="followers")
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    # -- arrivals -----------------------------------------------------------------------------

    def handshake(self, peer: LinkPeer) -> LeaderHandshake:
        """See LinkListener."""
        return self._leading.own.credentials.answers(peer.channel, REPLICATION)

    def proven(self, peer: LinkPeer, handshake: LeaderHandshake, other: ProvenFollower) -> None:
        """See LinkListener."""
        leading = self._leading
        is_replaced, own = leading.met(other), leading.own.identity.identity
        if other.kind == "proxy":
            accept_passed_on(
                leading.accept_client,
                other,
                peer,
                lambda: handshake.welcome(leadership=own.seen, uri=leading.own.own_uri()),
            )
            return
        reason = self._why_not(other, is_replaced=is_replaced)
        if other.kind == "follow" and reason:
            peer.say(refusal(reason))
            peer.close()
            return
        # A follower learns the leadership of the data that it will receive; another leader, the latest leadership.
        leadership = own.leadership if other.kind == "follow" else own.seen
        peer.say(
            handshake.welcome(
                leadership=leadership,
                uri=leading.own.own_uri(),
                former=own.former_leaders,
                cluster=leading.own.cluster(),
            )
        )
        if other.kind == "fence":
            peer.close()
            return
        self._follow(Outbound(leading, peer, other, self._ended))

    def _why_not(self, follower: ProvenFollower, *, is_replaced: bool) -> str:
        """Return why this follower cannot follow this node now; empty if it can."""
        own = self._leading.own.identity.identity
        if is_replaced:
            return f"this node was replaced by one with epoch {follower.epoch}: follow that one"
        if own.role == "follower" and (own.rewriting or not own.followed_epoch):
            return "this node follows another one, and does not have everything yet"
        if follower.epoch > own.epoch:
            return f"this node's data have epoch {own.epoch}, and the follower's have epoch {follower.epoch}"
        return ""

    def _follow(self, link: Outbound) -> None:
        """Take a follower; end other links of the same node: the acks of an older link, or of a copy, do not count."""
        for other in [other for other in self.followers if other.node_id == link.node_id]:
            logger.warning(
                "follower_connected_anew node_id=%s address=%s before=%s hint=%s",
                link.node_id,
                link.peer.address,
                other.peer.address,
                "if these are two nodes, one is a copy of the other: remove replication.json from that one",
            )
            self._send_away(other, LinkError("a node with the same id has connected since"))
        self.followers.append(link)
        LinkHeartbeat(link.peer, silent_beats_max=_SILENT_BEATS_MAX, says=False)
        logger.info(
            "follower_connected name=%s address=%s node_id=%s",
            link.follower.name,
            link.peer.address,
            link.node_id,
        )

    # -- followers ----------------------------------------------------------------------------

    def send_away_all(self, why: str) -> None:
        """End the links of all followers, which may connect again: this node has changed since they joined."""
        for link in list(self.followers):
            self._send_away(link, LinkError(f"join again: {why}"))

    def _send_away(self, link: Outbound, error: LinkError) -> None:
        link.peer.abort(error)
        self._ended(link)

    def _ended(self, link: Outbound) -> None:
        if link in self.followers:
            self.followers.remove(link)
        link.sending.leave()
        self._leading.commits.keep()
        self._leading.noticed()

    async def _tick(self) -> None:
        try:
            await self._tick_on()
        except Exception as bug:
            # No silent follower would be dropped any more, and publishers would wait for ever.
            logger.critical("replication_failed action=stop", exc_info=True)
            self._leading.commits.fail(bug)

    async def _tick_on(self) -> None:
        beat_at_s = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            feed = self._leading.feed
            for node_id in feed.in_sync.tick(feed.elapsed_ms()):
                logger.warning("follower_not_in_sync node_id=%s reason=it_does_not_acknowledge", node_id)
            # Records that are appended outside of a flush, to outgoing logs, must not wait for the next flush.
            feed.read_prefixes()
            feed.cut()
            self._leading.commits.keep()
            self._leading.noticed()
            if loop.time() - beat_at_s >= BEAT_S:
                beat_at_s = loop.time()
                for link in list(self.followers):
                    link.sending.beat()

    async def stop(self) -> None:
        """Stop listening, and end every link."""
        if self._ticking is not None:
            self._ticking.cancel()
        await super().stop()
