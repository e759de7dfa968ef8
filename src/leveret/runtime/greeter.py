"""A listener that settles with a peer who it is and how it is encrypted before anybody serves it.

Behind a proxy, the PROXY header comes first, and before TLS: it is read from the bare socket, octet for
octet and no further. What goes wrong is told in the log, for the peer is told little.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from leveret.runtime.tls import handshake_failure
from leveret.wire.proxy_protocol import Proxied, ProxyError, missing, parse

logger = logging.getLogger(__name__)

_ACCEPT_AGAIN_S: Final = 1.0
"""When the system has no descriptor left for another connection."""


class Greeter:
    """Accepts peers on one address."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[Proxied | None], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        proxied: bool,
        timeout_s: float,
    ) -> None:
        """`protocol` makes what serves a peer; a header takes `timeout_s` at most, so does TLS after it."""
        self.sockets = (listening,)
        self._listening = listening
        self._protocol = protocol
        self._tls = tls
        self._proxied = proxied
        self._timeout_s = timeout_s
        self._greeting: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more, and nobody who is not greeted yet."""
        self._accepting.cancel()
        for task in self._greeting:
            task.cancel()
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._listening)
            except OSError as error:
                logger.warning("accept_failed error=%s", error.strerror)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            task = loop.create_task(self._greet(accepted, f"{peer[0]}:{peer[1]}"))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, accepted: socket.socket, peer: str) -> None:
        try:
            await self._serve(accepted)
        except ProxyError as error:
            logger.warning("proxy_refused peer=%s reason=%s", peer, error)
        except TimeoutError:
            logger.warning("proxy_refused peer=%s reason=%s", peer, "its header did not come in time")
        except OSError as error:
            # TLS errors are of this kind, too.
            logger.warning("tls_refused peer=%s reason=%s", peer, handshake_failure(error))
        except asyncio.CancelledError:
            accepted.close()
            raise
        else:
            return
        accepted.close()

    async def _serve(self, accepted: socket.socket) -> None:
        proxied = None
        if self._proxied:
            async with asyncio.timeout(self._timeout_s):
                proxied = parse(await _read_header(accepted))
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._protocol(proxied),
            accepted,
            ssl=self._tls,
            ssl_handshake_timeout=self._timeout_s if self._tls else None,
        )


async def _read_header(accepted: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    header = b""
    while count := missing(header):
        piece = await loop.sock_recv(accepted, count)
        if not piece:
            raise ProxyError("the connection ended inside its PROXY header")
        header += piece
    return header
