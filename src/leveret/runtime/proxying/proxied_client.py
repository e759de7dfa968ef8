"""One client at a node that does not lead: its octets go to the leader as they are, and the leader's come back.

The leader is asked with the client's first octets. A client that sends nothing costs it nothing, and is closed here
after a while. Each side is read only while the other one takes what comes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol, cast

from leveret.model.errors import LeveretError
from leveret.runtime.sockets.acceptor import Accepted
from leveret.runtime.sockets.connection_budget import ConnectionSlot
from leveret.wire.proxy_protocol import Proxied

logger = logging.getLogger(__name__)

FIRST_OCTETS_S: Final = 10.0
"""The time for a client's first octets, as at the listeners of a leader."""
PASS_ON_TIMEOUT_S: Final = 10.0
"""The time until the leader has taken the client, the wait for other clients' turns included."""
UNSENT_BYTES_MAX: Final = 256 * 1024
"""With more unsent on one side the other side is not read."""
_CLOSE_TIMEOUT_S: Final = 5.0
"""The time for a peer to take what was written before the end."""


class LeaderAccess(Protocol):
    """Makes connections to the leader: client_proxy."""

    async def connect_to_leader(self, client: ProxiedClient) -> tuple[asyncio.Transport, ConnectionSlot]:
        """A connection on which the leader serves this client, which is not read yet, and its place in the budget.

        Raises:
            LeveretError, OSError: the leader is unknown, is not reached, or refuses.
        """

    def turned_away(self, client: ProxiedClient, reason: str) -> None:
        """Note that a client was not passed on."""

    def gone(self, client: ProxiedClient) -> None:
        """Forget a client whose socket is gone."""


class ProxiedClient(asyncio.Protocol):
    """See the module.

    Attributes:
        listener: the listener that the client connected to.
        addresses: the client's, and the one that it connected to.
        accepted: the connection as it came.
        hops: the nodes that passed it on before this one.
        is_passed_on: whether the leader serves it.
    """

    addresses: Proxied

    def __init__(self, leader: LeaderAccess, listener: str, accepted: Accepted, hops: int) -> None:
        """Wait for the connection."""
        self.listener = listener
        self.accepted = accepted
        self.hops = hops
        self.is_passed_on = False
        self._leader = leader
        self._transport: asyncio.Transport
        self._far: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._has_ended = False
        self._reaching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """Both ends, as RabbitMQ writes them."""
        (client, client_port), (server, server_port) = self.addresses
        return f"{client}:{client_port} -> {server}:{server_port}"

    # -- what the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first octets."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        # A peer that has gone already has no name.
        ends = [(transport.get_extra_info(end) or ("0.0.0.0", 0))[:2] for end in ("peername", "sockname")]
        self.addresses = self.accepted.proxied or Proxied(*ends)
        late = f"it sent nothing within {FIRST_OCTETS_S:.0f} s"
        self._timer = asyncio.get_running_loop().call_later(FIRST_OCTETS_S, self._refuse, late)

    def data_received(self, data: bytes) -> None:
        """Take octets of the client."""
        if self._far is not None:
            self._far.write(data)
            return
        self._early.append(data)
        if self._reaching is None:
            self._transport.pause_reading()
            self._stop_timer()
            self._reaching = asyncio.get_running_loop().create_task(self._pass_on())

    def pause_writing(self) -> None:
        """Do not read the leader while the client takes less than it is sent."""
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        """Read the leader again."""
        if self._far is not None:
            self._far.resume_reading()

    def eof_received(self) -> bool:
        """Pass the client's end on; what the leader still sends comes back. The second of two ends is the last."""
        return self._far is not None and self._end_of(self._far)

    def _end_of(self, other: asyncio.Transport) -> bool:
        """One side sends no more, which the other one is told; whether that may still send."""
        is_first, self._has_ended = not self._has_ended, True
        if not is_first or not other.can_write_eof():
            return False
        other.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the leader's side."""
        self._stop_timer()
        if self._reaching is not None:
            self._reaching.cancel()
        if self._far is not None:
            _close(self._far)
        self._leader.gone(self)

    # -- the leader's side --------------------------------------------------------------------

    async def _pass_on(self) -> None:
        try:
            async with asyncio.timeout(PASS_ON_TIMEOUT_S):
                far, slot = await self._leader.connect_to_leader(self)
        except (OSError, TimeoutError, LeveretError) as error:
            self._refuse(str(error) or f"the leader did not answer within {PASS_ON_TIMEOUT_S:.0f} s")
            return
        except Exception as bug:
            # The client would keep its connection, which nobody reads.
            logger.exception("connection_not_passed_on name=%s", self.name)
            self._refuse(f"{type(bug).__name__}; see the node's log")
            return
        if self._transport.is_closing():
            # This node leads by now, or follows another leader.
            slot.release()
            far.abort()
            return
        self._far, self.is_passed_on = far, True
        far.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        far.set_protocol(_LeaderSide(self, slot))
        early, self._early = b"".join(self._early), []
        far.write(early)
        far.resume_reading()
        self._transport.resume_reading()

    def _refuse(self, reason: str) -> None:
        """Close the client, which may connect again; over HTTP it gets the reason."""
        if self._transport.is_closing():
            return
        self._leader.turned_away(self, reason)
        if self.listener == "http":
            self._transport.write(_unavailable(reason))
        self.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End the connection, on both sides; what was written before is still sent if the client takes it soon."""
        _close(self._transport)

    # -- what the leader's side asks ----------------------------------------------------------

    def write(self, octets: bytes) -> None:
        """Send the leader's octets to the client."""
        self._transport.write(octets)

    def read(self, *, reads: bool) -> None:
        """Read from the client, or not for now."""
        if not self._transport.is_closing():
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def leader_ended(self) -> bool:
        """Pass the leader's end on; whether the client may go on sending."""
        return self._end_of(self._transport)


class _LeaderSide(asyncio.Protocol):
    """The leader's end of a client's connection."""

    def __init__(self, client: ProxiedClient, slot: ConnectionSlot) -> None:
        self._client = client
        self._slot = slot

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def pause_writing(self) -> None:
        self._client.read(reads=False)

    def resume_writing(self) -> None:
        self._client.read(reads=True)

    def eof_received(self) -> bool:
        return self._client.leader_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        self._client.close()


def _close(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.close()
        asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, transport.abort)


def _unavailable(reason: str) -> bytes:
    body = f"This node does not lead, and did not reach the leader: {reason}\n".encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
