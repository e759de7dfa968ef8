"""The leader's side: a client whose connection another node passes on becomes this node's own client.

The other node has proven the secret in the handshake of a link, whose HELLO names the listener and the client's
address. From WELCOME on the link's octets are the client's, so the connection is counted, limited, listed and closed
as one that came to that listener itself. Where the listener speaks TLS, the client's TLS ends here: the passing node
has no part in it, and no certificate of its link counts as the client's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from leveret.model.errors import PreconditionFailed
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.sockets.acceptor import SHUTDOWN_TIMEOUT_S, Accepted, ProtocolEndpoint
from leveret.runtime.sockets.connection_budget import ConnectionSlot
from leveret.runtime.sockets.tls import handshake_failure
from leveret.session.link_handshake import ProvenFollower
from leveret.wire.proxy_protocol import Proxied, parse

logger = logging.getLogger(__name__)

HOPS_MAX: Final = 3
"""The most nodes that pass a connection on before this one: nodes that follow each other in a circle end there."""
_OF_THE_LINK: Final = frozenset({"ssl_object", "sslcontext", "peercert", "cipher", "compression"})

FindEndpoint = Callable[[str, int], ProtocolEndpoint]
"""The way in by its name, for a connection with so many hops behind it. Raises PreconditionFailed with the reason."""


class PassedOnClients:
    """See the module.

    Attributes:
        passed_on: the connections that came in this way so far.
    """

    def __init__(self, find: FindEndpoint) -> None:
        """Begin without connections."""
        self.passed_on = 0
        self._find = find
        self._tasks: set[asyncio.Task[None]] = set()

    def accept_client(self, by: ProvenFollower, peer: LinkPeer) -> Callable[[], None]:
        """Count the client that a node passes on; return the step that serves it, to be taken after WELCOME.

        Raises:
            LeveretError: the client cannot be served here; the text is for the node that passes it on.
        """
        assert by.passed_on is not None
        name, header, hops = by.passed_on
        client = parse(header)
        if client is None:
            raise PreconditionFailed("the PROXY header of the connection names no client")
        if hops > HOPS_MAX:
            raise PreconditionFailed(
                f"{hops} nodes have passed the connection on: they follow each other in a circle"
            )
        endpoint = self._find(name, hops)
        slot = peer.slot
        if slot is None or not slot.move(endpoint.kind, client.client[0], endpoint.limits):
            raise PreconditionFailed(f"the leader's listeners of kind {endpoint.kind} have no place left")
        return partial(self._serve, endpoint, client, by.name, slot, peer)

    def stop(self) -> None:
        """End the handshakes of TLS that are under way."""
        for task in self._tasks:
            task.cancel()

    def _serve(
        self, endpoint: ProtocolEndpoint, client: Proxied, by: str, slot: ConnectionSlot, peer: LinkPeer
    ) -> None:
        self.passed_on += 1
        transport, arrived = peer.part(), Accepted(None, slot)
        if endpoint.tls is None:
            protocol = endpoint.protocol(arrived)
            transport.set_protocol(protocol)
            protocol.connection_made(cast(asyncio.BaseTransport, PassedOnTransport(transport, client, by)))
            return
        task = asyncio.get_running_loop().create_task(self._secure(endpoint, client, by, arrived, transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _secure(
        self,
        endpoint: ProtocolEndpoint,
        client: Proxied,
        by: str,
        arrived: Accepted,
        transport: asyncio.Transport,
    ) -> None:
        """Do the client's TLS handshake; its first octets may come with the handshake's last."""
        assert endpoint.tls is not None
        early = _EarlyOctets()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                early,
                endpoint.tls.context(),
                server_side=True,
                ssl_handshake_timeout=endpoint.timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except OSError as error:
            # TLS errors and ends of the connection are of this kind.
            logger.warning("tls_refused peer=%s reason=%s", client.client[0], handshake_failure(error))
            transport.abort()
            return
        except BaseException:
            transport.abort()
            raise
        if secured is None or early.is_lost:
            return
        protocol = endpoint.protocol(arrived)
        secured.set_protocol(protocol)
        protocol.connection_made(
            cast(asyncio.BaseTransport, PassedOnTransport(secured, client, by, is_secured=True))
        )
        early.hand_over(protocol)


class PassedOnTransport:
    """The transport of a client that another node passes on: it has the client's addresses, and not that node's.

    It does not tell of the TLS of the link, whose certificate is that node's.
    """

    def __init__(
        self, transport: asyncio.Transport, client: Proxied, by: str, *, is_secured: bool = False
    ) -> None:
        """Stand before a transport; `is_secured`: its TLS is the client's own."""
        self._transport = transport
        self._hides = frozenset[str]() if is_secured else _OF_THE_LINK
        self._extra: dict[str, Any] = {
            "peername": client.client,
            "sockname": client.server,
            "proxied_by": by,
            "socket": _PassedOnSocket(transport.get_extra_info("socket"), client),
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport; `proxied_by` is the name of the node that passes the connection on."""
        if name in self._hides:
            return default
        return self._extra[name] if name in self._extra else self._transport.get_extra_info(name, default)


class _PassedOnSocket:
    """The socket, with the client's addresses."""

    def __init__(self, accepted: Any, client: Proxied) -> None:
        self._accepted = accepted
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accepted, name)

    def getpeername(self) -> tuple[str, int]:
        return self._client.client

    def getsockname(self) -> tuple[str, int]:
        return self._client.server


class _EarlyOctets(asyncio.Protocol):
    """Keeps what comes between the end of a TLS handshake and the begin of the protocol that serves the client."""

    def __init__(self) -> None:
        self.is_lost = False
        self._octets = b""

    def data_received(self, data: bytes) -> None:
        self._octets += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the octets to the protocol, as the event loop would."""
        left = memoryview(self._octets)
        if not isinstance(protocol, asyncio.BufferedProtocol):
            if left:
                cast(asyncio.Protocol, protocol).data_received(bytes(left))
            return
        while left:
            buffer = memoryview(protocol.get_buffer(len(left)))
            count = min(len(buffer), len(left))
            buffer[:count] = left[:count]
            protocol.buffer_updated(count)
            left = left[count:]
