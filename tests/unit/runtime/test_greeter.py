"""The listener that greets; what it settles with a peer is shown with real TLS and proxies in tests/e2e."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from unittest.mock import patch

import uvloop

from leveret.runtime import greeter
from leveret.runtime.greeter import Greeter
from leveret.testing.ports import LOOPBACK
from leveret.testing.waiting import until
from leveret.wire.proxy_protocol import Proxied

HEADER = b"PROXY TCP4 10.1.2.3 10.4.5.6 1000 5672\r\n"


class Served(asyncio.Protocol):
    """Notes who is served."""

    peers: list[Proxied | None]

    def __init__(self, peers: list[Proxied | None], proxied: Proxied | None) -> None:
        peers.append(proxied)


def greet(listening: socket.socket, peers: list[Proxied | None]) -> Greeter:
    listening.setblocking(False)
    return Greeter(listening, lambda proxied: Served(peers, proxied), tls=None, proxied=True, timeout_s=10)


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
        door = greet(listening, [])
        peers = [connect(listening) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        door.close()
        await asyncio.sleep(0)
        for peer in peers:
            assert await asyncio.to_thread(end_of, peer) == b""

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        for turns in range(12):
            uvloop.run(visit(turns))
        gc.collect()
    assert [str(each.message) for each in warned] == []


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
        with patch.object(greeter, "_ACCEPT_AGAIN_S", 0.05):
            door = greet(listening, peers)
            with connect(listening) as peer:
                peer.sendall(HEADER)
                await until(lambda: peers, "to be served")
        door.close()
        return peers

    [proxied] = uvloop.run(visit())
    assert proxied is not None
    assert proxied.client == ("10.1.2.3", 1000)
