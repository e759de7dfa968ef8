from __future__ import annotations

import asyncio
import socket
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import httpx
import pytest

from leveret.config import load
from leveret.config.sections.metrics import Metrics
from leveret.management.http import server as server_module
from leveret.management.http.server import AddressInUse, ManagementServer
from leveret.management.http.socket_path import CONTROL_SOCKET
from leveret.model.definitions import Put, Queue, Vhost
from leveret.testing.servers.certificates import CertificateAuthority, available

if TYPE_CHECKING:
    from tests.unit.management.conftest import FakeNode


@asynccontextmanager
async def serving(node: FakeNode) -> AsyncIterator[ManagementServer]:
    server = ManagementServer(node, load(None, {"management.tcp.port": "0"}))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def run(check: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await check()

    asyncio.run(bounded())


async def whoami_over_socket(node: FakeNode) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(node.data_dir / CONTROL_SOCKET))
    async with httpx.AsyncClient(transport=transport) as client:
        return await client.get("http://node/api/whoami")


async def test_both_doors_answer_and_only_the_socket_needs_no_password(node: FakeNode) -> None:
    async with serving(node) as server, httpx.AsyncClient(base_url=f"http://{server.address}") as client:
        assert (await client.get("/api/whoami")).status_code == 401
        assert (await client.get("/api/whoami", auth=("guest", "secret"))).json()["name"] == "guest"
        assert (await whoami_over_socket(node)).json()["name"] == "operator"


async def test_no_answer_waits_for_an_import_of_a_tenth_of_a_second(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first streamed answer would import it in the event loop."""
    imported: list[tuple[str, bool]] = []
    loops_thread = threading.get_ident()

    def noted(name: str) -> ModuleType:
        imported.append((name, threading.get_ident() == loops_thread))
        return import_module(name)

    monkeypatch.setattr(server_module, "import_module", noted)
    async with serving(node):
        pass
    assert imported == [("anyio._backends._asyncio", False)]


async def test_the_socket_is_its_owners_alone_and_gone_after_the_stop(node: FakeNode) -> None:
    path = node.data_dir / CONTROL_SOCKET
    async with serving(node):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_socket_that_a_killed_node_left_is_replaced(node: FakeNode) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(node.data_dir / CONTROL_SOCKET))

    async with serving(node):
        assert (await whoami_over_socket(node)).status_code == 200


async def test_a_data_directory_may_have_a_path_of_any_length(node: FakeNode, tmp_path: Path) -> None:
    node.data_dir = tmp_path / ("d" * 120)
    node.data_dir.mkdir()

    async with serving(node):
        assert (node.data_dir / CONTROL_SOCKET).is_socket()


async def test_an_address_in_use_is_named(node: FakeNode) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ManagementServer(node, load(None, {"management.tcp.port": str(port)}))
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}"):
            await server.start()
        await server.stop()
    assert not (node.data_dir / CONTROL_SOCKET).exists()


async def test_the_metrics_have_a_port_of_their_own_without_the_api(node: FakeNode) -> None:
    settings = {
        "management.tcp.port": "0",
        "prometheus.tcp.port": "0",
        "prometheus.path": "/scrape",
        "prometheus.return_per_object_metrics": "true",
    }

    node.broker.declare_queue(Queue(name="q", vhost="/"))
    server = ManagementServer(node, load(None, settings))
    await server.start()
    try:
        base = f"http://{server.metrics_address}"
        async with httpx.AsyncClient(base_url=base) as client:
            rows = (await client.get("/scrape")).text
            assert 'rabbitmq_queue_messages{vhost="/",queue="q"} 0' in rows
            assert (
                "rabbitmq_detailed_queue"
                in (await client.get("/scrape/detailed?family=queue_coarse_metrics")).text
            )
            assert (await client.get("/api/whoami", auth=("guest", "secret"))).status_code == 404
    finally:
        await server.stop()


async def test_without_a_port_the_metrics_are_on_the_ports_of_the_api_alone(node: FakeNode) -> None:
    async with serving(node) as server, httpx.AsyncClient(base_url=f"http://{server.address}") as client:
        assert server.metrics_address is None
        assert "rabbitmq_queues 0" in (await client.get("/metrics")).text


async def test_a_promotion_is_answered_while_another_node_takes_over_the_doors(
    node: FakeNode, tmp_path: Path
) -> None:
    promoted = type(node)(tmp_path)
    promoted.broker.apply(Put(Vhost(name="/")))
    promoted.add_user("guest", "administrator", vhost="/")
    new = promoted.broker.declare_queue(Queue(name="new", vhost="/"))
    promoted.replication = node.replication
    promoted.config = replace(promoted.config, metrics=Metrics(interval_ms=50))
    node.broker.declare_queue(Queue(name="old", vhost="/"))
    node.replication.follow()
    settings = {"management.tcp.port": "0", "prometheus.tcp.port": "0"}

    server = ManagementServer(node, load(None, settings))
    node.replication.on_promoted = lambda: server.serve_for(promoted)
    await server.start()
    limits = httpx.Limits(max_connections=1)
    base = f"http://{server.address}"
    try:
        async with httpx.AsyncClient(base_url=base, auth=("guest", "secret"), limits=limits) as client:
            assert [each["name"] for each in (await client.get("/api/queues")).json()] == ["old"]
            assert (await client.put("/api/queues/%2F/q", json={})).status_code == 503
            reply = await client.post("/api/replication/promote", json={})
            assert (reply.status_code, reply.json()["promoted"]) == (200, True)
            assert [each["name"] for each in (await client.get("/api/queues")).json()] == ["new"]
            assert (await client.put("/api/queues/%2F/q", json={})).status_code == 201
            metrics = await client.get(f"http://{server.metrics_address}/metrics/per-object")
            assert 'rabbitmq_queue_messages{vhost="/",queue="new"} 0' in metrics.text
            rate = 0.0
            while not rate:  # until the new node was sampled
                new.counters.publish += 1
                stats = (await client.get("/api/queues/%2F/new")).json().get("message_stats")
                rate = stats["publish_details"]["rate"] if stats else 0.0
        assert (await whoami_over_socket(node)).status_code == 200
    finally:
        await server.stop()


async def test_another_node_may_take_over_before_the_doors_are_open(node: FakeNode, tmp_path: Path) -> None:
    other = type(node)(tmp_path)
    other.config = replace(other.config, node_name="other@test")

    server = ManagementServer(node, load(None, {"management.tcp.port": "0"}))
    server.serve_for(other)
    await server.start()
    transport = httpx.AsyncHTTPTransport(uds=str(node.data_dir / CONTROL_SOCKET))
    async with httpx.AsyncClient(transport=transport) as client:
        reply = await client.get("http://node/api/operations/node")
    assert reply.json() == {"name": "other@test"}
    await server.stop()


def test_a_port_of_the_metrics_that_is_taken_is_named(node: FakeNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {"management.tcp.port": "0", "prometheus.tcp.port": str(port)}

        async def check() -> None:
            server = ManagementServer(node, load(None, settings))
            with pytest.raises(AddressInUse, match=f"prometheus.tcp: cannot listen on 127.0.0.1:{port}"):
                await server.start()

        run(check)


@pytest.mark.process
@pytest.mark.skipif(available() is not None, reason=str(available()))
async def test_with_a_certificate_the_api_is_served_with_tls_as_well(node: FakeNode, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("server", names="DNS:localhost,IP:127.0.0.1")
    settings = {
        "management.tcp.port": "0",
        "management.ssl.port": "0",
        "management.ssl.certfile": str(issued.certfile),
        "management.ssl.keyfile": str(issued.keyfile),
    }

    server = ManagementServer(node, load(None, settings))
    await server.start()
    try:
        context = authority.client_context()
        async with httpx.AsyncClient(verify=context, auth=("guest", "secret")) as client:
            reply = await client.get(f"https://{server.tls_address}/api/whoami")
        assert reply.json()["name"] == "guest"
    finally:
        await server.stop()
