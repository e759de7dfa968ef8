"""The listener that greets; what it settles with a peer is shown with real TLS and proxies in tests/e2e."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest
import uvloop

from leveret.config.sections.tls import TlsOptions
from leveret.core.rules.descriptors import LEAST, NO_LISTENER_LIMITS, ListenerKind, divide
from leveret.runtime.sockets import acceptor
from leveret.runtime.sockets.acceptor import Acceptor, ProtocolEndpoint, listen
from leveret.runtime.sockets.connection_budget import ALARM_S, ConnectionBudget
from leveret.runtime.sockets.tls import ListenerTls
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.network.waiting import until
from leveret.testing.servers.certificates import CertificateAuthority, available
from leveret.wire.proxy_protocol import Proxied

HEADER = b"PROXY TCP4 10.1.2.3 10.4.5.6 1000 5672\r\n"


class Served(asyncio.Protocol):
    """Notes who is served."""

    peers: list[Proxied | None]

    def __init__(self, peers: list[Proxied | None], proxied: Proxied | None) -> None:
        peers.append(proxied)


def greet(listening: socket.socket, peers: list[Proxied | None]) -> Acceptor:
    listening.setblocking(False)
    return Acceptor(
        listening,
        ProtocolEndpoint(ListenerKind.AMQP, lambda accepted: Served(peers, accepted.proxied), 10),
        proxied=True,
    )


def connect(listening: socket.socket) -> socket.socket:
    return socket.create_connection(listening.getsockname(), timeout=10)


def end_of(peer: socket.socket) -> bytes:
    """What comes before the end; a door that closes resets whom it had not taken."""
    with peer:
        try:
            return peer.recv(1)
        except ConnectionResetError:
            return b""


def test_who_comes_as_it_closes_is_let_go() -> None:
    """Whether a peer was taken, or greeted, by then or not."""

    async def visit(turns: int) -> None:
        listening = socket.create_server((LOOPBACK, 0))
        server = greet(listening, [])
        peers = [connect(listening) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        server.close()
        await asyncio.sleep(0)
        for peer in peers:
            assert await asyncio.to_thread(end_of, peer) == b""

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        for turns in range(12):
            uvloop.run(visit(turns))
        gc.collect()
    assert [str(each.message) for each in warned] == []


def test_who_was_taken_as_it_closes_is_served_or_learns_of_the_end() -> None:
    """A protocol that is not told writes to a transport that is closed, which is an error."""

    class Told(asyncio.Protocol):
        transport: asyncio.Transport | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)
            told.append(self)

        def connection_lost(self, error: Exception | None) -> None:
            self.transport = None

    async def visit(turns: int) -> None:
        listening = listen(LOOPBACK, 0)
        server = Acceptor(listening, ProtocolEndpoint(ListenerKind.AMQP, lambda _: Told(), 10))
        peers = [connect(listening) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        server.close()
        for _ in range(20):
            for each in told:
                if each.transport is not None:
                    each.transport.write(b"x")
            await asyncio.sleep(0)
        for peer in peers:
            peer.close()

    for turns in range(12):
        told: list[Told] = []
        uvloop.run(visit(turns))


def test_without_descriptors_it_tries_again() -> None:
    class Exhausted(socket.socket):
        """Of a process that has opened all it may, once."""

        refusals = 1

        def accept(self) -> tuple[socket.socket, object]:
            if self.refusals:
                self.refusals -= 1
                raise OSError(24, "Too many open files")
            return super().accept()

    async def visit() -> list[Proxied | None]:
        peers: list[Proxied | None] = []
        listening = Exhausted()
        listening.bind((LOOPBACK, 0))
        listening.listen()
        with patch.object(acceptor, "_ACCEPT_AGAIN_S", 0.05):
            server = greet(listening, peers)
            with connect(listening) as peer:
                peer.sendall(HEADER)
                await until(lambda: peers, "to be served")
        server.close()
        return peers

    [proxied] = uvloop.run(visit())
    assert proxied is not None
    assert proxied.client == ("10.1.2.3", 1000)


class Left(asyncio.Protocol):
    """Ends each connection in another way, as the first octet says."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data == b"a":
            self._transport.abort()
        elif data == b"c":
            self._transport.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_is_gone_is_not_counted_however_it_went(
    run: Callable[[Coroutine[None, None, None]], None],
) -> None:
    async def visit() -> None:
        sockets = ConnectionBudget(divide(LEAST))
        tally = sockets.tallies[ListenerKind.STREAM]
        listening = listen(LOOPBACK, 0)
        server = Acceptor(
            listening, ProtocolEndpoint(ListenerKind.STREAM, lambda _: Left(), 10), sockets=sockets
        )
        for word in (b"a", b"c", b"", b"a", b"c", b""):
            with connect(listening) as peer:
                await until(lambda: tally.count == 1, "to be counted")
                peer.sendall(word)
                if word:
                    assert await asyncio.to_thread(end_of, peer) == b""
            await until(lambda: tally.count == 0, f"to be let go after {word!r}")
        assert not sockets.is_short
        peers = [connect(listening) for _ in range(tally.share + 5)]
        # One address leaves room for another.
        await until(lambda: tally.refused.total() == 5 + 1, "to be refused")
        assert (tally.count, sockets.is_short) == (tally.share - 1, True)
        for peer in peers:
            peer.close()
        await until(lambda: tally.count == 0, "all to be let go")
        server.close()

    run(visit())


async def test_who_meets_a_bug_is_not_counted() -> None:
    def make(accepted: acceptor.Accepted) -> asyncio.BaseProtocol:
        raise RuntimeError("a bug")

    sockets = ConnectionBudget(divide(LEAST))
    tally = sockets.tallies[ListenerKind.STREAM]
    listening = listen(LOOPBACK, 0)
    server = Acceptor(listening, ProtocolEndpoint(ListenerKind.STREAM, make, 10), sockets=sockets)
    with connect(listening) as peer:
        assert await asyncio.to_thread(end_of, peer) == b""
    await until(lambda: tally.count == 0, "to be let go")
    server.close()


@pytest.mark.process
@pytest.mark.uvloop
async def test_who_fails_at_tls_is_not_counted(tmp_path: Path) -> None:
    if available() is not None:
        pytest.skip(str(available()))
    issued = CertificateAuthority(tmp_path).issue("server")

    sockets = ConnectionBudget(divide(LEAST))
    tally = sockets.tallies[ListenerKind.AMQP]
    listening = listen(LOOPBACK, 0)
    secured = ListenerTls(TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile), "ssl_options")
    server = Acceptor(
        listening, ProtocolEndpoint(ListenerKind.AMQP, lambda _: Left(), 1.0, secured), sockets=sockets
    )
    silent = connect(listening)
    with connect(listening) as peer:
        await until(lambda: tally.count == 2, "to be counted")
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: tally.count == 0, "to be let go")
    silent.close()
    server.close()


@pytest.mark.process
@pytest.mark.parametrize("with_tls", [False, True])
def test_a_protocol_that_has_its_connection_as_the_listener_closes_learns_of_the_end(
    tmp_path: Path, with_tls: bool
) -> None:
    """The connection is cut between `connection_made` and the end of the task that takes it."""
    if available() is not None:
        pytest.skip(str(available()))
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("server")
    told: list[str] = []

    class Told(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            told.append("made")
            servers[0].close()

        def connection_lost(self, error: Exception | None) -> None:
            told.append("lost")

    async def visit() -> None:
        listening = listen(LOOPBACK, 0)
        secured = ListenerTls(TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile), "ssl_options")
        trusting = authority.client_context()
        trusting.check_hostname = False
        servers.append(
            Acceptor(
                listening,
                ProtocolEndpoint(ListenerKind.AMQP, lambda _: Told(), 10, secured if with_tls else None),
            )
        )
        _, writer = await asyncio.open_connection(
            *listening.getsockname()[:2], ssl=trusting if with_tls else None
        )
        await until(lambda: told == ["made", "lost"], "the end to be told")
        writer.close()

    servers: list[Acceptor] = []
    uvloop.run(visit())


def test_a_connection_moves_to_another_kind_only_if_that_has_room_and_is_counted_once() -> None:
    sockets = ConnectionBudget(divide(LEAST))
    share = sockets.budget.shares[ListenerKind.HTTP]
    slots = [sockets.take(ListenerKind.REPLICATION, "", NO_LISTENER_LIMITS) for _ in range(2)]
    first, second = [slot for slot in slots if slot is not None]
    others = [sockets.take(ListenerKind.HTTP, "", NO_LISTENER_LIMITS) for _ in range(share - 1)]
    assert first.move(ListenerKind.HTTP, "10.0.0.7", NO_LISTENER_LIMITS)
    assert not second.move(ListenerKind.HTTP, "10.0.0.8", NO_LISTENER_LIMITS)
    counts = {kind: sockets.tallies[kind].count for kind in (ListenerKind.REPLICATION, ListenerKind.HTTP)}
    assert counts == {ListenerKind.REPLICATION: 1, ListenerKind.HTTP: share}
    for slot in (first, first, second, *others):
        if slot is not None:
            slot.release()
    assert not any(tally.count for tally in sockets.tallies.values())
    assert not first.move(ListenerKind.HTTP, "", NO_LISTENER_LIMITS)


def test_the_alarm_ends_when_nobody_was_refused_for_a_while() -> None:
    now_s = 100.0
    sockets = ConnectionBudget(divide(LEAST), clock_s=lambda: now_s)
    share = sockets.budget.shares[ListenerKind.CONTROL]
    assert [sockets.admit(ListenerKind.CONTROL, "", NO_LISTENER_LIMITS) for _ in range(share + 1)] == [
        True
    ] * share + [False]
    assert sockets.is_short
    now_s += ALARM_S - 1
    sockets.judge()
    assert sockets.is_short
    assert not sockets.admit(ListenerKind.CONTROL, "", NO_LISTENER_LIMITS)
    now_s += ALARM_S - 1
    sockets.judge()
    assert sockets.is_short
    now_s += 1
    sockets.judge()
    assert not sockets.is_short
