"""The way in for every connection, whatever it speaks: counted, settled who it is and how it is encrypted, then served.

Who comes when its kind of listener has as many connections as the budget of descriptors allows is closed at once, so
a flood takes nothing from those who are in. Behind a proxy, the PROXY header comes first, and before TLS: it is read
from the bare socket, octet for octet and no further. What goes wrong is told in the log, for the peer is told little.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from leveret.core.rules.descriptors import NO_CAPS, Caps, ListenerKind
from leveret.runtime.sockets.connection_budget import Sockets, process_sockets
from leveret.runtime.sockets.tls import handshake_failure
from leveret.wire.proxy_protocol import Proxied, ProxyError, missing, parse

logger = logging.getLogger(__name__)

_ACCEPT_AGAIN_S: Final = 1.0
"""When the system has no descriptor left for another connection."""
_ACCEPTED_AT_ONCE: Final = 64
"""Of a flood so many are taken, or sent away, before the event loop goes on with others."""
_SHUTDOWN_TIMEOUT_S: Final = 5.0
"""A TLS client that does not answer our goodbye keeps its socket no longer."""
_LINKS: Final = frozenset({ListenerKind.CONTROL, ListenerKind.REPLICATION, ListenerKind.CLUSTER})
"""Those who come there are few, from few addresses, and prove who they are by other means."""


class Acceptor:
    """Accepts connections on one address."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[Proxied | None], asyncio.BaseProtocol],
        kind: ListenerKind,
        *,
        tls: ssl.SSLContext | None = None,
        proxied: bool = False,
        timeout_s: float,
        caps: Caps = NO_CAPS,
        sockets: Sockets | None = None,
    ) -> None:
        """Accept from now on; of a listening socket that does not block.

        Args:
            listening: the socket, this one's to close.
            protocol: makes what serves a connection.
            kind: whose share of the descriptors connections count towards.
            tls: what to speak TLS with.
            proxied: whether a PROXY header comes first.
            timeout_s: how long the header may take; so may TLS after it.
            caps: what settings allow.
            sockets: what counts; by default the process's.
        """
        self.sockets = (listening,)
        self._listening = listening
        self._protocol = protocol
        self._kind = kind
        self._tls = tls
        self._proxied = proxied
        self._timeout_s = timeout_s
        self._caps = caps
        self._counting = sockets or process_sockets()
        # A proxy is one address that stands for all its clients.
        self._by_address = not proxied and kind not in _LINKS
        self._greeting: dict[asyncio.Task[None], socket.socket] = {}
        self._again: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._listen()

    def close(self) -> None:
        """Accept no more, and nobody who is not greeted yet; nothing happens the second time."""
        if self._listening.fileno() < 0:
            return
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        for task in self._greeting:
            task.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        """Nothing is left to be waited for after `close`."""

    def _listen(self) -> None:
        # No task: one that is cancelled between a connection and its turn would lose the socket, open.
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                # Nobody knocks, or who knocked has gone again.
                return
            except OSError as error:
                logger.warning("accept_failed listener=%s error=%s", self._kind, error.strerror)
                self._counting.system_refused(self._kind)
                self._loop.remove_reader(self._listening)
                self._again = self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
                return
            self._admit(accepted, peer)

    def _admit(self, accepted: socket.socket, peer: tuple[str, int] | str) -> None:
        name = f"{peer[0]}:{peer[1]}" if peer else ""
        address = str(peer[0]) if peer and self._by_address else ""
        if not self._counting.admit(self._kind, address, self._caps):
            accepted.close()
            return
        tally = self._counting.tallies[self._kind]
        counted = _Counted(accepted, lambda: tally.release(address))
        task = self._loop.create_task(self._greet(counted, name))
        self._greeting[task] = counted
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
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S if self._tls else None,
        )


class _Counted(socket.socket):
    """A connection that tells, once, when its descriptor is given back."""

    def __init__(self, accepted: socket.socket, gone: Callable[[], None]) -> None:
        """Take over the descriptor of a socket."""
        family, kind, proto = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, proto, fileno=accepted.detach())
        self.setblocking(False)
        self._gone: Callable[[], None] | None = gone

    def close(self) -> None:
        """As any socket's; the event loop may keep the descriptor a moment longer."""
        super().close()
        if self.fileno() < 0:
            self._report()

    def detach(self) -> int:
        """The event loop does this where others close: it closes the descriptor itself, at once."""
        descriptor = super().detach()
        self._report()
        return descriptor

    def _report(self) -> None:
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()


def listen(ip: str, port: int, backlog: int = 128) -> socket.socket:
    """A listening socket for an acceptor; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    listening = socket.create_server((ip, port), family=family, backlog=backlog)
    listening.setblocking(False)
    return listening


async def _read_header(accepted: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    header = b""
    while count := missing(header):
        piece = await loop.sock_recv(accepted, count)
        if not piece:
            raise ProxyError("the connection ended inside its PROXY header")
        header += piece
    return header
