from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from leveret.console.jobs import jobs
from leveret.console.jobs.actions import BY_NAME
from leveret.console.jobs.jobs import Jobs, SiteJob
from leveret.console.settings import SiteAddress
from leveret.console.sites.watch import SiteWatch, WatchPool, clock_ms
from leveret.model.errors import InvalidCommand
from tests.unit.console.facts import downstream, upstream

EU = SiteAddress("eu", ("http://127.0.0.1:1",))


def watching(pool: WatchPool) -> SiteWatch:
    """A watch of a node that does not answer any more, heard a moment ago."""
    watch = pool.take(EU, "guest", "guest")
    watch.facts = upstream(heard_ms=clock_ms())
    return watch


async def test_a_job_at_a_machine_that_lost_its_power_does_not_run_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "_LOOK_S", 0.001)
    pool = WatchPool()
    watch = watching(pool)

    async def never(*_: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(watch.client, "whole", never)
    begun = Jobs(pool)
    job = begun.begin(BY_NAME["scrub"], watch, {}, "")
    # The clock of the day is set forward, which is no silence.
    watch.facts.heard_ms = clock_ms() - 86_400_000
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert job.ended_ms is None
    monkeypatch.setattr(jobs, "_SILENT_S", 0.0)
    await _ended(job)
    assert "was not heard for 0 s: the site sends no more progress, and may continue the job" in job.error
    await begun.close()
    await pool.release(watch)


async def _ended(job: SiteJob) -> None:
    for _ in range(3_000):
        if job.ended_ms is not None:
            return
        await asyncio.sleep(0.01)


def test_a_password_in_the_uri_of_another_broker_is_shown_to_nobody() -> None:
    recovery = BY_NAME["recover_into"]
    for uri in ("amqp://ops:se%63ret@b:5672", "amqp://ops:secret@[b:5672"):
        with pytest.raises(InvalidCommand) as refused:
            recovery.body({"uri": uri, "password": "p"})
        assert "secret" not in str(refused.value)
        assert "se%63ret" not in str(refused.value)
    assert recovery.body({"uri": "amqp://ops@b:5672", "password": "p"})["to"]["password"] == "p"


async def test_a_report_that_nobody_expected_does_not_pass_for_the_end_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = WatchPool()
    watch = watching(pool)
    watch.facts = downstream()

    async def lines(*_: Any) -> AsyncIterator[bytes]:
        yield b'{"progress": {"event": "planned", "queues": {"q": "three"}}}'

    monkeypatch.setattr(watch.client, "lines", lines)
    begun = Jobs(pool)
    job = begun.begin(BY_NAME["dry_run"], watch, {}, "")
    await _ended(job)
    assert "the site may continue the job" in job.error
    await begun.close()
    await pool.release(watch)


async def test_a_job_of_a_session_that_ended_meanwhile_does_not_pass_for_done() -> None:
    pool = WatchPool()
    watch = watching(pool)
    await pool.release(watch)
    begun = Jobs(pool)
    job = begun.begin(BY_NAME["scrub"], watch, {}, "")
    await _ended(job)
    assert job.error
    await begun.close()
