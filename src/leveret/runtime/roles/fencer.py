"""Reports the new leader to a previous one, until that follows or the process ends."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from leveret.config.uris import NodeUri
from leveret.model.errors import LeveretError
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.replication.identity import LinkEnd
from leveret.session.link_handshake import (
    NONCE_BYTES,
    FollowerHandshake,
    HandshakeError,
    HandshakeMessage,
    ProvenLeader,
)
from leveret.wire.link import Type

logger = logging.getLogger(__name__)

EVERY_S: Final = 0.5
"""A returning leader may confirm divergent messages for so long; `replication.min_in_sync` prevents that."""
_TIMEOUT_S: Final = 3.0


class Fencer:
    """Reports to one previous leader; see the module."""

    def __init__(self, uri: NodeUri, own: LinkEnd) -> None:
        """Begin without a report."""
        self._uri = uri
        self._own = own
        self._is_notified = False

    async def run(self, heard: Callable[[ProvenLeader], None]) -> None:
        """Report again and again, because the node may return at any time, from a copy of its disk as well.

        `heard` gets its answers.
        """
        while True:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    known = await self.notify()
            except (OSError, TimeoutError, LeveretError) as error:
                logger.debug("previous_leader_not_reached uri=%s error=%s", self._uri, error)
                self._is_notified = False
            else:
                heard(known)
                if not self._is_notified and known.leadership <= self._own.identity.identity.leadership:
                    logger.info(
                        "previous_leader_fenced uri=%s epoch=%d", self._uri, self._own.identity.identity.epoch
                    )
                self._is_notified = True
            await asyncio.sleep(EVERY_S)

    async def notify(self) -> ProvenLeader:
        """Report once; return its identity and the latest leadership that it knows.

        Raises:
            OSError: the node cannot be reached.
            LeveretError: it has another secret, or is no such node.
        """
        return await _Notifying(self).notify()

    async def connect(self, peer: LinkPeer) -> FollowerHandshake:
        """Connect, and begin the handshake."""
        context = self._own.tls() if self._uri.is_tls else None
        await asyncio.get_running_loop().create_connection(
            lambda: peer,
            self._uri.host,
            self._uri.port,
            ssl=context,
            server_hostname=self._uri.host if context else None,
        )
        return FollowerHandshake(
            self._own.secret.octets,
            kind="fence",
            node_id=self._own.identity.identity.node_id,
            name=self._own.name,
            nonce=os.urandom(NONCE_BYTES),
            channel=peer.channel,
        )

    def prove(self, handshake: FollowerHandshake, hello: HandshakeMessage) -> HandshakeMessage:
        """This node's proof, with its epoch in it."""
        identity = self._own.identity.identity
        return handshake.answer_hello(
            hello,
            leadership=identity.leadership,
            followed_epoch=identity.followed_epoch,
            led=identity.led,
            uri=self._own.own_uri(),
        )


class _Notifying:
    """One report over one connection."""

    def __init__(self, fencer: Fencer) -> None:
        self._fencer = fencer
        self._peer = LinkPeer()
        self._peer.receiver = self
        self._handshake: FollowerHandshake | None = None
        self._welcome: asyncio.Future[ProvenLeader] = asyncio.get_running_loop().create_future()
        self._proven = False

    async def notify(self) -> ProvenLeader:
        """Wait until the previous leader has taken the report; return its answer."""
        self._handshake = await self._fencer.connect(self._peer)
        try:
            self._peer.say(self._handshake.hello())
            return await self._welcome
        finally:
            self._peer.close()

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link_peer.Receiver."""
        if self._handshake is None or self._welcome.done():
            return
        said = HandshakeMessage(kind, bytes(payload))
        if not self._proven:
            self._peer.say(self._fencer.prove(self._handshake, said))
            self._proven = True
            return
        self._welcome.set_result(self._handshake.take_welcome(said))

    def ended(self, error: Exception | None) -> None:
        """See link_peer.Receiver."""
        if not self._welcome.done():
            self._welcome.set_exception(error or HandshakeError("it closed the link"))
