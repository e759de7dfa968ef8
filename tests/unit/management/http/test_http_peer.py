"""Responses that a client does not read, or slowly: over a pair of sockets, with a clock that the test turns."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import pytest
import uvicorn
from uvicorn.server import ServerState

from leveret.management.http.http_peer import HttpDeadlines, HttpPeer
from leveret.testing.network.waiting import until
from tests.endings import at_end

DEADLINES: Final = HttpDeadlines(request_s=10, body_bytes_s_min=2_000, idle_s=60)
GET: Final = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GET_AND_CLOSE: Final = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Clock:
    """An event loop for a peer, whose timers run when the test says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_s = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback)

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self._timers.append(asyncio.TimerHandle(when, callback, (), self._loop))
        return self._timers[-1]

    def advance(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        while due := [each for each in self._timers if not each.cancelled() and each.when() <= end_s]:
            first = min(due, key=asyncio.TimerHandle.when)
            self._timers.remove(first)
            self._now_s = first.when()
            first._run()
        self._now_s = end_s


class Connection:
    """A client that reads when it is told to, and a peer that answers each request with so many octets."""

    def __init__(self, answer_bytes: int) -> None:
        self.clock = Clock()
        self.read = 0
        self._answer = b"x" * answer_bytes
        self.client, self._accepted = socket.socketpair()
        self._accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        self.client.setblocking(False)

    async def begin(self) -> None:
        config = uvicorn.Config(
            self._app, interface="asgi3", log_config=None, http="h11", timeout_keep_alive=10
        )
        config.load()
        self.peer = HttpPeer(
            deadlines=DEADLINES, config=config, server_state=ServerState(), app_state={}, _loop=self.clock
        )
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self.peer, self._accepted)
        at_end(self._end)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(self._answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._answer})

    async def _end(self) -> None:
        self.client.close()
        await until(lambda: self.is_lost)

    @property
    def is_lost(self) -> bool:
        return self.peer not in self.peer.connections

    @property
    def unread(self) -> int:
        return self.peer.transport.get_write_buffer_size()

    async def read_until(self, unread: int) -> None:
        """Read until the node has no more than so many octets left to send."""
        while self.unread > unread:
            await self._read_some()

    async def read_all(self) -> None:
        """Read until the end of the response, or of the connection."""
        while self.read < len(self._answer) and await self._read_some():
            pass

    async def _read_some(self) -> bool:
        try:
            octets = self.client.recv(1_000)
        except BlockingIOError:
            await asyncio.sleep(0)
            return True
        self.read += len(octets)
        return bool(octets)


async def connected(answer_bytes: int) -> Connection:
    connection = Connection(answer_bytes)
    await connection.begin()
    return connection


@pytest.mark.parametrize(
    ("requests", "answer_bytes", "left_bytes"),
    [
        pytest.param(GET, 40_000, 40_000, id="while another request is waited for"),
        pytest.param(GET_AND_CLOSE, 40_000, 40_000, id="although it is the last"),
        pytest.param(GET_AND_CLOSE, 100_000, 10_000, id="although the client began to read"),
        pytest.param(GET + b"nonsense\r\n\r\n", 40_000, 40_000, id="although what follows is no request"),
    ],
)
async def test_a_response_that_is_not_read_is_dropped_with_its_connection(
    requests: bytes, answer_bytes: int, left_bytes: int
) -> None:
    connection = await connected(answer_bytes)
    connection.client.sendall(requests)
    await until(lambda: connection.unread)
    await connection.read_until(left_bytes)

    connection.clock.advance(DEADLINES.idle_s - 0.1)
    await asyncio.sleep(0)
    assert not connection.is_lost
    connection.clock.advance(0.2)
    await until(lambda: connection.is_lost, "the connection's end")


async def test_a_client_that_reads_on_slowly_gets_all_of_a_large_response() -> None:
    """It takes longer than any deadline, and longer than a next request would be waited for."""
    connection = await connected(1_000_000)
    connection.client.sendall(GET)
    await until(lambda: connection.unread)

    while connection.unread:
        await connection.read_until(max(connection.unread - 200_000, 0))
        connection.clock.advance(DEADLINES.idle_s)
        await asyncio.sleep(0)
    await connection.read_all()
    assert connection.read >= 1_000_000


async def test_a_client_that_reads_in_drops_is_let_go() -> None:
    connection = await connected(1_000_000)
    connection.client.sendall(GET)
    await until(lambda: connection.unread)

    await connection.read_until(connection.unread - 1_000)
    connection.clock.advance(DEADLINES.idle_s + 0.1)
    await until(lambda: connection.is_lost, "the connection's end")
