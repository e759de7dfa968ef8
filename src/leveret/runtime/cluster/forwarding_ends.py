"""The ends of forwarding connections: to leaders, from other nodes, and the short path inside this node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.logs.engine import Engine
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.sockets.buffered_output import BufferedOutput
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.amqp091.connection import AmqpState
from leveret.session.amqp091.remote_queues import ConnectionHost
from leveret.session.forwarding.leader_client import LeaderClient
from leveret.session.forwarding.leader_server import ForwardedConnection
from leveret.session.forwarding.leaders import RemoteLeaders
from leveret.wire.link import LENGTH, LinkError, Octets, Type

WRITE_BUFFER_HIGH_BYTES: Final = 4 * 1024 * 1024
"""A link to another node with more unsent octets than this gets no deliveries."""
PIECE_BYTES: Final = 512 * 1024
"""The most octets of frames in one message of a link: less than a link's buffer, and little to take in one step."""
IDLE_MS: Final = 120_000
"""A link without channels ends after this."""
_AMQP: Final = bytes((Type.AMQP,))


def write_amqp(peer: LinkPeer, pieces: Iterable[Octets]) -> None:
    """Send frames, in several messages if they are too long for one; their pieces are not joined."""
    gathered: list[Octets] = []
    size = 0
    for part in _in_parts(pieces):
        if size + len(part) > PIECE_BYTES:
            peer.write(LENGTH.pack(size + 1) + _AMQP, *gathered)
            gathered, size = [], 0
        gathered.append(part)
        size += len(part)
    if size:
        peer.write(LENGTH.pack(size + 1) + _AMQP, *gathered)


def _in_parts(pieces: Iterable[Octets]) -> Iterator[Octets]:
    """The pieces, with each in parts that is too long for a message."""
    for piece in pieces:
        if len(piece) <= PIECE_BYTES:
            yield piece
        else:
            whole = memoryview(piece)
            yield from (whole[at : at + PIECE_BYTES] for at in range(0, len(piece), PIECE_BYTES))


def amqp_of(kind: Type, payload: memoryview) -> bytes:
    """Return the octets of frames in a message.

    Raises:
        LinkError: the message is of another kind.
    """
    if kind is not Type.AMQP:
        raise LinkError(f"{kind.name} on a forwarding link")
    return bytes(payload)


class ForwardingOwner(Protocol):
    """The owner of the ends: runtime.cluster.forwarding."""

    leaders: RemoteLeaders
    engine: Engine
    host: ConnectionHost

    def link_ended(self, dialled: DialledEnd) -> None:
        """A link to a leader has ended."""

    def alarms_elsewhere(self) -> None:
        """An alarm of a leader began or ended."""

    def forget(self, accepted: AcceptedEnd) -> None:
        """A link of another node has ended."""


class DialledEnd:
    """A link to a leader (link.peer.Receiver, ports.Peer).

    Attributes:
        is_over: set when the link has ended.
    """

    def __init__(self, owner: ForwardingOwner, leader_client: LeaderClient, peer: LinkPeer) -> None:
        """Send everything that waits for this link."""
        self.leader_client = leader_client
        self.peer = peer
        self.is_over = asyncio.Event()
        self._owner = owner
        self._used_at_ms = elapsed_ms()
        owner.engine.peers[leader_client] = self
        peer.receiver = self
        owner.leaders.connected(leader_client)
        owner.engine.touch()

    def received(self, kind: Type, payload: memoryview) -> None:
        """See Receiver."""
        short = self.leader_client.blocked_by
        self.leader_client.receive(amqp_of(kind, payload))
        if self.leader_client.blocked_by != short:
            self._owner.alarms_elsewhere()
        self._owner.engine.touch()

    def ended(self, error: Exception | None) -> None:
        """See Receiver."""
        self._owner.engine.peers.pop(self.leader_client, None)
        self.is_over.set()
        self._owner.link_ended(self)

    def write(self, pieces: list[Octets], *, hold: int) -> None:
        """See ports.Peer; this node promises a leader nothing, so it holds no octets back."""
        write_amqp(self.peer, pieces)

    def release(self, hold: int) -> None:
        """See ports.Peer."""

    def end(self) -> None:
        """See ports.Peer."""
        self.peer.close()

    def tick(self, now_ms: int) -> None:
        """End the link if it had no channel for IDLE_MS."""
        if self.leader_client.channels:
            self._used_at_ms = now_ms
        elif now_ms - self._used_at_ms > IDLE_MS:
            self.peer.close()


class AcceptedEnd:
    """Another node's link to this one, as a leader (link.peer.Receiver, ports.Peer)."""

    def __init__(self, owner: ForwardingOwner, peer: LinkPeer, node: str) -> None:
        """Wait for requests."""
        self.peer = peer
        self.connection = ForwardedConnection(
            owner.host, node=node, now_ms=elapsed_ms(), serving=owner.leaders.serving
        )
        self.connection.wake = self._wake
        self._owner = owner
        self._output = BufferedOutput()
        self._draining: asyncio.Task[None] | None = None
        owner.engine.peers[self.connection] = self

    def received(self, kind: Type, payload: memoryview) -> None:
        """See Receiver."""
        self.connection.receive(amqp_of(kind, payload), elapsed_ms())
        self._settle()

    def ended(self, error: Exception | None) -> None:
        """See Receiver: deliveries that its clients have not settled return to the queues."""
        owner = self._owner
        owner.engine.peers.pop(self.connection, None)
        owner.forget(self)
        self.connection.lost()
        owner.engine.touch()
        if self._draining is not None:
            self._draining.cancel()

    def _settle(self) -> None:
        self._owner.engine.touch(self.connection)
        if self.connection.state is AmqpState.CLOSED:
            asyncio.get_running_loop().call_soon(self.end)

    def _wake(self) -> None:
        asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Continue requests that were blocked."""
        if not self.peer.is_closed:
            self.connection.go_on(elapsed_ms())
            self._settle()

    def alarms_changed(self) -> None:
        """Report this node's alarms to the other node."""
        if not self.peer.is_closed:
            self.connection.alarms_changed(elapsed_ms())
            self._settle()

    def tick(self, now_ms: int) -> None:
        """Bound the time of a close; retry a request that waits to change definitions, and confirms that wait."""
        self.connection.tick(now_ms)
        if self.connection.confirming:
            self._settle()
        if self.connection.state is AmqpState.CLOSED:
            self.end()
        elif self.connection.blocked_reason is not None:
            self.go_on()

    def write(self, pieces: list[Octets], *, hold: int) -> None:
        """See ports.Peer."""
        if hold or self._output:
            self._output.add(hold, pieces)
        else:
            self._send(pieces)

    def release(self, hold: int) -> None:
        """See ports.Peer."""
        self._send(self._output.release(hold))

    def _send(self, pieces: list[Octets]) -> None:
        write_amqp(self.peer, pieces)
        connection = self.connection
        if self.peer.waiting_bytes > WRITE_BUFFER_HIGH_BYTES:
            connection.is_paused = True
            if self._draining is None or self._draining.done():
                self._draining = asyncio.get_running_loop().create_task(self._drained())
        elif connection.is_throttled and not connection.is_paused:
            connection.resume()
            self._owner.engine.touch()
        if connection.blocked_reason is BlockedReason.OUTPUT:
            self._wake()

    async def _drained(self) -> None:
        await self.peer.drain()
        if not self.peer.is_closed:
            self.connection.resume()
            self.go_on()

    def end(self) -> None:
        """See ports.Peer."""
        self.peer.close()


class LocalEnd:
    """The path inside this node to a queue that it leads by now, for messages published while another node led.

    These messages go through a ForwardedConnection like those of other nodes, so the queue skips those it has.
    """

    def __init__(self, owner: ForwardingOwner, leader_client: LeaderClient, node: str) -> None:
        """Open the path."""
        self._owner = owner
        self._leader_client = leader_client
        self._output = BufferedOutput()
        self._connection = ForwardedConnection(
            owner.host, node=node, now_ms=elapsed_ms(), serving=owner.leaders.serving
        )
        owner.engine.peers[self._connection] = self
        owner.engine.peers[leader_client] = _LocalOutput(self)
        leader_client.push = self.push
        leader_client.up()

    def push(self) -> None:
        """Pass on all octets that wait to be sent."""
        self.take(self._leader_client.take_output())

    def take(self, pieces: list[Octets]) -> None:
        """Pass on the sender's octets."""
        if octets := b"".join(pieces):
            self._connection.receive(octets, elapsed_ms())
            self._owner.engine.touch(self._connection)

    def write(self, pieces: list[Octets], *, hold: int) -> None:
        """See ports.Peer: confirms."""
        if hold or self._output:
            self._output.add(hold, pieces)
        else:
            self._answer(pieces)

    def release(self, hold: int) -> None:
        """See ports.Peer."""
        self._answer(self._output.release(hold))

    def _answer(self, pieces: list[Octets]) -> None:
        if octets := b"".join(pieces):
            asyncio.get_running_loop().call_soon(self._take, octets)

    def _take(self, octets: bytes) -> None:
        self._leader_client.receive(octets)
        self._owner.engine.touch()

    def end(self) -> None:
        """See ports.Peer; the path stays as long as the node."""


class _LocalOutput:
    """The engine's output for the octets of a leader client."""

    def __init__(self, inside: LocalEnd) -> None:
        self._inside = inside

    def write(self, pieces: list[Octets], *, hold: int) -> None:
        """See ports.Peer."""
        self._inside.take(pieces)

    def release(self, hold: int) -> None:
        """See ports.Peer."""

    def end(self) -> None:
        """See ports.Peer."""
