"""The last words of a closing socket are read, and a peer that never closes is not waited for without end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from leveret.runtime.sockets import lingering_close
from leveret.runtime.sockets.lingering_close import LingeringClose

LAST_WORDS = b"close-ok"
CHUNK = b"x" * 65536


class Door(asyncio.Protocol):
    """Says its last words to the first octets."""

    def __init__(self, *, peer_closes: bool) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self._peer_closes = peer_closes
        self._lingering: LingeringClose | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            self._lingering.drop(len(data))
            return
        self._transport.write(LAST_WORDS)
        self._lingering = LingeringClose(self._transport, peer_closes=self._peer_closes)

    def connection_lost(self, error: Exception | None) -> None:
        assert self._lingering is not None
        self._lingering.over()
        self.lost.set_result(None)


def play(peer_closes: bool, client: Callable[[socket.socket], None]) -> None:
    """Have a client talk to the door, and wait until its socket is gone."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        listeners: list[Door] = []

        def door() -> Door:
            listeners.append(Door(peer_closes=peer_closes))
            return listeners[-1]

        server = await loop.create_server(door, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()

        def talk() -> None:
            with socket.create_connection(address, 10) as one:
                client(one)

        try:
            await asyncio.to_thread(talk)
            async with asyncio.timeout(60):
                await listeners[0].lost
        finally:
            server.close()
            # A loop that closes with an open connection waits for ever, and the failure is never seen.
            for each in listeners:
                each.abort()
            await asyncio.sleep(0)

    uvloop.run(run())


def flood(one: socket.socket, octets: int) -> int:
    """Send until the other side has enough; return how many octets it took."""
    for sent in range(0, octets, len(CHUNK)):
        try:
            one.sendall(CHUNK)
        except ConnectionError:
            return sent
    return octets


def wait_for_end(one: socket.socket) -> None:
    try:
        while one.recv(65536):
            pass
    except ConnectionError:
        pass


@pytest.mark.parametrize("peer_closes", [True, False])
def test_a_peer_that_still_sends_reads_the_last_words(peer_closes: bool) -> None:
    def client(one: socket.socket) -> None:
        one.sendall(b"close")
        assert flood(one, 8 * 1024 * 1024) == 8 * 1024 * 1024
        assert one.recv(64) == LAST_WORDS

    play(peer_closes, client)


@pytest.mark.parametrize("peer_closes", [True, False])
def test_a_peer_that_never_closes_is_cut_off_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, peer_closes: bool
) -> None:
    monkeypatch.setattr(lingering_close, "CLOSING_TIMEOUT_MS", 50)
    monkeypatch.setattr(lingering_close, "HALF_CLOSED_TIMEOUT_S", 0.05)

    def client(one: socket.socket) -> None:
        one.sendall(b"close")
        assert one.recv(64) == LAST_WORDS
        if peer_closes:
            wait_for_end(one)
        else:
            # It sees our end, and keeps its own open until writes fail.
            assert one.recv(64) == b""
            one.settimeout(10)
            while flood(one, len(CHUNK)):
                pass

    play(peer_closes, client)


def test_a_peer_that_sends_without_end_is_cut_off_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 4 * 1024 * 1024
    monkeypatch.setattr(lingering_close, "DROPPED_BYTES_MAX", limit)

    def client(one: socket.socket) -> None:
        one.sendall(b"close")
        assert limit - len(CHUNK) <= flood(one, 10 * limit) < 10 * limit

    play(True, client)


def test_a_peer_that_waits_for_our_end_first_sees_it_at_once() -> None:
    def client(one: socket.socket) -> None:
        one.sendall(b"what is this?")
        assert one.recv(64) == LAST_WORDS
        assert one.recv(64) == b""

    play(False, client)
