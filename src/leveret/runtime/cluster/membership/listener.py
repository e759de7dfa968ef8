"""The listener for other nodes of the cluster: one handshake, then the handler for the link's kind.

    handlers = {"member": asked.accept, "mirror": mirror, "relay": forwarding.accept}
    listener = ClusterListener(config.cluster, credentials, handlers)
    await listener.start()
    announce(listener.uri)

Other nodes connect to the announced address.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from leveret.config.kinds import Address
from leveret.config.sections.cluster import Cluster
from leveret.config.uris import NodeUri
from leveret.core.rules.descriptors import ListenerKind as Listener
from leveret.model.errors import LeveretError
from leveret.runtime.link.arrival import HANDSHAKE_TIMEOUT_S, UNPROVEN_MAX, LetIn, proven, welcome_client
from leveret.runtime.link.heartbeat import Heart
from leveret.runtime.link.listening import listen_for_links
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.runtime.sockets.acceptor import Acceptor
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.runtime.sockets.tls import server_context
from leveret.session.link_handshake import (
    CLUSTER,
    NONCE_BYTES,
    HandshakeDeclined,
    HandshakeMessage,
    Kind,
    LeaderHandshake,
    Leadership,
    ProvenFollower,
    refusal,
)
from leveret.storage.secret_file import Secret
from leveret.wire.link import LinkError, Type

logger = logging.getLogger(__name__)

TLS_PREFIX: Final = "cluster.ssl_options"
NOBODY: Final = Leadership(0, "")
"""The leader in a handshake of two nodes of a cluster."""


class NodeCredentials(NamedTuple):
    """This node's identity and secret, for other nodes.

    Attributes:
        secret: the secret that all nodes of the cluster have.
        node_id: the id of this node's data.
        name: the name in the cluster, such as `rabbit@host`.
        incarnation: the id of this run.
    """

    secret: Secret
    node_id: str
    name: str
    incarnation: str


class ClusterPeer(NamedTuple):
    """A connected node and the kind of its link; `vhost` of a forwarding connection, as clients named it."""

    kind: Kind
    name: str
    node_id: str
    incarnation: str
    vhost: str


Handler: TypeAlias = Callable[[LinkPeer, ClusterPeer], Receiver]
"""Takes a link after the handshake; a LeveretError ends the link."""


class ClusterListener:
    """See the module.

    Attributes:
        address: the listening address; None while the listener is closed.
        links: all connected peers, also those before the end of their handshake.
        let_in: takes clients that another node passes on; until it is set, other nodes cannot pass on clients.
    """

    def __init__(
        self,
        settings: Cluster,
        credentials: NodeCredentials,
        handlers: Mapping[Kind, Handler],
        why_not: Callable[[ClusterPeer], str] = lambda caller: "",
    ) -> None:
        """Open no socket yet.

        Args:
            settings: the address to listen on.
            credentials: for both sides of the handshake.
            handlers: a handler for each kind of link.
            why_not: returns the reason to refuse a node after its handshake, which that node receives; empty: none.
        """
        self.address: Address | None = None
        self.links: list[LinkPeer] = []
        self.credentials = credentials
        self.handlers = handlers
        self.why_not = why_not
        self.let_in: LetIn | None = None
        self._settings = settings
        self._unproven_max = min(UNPROVEN_MAX, process_sockets().budget.unproven(Listener.CLUSTER))
        self._server: Acceptor | None = None

    async def start(self) -> None:
        """Listen, with TLS if a certificate is configured.

        Raises:
            LeveretError: the address cannot be bound, or the certificate cannot be read.
        """
        settings = self._settings
        tls = server_context(settings.tls, TLS_PREFIX) if settings.tls.certfile else None
        self._server, self.address = listen_for_links(
            Address(settings.bind, settings.port),
            self._connected,
            Listener.CLUSTER,
            tls=tls,
            peers="the other nodes of the cluster",
        )

    @property
    def uri(self) -> NodeUri:
        """The address of this node for the other nodes. Raises LeveretError unless the node listens."""
        if self._settings.advertised_uri is not None:
            return self._settings.advertised_uri
        if self.address is None:
            raise LeveretError("the listener for other nodes of the cluster is closed")
        scheme = "tls" if self._settings.tls.certfile else "tcp"
        return NodeUri(scheme, self.address.ip, self.address.port)

    async def stop(self) -> None:
        """Close the listener, and end every link."""
        if self._server is not None:
            self._server.close()
        for peer in list(self.links):
            peer.close()
        self.address = None

    def _connected(self, peer: LinkPeer) -> None:
        peer.receiver = _Arrival(self, peer)
        self.links = [link for link in self.links if not link.is_closed]
        self.links.append(peer)
        unproven = [link for link in self.links if not link.is_trusted]
        if len(unproven) > self._unproven_max:
            unproven[0].abort(LinkError("too many other connections, and it has not identified itself"))


class _Arrival:
    """A link whose handshake has not ended (link_peer.Receiver)."""

    def __init__(self, listener: ClusterListener, peer: LinkPeer) -> None:
        own = listener.credentials
        self._listener = listener
        self._peer = peer
        self._handshake = LeaderHandshake(
            own.secret.octets,
            node_id=own.node_id,
            name=own.name,
            nonce=os.urandom(NONCE_BYTES),
            channel=peer.channel,
            kinds=CLUSTER
            & (listener.handlers.keys() | ({"proxy"} if listener.let_in is not None else set())),
        )
        self._late = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._is_late)

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link_peer.Receiver."""
        said = HandshakeMessage(kind, bytes(payload))
        follower = proven(self._peer, self._handshake, said, refused="cluster_link_refused")
        if follower is None:
            return
        if follower.kind == "proxy":
            self._let_in(follower)
        else:
            self._pass_on(follower)

    def _let_in(self, by: ProvenFollower) -> None:
        """Serve the client that a node passes on; from then on the connection carries the client's protocol."""
        assert self._listener.let_in is not None
        serve = welcome_client(
            self._listener.let_in,
            by,
            self._peer,
            lambda: self._handshake.welcome(leadership=NOBODY, uri=""),
        )
        self._late.cancel()
        if serve is not None:
            serve()

    def _pass_on(self, follower: ProvenFollower) -> None:
        peer, listener = self._peer, self._listener
        caller = ClusterPeer(
            follower.kind, follower.name, follower.node_id, follower.incarnation, follower.vhost
        )
        reason = listener.why_not(caller)
        if reason:
            logger.warning(
                "cluster_link_refused peer=%s node=%s kind=%s reason=%s",
                peer.address,
                caller.name,
                caller.kind,
                reason,
            )
            self._peer.say(refusal(reason))
            raise LinkError(reason)
        self._late.cancel()
        peer.is_trusted = True
        self._peer.say(self._handshake.welcome(leadership=NOBODY, uri=""))
        logger.info("cluster_link peer=%s node=%s kind=%s", peer.address, caller.name, caller.kind)
        peer.receiver = listener.handlers[caller.kind](peer, caller)
        Heart(peer)

    def _is_late(self) -> None:
        self._peer.abort(LinkError(f"it did not identify itself within {HANDSHAKE_TIMEOUT_S:.0f} s"))

    def ended(self, error: Exception | None) -> None:
        """See link_peer.Receiver."""
        self._late.cancel()
        if error is not None and not isinstance(error, HandshakeDeclined):
            logger.info("cluster_link_ended peer=%s reason=%s", self._peer.address, error)
