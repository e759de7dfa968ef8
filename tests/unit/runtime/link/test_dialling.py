"""runtime.link.dialling: a connection that this node opens, until its handshake ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from leveret.config.uris import NodeUri
from leveret.runtime.link.dialling import Dialling
from leveret.runtime.link.peer import LinkPeer
from leveret.testing.network.waiting import until


def never(*about: object) -> Any:
    pytest.fail("nothing was said")


async def end_while_connecting(monkeypatch: pytest.MonkeyPatch, uri: NodeUri) -> None:
    """Connect, and be cancelled when the connection is made; return once it is closed."""
    dialling = Dialling(never)
    connecting = asyncio.create_task(dialling.connect(uri, None))
    made = LinkPeer.connection_made

    def cancelled(peer: LinkPeer, transport: asyncio.BaseTransport) -> None:
        made(peer, transport)
        connecting.cancel()

    with monkeypatch.context() as patched:
        patched.setattr(LinkPeer, "connection_made", cancelled)
        await asyncio.wait((connecting,))
    assert connecting.cancelled()
    await until(lambda: dialling.peer.is_closed, "closed")


async def test_a_role_that_ends_while_it_connects_leaves_no_error_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio told the end of the link as an exception that nobody retrieved."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await end_while_connecting(monkeypatch, NodeUri("tcp", host, port))
    server.close()
    await server.wait_closed()
    # It is told once nobody can retrieve it any more.
    gc.collect()
    assert told == []
