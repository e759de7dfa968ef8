"""Proof of the secret by a peer that connects to a link's listener: one message in, one out, until it is proven."""

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
"""So long may a link last without its peer having proven who it is."""
UNPROVEN_MAX: Final = 64
"""Links of which it is not known yet whose they are; with more than that the oldest of them goes."""


LetIn = Callable[[ProvenFollower, LinkPeer], Callable[[], None]]
"""Takes a client whose connection a node passes on; returns the step that serves it, for when the node was welcomed.
Raises LeveretError with the reason why nobody serves it."""


def proven(
    peer: LinkPeer, handshake: LeaderHandshake, said: HandshakeMessage, *, refused: str
) -> ProvenFollower | None:
    """Who is there, once the message it sends proves that; None after its HELLO, which is answered.

    Raises:
        HandshakeDeclined: it was told why, and that is logged as the event `refused`.
        LinkError: it says something else.
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
