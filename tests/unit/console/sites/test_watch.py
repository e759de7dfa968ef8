from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from leveret.console.settings import SiteAddress
from leveret.console.sites import watch as sites_watch
from leveret.console.sites.samples import Samples
from leveret.console.sites.watch import SiteWatch

KNOWN = json.dumps({"name": "guest", "tags": ["administrator"]}).encode()


async def watched(answer: Callable[[str], httpx.Response], until: Callable[[SiteWatch], bool]) -> SiteWatch:
    """Watch a site, which answers as the function says of a path, until something is known of it."""
    watch = SiteWatch(SiteAddress("eu", ("http://127.0.0.1:1",)), "guest", "guest", {})
    await watch.client.close()
    watch.client._http = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda asked: answer(asked.url.path))
    )
    watch.start()
    for _ in range(3_000):
        if until(watch):
            break
        await asyncio.sleep(0.01)
    await watch.stop()
    return watch


@pytest.mark.parametrize("slow", ["/api/whoami", "/api/queues", "/api/replication/plots"])
async def test_a_site_whose_answer_comes_in_drops_is_not_waited_for(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites_watch, "_WHOLE_S", 0.05)

    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    def answer(path: str) -> httpx.Response:
        if path == slow:
            return httpx.Response(200, content=drops())
        return httpx.Response(200, content=KNOWN) if path == "/api/whoami" else httpx.Response(404)

    watch = await watched(answer, lambda watch: bool(watch.facts.error))
    assert watch.facts.error.endswith("no whole answer within 0 s")
    assert watch.has_read.is_set()


async def test_a_fault_of_the_console_at_an_answer_is_said_and_ends_no_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    def answer(path: str) -> httpx.Response:
        return httpx.Response(200, content=KNOWN) if path == "/api/whoami" else httpx.Response(404)

    monkeypatch.setattr(Samples, "add", fail)
    watch = await watched(answer, lambda each: bool(each.facts.error))
    assert "the console failed at its answer" in watch.facts.error
    assert "ZeroDivisionError" in caplog.text
