from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.console.http.sessions import IDLE_S, WHOLE_S, ConsoleSession, LoginFailed, Sessions
from leveret.console.settings import ConsoleSettings, SiteAddress
from leveret.console.sites.watch import SiteWatch
from tests.unit.console.facts import NOW_MS, queue, upstream


@pytest.mark.parametrize(
    ("seen_s", "now_s", "is_over"),
    [
        (0, IDLE_S, False),
        (0, IDLE_S + 1, True),
        (WHOLE_S - 1, WHOLE_S, False),
        (WHOLE_S, WHOLE_S + 1, True),
    ],
)
def test_a_session_ends_half_an_hour_after_its_last_page_and_after_twelve_hours(
    seen_s: float, now_s: float, is_over: bool
) -> None:
    assert ConsoleSession("guest", {}, began_s=0, seen_s=seen_s).is_over(now_s) is is_over


@pytest.mark.parametrize("is_read", [True, False])
def test_a_page_waits_for_the_first_reading_of_every_site_but_not_for_ever(is_read: bool) -> None:
    async def look() -> tuple[bool, bool]:
        watches = {name: cast(Any, SimpleNamespace(has_read=asyncio.Event())) for name in ("eu", "us")}
        session = ConsoleSession("guest", watches, 0, 0)
        watches["eu"].has_read.set()
        was_reading = session.is_reading
        waiting = asyncio.create_task(session.wait_read())
        await asyncio.sleep(0)
        assert not waiting.done()
        if is_read:
            watches["us"].has_read.set()
        await asyncio.wait_for(waiting, 10)
        return was_reading, session.is_reading

    assert asyncio.run(look()) == (True, not is_read)


def test_a_list_of_queues_that_has_come_is_judged_at_once() -> None:
    facts = upstream()
    facts.queues_ms = None
    session = ConsoleSession("guest", {"eu": cast(Any, SimpleNamespace(facts=facts))}, 0, 0)
    assert session.rows() == []
    facts.queues, facts.queues_ms = [queue()], NOW_MS
    [row] = session.rows()
    assert row.queue == "new"
    assert session.rows() is session.rows()


async def test_a_log_in_at_a_site_that_is_late_for_its_session_leaves_no_watch_with_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would stop it: it would ask the site for ever, as a user who has logged out."""
    has_come, may_answer = asyncio.Event(), asyncio.Event()

    async def identify(watch: SiteWatch) -> None:
        if watch.client.user == "other":
            has_come.set()
            await may_answer.wait()

    monkeypatch.setattr(SiteWatch, "identify", identify)
    monkeypatch.setattr(SiteWatch, "start", lambda watch: None)
    site = SiteAddress("eu", ("http://127.0.0.1:1",))
    sessions = Sessions(ConsoleSettings((site,), "127.0.0.1", 0))
    token = await sessions.log_in("guest", "guest")
    kept = await sessions.log_in("guest", "guest")
    session = sessions.of(token)
    assert session is not None
    late = asyncio.create_task(sessions.log_in_at(session, "eu", "other", "secret"))
    await has_come.wait()
    await sessions.log_out(token)
    may_answer.set()
    with pytest.raises(LoginFailed, match="the session has ended"):
        await late
    assert list(sessions._pool._watches) == [("eu", "guest", "guest")]
    await sessions.log_out(kept)
    assert not sessions._pool._watches
