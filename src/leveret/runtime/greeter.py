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
        self._greeting: dict[asyncio.Task[None], socket.socket] = {}
        self._again: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._listen()

    def close(self) -> None:
        """Accept no more, and nobody who is not greeted yet."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        for task in self._greeting:
            task.cancel()
        self._listening.close()

    def _listen(self) -> None:
        # No task: one that is cancelled between a connection and its turn would lose the socket, open.
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            accepted, peer = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            # Who knocked has gone again.
            return
        except OSError as error:
            logger.warning("accept_failed error=%s", error.strerror)
            self._loop.remove_reader(self._listening)
            self._again = self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._greet(accepted, f"{peer[0]}:{peer[1]}"))
        self._greeting[task] = accepted
        task.add_done_callback(self._greeted)

    def _greeted(self, task: asyncio.Task[None]) -> None:
        accepted = self._greeting.pop(task)
        if task.cancelled():
            # Perhaps before its first step.
            accepted.close()

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
