"""The listener for other nodes of the cluster: one handshake, then the handler for the link's kind.

    handlers = {"member": asked.accept, "mirror": mirror, "relay": forwarding.accept}
    listener = ClusterListener(config.cluster, credentials, handlers)
    await listener.start()
    announce(listener.uri)

Other nodes connect to the announced address.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from leveret.config.kinds import Address
from leveret.config.sections.cluster import Cluster
from leveret.config.uris import NodeUri
from leveret.core.rules.descriptors import ListenerKind as Listener
from leveret.model.errors import LeveretError
from leveret.runtime.link.credentials import NodeCredentials
from leveret.runtime.link.heartbeat import LinkHeartbeat
from leveret.runtime.link.listening import AcceptClient, LinkListener, accept_passed_on
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.runtime.sockets.tls import ListenerTls
from leveret.session.link_handshake import (
    CLUSTER,
    HandshakeMessage,
    Kind,
    LeaderHandshake,
    Leadership,
    ProvenFollower,
    refusal,
)
from leveret.wire.link import LinkError

logger = logging.getLogger(__name__)

TLS_PREFIX: Final = "cluster.ssl_options"
NOBODY: Final = Leadership(0, "")
"""The leader in a handshake of two nodes of a cluster."""


Handler: TypeAlias = Callable[[LinkPeer, ProvenFollower], Receiver]
"""Takes a link after the handshake; a LeveretError ends the link."""


class ClusterListener(LinkListener):
    """See the module.

    Attributes:
        accept_client: takes clients that another node passes on; until it is set, other nodes cannot pass on clients.
    """

    def __init__(
        self,
        settings: Cluster,
        credentials: NodeCredentials,
        handlers: Mapping[Kind, Handler],
        why_not: Callable[[ProvenFollower], str] = lambda caller: "",
    ) -> None:
        """Open no socket yet.

        Args:
            settings: the address to listen on.
            credentials: for both sides of the handshake.
            handlers: a handler for each kind of link.
            why_not: returns the reason to refuse a node after its handshake, which that node receives; empty: none.
        """
        super().__init__(
            Listener.CLUSTER,
            links_max=sys.maxsize,
            refused="cluster_link_refused",
            ended="cluster_link_ended",
        )
        self.credentials = credentials
        self.handlers = handlers
        self.why_not = why_not
        self.accept_client: AcceptClient | None = None
        self._settings = settings

    async def start(self) -> None:
        """Listen, with TLS if a certificate is configured.

        Raises:
            LeveretError: the address cannot be bound, or the certificate cannot be read.
        """
        settings = self._settings
        tls = ListenerTls(settings.tls, TLS_PREFIX) if settings.tls.certfile else None
        self.listen(Address(settings.bind, settings.port), tls, peers="the other nodes of the cluster")

    @property
    def uri(self) -> NodeUri:
        """The address of this node for the other nodes. Raises LeveretError unless the node listens."""
        if self._settings.advertised_uri is not None:
            return self._settings.advertised_uri
        if self.address is None:
            raise LeveretError("the listener for other nodes of the cluster is closed")
        scheme = "tls" if self._settings.tls.certfile else "tcp"
        return NodeUri(scheme, self.address.ip, self.address.port)

    # -- arrivals -----------------------------------------------------------------------------

    def handshake(self, peer: LinkPeer) -> LeaderHandshake:
        """See LinkListener."""
        kinds = self.handlers.keys() | ({"proxy"} if self.accept_client is not None else set())
        return self.credentials.answers(peer.channel, CLUSTER & kinds)

    def proven(self, peer: LinkPeer, handshake: LeaderHandshake, other: ProvenFollower) -> None:
        """See LinkListener."""

        def welcome() -> HandshakeMessage:
            return handshake.welcome(leadership=NOBODY, uri="")

        if other.kind == "proxy":
            assert self.accept_client is not None
            accept_passed_on(self.accept_client, other, peer, welcome)
            return
        reason = self.why_not(other)
        if reason:
            logger.warning(
                "cluster_link_refused peer=%s node=%s kind=%s reason=%s",
                peer.address,
                other.name,
                other.kind,
                reason,
            )
            peer.say(refusal(reason))
            raise LinkError(reason)
        peer.say(welcome())
        logger.info("cluster_link peer=%s node=%s kind=%s", peer.address, other.name, other.kind)
        peer.receiver = self.handlers[other.kind](peer, other)
        LinkHeartbeat(peer)
