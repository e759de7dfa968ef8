from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from leveret.console.http import site_queries
from leveret.console.http.app import build_console
from leveret.console.http.sessions import ConsoleSession, LoginFailed, Sessions
from leveret.console.http.site_queries import export_divergent
from leveret.console.http.throttle import FAILURES_MAX
from leveret.console.settings import ConsoleSettings, SiteAddress

ORIGIN = "http://127.0.0.1:15680"
BODY = b'{"user": "guest", "password": "wrong"}'


async def test_attempts_whose_bodies_come_late_are_as_many_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts, is_due = list[str](), asyncio.Event()

    async def log_in(_: Sessions, user: str, password: str) -> str:
        attempts.append(password)
        raise LoginFailed("no", is_refused=True)

    async def late() -> AsyncIterator[bytes]:
        await is_due.wait()
        yield BODY

    monkeypatch.setattr(Sessions, "log_in", log_in)
    app = build_console(ConsoleSettings((SiteAddress("eu", (ORIGIN,)),), "127.0.0.1", 15680), 15680)
    headers = {"content-type": "application/json", "content-length": str(len(BODY)), "origin": ORIGIN}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as client:
        asked = [
            asyncio.create_task(client.post("/session", content=late(), headers=headers))
            for _ in range(3 * FAILURES_MAX)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        is_due.set()
        codes = [(await each).status_code for each in asked]
    assert len(attempts) == FAILURES_MAX
    assert sorted(codes) == [403] * FAILURES_MAX + [429] * 2 * FAILURES_MAX


async def test_a_site_that_sends_no_message_holds_a_browser_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lines(*_: Any) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    monkeypatch.setattr(site_queries, "_WHOLE_S", 0.01)
    watch = cast(Any, SimpleNamespace(client=SimpleNamespace(lines=lines)))
    asked = asyncio.create_task(export_divergent(ConsoleSession("guest", {"eu": watch}, 0, 0), "eu", ""))
    ended, _ = await asyncio.wait((asked,), timeout=10)
    assert ended
    assert isinstance(asked.exception(), TimeoutError)
