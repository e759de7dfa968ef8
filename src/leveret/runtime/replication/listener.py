"""A node's replication listener: where followers connect, and what is common to all of them."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from leveret.config.kinds import Address
from leveret.model.errors import LeveretError
from leveret.runtime.replication.arrival import HANDSHAKE_TIMEOUT_S, UNPROVEN_MAX
from leveret.runtime.replication.link_peer import LinkPeer
from leveret.runtime.replication.outbound import Leading, Outbound
from leveret.wire.link import LinkError

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
BEAT_S: Final = 1.0
_LINKS_MAX: Final = 256


class ReplicationListener:
    """See the module.

    Attributes:
        address: where it listens; None while it does not.
        links: everybody who is connected.
    """

    def __init__(self, leading: Leading) -> None:
        """Listen nowhere yet."""
        self.address: Address | None = None
        self.links: list[Outbound] = []
        self._leading = leading
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    @property
    def followers(self) -> list[Outbound]:
        """Those that have proven who they are."""
        return [link for link in self.links if link.follower is not None]

    async def start(self, ip: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen, with TLS if there is a context for it.

        Raises:
            LeveretError: the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        try:
            timeout_s = HANDSHAKE_TIMEOUT_S if tls is not None else None
            self._server = await loop.create_server(
                lambda: LinkPeer(self._connected), ip, port, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:
            where = f"cannot listen on {ip}:{port} for followers"
            raise LeveretError(f"{where}: {error.strerror or error}; see replication.port") from error
        self.address = Address(ip, self._server.sockets[0].getsockname()[1])
        self._ticking = loop.create_task(self._tick())
        logger.info("replication Listening on %s tls=%s", self.address, "yes" if tls else "no")

    def _connected(self, peer: LinkPeer) -> None:
        link = Outbound(self._leading, peer, self._proven, self._ended)
        self.links.append(link)
        unproven = [link for link in self.links if link.follower is None]
        if len(unproven) > UNPROVEN_MAX:
            self._send_away(unproven[0], LinkError("too many others connected, and it did not say who it is"))
        elif len(self.links) > _LINKS_MAX:
            self._send_away(link, LinkError("too many replication links"))

    def _proven(self, link: Outbound) -> None:
        """A follower has one link: acks of another one, or of a copy of the node, say nothing of what it has."""
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
        """End the links of all followers, which may come again: this node is not what it was when they came."""
        for link in self.followers:
            self._send_away(link, LinkError(f"follow this node anew: {why}"))

    def _send_away(self, link: Outbound, error: LinkError) -> None:
        link.peer.abort(error)
        self._ended(link)

    def _ended(self, link: Outbound) -> None:
        feed = self._leading.feed
        if link in self.links:
            self.links.remove(link)
        if link in feed.followers:
            feed.followers.remove(link)
            feed.count_live()
            if not any(other.is_live and other.node_id == link.node_id for other in feed.followers):
                feed.in_sync.left(link.node_id)
        self._leading.commits.keep()
        self._leading.noticed()

    async def _tick(self) -> None:
        try:
            await self._tick_on()
        except Exception as bug:
            # Nobody would be dropped for its silence any more, and publishers would wait for ever.
            logger.critical("replication_failed action=stop", exc_info=True)
            self._leading.commits.fail(bug)

    async def _tick_on(self) -> None:
        beat_at_s = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            for node_id in self._leading.feed.in_sync.tick(self._leading.clock_ms()):
                logger.warning("follower_not_in_sync node_id=%s reason=it_does_not_acknowledge", node_id)
            # What is appended outside a flush, to outgoing logs, is not to wait for the next one.
            self._leading.feed.cut()
            self._leading.commits.keep()
            self._leading.noticed()
            if loop.time() - beat_at_s >= BEAT_S:
                beat_at_s = loop.time()
                for link in list(self.links):
                    link.beat()

    async def stop(self) -> None:
        """Listen no more, and end every link."""
        if self._ticking is not None:
            self._ticking.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.peer.close()
        self.address = None
