"""Who is let in at the door of a node of a cluster, with TLS and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from leveret.config.sections.cluster import Cluster
from leveret.config.sections.tls import TlsOptions
from leveret.config.uris import NodeUri
from leveret.model.errors import LeveretError
from leveret.runtime.link import listening
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.sockets.tls import ListenerTls, client_context
from leveret.session.link_handshake import SecretsDiffer
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.network.waiting import until
from leveret.testing.servers.certificates import CertificateAuthority
from leveret.wire.link import GREETING, LinkError, Type, message
from tests.unit.runtime.cluster.nodes import PATIENCE_S, SETTINGS, Node, Other, started


async def says(port: int, octets: bytes) -> bytes:
    """What a door answers to these octets before it hangs up."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(octets)
    try:
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                return await reader.read()
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        GREETING + message(Type.QUESTION, b"\x93\x01\xa4rows\x80"),
        GREETING + message(Type.HELLO, b"{}"),
        GREETING + message(Type.PROOF, b"{}"),
        GREETING + b"\xff\xff\xff\xff\x01",
    ],
)
async def test_who_does_not_speak_as_a_node_does_is_hung_up_on(octets: bytes) -> None:
    a, b = Node("a"), Node("b")
    async with started(a, b):
        assert b.listener.address
        assert (await says(b.listener.address.port, octets)).startswith(GREETING)
        a.knows(b)
        assert await a.links.ask("b", "x", {})
        assert [asker for asker, _, _ in b.asked] == ["a"]


async def test_who_says_nothing_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 0.05)

    b = Node("b")
    async with started(b):
        assert b.listener.address
        assert await says(b.listener.address.port, b"") == GREETING


async def test_of_too_many_who_say_nothing_the_first_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "UNPROVEN_MAX", 3)

    a, b = Node("a"), Node("b")
    async with started(a, b), AsyncExitStack() as stack:
        assert b.listener.address
        strangers = [await asyncio.open_connection(LOOPBACK, b.listener.address.port) for _ in range(3)]
        for _, writer in strangers:
            stack.callback(writer.close)
        await until(lambda: len(b.listener.links) == 3)
        a.knows(b)
        assert await a.links.ask("b", "x", {})
        with suppress(ConnectionError):
            assert await strangers[0][0].read() == GREETING
        assert await strangers[1][0].readexactly(len(GREETING)) == GREETING
        assert not strangers[1][0].at_eof()


async def test_an_address_that_cannot_be_had_is_named() -> None:
    a = Node("a")
    async with started(a):
        assert a.listener.address
        b = Node("b", replace(SETTINGS, port=a.listener.address.port))
        with pytest.raises(LeveretError, match=r"for the other nodes of the cluster: .*; see cluster\.port"):
            await b.listener.start()
    with pytest.raises(LeveretError, match="listener for other nodes of the cluster is closed"):
        _ = a.listener.uri


async def test_a_node_is_found_where_it_says() -> None:
    elsewhere = NodeUri("tcp", "proxy.example", 7)
    a, b = Node("a"), Node("b", replace(SETTINGS, advertised_uri=elsewhere))
    async with started(a, b):
        assert a.listener.uri == NodeUri("tcp", LOOPBACK, a.listener.uri.port)
        assert b.listener.uri == elsewhere


TALK = 1000


def talk(peer: LinkPeer) -> None:
    for number in range(TALK):
        peer.write(message(Type.AMQP, bytes(number)))


@pytest.mark.process
async def test_with_a_certificate_tls_is_spoken(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = CertificateAuthority(tmp_path_factory.mktemp("certificates"))
    issued = authority.issue("b", names=f"IP:{LOOPBACK}")
    own = TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile, cacertfile=authority.cacertfile)
    trusts, checks = replace(SETTINGS, tls=own), replace(SETTINGS, tls=replace(own, verify="verify_peer"))
    stranger = CertificateAuthority(tmp_path_factory.mktemp("other"))
    wary = replace(SETTINGS, tls=TlsOptions(verify="verify_peer", cacertfile=stranger.cacertfile))

    a, b, c, d = Node("a", checks), Node("b", checks), Node("c", trusts), Node("d", wary)
    async with started(a, b, c, d):
        assert b.listener.uri.scheme == "tls"
        for one in (a, c):
            one.knows(b)
            assert await one.links.ask("b", "x", {})
        b.on_came = talk
        peer = await a.links.dial("b", "relay")
        assert peer.channel
        await asyncio.sleep(0.01)
        peer.receiver = near = Other()
        await until(lambda: len(near.got) == TALK)
        assert near.got == [(Type.AMQP, bytes(number)) for number in range(TALK)]
        peer.write(message(Type.AMQP, b"y" * 1_000_000))
        await until(lambda: b.others[0].got)
        peer.close()
        d.knows(b)
        with pytest.raises(LinkError, match="certificate verify failed"):
            await d.links.dial("b", "relay")
        d.links.know({"b": b.presence_as("tcp")})
        with pytest.raises(LeveretError):
            await d.links.dial("b", "relay")


@pytest.mark.process
async def test_of_two_tls_connections_with_somebody_between_them_none_is_a_link(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    issued = CertificateAuthority(tmp_path_factory.mktemp("certificates")).issue("b")
    settings = replace(SETTINGS, tls=TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile))

    a, b = Node("a", settings), Node("b", settings)
    async with started(a, b):
        async with between(b, settings) as port:
            a.links.know({"b": b.presence(port)})
            with pytest.raises(SecretsDiffer, match="TLS does not go from node to node"):
                await a.links.dial("b", "relay")
        assert b.came == []


@asynccontextmanager
async def between(node: Node, settings: Cluster) -> AsyncIterator[int]:
    """Somebody who speaks TLS with both sides, and passes on what they say; his port."""
    remote_methods: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while octets := await reader.read(65536):
                writer.write(octets)
        writer.close()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        context = client_context(TlsOptions(), "x")
        far = await asyncio.open_connection(LOOPBACK, node.listener.uri.port, ssl=context)
        remote_methods.update(
            {asyncio.create_task(pump(reader, far[1])), asyncio.create_task(pump(far[0], writer))}
        )

    context = ListenerTls(settings.tls, "x").context()
    async with await asyncio.start_server(visit, LOOPBACK, 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
    for task in remote_methods:
        task.cancel()
    await asyncio.gather(*remote_methods, return_exceptions=True)
