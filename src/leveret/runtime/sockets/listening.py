"""The listening sockets of one protocol: plain or with TLS, with or without a proxy, and suspended at times."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import NamedTuple

from leveret.config.kinds import Address
from leveret.model.errors import LeveretError
from leveret.runtime.sockets.acceptor import Acceptor, ProtocolEndpoint, listen
from leveret.runtime.sockets.tls import ListenerTls


class _Place(NamedTuple):
    address: Address
    tls: ListenerTls | None


class Listening:
    """The listening sockets of one protocol; see the module.

    Attributes:
        is_suspended: whether no new connection is accepted for now.
    """

    def __init__(
        self,
        endpoint: ProtocolEndpoint,
        *,
        purpose: str,
        backlog: int,
        proxied: bool = False,
    ) -> None:
        """Begin without sockets; `endpoint`, without TLS, serves connections, and `purpose` names it in errors."""
        self.is_suspended = False
        self._endpoint = endpoint
        self._purpose = purpose
        self._backlog = backlog
        self._proxied = proxied
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

    async def start(self, address: str, port: int, tls: ListenerTls | None = None) -> Address:
        """Listen on one more address, with TLS if it is given; port 0 takes a free one.

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
        ways = (place.tls for place in self._places if (place.tls is not None) is is_tls)
        return next((self._endpoint._replace(tls=tls) for tls in ways), None)

    def occupied(self, addresses: Iterable[Address]) -> str:
        """Why one of these addresses cannot be listened on now; empty if all can, or if this object listens."""
        try:
            for address in () if self._servers else addresses:
                self._listen(address).close()
        except LeveretError as error:
            return str(error)
        return ""

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
        listening = self._listen(place.address)
        endpoint = self._endpoint._replace(tls=place.tls)
        self._servers.append(Acceptor(listening, endpoint, proxied=self._proxied))
        return _Place(Address(place.address.ip, listening.getsockname()[1]), place.tls)

    def _listen(self, address: Address) -> socket.socket:
        try:
            return listen(address.ip, address.port, self._backlog)
        except OSError as error:
            where = f"cannot listen on {address.ip}:{address.port} for {self._purpose}"
            raise LeveretError(f"{where}: {error.strerror or error}") from error
