"""The listeners of a node that does not lead, for clients whose connections it passes on to the leader.

They stand at the addresses where the node would serve clients itself, and close before it does. Each connection is a
link of its own to the replication listener of the leader, which so knows that the secret is behind what it is told of
the client. TLS of clients is passed on as octets: it ends at the leader.

A client costs two descriptors here, and both count in the share of its kind of listener; at the leader it counts as
any client of that listener. Few clients shake hands with the leader at once, the others wait their turn.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from leveret.config import Config
from leveret.config.kinds import Address
from leveret.config.uris import NodeUri
from leveret.core.rules.descriptors import NO_LISTENER_LIMITS, ListenerKind, ListenerLimits
from leveret.model.errors import PreconditionFailed
from leveret.runtime.link.dialling import Dialling
from leveret.runtime.proxying.proxied_client import PASS_ON_TIMEOUT_S, ProxiedClient
from leveret.runtime.replication.identity import LinkEnd
from leveret.runtime.sockets.acceptor import Accepted, ProtocolEndpoint
from leveret.runtime.sockets.connection_budget import ConnectionSlot, process_sockets
from leveret.runtime.sockets.listening import Listening
from leveret.session.link_handshake import PassedOn
from leveret.wire.proxy_protocol import header

logger = logging.getLogger(__name__)

_HANDSHAKES_AT_ONCE: Final = 8
"""The leader keeps few links whose peer is not proven yet, and drops the oldest of more."""
_REPORT_EVERY_S: Final = 10.0
"""The shortest time between two log lines about clients that were refused for one reason."""
_REASONS_MAX: Final = 100
_KINDS: Final = {
    "amqp": ListenerKind.AMQP,
    "amqps": ListenerKind.AMQP,
    "stream": ListenerKind.STREAM,
    "streams": ListenerKind.STREAM,
    "http": ListenerKind.HTTP,
    "https": ListenerKind.HTTP,
}


class ClientProxy:
    """See the module.

    Attributes:
        clients: the present ones.
        passed_on: the clients that the leader took, by listener, since the process started.
        refused: the clients that were closed without it.
        last_refusal: the reason for the last of them.
    """

    def __init__(
        self, config: Config, own: Callable[[], LinkEnd], leaders: Callable[[], Sequence[NodeUri]]
    ) -> None:
        """Begin without listeners.

        Args:
            config: the settings of the process.
            own: makes this node's end of a link.
            leaders: the nodes that serve clients, as far as this one knows: a leader, or other nodes of a cluster.
        """
        self.clients: dict[ProxiedClient, None] = {}
        self.passed_on: Counter[str] = Counter()
        self.refused = 0
        self.last_refusal = ""
        self.is_open = False
        self._config = config
        self._own = own
        self._leaders = leaders
        self._listening: dict[str, Listening] = {}
        self._handshakes = asyncio.Semaphore(_HANDSHAKES_AT_ONCE)
        self._reported_at_s: dict[str, float] = {}

    # -- listeners ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Listen where the node would serve clients.

        Raises:
            LeveretError: an address cannot be used.
        """
        self.is_open = True
        options, streams = self._config.listeners, self._config.streams
        places: dict[str, tuple[Address, ...]] = {
            "amqp": options.amqp,
            "amqps": options.amqp_tls,
            "stream": options.stream,
            "streams": streams.listeners_tls,
        }
        for listener, addresses in places.items():
            is_amqp = _KINDS[listener] is ListenerKind.AMQP
            listening = self._listening[listener] = Listening(
                ProtocolEndpoint(
                    _KINDS[listener],
                    partial(self.client, listener),
                    PASS_ON_TIMEOUT_S,
                    limits=ListenerLimits(per_address=options.connection_max_per_address),
                ),
                purpose=f"clients that are passed on to the leader ({listener})",
                backlog=options.backlog,
                proxied=is_amqp and options.proxy_protocol,
            )
            for address in addresses:
                place = await listening.start(address.ip, address.port)
                logger.info("proxy_listening listener=%s address=%s", listener, place)

    def close(self) -> None:
        """Listen no more, and close every client, which may connect again."""
        self.is_open = False
        for listening in self._listening.values():
            listening.close()
        self._listening.clear()
        for client in list(self.clients):
            client.close()

    @property
    def addresses(self) -> list[tuple[str, Address]]:
        """Each listener's name and address."""
        return [
            (listener, address) for listener, each in self._listening.items() for address in each.addresses
        ]

    def status(self) -> dict[str, Any]:
        """The numbers for operators."""
        return {
            "leaders": [str(uri) for uri in self._leaders()],
            "connections": sum(client.is_passed_on for client in self.clients),
            "passed_on": self.passed_on.total(),
            "refused": self.refused,
            "last_refusal": self.last_refusal,
        }

    def client(self, listener: str, accepted: Accepted, hops: int = 0) -> ProxiedClient:
        """Serve one more connection, by passing it on."""
        client = ProxiedClient(self, listener, accepted, hops)
        self.clients[client] = None
        return client

    def endpoint(self, name: str, hops: int) -> ProtocolEndpoint:
        """The way in for a client that another node passes on to this one, as to its own leader."""
        return ProtocolEndpoint(
            _KINDS[name], lambda accepted: self.client(name, accepted, hops + 1), PASS_ON_TIMEOUT_S
        )

    # -- what a client asks: proxied_client.LeaderAccess ----------------------------------

    async def connect_to_leader(self, client: ProxiedClient) -> tuple[asyncio.Transport, ConnectionSlot]:
        """See LeaderAccess."""
        try:
            passed_on = PassedOn(client.listener, header(client.addresses), client.hops)
        except ValueError as error:
            raise PreconditionFailed(f"the client cannot be named to the leader: {error}") from None
        slot = process_sockets().take(_KINDS[client.listener], "", NO_LISTENER_LIMITS)
        if slot is None:
            raise PreconditionFailed("this node has no descriptor left for a connection to the leader")
        try:
            async with self._handshakes:
                transport = await self._shake(passed_on)
        except BaseException:
            slot.release()
            raise
        self.passed_on[client.listener] += 1
        logger.info("connection_passed_on name=%s listener=%s", client.name, client.listener)
        return transport, slot

    async def _shake(self, passed_on: PassedOn) -> asyncio.Transport:
        uris, own = self._leaders(), self._own()
        if not uris:
            raise PreconditionFailed("no node that serves clients is known at present")
        uri = random.choice(uris)
        dialling = Dialling(own.prove)
        try:
            await dialling.connect(uri, own.tls() if uri.is_tls else None)
            await dialling.shake(own.credentials.dials("proxy", dialling.peer.channel, passed_on=passed_on))
        except BaseException:
            with suppress(AttributeError):
                # Perhaps it was never connected.
                dialling.peer.abort()
            raise
        return dialling.peer.part()

    def turned_away(self, client: ProxiedClient, reason: str) -> None:
        """See LeaderAccess."""
        self.refused += 1
        self.last_refusal = reason
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reported_at_s.get(reason, -_REPORT_EVERY_S) < _REPORT_EVERY_S:
            return
        if len(self._reported_at_s) >= _REASONS_MAX:
            self._reported_at_s.clear()
        self._reported_at_s[reason] = now_s
        logger.warning(
            "connection_not_passed_on name=%s listener=%s leader=%s reason=%s refused_so_far=%d",
            client.name,
            client.listener,
            ",".join(map(str, self._leaders())) or "unknown",
            reason,
            self.refused,
        )

    def gone(self, client: ProxiedClient) -> None:
        """See LeaderAccess."""
        self.clients.pop(client, None)
