"""The side of a link that connects: a socket, then the handshake in which both nodes prove the secret."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from leveret.config.uris import NodeUri
from leveret.runtime.link.peer import LinkPeer
from leveret.session.link_handshake import (
    FollowerHandshake,
    HandshakeDeclined,
    HandshakeError,
    HandshakeMessage,
    ProvenLeader,
)
from leveret.wire.link import Type

Prove = Callable[[FollowerHandshake, HandshakeMessage], HandshakeMessage]
"""Makes this side's proof, as the answer to the other side's HELLO. Raises HandshakeError."""


class Dialling:
    """The receiver of a link until its handshake ends (link.peer.Receiver).

    Attributes:
        peer: the link.
    """

    def __init__(self, prove: Prove) -> None:
        """Start without a connection."""
        self.peer = LinkPeer()
        self.peer.receiver = self
        self._prove = prove
        self._handshake: FollowerHandshake | None = None
        self._has_proven = False
        self._leader: asyncio.Future[ProvenLeader] = asyncio.get_running_loop().create_future()

    async def connect(self, uri: NodeUri, tls: ssl.SSLContext | None) -> None:
        """Connect, with TLS if there is a context for it.

        Raises:
            OSError: the node cannot be reached.
        """
        await asyncio.get_running_loop().create_connection(
            lambda: self.peer, uri.host, uri.port, ssl=tls, server_hostname=uri.host if tls else None
        )

    async def shake(self, handshake: FollowerHandshake) -> ProvenLeader:
        """Return the proven node at the other end; later messages wait until the caller sets the next receiver.

        Raises:
            HandshakeError: the node has another secret, or declines.
            LeveretError, OSError: the link ended.
        """
        self._handshake = handshake
        self.peer.say(handshake.hello())
        return await self._leader

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        if self._handshake is None or self._leader.done():
            raise HandshakeError("a message came that is not due in the handshake")
        said = HandshakeMessage(kind, bytes(payload))
        if not self._has_proven:
            self._has_proven = True
            try:
                proof = self._prove(self._handshake, said)
            except HandshakeDeclined as declined:
                self.peer.say(declined.answer)
                raise
            self.peer.say(proof)
            return
        leader = self._handshake.take_welcome(said)
        self.peer.is_trusted = True
        self.peer.hold()
        self._leader.set_result(leader)

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        if not self._leader.done():
            self._leader.set_exception(error or HandshakeError("it closed the link"))
            self._leader.exception()  # a caller that stopped waiting does not want the error in the log
