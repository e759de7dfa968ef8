"""Proof of the secret by a peer that connects to a link's listener: one message in, one out, until it is proven."""

from __future__ import annotations

import logging
from typing import Final

from leveret.runtime.link.peer import LinkPeer
from leveret.session.link_handshake import (
    HandshakeDeclined,
    HandshakeMessage,
    LeaderHandshake,
    ProvenFollower,
)
from leveret.wire.link import Type

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 5.0
"""So long may a link last without its peer having proven who it is."""
UNPROVEN_MAX: Final = 64
"""Links of which it is not known yet whose they are; with more than that the oldest of them goes."""


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
