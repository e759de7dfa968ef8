"""Jobs that were begun in this console. They outlive page and session, and all users who may monitor the site see them.

If the site's reports of a job stop, the job has not necessarily failed: a promotion continues at its site, and the
site reports it (`promotion` in its standby's details), also to a console that did not begin it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final

from leveret.console.jobs.actions import SiteAction, check_given
from leveret.console.sites.client import SiteRefuses, SiteSilent
from leveret.console.sites.documents import NotUnderstood, SynchronisingQueue, read_document
from leveret.console.sites.watch import SiteWatch, WatchPool, clock_ms
from leveret.model.errors import InvalidCommand
from leveret.model.job_progress import JobProgress

logger = logging.getLogger(__name__)

ENDED_MAX: Final = 50
RUNNING_MAX: Final = 16
_LOOK_S: Final = 1.0
_SILENT_S: Final = 120.0
"""After so long without an answer of the site to anything, a job's own connection is taken for dead: the connection of
a machine that lost its power breaks at no time."""


class SiteJob:
    """A job; `chosen` has the chosen options without passwords."""

    def __init__(self, number: int, action: SiteAction, watch: SiteWatch, chosen: Mapping[str, Any]) -> None:
        """Begin the job now."""
        hidden = {option.name for option in action.options if option.kind == "password"}
        self.number = number
        self.action = action
        self.site = watch.facts.site
        self.begun_by = watch.facts.user
        self.begun_ms = clock_ms()
        self.chosen = {name: value for name, value in chosen.items() if name not in hidden}
        self.progress = JobProgress(
            "waiting for the site, which starts Spark" if action.is_report else "waiting for the site"
        )
        self.ended_ms: int | None = None
        self.result: Any = None
        self.error = ""

    def document(self, now_ms: int) -> dict[str, Any]:
        """Return the job as pages show it."""
        return {
            "number": self.number,
            "title": self.action.title,
            "site": self.site,
            "begun_by": self.begun_by,
            "begun_ms": self.begun_ms,
            "ended_ms": self.ended_ms,
            "chosen": self.chosen,
            "step": self.progress.step,
            "done": self.progress.done,
            "total": self.progress.total,
            "unit": self.action.unit,
            "seconds_left": self.progress.seconds_left(now_ms),
            "result": self.result,
            "error": self.error,
        }


class Jobs:
    """The running jobs, and the last ended ones."""

    def __init__(self, pool: WatchPool) -> None:
        """Begin without jobs; `pool` has the watches of sessions."""
        self._pool = pool
        self._count = 0
        self._running: dict[SiteJob, asyncio.Task[None]] = {}
        self._ended: deque[SiteJob] = deque(maxlen=ENDED_MAX)

    def begin(self, action: SiteAction, watch: SiteWatch, given: Mapping[str, Any], word: str) -> SiteJob:
        """Begin an action at a site, as the user of `watch`.

        Raises:
            InvalidCommand: the action does not apply to the site, an option is wrong, `word` is not the site's name, or
                too many jobs run.
        """
        facts = watch.facts
        if reason := action.refusal(facts):
            raise InvalidCommand(f"{action.title}: {reason}")
        if action.is_final and word != facts.site:
            raise InvalidCommand(f"{action.title}: type the name of the site, {facts.site}")
        if len(self._running) >= RUNNING_MAX:
            raise InvalidCommand(f"{RUNNING_MAX} jobs are running: wait for the end of one")
        chosen = check_given(action, given)
        self._count += 1
        job = SiteJob(self._count, action, watch, chosen)
        self._pool.share(watch)
        self._running[job] = asyncio.create_task(
            self._carry_out(job, watch, chosen), name=f"job {job.number}"
        )
        logger.info("job_begun action=%s site=%s user=%s", action.name, job.site, job.begun_by)
        return job

    def of_sites(self, sites: Collection[str]) -> list[SiteJob]:
        """Return the jobs at these sites: running ones before ended ones, newer before older."""
        ordered = [*reversed(self._running), *reversed(self._ended)]
        return [job for job in ordered if job.site in sites]

    async def close(self) -> None:
        """Stop listening; the sites continue their operations."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _carry_out(self, job: SiteJob, watch: SiteWatch, chosen: Mapping[str, Any]) -> None:
        measuring = asyncio.create_task(_measure(job, watch), name=f"measure job {job.number}")
        try:
            await _while_heard(self._follow(job, watch, chosen), watch)
        except (SiteRefuses, NotUnderstood) as error:
            job.error = str(error)
        except SiteSilent as error:
            job.error = f"{error}: the site sends no more progress, and may continue the job"
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            # Without an error, a page would show the job as done.
            logger.exception("job_not_understood action=%s site=%s", job.action.name, job.site)
            job.error = "the console failed at the site's answer (see its log); the site may continue the job"
        finally:
            measuring.cancel()
            job.ended_ms = clock_ms()
            del self._running[job]
            self._ended.append(job)
            watch.hurry()
            logger.info("job_ended action=%s site=%s error=%s", job.action.name, job.site, job.error)
            await self._pool.release(watch)

    async def _follow(self, job: SiteJob, watch: SiteWatch, chosen: Mapping[str, Any]) -> None:
        await self._listen(job, watch, chosen)
        if job.action.queue_path is not None:
            await _follow_queue(job, watch, job.action.queue_path(chosen))

    async def _listen(self, job: SiteJob, watch: SiteWatch, chosen: Mapping[str, Any]) -> None:
        action = job.action
        path, body = action.path(chosen), action.body(chosen)
        if not action.is_report:
            text = await watch.client.whole("POST", path, body)
            job.result = read_document(text, Any) if text.strip() else {}
            return
        has_ended = False
        async for line in watch.client.lines("POST", path, body):
            step = read_document(line, dict[str, Any])
            if "progress" in step and isinstance(step["progress"], dict):
                job.progress.take(step["progress"], clock_ms())
                continue
            has_ended = True
            job.result, job.error = (
                step.get("summary"),
                str(step.get("reason", "")) if "error" in step else "",
            )
        if not has_ended:
            raise SiteSilent("the connection ended")


async def _while_heard(following: Coroutine[Any, Any, None], watch: SiteWatch) -> None:
    """Wait for the end of a job, as long as its site answers to something.

    Raises:
        SiteSilent: the site was not heard for `_SILENT_S`. And what `following` raises.
    """
    task = asyncio.create_task(following)
    # The time of day may be set meanwhile.
    heard_ms, since_s = watch.facts.heard_ms, time.monotonic()
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_LOOK_S)
            if watch.facts.heard_ms != heard_ms:
                heard_ms, since_s = watch.facts.heard_ms, time.monotonic()
            if not task.done() and heard_ms is not None and time.monotonic() - since_s > _SILENT_S:
                raise SiteSilent(f"the site was not heard for {_SILENT_S:.0f} s")
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _measure(job: SiteJob, watch: SiteWatch) -> None:
    """Poll the site's measurement of a job that sends no reports itself."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if (measured := job.action.measured(watch.facts)) is not None:
            job.progress.measured("reading", *measured, clock_ms())


async def _follow_queue(job: SiteJob, watch: SiteWatch, path: str) -> None:
    """Wait until the synchronisation of a queue's mirrors ends, or the queue is gone."""
    while True:
        await asyncio.sleep(_LOOK_S)
        queue: SynchronisingQueue | None = await watch.client.ask(path, SynchronisingQueue)
        if queue is None or queue.sync_messages is None:
            job.result = {"state": "gone" if queue is None else queue.state}
            return
        job.progress.measured("synchronising", queue.sync_messages, queue.messages, clock_ms())
