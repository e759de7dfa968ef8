"""runtime.proxying: what becomes of a client whose leader is unknown, or is another one meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.rules.descriptors import NO_LISTENER_LIMITS, ListenerKind
from leveret.runtime.proxying.client_proxy import ClientProxy
from leveret.runtime.proxying.proxied_client import ProxiedClient
from leveret.runtime.sockets.acceptor import Accepted
from leveret.runtime.sockets.connection_budget import ConnectionSlot, process_sockets
from leveret.testing.network.waiting import until

NOBODY = "no node that serves clients is known at present"


def slot() -> ConnectionSlot:
    taken = process_sockets().take(ListenerKind.AMQP, "", NO_LISTENER_LIMITS)
    assert taken is not None
    return taken


async def connected(make: Callable[[Accepted], asyncio.Protocol]) -> socket.socket:
    """A client's end of a connection that a node takes."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        taken, _ = server.accept()
    client.setblocking(False)
    await loop.connect_accepted_socket(lambda: make(Accepted(None, slot())), taken)
    return client


async def received(client: socket.socket) -> bytes:
    """All that a client gets until its connection ends."""
    loop, found = asyncio.get_running_loop(), b""
    async with asyncio.timeout(10):
        while octets := await loop.sock_recv(client, 1000):
            found += octets
    client.close()
    return found


@pytest.mark.parametrize("listener", ["amqp", "http"])
async def test_without_a_known_leader_a_client_is_closed_with_a_sentence(listener: str) -> None:
    some: Any = SimpleNamespace()
    proxy = ClientProxy(some, lambda: some, lambda: ())
    client = await connected(lambda accepted: proxy.client(listener, accepted))
    await asyncio.get_running_loop().sock_sendall(client, b"AMQP\0\0\x09\x01")
    found = await received(client)
    assert (NOBODY.encode() in found) is (listener == "http")
    assert proxy.status()["last_refusal"] == NOBODY
    await until(lambda: not proxy.clients, "the client to be gone")


class SlowLeader:
    """A leader whose handshake takes as long as a test likes."""

    def __init__(self, far: asyncio.Transport) -> None:
        self.asked: list[ProxiedClient] = []
        self.shaken = asyncio.Event()
        self.refused: list[str] = []
        self.is_gone = False
        self.slot = slot()
        self._far = far

    async def connect_to_leader(self, client: ProxiedClient) -> tuple[asyncio.Transport, ConnectionSlot]:
        self.asked.append(client)
        try:
            await self.shaken.wait()
        except asyncio.CancelledError:
            self._far.abort()
            raise
        return self._far, self.slot

    def turned_away(self, client: ProxiedClient, reason: str) -> None:
        self.refused.append(reason)

    def gone(self, client: ProxiedClient) -> None:
        self.is_gone = True


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_leader_that_changes_in_the_middle_of_a_handshake_gets_nothing_of_the_client(
    is_late: bool,
) -> None:
    """The node leads by now, or follows another leader: it has closed the client, which connects again."""
    loop = asyncio.get_running_loop()
    near, leaders_end = socket.socketpair()
    leaders_end.setblocking(False)
    far, _ = await loop.create_connection(asyncio.Protocol, sock=near)
    leader = SlowLeader(far)
    client = await connected(lambda accepted: ProxiedClient(leader, "amqp", accepted, 0))
    await loop.sock_sendall(client, b"AMQP\0\0\x09\x01")
    await until(lambda: bool(leader.asked), "the leader to be asked")
    leader.asked[0].close()
    if is_late:
        leader.shaken.set()
    assert await received(client) == b""
    await until(lambda: leader.is_gone, "the client to be gone")
    assert await received(leaders_end) == b""
    assert not leader.asked[0].is_passed_on
    assert leader.refused == []


async def test_no_error_on_the_way_to_the_leader_leaves_a_client_waiting() -> None:
    class Failing(SlowLeader):
        async def connect_to_leader(self, client: ProxiedClient) -> tuple[asyncio.Transport, ConnectionSlot]:
            raise UnicodeError("label too long")

    leader = Failing(cast(asyncio.Transport, None))
    client = await connected(lambda accepted: ProxiedClient(leader, "amqp", accepted, 0))
    await asyncio.get_running_loop().sock_sendall(client, b"AMQP\0\0\x09\x01")
    assert await received(client) == b""
    assert leader.refused == ["UnicodeError; see the node's log"]
