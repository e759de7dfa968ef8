from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.server import ServerState

from leveret.console.http import deadline
from leveret.console.http.deadline import BrowserPeer
from leveret.testing.network.waiting import until

REQUEST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
LAST_REQUEST = REQUEST.replace(b"host: a", b"host: a\r\nconnection: close")


async def slow(request: Request) -> PlainTextResponse:
    await request.body()
    await asyncio.sleep(0.3)
    return PlainTextResponse("done")


async def large(request: Request) -> PlainTextResponse:
    return PlainTextResponse("x" * 40_000)


def browser_peer(endpoint: Callable[[Request], Awaitable[Response]], connections: ServerState) -> BrowserPeer:
    routes = [Route("/", endpoint, methods=["POST"])]
    config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off")
    config.load()
    return BrowserPeer(config=config, server_state=connections, app_state={})


@pytest.mark.parametrize("sent", [b"", b"GET / HT", REQUEST[:-1]])
async def test_who_does_not_send_a_whole_request_is_not_waited_for(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "REQUEST_S", 0.05)
    assert await asked(sent) == b""


async def test_an_answer_may_take_longer_than_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "REQUEST_S", 0.05)
    assert (await asked(REQUEST)).endswith(b"done")


@pytest.mark.parametrize("sent", [LAST_REQUEST, 3 * REQUEST])
async def test_who_does_not_read_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no request is waited for: the connection is to close, or the next answer waits for room."""
    monkeypatch.setattr(deadline, "READ_S", 0.05)
    client, accepted = socket.socketpair()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connections = ServerState()
    loop = asyncio.get_running_loop()
    with client:
        await loop.connect_accepted_socket(lambda: browser_peer(large, connections), accepted)
        client.sendall(sent)
        assert connections.connections
        await until(lambda: not connections.connections, "the connection's end")


async def asked(sent: bytes) -> bytes:
    """Send octets, and return what comes until the console closes the connection."""
    server = await asyncio.get_running_loop().create_server(
        lambda: browser_peer(slow, ServerState()), "127.0.0.1", 0
    )
    async with server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        received = b""
        while not received.endswith(b"done"):
            try:
                part = await reader.read(4096)
            except ConnectionResetError:
                break
            if not part:
                break
            received += part
        writer.close()
    return received
