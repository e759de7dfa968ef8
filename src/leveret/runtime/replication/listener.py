"""A node's replication listener: accepts followers, and has the state that all of them share."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import ListenerKind
from leveret.runtime.link.arrival import UNPROVEN_MAX
from leveret.runtime.link.listening import listen_for_links
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.replication.outbound import Outbound
from leveret.runtime.replication.sent_node import Leading
from leveret.runtime.sockets.acceptor import Acceptor
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.wire.link import LinkError

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
BEAT_S: Final = 1.0
_LINKS_MAX: Final = 256


class ReplicationListener:
    """See the module.

    Attributes:
        address: the listening address; None while it does not listen.
        links: all connections.
    """

    def __init__(self, leading: Leading) -> None:
        """Start without a socket."""
        self.address: Address | None = None
        self.links: list[Outbound] = []
        self._leading = leading
        self._unproven_max = min(UNPROVEN_MAX, process_sockets().budget.unproven(ListenerKind.REPLICATION))
        self._server: Acceptor | None = None
        self._ticking: asyncio.Task[None] | None = None

    @property
    def followers(self) -> list[Outbound]:
        """The links whose followers have proven the secret."""
        return [link for link in self.links if link.follower is not None]

    async def start(self, ip: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen, with TLS if there is a context for it.

        Raises:
            LeveretError: the address is not available.
        """
        self._server, self.address = listen_for_links(
            Address(ip, port), self._connected, ListenerKind.REPLICATION, tls=tls, peers="followers"
        )
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def _connected(self, peer: LinkPeer) -> None:
        link = Outbound(self._leading, peer, self._proven, self._ended)
        self.links.append(link)
        unproven = [link for link in self.links if link.follower is None]
        if len(unproven) > self._unproven_max:
            self._send_away(
                unproven[0], LinkError("too many other connections, and it has not identified itself")
            )
        elif len(self.links) > _LINKS_MAX:
            self._send_away(link, LinkError("too many replication links"))

    def _proven(self, link: Outbound) -> None:
        """End other links of the same node: the acks of an older link, or of a copy of the node, do not count."""
        for other in [
            other for other in self.followers if other.node_id == link.node_id and other is not link
        ]:
            logger.warning(
                "follower_connected_anew node_id=%s address=%s before=%s hint=%s",
                link.node_id,
                link.peer.address,
                other.peer.address,
                "if these are two nodes, one is a copy of the other: remove replication.json from that one",
            )
            self._send_away(other, LinkError("a node with the same id has connected since"))

    def send_away_all(self, why: str) -> None:
        """End the links of all followers, which may connect again: this node has changed since they joined."""
        for link in self.followers:
            self._send_away(link, LinkError(f"join again: {why}"))

    def _send_away(self, link: Outbound, error: LinkError) -> None:
        link.peer.abort(error)
        self._ended(link)

    def _ended(self, link: Outbound) -> None:
        if link in self.links:
            self.links.remove(link)
        link.leave()
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
                for link in list(self.links):
                    link.beat()

    async def stop(self) -> None:
        """Stop listening, and end every link."""
        if self._ticking is not None:
            self._ticking.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.peer.close()
        self.address = None
