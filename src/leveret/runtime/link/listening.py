"""Listens for other nodes: for followers, and for the nodes of a cluster."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import ListenerKind
from leveret.model.errors import LeveretError
from leveret.runtime.link.arrival import HANDSHAKE_TIMEOUT_S
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.sockets.acceptor import Acceptor, listen

logger = logging.getLogger(__name__)


def listen_for_links(
    at: Address,
    connected: Callable[[LinkPeer], None],
    kind: ListenerKind,
    *,
    tls: ssl.SSLContext | None,
    peers: str,
) -> tuple[Acceptor, Address]:
    """Listen at an address; return what accepts, and the address with its port, if it was to be any.

    Args:
        at: the address; port 0 takes a free one.
        connected: gets each link before its handshake.
        kind: the kind of listener; its settings begin with the same word.
        tls: the TLS context; None for plain connections.
        peers: for whom it listens, in an error.

    Raises:
        LeveretError: the address is not available.
    """
    try:
        listening = listen(at.ip, at.port)
    except OSError as error:
        raise LeveretError(
            f"cannot listen on {at} for {peers}: {error.strerror or error}; see {kind}.port"
        ) from error
    acceptor = Acceptor(
        listening,
        lambda accepted: LinkPeer(connected, accepted.slot),
        kind,
        tls=tls,
        timeout_s=HANDSHAKE_TIMEOUT_S,
    )
    address = Address(at.ip, listening.getsockname()[1])
    logger.info("%s Listening on %s tls=%s", kind, address, "yes" if tls else "no")
    return acceptor, address
