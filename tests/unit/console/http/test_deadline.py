from __future__ import annotations

import asyncio

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.server import ServerState

from leveret.console.http import deadline
from leveret.console.http.deadline import BrowserPeer

REQUEST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


async def slow(request: Request) -> PlainTextResponse:
    await request.body()
    await asyncio.sleep(0.3)
    return PlainTextResponse("done")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", REQUEST[:-1]])
async def test_who_does_not_send_a_whole_request_is_not_waited_for(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "REQUEST_S", 0.05)
    assert await asked(sent) == b""


async def test_an_answer_may_take_longer_than_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "REQUEST_S", 0.05)
    assert (await asked(REQUEST)).endswith(b"done")


async def asked(sent: bytes) -> bytes:
    """Send octets, and return what comes until the console closes the connection."""
    config = uvicorn.Config(
        Starlette(routes=[Route("/", slow, methods=["POST"])]), log_config=None, lifespan="off"
    )
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: BrowserPeer(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
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
