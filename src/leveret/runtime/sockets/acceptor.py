"""Accepts every connection of every protocol: counts it, reads its PROXY header, sets up TLS, then serves it.

If a kind of listener has as many connections as the budget of descriptors allows, a further one is closed at once, so
a flood takes nothing from present connections. Behind a proxy, the PROXY header comes before TLS: it is read from the
bare socket, and not one octet further. Failures go to the log, because the peer gets few details.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from leveret.core.rules.descriptors import NO_LISTENER_LIMITS, ListenerKind, ListenerLimits
from leveret.runtime.process.outcomes import outcome_of
from leveret.runtime.sockets.connection_budget import ConnectionBudget, ConnectionSlot, process_sockets
from leveret.runtime.sockets.tls import ListenerTls, handshake_failure
from leveret.wire.proxy_protocol import Proxied, ProxyError, missing, parse

logger = logging.getLogger(__name__)

_ACCEPT_AGAIN_S: Final = 1.0
"""The wait when the system has no descriptor left for another connection."""
_ACCEPTED_AT_ONCE: Final = 64
"""The connections of a flood that are accepted, or closed, before the event loop goes on."""
SHUTDOWN_TIMEOUT_S: Final = 5.0
"""The wait for a TLS client's answer to our close."""
_LINKS: Final = frozenset({ListenerKind.CONTROL, ListenerKind.REPLICATION, ListenerKind.CLUSTER})
"""The listeners of nodes and operators: their peers are few, from few addresses, and prove their identity otherwise."""


class Accepted(NamedTuple):
    """A connection as its protocol gets it.

    Attributes:
        proxied: the client's addresses by its PROXY header; None without one.
        slot: its place in the budget, which the acceptor releases with the descriptor.
    """

    proxied: Proxied | None
    slot: ConnectionSlot


MakeProtocol = Callable[[Accepted], asyncio.BaseProtocol]
"""Makes the object that serves a connection."""


class ProtocolEndpoint(NamedTuple):
    """One way in for clients, without its socket; a connection may also come over another one.

    Attributes:
        kind: the kind of listener whose share of descriptors they use.
        protocol: makes the object that serves a connection.
        timeout_s: the longest time for the PROXY header, and again for the TLS handshake after it.
        tls: the TLS; None for plain connections.
        limits: the limits in the settings.
    """

    kind: ListenerKind
    protocol: MakeProtocol
    timeout_s: float
    tls: ListenerTls | None = None
    limits: ListenerLimits = NO_LISTENER_LIMITS


class Acceptor:
    """Accepts connections on one address."""

    def __init__(
        self,
        listening: socket.socket,
        endpoint: ProtocolEndpoint,
        *,
        proxied: bool = False,
        sockets: ConnectionBudget | None = None,
        detour: Callable[[Accepted], asyncio.BaseProtocol | None] = lambda accepted: None,
    ) -> None:
        """Accept from now on, from a listening socket that does not block.

        Args:
            listening: the socket; the acceptor closes it.
            endpoint: serves the connections.
            proxied: whether a PROXY header comes first.
            sockets: the counts; by default the process's.
            detour: asked for each connection before TLS; makes the object that gets the octets as they come, or None
                if the connection is served here.
        """
        self._listening = listening
        self._endpoint = endpoint
        self._kind = endpoint.kind
        self._proxied = proxied
        self._counting = sockets or process_sockets()
        self._detour = detour
        # A proxy's one address stands for all its clients.
        self._by_address = not proxied and endpoint.kind not in _LINKS
        self._greeting: dict[asyncio.Task[None], socket.socket] = {}
        self._again: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._listen()

    def close(self) -> None:
        """Accept no more, and close connections before their PROXY header and TLS are done; may be called again."""
        if self._listening.fileno() < 0:
            return
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        for task in self._greeting:
            task.cancel()
        self._listening.close()

    def _listen(self) -> None:
        # No task: one cancelled between a connection and its turn would leave the socket open.
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                # No connection waits, or it has gone again.
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
        slot = self._counting.take(self._kind, address, self._endpoint.limits)
        if slot is None:
            accepted.close()
            return
        counted = _Counted(accepted, slot.release)
        task = self._loop.create_task(self._greet(counted, slot, name))
        self._greeting[task] = counted
        task.add_done_callback(self._greeted)

    def _greeted(self, task: asyncio.Task[None]) -> None:
        accepted = self._greeting.pop(task)
        if task.cancelled():
            # Perhaps before its first step.
            accepted.close()

    async def _greet(self, accepted: socket.socket, slot: ConnectionSlot, peer: str) -> None:
        try:
            await self._serve(accepted, slot)
        except ProxyError as error:
            logger.warning("proxy_refused peer=%s reason=%s", peer, error)
        except TimeoutError:
            logger.warning("proxy_refused peer=%s reason=%s", peer, "its header did not come in time")
        except OSError as error:
            # TLS errors are of this kind, too.
            logger.warning("tls_refused peer=%s reason=%s", peer, handshake_failure(error))
        except Exception:
            # Also a bug in a protocol must not keep the connection's place in the budget.
            logger.exception("connection_failed listener=%s peer=%s action=dropped", self._kind, peer)
        else:
            return
        accepted.close()

    async def _serve(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        proxied, timeout_s = None, self._endpoint.timeout_s
        if self._proxied:
            async with asyncio.timeout(timeout_s):
                proxied = parse(await _read_header(accepted))
        arrived = Accepted(proxied, slot)
        passed_on = self._detour(arrived)
        secured = self._endpoint.tls if passed_on is None else None
        tls = secured.context() if secured is not None else None
        making = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: self._endpoint.protocol(arrived) if passed_on is None else passed_on,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=timeout_s if tls else None,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S if tls else None,
            )
        )
        # If it were cancelled when the protocol has its connection, uvloop would close the transport without a word to
        # the protocol, whose next write would be an error.
        try:
            await outcome_of(making)
        except asyncio.CancelledError:
            # A handshake that is under way ends, too.
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
            making.add_done_callback(_abort)
            raise


def _abort(making: asyncio.Task[tuple[asyncio.Transport, asyncio.BaseProtocol]]) -> None:
    """Close a connection that was made while the listener closed; the loop tells its protocol."""
    if not making.cancelled() and making.exception() is None:
        making.result()[0].abort()


class _Counted(socket.socket):
    """A socket that reports once when its descriptor is released."""

    def __init__(self, accepted: socket.socket, gone: Callable[[], None]) -> None:
        """Take over the descriptor of a socket."""
        family, kind, proto = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, proto, fileno=accepted.detach())
        self.setblocking(False)
        self._gone: Callable[[], None] | None = gone

    def close(self) -> None:
        """Close the socket; the event loop may keep the descriptor a moment longer."""
        super().close()
        if self.fileno() < 0:
            self._report()

    def detach(self) -> int:
        """Release the descriptor; the event loop does this instead of closing, and closes the descriptor at once."""
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
