"""Proof of the secret by a peer that connects to a link's listener: one message in, one out, until the proof."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from leveret.model.errors import LeveretError
from leveret.runtime.link.peer import LinkPeer
from leveret.session.link_handshake import (
    HandshakeDeclined,
    HandshakeMessage,
    LeaderHandshake,
    ProvenFollower,
    refusal,
)
from leveret.wire.link import Type

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 5.0
"""The longest time of a link without the peer's proof."""
UNPROVEN_MAX: Final = 64
"""The most links without the peer's proof; with one more, the oldest of them ends."""


LetIn = Callable[[ProvenFollower, LinkPeer], Callable[[], None]]
"""Takes a client whose connection a node passes on; returns the step that serves it, to run after the node's welcome.
Raises LeveretError with the reason why no listener serves it."""


def proven(
    peer: LinkPeer, handshake: LeaderHandshake, said: HandshakeMessage, *, refused: str
) -> ProvenFollower | None:
    """Return the node that the peer's message proves; answer a HELLO, and return None.

    Raises:
        HandshakeDeclined: the peer was sent the reason, which is logged as the event `refused`.
        LinkError: the peer sent another message.
    """
    try:
        if said.type == Type.HELLO:
            peer.say(handshake.answer_hello(said))
            return None
        return handshake.take_proof(said)
    except HandshakeDeclined as declined:
        logger.warning("%s peer=%s reason=%s", refused, peer.address, declined)
        peer.say(declined.answer)
        raise


def welcome_client(
    let_in: LetIn, by: ProvenFollower, peer: LinkPeer, welcome: Callable[[], HandshakeMessage]
) -> Callable[[], None] | None:
    """Answer a node that passes on a client; return the step that serves the client, None if the node was refused."""
    try:
        serve = let_in(by, peer)
    except LeveretError as error:
        logger.info("client_not_let_in by=%s address=%s reason=%s", by.name, peer.address, error)
        peer.say(refusal(str(error)))
        peer.close()
        return None
    peer.say(welcome())
    return serve
