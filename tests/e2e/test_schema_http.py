"""Following a schema over HTTP: a management API as upstream, what it may answer, and what comes of that."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leveret.config.sections.tls import TlsOptions
from leveret.model.definitions import Queue, Vhost
from leveret.runtime.schema_sync import http_source as schema_http
from leveret.testing.network.waiting import until
from leveret.testing.servers.certificates import CertificateAuthority, available
from tests.e2e.schema_pair import TIMING, Node, endpoints, listening

pytestmark = pytest.mark.uvloop

NEVER_MS = 3_600_000


@dataclass
class Api:
    """What a management API answers: `/api/whoami` and `/api/definitions`."""

    document: bytes = b"{}"
    etag: str = ""
    vhosts: bytes = b"[]"
    status: bytes = b"200 OK"
    encoding: bytes = b""
    asked: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            self.asked.append(head)
            is_known = self.etag and f"if-none-match: {self.etag}".encode() in head.lower()
            body = b"{}" if b"/whoami" in head else b"" if is_known else self.document
            body = self.vhosts if b"/vhosts" in head else body
            status = b"304 Not Modified" if is_known else self.status
            more = f"ETag: {self.etag}\r\n".encode() if self.etag and b"/definitions" in head else b""
            if self.encoding and b"/definitions" in head:
                more += b"Content-Encoding: %b\r\n" % self.encoding
            writer.write(b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, more, len(body), body))
            await writer.drain()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


@asynccontextmanager
async def following_http(home: Path, api: Api) -> AsyncIterator[tuple[Node, Callable[[], dict[str, Any]]]]:
    node = Node(home, "down", operating_mode="downstream", minimum_sync_interval_ms=NEVER_MS)
    async with listening(api.serve) as port:
        text = endpoints(port, username="monitor").replace("127.0.0.1", "http://127.0.0.1")
        await node.schema_sync.set_endpoints(text)
        await node.schema_sync.start()
        try:
            yield node, node.schema_sync.status
        finally:
            await node.schema_sync.stop()


ALWAYS_THERE = ("users", "vhosts", "permissions", "queues", "exchanges", "bindings")


def _document(**sections: Any) -> bytes:
    empty: dict[str, Any] = {kind: [] for kind in ALWAYS_THERE}
    return msgspec.json.encode(empty | sections)


DOCUMENT: dict[str, list[dict[str, Any]]] = {
    "vhosts": [{"name": "/", "tags": []}, {"name": "shop", "metadata": {"description": "d", "tags": ["t"]}}],
    "global_parameters": [
        {"name": "cluster_name", "value": "rabbits"},
        {"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"},
        {"name": "owner", "value": 1},
    ],
    "queues": [{"name": "q", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}}],
    "exchanges": [
        {"name": "x", "vhost": "shop", "type": "topic", "durable": True, "auto_delete": False, "arguments": {}}
    ],
    "bindings": [
        {"source": "x", "vhost": "shop", "destination": "q", "destination_type": "queue", "routing_key": "k",
         "arguments": {}},
        {"source": "x", "vhost": "shop", "destination": "exclusive", "destination_type": "queue",
         "routing_key": "k", "arguments": {}},
    ],
}  # fmt: skip
DOCUMENT_WHOLE: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ALWAYS_THERE} | DOCUMENT


async def test_definitions_over_http_are_followed_and_asked_for_by_their_etag(tmp_path: Path) -> None:
    api = Api(_document(**DOCUMENT), etag='"one"')
    async with following_http(tmp_path, api) as (node, status):
        node.put(Vhost(name="old"))
        await until(lambda: status()["syncs"], "a first sync")
        held = node.broker.definitions
        assert list(held.by_kind["vhosts"]) == [("/",), ("shop",)]
        assert [key[:4] for key in held.by_kind["bindings"]] == [("shop", "x", "queue", "q")]
        assert ("internal_cluster_id",) not in held.by_kind["global_parameters"]
        assert ("cluster_name",) not in held.by_kind["global_parameters"]
        assert status()["upstream_cluster"] == "rabbits"
        assert b"if-none-match" not in api.asked[-1].lower()

        await node.schema_sync.sync(force=False)
        assert b'if-none-match: "one"' in api.asked[-1].lower()
        assert status()["syncs_unchanged"] == 1
        api.etag, api.document = '"two"', _document(**DOCUMENT | {"queues": [], "bindings": []})
        await node.schema_sync.sync(force=False)
        assert node.broker.queues == {}
        node.put(Queue(vhost="shop", name="stray"))
        await node.schema_sync.sync(force=False)
        assert node.broker.queues == {}, "what is changed here is put right although nothing changed there"


async def test_an_api_without_etags_is_followed_too(tmp_path: Path) -> None:
    api = Api(_document(**DOCUMENT))
    async with following_http(tmp_path, api) as (node, status):
        await until(lambda: status()["syncs"], "a first sync")
        await node.schema_sync.sync(force=False)
        assert status()["syncs_unchanged"] == 1
        api.document = _document(**DOCUMENT | {"bindings": []})
        await node.schema_sync.sync(force=False)
        assert node.broker.definitions.by_kind["bindings"] == {}


async def test_what_definitions_leave_out_of_vhosts_is_asked_for(tmp_path: Path) -> None:
    api = Api(_document(vhosts=[{"name": "/"}, {"name": "shop"}]), etag='"one"')
    api.vhosts = b'[{"name":"shop","description":"a","tags":["t"]},{"name":"/","tags":[]}]'
    async with following_http(tmp_path, api) as (node, status):
        await until(lambda: status()["syncs"], "a first sync")
        vhosts = node.broker.definitions.by_kind["vhosts"]
        assert vhosts["shop",] == Vhost(name="shop", description="a", tags=("t",))
        api.vhosts = b'[{"name":"shop","metadata":{"description":"b","tags":[]}},{"name":"/","tags":[]}]'
        await node.schema_sync.sync(force=False)
        assert vhosts["shop",] == Vhost(name="shop", description="b")


async def test_an_entity_that_cannot_be_read_is_named_and_stops_no_other(tmp_path: Path) -> None:
    user = {"name": "odd", "password_hash": "x", "hashing_algorithm": "bcrypt", "tags": ""}
    api = Api(_document(users=[user], vhosts=[{"name": "shop", "tags": []}, {"tags": []}, {"name": [1]}]))
    async with following_http(tmp_path, api) as (node, status):
        await until(lambda: status()["syncs"], "a first sync")
        assert ("shop",) in node.broker.definitions.by_kind["vhosts"]
        assert status()["refused_count"] == 3
        first, second, third = status()["refused"]
        assert first.startswith("users 'odd': cannot be read: ")
        assert "hashing_algorithm 'bcrypt'" in first
        assert second.startswith("vhosts '': cannot be read: ")
        assert third.startswith("vhosts '[1]': cannot be read: ")
        assert status()["last_error"] == first
        assert ("odd",) not in node.broker.definitions.by_kind["users"]
        refused = [row for row in await node.schema_sync.diff() if row["action"] == "refuse"]
        assert [(row["kind"], row["reason"]) for row in refused] == [
            ("users", first),
            ("vhosts", second),
            ("vhosts", third),
        ]


@pytest.mark.parametrize(
    ("status", "document", "named", "state"),
    [
        (b"401 Unauthorized", b"{}", "refuses user 'monitor' or its password", "recover"),
        (b"403 Forbidden", b"{}", "needs the tag administrator", "recover"),
        (b"404 Not Found", b"{}", "answered with status 404", "connecting"),
        (b"200 OK", b"[]", "its definitions cannot be read: ", "disconnected"),
        (b"200 OK", _document(queues=7), "queues is no list of objects", "disconnected"),
        (b"200 OK", _document(queues=[7]), "queues is no list of objects", "disconnected"),
        (b"200 OK", _document(vhosts=[{}]), "they name no vhost", "disconnected"),
    ],
)  # fmt: skip
async def test_an_api_that_is_of_no_use_is_told_with_the_reason_and_changes_nothing(
    tmp_path: Path, status: bytes, document: bytes, named: str, state: str
) -> None:
    async with following_http(tmp_path, Api(document, status=status)) as (node, shown):
        node.put(Vhost(name="kept"))
        await until(lambda: named in str(shown()["last_error"]), named)
        assert shown()["state"] in (state, "connecting")
        assert ("kept",) in node.broker.definitions.by_kind["vhosts"]


# -- an API that means no good --------------------------------------------------------------------


async def test_definitions_that_are_compressed_are_read(tmp_path: Path) -> None:
    octets = _document(**DOCUMENT, padding=[{"n": number} for number in range(100_000)])
    async with following_http(tmp_path, Api(gzip.compress(octets), encoding=b"gzip")) as (node, status):
        await until(lambda: status()["syncs"], "a first sync")
        assert ("shop", "q") in node.broker.queues
        assert status()["last_sync_received_bytes"] < len(octets)


# All kinds are there: where the decoder finds the depth, in the document or its entry, is the interpreter's.
@pytest.mark.parametrize(
    ("encoding", "document", "named"),
    [
        (b"zstd", b"x", "content-encoding 'zstd', and gzip was asked for"),
        (
            b"gzip, gzip",
            gzip.compress(gzip.compress(b"{}")),
            "content-encoding 'gzip, gzip', and gzip was asked",
        ),
        (b"gzip", b"{}", "its reply is no gzip"),
        (b"gzip", gzip.compress(b"{}")[:-1], "its reply ends before its gzip does"),
    ],
    # Octets are no names: those of gzip have the time in them.
    ids=["zstd", "gzip twice", "no gzip", "cut off"],
)
async def test_a_reply_that_was_not_asked_for_is_told_as_one(
    tmp_path: Path, encoding: bytes, document: bytes, named: str
) -> None:
    async with following_http(tmp_path, Api(document, encoding=encoding)) as (node, status):
        node.put(Vhost(name="kept"))
        await until(lambda: named in str(status()["last_error"]), named)
        assert ("kept",) in node.broker.definitions.by_kind["vhosts"]


async def test_a_few_octets_that_stand_for_very_many_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_http, "DOCUMENT_BYTES_MAX", 2 * 1024 * 1024)
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    tracemalloc.start()
    try:
        async with following_http(tmp_path, Api(bomb, encoding=b"gzip")) as (_, status):
            text = "definitions of more than 2097152 octets"
            await until(lambda: text in str(status()["last_error"]), text)
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


async def test_definitions_that_drip_in_are_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (2 if b"/whoami" in head else 9_999)
            )
            while b"/definitions" in head and not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(0.02)
            writer.write(b"{}")

    node = Node(tmp_path, "down", TIMING._replace(reply_timeout_s=0.1), operating_mode="downstream")
    async with listening(drip) as port:
        await node.schema_sync.set_endpoints(endpoints(port).replace("127.0.0.1", "http://127.0.0.1"))
        await node.schema_sync.start()
        try:
            text = "its definitions did not come within 0.5 s"
            await until(lambda: text in str(node.schema_sync.status()["last_error"]), text)
        finally:
            await node.schema_sync.stop()


async def test_an_api_over_tls_is_trusted_only_with_a_certificate_of_the_configured_authority(
    tmp_path: Path,
) -> None:
    if (reason := available()) is not None:
        pytest.skip(reason)
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("api", names="IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certfile, issued.keyfile)
    (tmp_path / "other").mkdir()
    stranger = CertificateAuthority(tmp_path / "other")
    async with listening(Api(_document(**DOCUMENT)).serve, context) as port:
        text = endpoints(port).replace("127.0.0.1", "https://127.0.0.1")
        for cacertfile, holds in (
            (
                stranger.cacertfile,
                lambda status: "certificate verify failed" in str(status["last_error"]).lower(),
            ),
            (authority.cacertfile, lambda status: status["state"] == "syncing"),
        ):
            tls = TlsOptions(cacertfile=cacertfile, verify="verify_peer")
            node = Node(tmp_path, "down", operating_mode="downstream", tls=tls)
            await node.schema_sync.set_endpoints(text)
            await node.schema_sync.start()
            try:
                await until(lambda: holds(node.schema_sync.status()), "trust, or none")  # noqa: B023
            finally:
                await node.schema_sync.stop()
        assert ("shop", "q") in node.broker.queues


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (b"{}", "they lack users, vhosts, permissions, queues, exchanges, bindings"),
        (b'{"error":"not_ready","reason":"node is starting"}', "they lack users, vhosts, "),
        (_document(), "they name no vhost"),
        *(
            (
                msgspec.json.encode({k: v for k, v in DOCUMENT_WHOLE.items() if k != kind}),
                f"they lack {kind}; ",
            )
            for kind in ALWAYS_THERE
        ),
    ],
)
async def test_a_document_that_is_no_definitions_deletes_nothing(
    tmp_path: Path, document: bytes, named: str
) -> None:
    api = Api(_document(**DOCUMENT))
    async with following_http(tmp_path, api) as (node, status):
        await until(lambda: status()["syncs"], "a first sync")
        held = node.schema()
        api.document = document
        node.schema_sync.sync_now()
        await until(lambda: named in str(status()["last_error"]), named)
        assert "check that the endpoint is the management API of a broker that has started" in str(
            status()["last_error"]
        )
        assert node.schema() == held
        api.document = _document(**DOCUMENT | {"queues": [], "bindings": []})
        await until(lambda: not node.broker.queues, "what is deleted there")


async def test_what_cannot_be_read_is_not_deleted_here(tmp_path: Path) -> None:
    api = Api(_document(**DOCUMENT))
    async with following_http(tmp_path, api) as (node, status):
        await until(lambda: status()["syncs"], "a first sync")
        held = node.schema()
        odd = {"name": "q", "vhost": "shop", "durable": "who knows", "arguments": {}}
        api.document = _document(**DOCUMENT | {"queues": [odd]})
        done = await node.schema_sync.sync(force=True)
        assert (done["puts"], done["deletes"]) == (0, 0)
        assert done["refused"][0].startswith("queues 'q': cannot be read: ")
        assert node.schema() == held
