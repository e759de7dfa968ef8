"""The sockets of one protocol: where it listens, plain or with TLS, by itself or behind a proxy, or not for now."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple

from leveret.config.kinds import Address
from leveret.core.rules.descriptors import NO_CAPS, Caps, ListenerKind
from leveret.model.errors import LeveretError
from leveret.runtime.sockets.acceptor import Acceptor, listen
from leveret.wire.proxy_protocol import Proxied


class _Place(NamedTuple):
    address: Address
    tls: ssl.SSLContext | None


class Listening:
    """See the module.

    Attributes:
        is_suspended: whether nobody is let in for now.
    """

    def __init__(
        self,
        protocol: Callable[[Proxied | None], asyncio.Protocol],
        kind: ListenerKind,
        *,
        purpose: str,
        backlog: int,
        greeting_timeout_s: float,
        proxied: bool = False,
        caps: Caps = NO_CAPS,
    ) -> None:
        """Listen nowhere yet; `protocol` makes what serves a peer, `purpose` names it in errors."""
        self.is_suspended = False
        self._kind = kind
        self._protocol = protocol
        self._purpose = purpose
        self._backlog = backlog
        self._timeout_s = greeting_timeout_s
        self._proxied = proxied
        self._caps = caps
        self._places: list[_Place] = []
        self._servers: list[Acceptor] = []

    @property
    def addresses(self) -> list[Address]:
        """Where it listens, in the order of `start` calls; suspended ones too."""
        return [place.address for place in self._places]

    @property
    def tls_addresses(self) -> list[Address]:
        """Those of them that speak TLS."""
        return [place.address for place in self._places if place.tls is not None]

    async def start(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> Address:
        """Listen on one more address, with TLS if there is a context for it; port 0 takes a free one.

        While it is suspended, from the next `resume` on.

        Raises:
            LeveretError: the address cannot be had.
        """
        place = _Place(Address(address, port), tls)
        self._places.append(place if self.is_suspended else self._open(place))
        return self._places[-1].address

    def suspend(self) -> None:
        """Let nobody in, and no sockets open for it, until `resume`; who is in stays."""
        self.is_suspended = True
        self.close()

    async def resume(self) -> None:
        """Let clients in again, at the same addresses.

        Raises:
            LeveretError: somebody else has taken an address; then all stay as they were.
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
        """Listen nowhere."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _open(self, place: _Place) -> _Place:
        """Where it listens now: of port 0 nobody knew."""
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
            caps=self._caps,
        )
