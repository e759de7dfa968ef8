from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from leveret.console.settings import SiteAddress
from leveret.console.sites import client as sites_client
from leveret.console.sites.client import SiteClient, SiteSilent
from leveret.console.sites.documents import NotUnderstood

URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3/x")


def with_client(
    answer: Callable[[httpx.Request], httpx.Response], use: Callable[[SiteClient], Awaitable[None]]
) -> None:
    """Let `use` ask a site of three nodes, which answer as the function says."""

    async def scenario() -> None:
        client = SiteClient(SiteAddress("eu", URLS), "guest", "guest")
        await client._http.aclose()
        client._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        await use(client)
        await client.close()

    asyncio.run(scenario())


def test_another_node_is_asked_from_when_one_cannot_be_reached() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.port != 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=b"{}")

    async def use(client: SiteClient) -> None:
        assert await client.octets("/api/whoami", 10_000) == b"{}"
        assert [line async for line in client.lines("POST", "/api/x", {})] == [b"{}"]

    with_client(answer, use)
    assert asked == [
        f"{URLS[0]}/api/whoami",
        f"{URLS[1]}/api/whoami",
        f"{URLS[2]}/api/whoami",
        f"{URLS[2]}/api/x",
    ]


@pytest.mark.parametrize("lines", [1, 1000])
def test_an_answer_in_one_piece_is_bounded_however_it_comes(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites_client, "_ANSWER_BYTES_MAX", 10_000)
    sent = (b"x" * (9_000 // lines) + b"\n") * lines

    async def use(client: SiteClient) -> None:
        assert len(await client.whole("POST", "/api/x", {})) in (len(sent) - 1, len(sent))

    async def use_more(client: SiteClient) -> None:
        with pytest.raises(NotUnderstood, match="more than 10000 octets"):
            await client.whole("GET", "/api/x")

    with_client(lambda _: httpx.Response(200, content=sent), use)
    with_client(lambda _: httpx.Response(200, content=sent * 2), use_more)


def test_a_question_that_a_node_may_have_got_is_not_asked_again() -> None:
    asked: list[int | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.port)
        raise httpx.ReadTimeout("late")

    async def use(client: SiteClient) -> None:
        with pytest.raises(SiteSilent, match="no answer within"):
            [line async for line in client.lines("POST", "/api/promote", {})]
        with pytest.raises(SiteSilent):
            await client.octets("/api/whoami", 10_000)

    with_client(answer, use)
    # The next question goes to the next node.
    assert asked == [1, 2]


def test_a_site_of_which_no_node_can_be_reached_is_silent() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async def use(client: SiteClient) -> None:
        with pytest.raises(SiteSilent, match="no connection: refused"):
            await client.octets("/api/whoami", 10_000)

    with_client(answer, use)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_come(size: int) -> None:
    sent = b"first\n\nsecond line\nlast"

    def answer(_: httpx.Request) -> httpx.Response:
        async def parts() -> AsyncIterator[bytes]:
            for at in range(0, len(sent), size):
                yield sent[at : at + size]

        return httpx.Response(200, content=parts())

    async def use(client: SiteClient) -> None:
        assert [line async for line in client.lines("GET", "/api/x", None)] == sent.split(b"\n")

    with_client(answer, use)
