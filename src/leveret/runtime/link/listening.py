"""Listens for other nodes: for followers, and for the nodes of a cluster. Each proves the secret first.

Until the proof one message comes in and one goes out, within a time limit, and few links may be in that state.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import ListenerKind
from leveret.model.errors import LeveretError
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.sockets.acceptor import Acceptor, ProtocolEndpoint, listen
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.runtime.sockets.tls import ListenerTls
from leveret.session.link_handshake import (
    HandshakeDeclined,
    HandshakeMessage,
    LeaderHandshake,
    ProvenFollower,
    refusal,
)
from leveret.wire.link import LinkError, Type

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 5.0
"""The longest time of a link without the peer's proof."""
UNPROVEN_MAX: Final = 64
"""The most links without the peer's proof; with one more, the oldest of them ends."""

AcceptClient = Callable[[ProvenFollower, LinkPeer], Callable[[], None]]
"""Takes a client whose connection a node passes on; returns the step that serves it, to run after the node's welcome.
Raises LeveretError with the reason why no listener serves it."""


class LinkListener(ABC):
    """See the module.

    Attributes:
        address: the listening address; None while it does not listen.
    """

    def __init__(self, kind: ListenerKind, *, links_max: int, refused: str, ended: str) -> None:
        """Open no socket yet.

        Args:
            kind: the kind of listener; its settings begin with the same word.
            links_max: the most links; a further one ends at once.
            refused: the event of the log for a peer whose handshake is declined.
            ended: the event for a link that ends before its peer has proven the secret.
        """
        self.address: Address | None = None
        self._kind = kind
        self._links: list[LinkPeer] = []
        self._links_max = links_max
        self._refused = refused
        self._ended_early = ended
        self._unproven_max = min(UNPROVEN_MAX, process_sockets().budget.unproven(kind))
        self._server: Acceptor | None = None

    @property
    def links(self) -> list[LinkPeer]:
        """All open connections, also those whose peer has not proven the secret."""
        return [peer for peer in self._links if not peer.is_closed]

    # -- differences of listeners -------------------------------------------------------------

    @abstractmethod
    def handshake(self, peer: LinkPeer) -> LeaderHandshake:
        """Begin the handshake of a connection."""

    @abstractmethod
    def proven(self, peer: LinkPeer, handshake: LeaderHandshake, other: ProvenFollower) -> None:
        """Welcome a node that has proven the secret, and set the receiver of its messages; or refuse it.

        Raises:
            LeveretError: the reason why the link ends.
        """

    # -- begin and end ------------------------------------------------------------------------

    def listen(self, at: Address, tls: ListenerTls | None, *, peers: str) -> None:
        """Listen, with TLS if it is given.

        Args:
            at: the address; port 0 takes a free one.
            tls: the TLS; None for plain connections.
            peers: for whom it listens, in an error.

        Raises:
            LeveretError: the address is not available.
        """
        try:
            listening = listen(at.ip, at.port)
        except OSError as error:
            raise LeveretError(
                f"cannot listen on {at} for {peers}: {error.strerror or error}; see {self._kind}.port"
            ) from error
        self._server = Acceptor(
            listening,
            ProtocolEndpoint(
                self._kind,
                lambda accepted: LinkPeer(self._connected, accepted.slot),
                HANDSHAKE_TIMEOUT_S,
                tls,
            ),
        )
        self.address = Address(at.ip, listening.getsockname()[1])
        logger.info("%s Listening on %s tls=%s", self._kind, self.address, "yes" if tls else "no")

    async def stop(self) -> None:
        """Close the listener, and end every link."""
        if self._server is not None:
            self._server.close()
        for peer in self.links:
            peer.close()
        self.address = None

    # -- arrivals -----------------------------------------------------------------------------

    def _connected(self, peer: LinkPeer) -> None:
        peer.receiver = _Arrival(self, peer, self._refused, self._ended_early)
        self._links = [*self.links, peer]
        unproven = [link for link in self._links if not link.is_trusted]
        if len(unproven) > self._unproven_max:
            unproven[0].abort(LinkError("too many other connections, and it has not identified itself"))
        elif len(self._links) > self._links_max:
            peer.abort(LinkError(f"too many {self._kind} links"))


class _Arrival:
    """A link whose handshake has not ended (link.peer.Receiver)."""

    def __init__(self, listener: LinkListener, peer: LinkPeer, refused: str, ended: str) -> None:
        self._listener = listener
        self._peer = peer
        self._refused = refused
        self._ended = ended
        self._handshake = listener.handshake(peer)
        self._late = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._is_late)

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        peer, said = self._peer, HandshakeMessage(kind, bytes(payload))
        try:
            if said.type == Type.HELLO:
                peer.say(self._handshake.answer_hello(said))
                return
            other = self._handshake.take_proof(said)
        except HandshakeDeclined as declined:
            logger.warning("%s peer=%s reason=%s", self._refused, peer.address, declined)
            peer.say(declined.answer)
            raise
        self._late.cancel()
        peer.is_trusted = True
        self._listener.proven(peer, self._handshake, other)

    def _is_late(self) -> None:
        self._peer.abort(LinkError(f"it did not identify itself within {HANDSHAKE_TIMEOUT_S:.0f} s"))

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        self._late.cancel()
        if error is not None and not isinstance(error, HandshakeDeclined):
            logger.info("%s peer=%s reason=%s", self._ended, self._peer.address, error)


def accept_passed_on(
    accept_client: AcceptClient, by: ProvenFollower, peer: LinkPeer, welcome: Callable[[], HandshakeMessage]
) -> None:
    """Serve the client that a node passes on, or refuse the node; from then on the connection is no link."""
    try:
        serve = accept_client(by, peer)
    except LeveretError as error:
        logger.info("client_not_let_in by=%s address=%s reason=%s", by.name, peer.address, error)
        peer.say(refusal(str(error)))
        peer.close()
        return
    peer.say(welcome())
    serve()
