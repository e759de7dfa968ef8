"""The listening sockets of one protocol: plain or with TLS, with or without a proxy, and suspended at times."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import NO_LISTENER_LIMITS, ListenerKind, ListenerLimits
from leveret.model.errors import LeveretError
from leveret.runtime.sockets.acceptor import Acceptor, MakeProtocol, listen


class ProtocolEndpoint(NamedTuple):
    """One way in for clients, without its socket: for connections that come over another one.

    Attributes:
        kind: the kind of listener whose share of descriptors they use.
        protocol: makes the object that serves a connection.
        tls: the TLS context; None for plain connections.
        timeout_s: the longest time for the TLS handshake.
        listener_limits: the limits in the settings.
    """

    kind: ListenerKind
    protocol: MakeProtocol
    tls: ssl.SSLContext | None
    timeout_s: float
    listener_limits: ListenerLimits


class _Place(NamedTuple):
    address: Address
    tls: ssl.SSLContext | None


class Listening:
    """The listening sockets of one protocol; see the module.

    Attributes:
        is_suspended: whether no new connection is accepted for now.
    """

    def __init__(
        self,
        protocol: MakeProtocol,
        kind: ListenerKind,
        *,
        purpose: str,
        backlog: int,
        greeting_timeout_s: float,
        proxied: bool = False,
        listener_limits: ListenerLimits = NO_LISTENER_LIMITS,
    ) -> None:
        """Begin without sockets; `protocol` makes the object that serves a connection, `purpose` names it in errors."""
        self.is_suspended = False
        self._kind = kind
        self._protocol = protocol
        self._purpose = purpose
        self._backlog = backlog
        self._timeout_s = greeting_timeout_s
        self._proxied = proxied
        self._listener_limits = listener_limits
        self._places: list[_Place] = []
        self._servers: list[Acceptor] = []

    @property
    def addresses(self) -> list[Address]:
        """The addresses, in the order of `start` calls; suspended ones too."""
        return [place.address for place in self._places]

    @property
    def tls_addresses(self) -> list[Address]:
        """The addresses with TLS."""
        return [place.address for place in self._places if place.tls is not None]

    async def start(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> Address:
        """Listen on one more address, with TLS if a context is given; port 0 takes a free one.

        While suspended, listening begins with the next `resume`.

        Raises:
            LeveretError: the address cannot be used.
        """
        place = _Place(Address(address, port), tls)
        self._places.append(place if self.is_suspended else self._open(place))
        return self._places[-1].address

    def endpoint(self, *, is_tls: bool) -> ProtocolEndpoint | None:
        """The way in with or without TLS; None if no such socket listens now."""
        if self.is_suspended or not self._servers:
            return None
        for place in self._places:
            if (place.tls is not None) is is_tls:
                return ProtocolEndpoint(
                    self._kind, self._protocol, place.tls, self._timeout_s, self._listener_limits
                )
        return None

    def suspend(self) -> None:
        """Close the listening sockets until `resume`; present connections stay."""
        self.is_suspended = True
        self.close()

    async def resume(self) -> None:
        """Listen again at the same addresses.

        Raises:
            LeveretError: another process has taken an address; then all stay suspended.
        """
        if not self.is_suspended:
            return
        try:
            self._places = [self._open(place) for place in self._places]
        except LeveretError:
            self.close()
            raise
        self.is_suspended = False

    def close(self) -> None:
        """Close the listening sockets."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _open(self, place: _Place) -> _Place:
        """Open the socket; return the address with the port that the system chose for port 0."""
        (ip, port), tls = place
        try:
            server = self._listen(ip, port, tls)
        except OSError as error:
            where = f"cannot listen on {ip}:{port} for {self._purpose}"
            raise LeveretError(f"{where}: {error.strerror or error}") from error
        self._servers.append(server)
        return _Place(Address(ip, server.sockets[0].getsockname()[1]), tls)

    def _listen(self, ip: str, port: int, tls: ssl.SSLContext | None) -> Acceptor:
        return Acceptor(
            listen(ip, port, self._backlog),
            self._protocol,
            self._kind,
            tls=tls,
            proxied=self._proxied,
            timeout_s=self._timeout_s,
            listener_limits=self._listener_limits,
        )
