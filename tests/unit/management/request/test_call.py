from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leveret.management.request.other_nodes import JSON_BYTES_MAX

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.types import Message

    from tests.unit.management.conftest import Client, FakeNode


def test_a_method_a_resource_does_not_have_is_answered_with_those_it_has(admin: Client) -> None:
    reply = admin.request("PATCH", "/api/vhosts/%2F")
    assert (reply.status_code, reply.headers["allow"]) == (405, "HEAD, GET, PUT, DELETE, OPTIONS")
    assert admin.request("OPTIONS", "/api/overview").headers["allow"] == "HEAD, GET, OPTIONS"


@pytest.mark.parametrize("body", [b"{bad", b"\xff", b"[1]", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(admin: Client, body: bytes) -> None:
    reply = admin.request("PUT", "/api/queues/%2F/q", content=body)
    assert (reply.status_code, reply.json()["error"]) == (400, "bad_request")


@pytest.mark.parametrize("levels", [101, 2_000, 60_000])
def test_a_body_that_is_nested_without_end_is_refused(admin: Client, levels: int) -> None:
    deep = b"[" * levels + b"]" * levels
    for path, body in (
        ("/api/global-parameters/p", b'{"name":"p","value":' + deep + b"}"),
        ("/api/queues/%2F/q", b'{"arguments":{"x":' + deep + b"}}"),
    ):
        reply = admin.request("PUT", path, content=body)
        assert (reply.status_code, reply.json()["reason"]) == (
            400,
            "not_json: nested more than 100 levels deep",
        )
    given = b'{"payload":"","payload_encoding":"string","routing_key":"","properties":{"headers":{"h":' + deep
    reply = admin.request("POST", "/api/exchanges/%2F/amq.fanout/publish", content=given + b"}}}")
    assert (reply.status_code, reply.json()["reason"]) == (400, "not_json: nested more than 100 levels deep")


def test_a_client_that_goes_before_its_body_is_here_is_no_error_of_the_node(
    app: Starlette, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    parts: list[Message] = [
        {"type": "http.request", "body": b'{"durable"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    authorization = b"Basic " + b64encode(b"guest:secret")
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/api/queues/%2F/q",
        "raw_path": b"/api/queues/%2F/q",
        "query_string": b"",
        "headers": [(b"authorization", authorization), (b"content-length", b"100")],
        "client": ("127.0.0.1", 5),
        "server": ("node", 80),
        "scheme": "http",
    }

    async def receive() -> Message:
        return parts.pop(0) if len(parts) > 1 else parts[0]

    async def send(message: Message) -> None:
        """Nobody reads it."""

    asyncio.run(app(scope, receive, send))
    assert ("/", "q") not in node.broker.queues
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_field_of_the_wrong_kind_is_named(admin: Client) -> None:
    reply = admin.put("/api/queues/%2F/q", durable="yes")
    assert reply.status_code == 400
    assert "`$.durable`" in reply.json()["reason"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused(admin: Client, node: FakeNode, announced: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    settings = replace(node.config.management, body_bytes_max=2000)
    node.config = replace(node.config, management=settings)
    content = b"x" * 100_000 if announced else pieces()
    reply = admin.request("PUT", "/api/queues/%2F/q", content=content)
    assert (reply.status_code, "management.http.max_body_size is 2000" in reply.json()["reason"]) == (
        400,
        True,
    )


def test_only_messages_and_documents_may_be_large(admin: Client) -> None:
    """Of 20 MB in empty lists the decoder made a step of 4 s, for any user of the API."""
    lists = "[" + "[]," * (JSON_BYTES_MAX // 3) + "[]]"
    body = f'{{"arguments":{{"x":{lists}}}}}'
    reply = admin.request("PUT", "/api/queues/%2F/q", content=body)
    assert (reply.status_code, f"is {JSON_BYTES_MAX} bytes" in reply.json()["reason"]) == (400, True)
    document = f'{{"global_parameters":[{{"name":"p","value":{lists}}}]}}'
    assert admin.request("POST", "/api/definitions", content=document).status_code == 204

    def publish(**fields: str) -> httpx.Response:
        given = {"routing_key": '"q"', "properties": "{}", "payload": '"p"', "payload_encoding": '"string"'}
        content = ",".join(f'"{name}":{value}' for name, value in (given | fields).items())
        return admin.request("POST", "/api/exchanges/%2F/amq.default/publish", content=f"{{{content}}}")

    assert publish(payload='"' + "[" * (2 * JSON_BYTES_MAX) + '"').json() == {"routed": False}
    for name, value in {"properties": f'{{"headers":{{"x":{lists}}}}}', "payload": lists}.items():
        reply = publish(**{name: value})
        assert (reply.status_code, reply.json()["reason"][: len(name) + 10]) == (400, f"{name} should be")
    assert publish(unknown=lists).status_code == 200


def test_a_bug_in_a_handler_is_answered_without_its_details(
    admin: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.schema_sync, "status", lambda: 1 / 0)
    reply = admin.get("/api/tanzu/osr/schema/status")
    assert (reply.status_code, reply.json()["error"]) == (500, "internal_server_error")
    assert "ZeroDivision" not in reply.text
    assert admin.get("/api/whoami").status_code == 200


def test_what_was_changed_is_durable_before_it_is_answered(admin: Client, node: FakeNode) -> None:
    assert admin.put("/api/queues/%2F/q").status_code == 201
    assert node.broker.changes == []


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://node", 201),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://node:81", 403),
        ("http://[", 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(admin: Client, origin: str, status: int) -> None:
    reply = admin.request("PUT", "/api/queues/%2F/q", headers={"origin": origin})
    assert reply.status_code == status
    assert admin.request("GET", "/api/queues", headers={"origin": origin}).status_code == 200


def test_a_change_is_logged_with_its_outcome_and_without_its_body(
    admin: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "leveret.management"):
        admin.put("/api/users/u", password="s3cret", tags="")
    assert caplog.messages == ["management_change user=guest method=PUT path=/api/users/u status=201"]
