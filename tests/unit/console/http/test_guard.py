from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from leveret.console.http.guard import BODY_BYTES_MAX, Guard


async def done(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("done")


def ask(
    method: str, host: str, headers: dict[str, str], *, has_tls: bool = False, body: bytes = b"{}"
) -> httpx.Response:
    app = Starlette(routes=[Route("/", done, methods=["GET", "POST", "DELETE"])])
    guard = Guard(app, ["localhost", "console.example"], has_tls=has_tls)

    async def answered() -> httpx.Response:
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:15680") as client:
            content = body if method != "GET" else None
            return await client.request(method, "/", headers={"host": host, **headers}, content=content)

    return asyncio.run(answered())


JSON = {"content-type": "application/json"}
OWN = {**JSON, "origin": "http://127.0.0.1:15680"}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:15680", "localhost:15680", "console.example", "[::1]:15680", "10.0.0.7"]
)
def test_addresses_and_names_that_are_known_are_answered(host: str) -> None:
    answer = ask("GET", host, {})
    assert (answer.status_code, answer.text) == (200, "done")


@pytest.mark.parametrize(
    "host", ["evil.example:15680", "127.0.0.1.evil.example", "", "localhost.evil.example"]
)
def test_a_name_that_only_resolves_to_this_machine_is_refused(host: str) -> None:
    assert ask("GET", host, {}).status_code == 403


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        JSON,
        {**JSON, "origin": "http://evil.example"},
        {**JSON, "origin": "null"},
        {**JSON, "origin": "http://127.0.0.1:15672"},
        {**JSON, "origin": "https://127.0.0.1:15680"},
        {"origin": OWN["origin"]},
        {"origin": OWN["origin"], "content-type": "text/plain"},
        {"origin": OWN["origin"], "content-type": "application/x-www-form-urlencoded"},
    ],
)
def test_a_change_that_no_page_of_the_console_sent_is_refused(method: str, headers: dict[str, str]) -> None:
    assert ask(method, "127.0.0.1:15680", headers).status_code == 403


def test_a_change_that_a_page_of_the_console_sent_is_done() -> None:
    assert ask("POST", "127.0.0.1:15680", OWN).text == "done"
    secure = {**JSON, "origin": "https://console.example"}
    assert ask("POST", "console.example", secure, has_tls=True).text == "done"


def test_a_body_beyond_all_needs_is_refused() -> None:
    assert ask("POST", "127.0.0.1:15680", OWN, body=b" " * (BODY_BYTES_MAX + 1)).status_code == 403
    announced = {**OWN, "content-length": "9" * 5000}
    assert ask("POST", "127.0.0.1:15680", announced).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:15680", "evil.example"])
def test_every_answer_forbids_scripts_that_are_not_the_consoles_own(host: str) -> None:
    headers = ask("GET", host, {}).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
