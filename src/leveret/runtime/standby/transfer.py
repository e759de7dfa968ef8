"""Supervises the transfer process, and keeps its last report.

One process serves all vhosts of a downstream. The running process receives changes of endpoints, credentials or
vhosts; only its death costs another start of Spark. A vhost that comes or goes leaves the transfer of the others alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import msgspec

from leveret.model.errors import LeveretError
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.unwanted_tasks import end_task
from leveret.runtime.schema_sync import endpoints as schema_endpoints
from leveret.runtime.standby.lag import LagOfLogs, LogLag
from leveret.runtime.standby.pipeline_process import Event, PipelineProcess, ask
from leveret.wire.log_name import ABSENT, vhost_of

logger = logging.getLogger(__name__)

Job = dict[str, Any]
BACKOFF_MIN_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
WATCH_INTERVAL_S: Final = 0.5
LAG_SAMPLES_MAX: Final = 4096
LAG_LOGGED_MS: Final = 10_000
LAG_LOG_INTERVAL_S: Final = 60.0
SILENT_S: Final = 30.0
"""A transfer without a report for this time is silent. It reports every second or two, a large batch more slowly."""
_DRAIN_MARGIN_S: Final = 10.0
_OF_VHOSTS: Final = ("vhosts", "taking_over", "origins")
"""The fields of a job that change without another start of its query."""


class StandbyUpstreamParameter(msgspec.Struct, frozen=True):
    """The value of the global parameter: the upstream's endpoints, and the user to log in as."""

    endpoints: list[str]
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Upstream(endpoints={self.endpoints!r}, username={self.username!r})"


def parse_upstream(value: object) -> StandbyUpstreamParameter:
    """Check the operator's JSON.

    Raises:
        InvalidCommand: a field is missing, empty, unknown or not of its kind, or an endpoint is not host:port.
    """
    read = schema_endpoints.parse_upstream(value, schemes=())
    return StandbyUpstreamParameter(
        [str(endpoint) for endpoint in read.endpoints], read.username, read.password
    )


class TransferSupervisor:
    """Runs the transfer process while it is wanted.

    Attributes:
        error: the reason why nothing is transferred, empty if the transfer works.
    """

    def __init__(self, job: Callable[[], tuple[Job | None, str]]) -> None:
        """Start no process yet; `job` returns the present job, or the reason why there is none, at every call."""
        self._wanted_job = job
        self.error = ""
        self._task: asyncio.Task[None] | None = None
        self._process: PipelineProcess | None = None
        self._job: Job | None = None
        self._links: dict[str, Event] = {}
        self._lags: dict[str, LogLag] = {}
        self._archive_bytes: dict[str, int] = {}
        self._lags_ms: deque[int] = deque(maxlen=LAG_SAMPLES_MAX)
        self._draining = False
        self._drained: PipelineProcess | None = None
        self._ended_by = ""
        self._lag_logged_s = -LAG_LOG_INTERVAL_S
        self._said_s = 0.0
        self._is_silent = False
        self._warming: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """Whether the transfer is wanted."""
        return self._task is not None

    @property
    def state(self) -> str:
        """The worst state of any vhost."""
        return self._worst_of(self._links.values())

    async def start(self) -> None:
        """Start the process; a second call does nothing."""
        if self._task is None:
            self._draining = False
            self._ended_by = ""
            _, self.error = self._wanted_job()
            self._task = asyncio.create_task(self._supervise(), name="standby transfer")

    async def stop(self) -> None:
        """End the process at once."""
        task, self._task = self._task, None
        await end_task(task)
        warming, self._warming = self._warming, None
        await end_task(warming)
        self._links.clear()
        self.error = ""

    def forget(self, vhosts: Iterable[str] | None = None) -> None:
        """Forget the positions of these vhosts, or of all, whose data were deleted; only while no transfer runs."""
        gone = None if vhosts is None else set(vhosts)
        for log in [*self._lags, *self._archive_bytes]:
            if gone is None or vhost_of(log) in gone:
                self._lags.pop(log, None)
                self._archive_bytes.pop(log, None)

    async def drain(self, timeout_s: float) -> PipelineProcess | None:
        """Let the process store the upstream's remaining records, for at most `timeout_s`, and end the link.

        Returns:
            The process, if it works: it waits for another task, with Spark running, and the caller owns it.
        """
        if self._task is not None and self._process is not None:
            self._draining = True
            await self._process.send({"command": "drain", "timeout_ms": int(timeout_s * 1000)})
            await asyncio.wait([self._task], timeout=timeout_s + _DRAIN_MARGIN_S)
        await self.stop()
        drained, self._drained = self._drained, None
        return drained

    def lag_ms(self, quantile: float) -> int | None:
        """Return a quantile of the last thousands of delays from a chunk at the upstream to its durability here."""
        if not self._lags_ms:
            return None
        ordered = sorted(self._lags_ms)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    def rows(self, vhosts: list[str]) -> list[dict[str, Any]]:
        """Return a row for each vhost, from the process's last report."""
        return [self._row(vhost) for vhost in vhosts]

    def archive_bytes(self, vhosts: Collection[str] | None = None) -> int | None:
        """Return the size of these vhosts' data, or of all, from the process's reports; None before the first one."""
        sizes = [
            size for log, size in self._archive_bytes.items() if vhosts is None or vhost_of(log) in vhosts
        ]
        return sum(sizes) if sizes else None

    def origins(self, vhost: str) -> dict[str, int]:
        """Return the ids of the upstream's logs of a vhost that have records here, by log, as far as they are known."""
        return {
            log: link["log_id"]
            for log, link in self._links.items()
            if vhost_of(log) == vhost and link.get("log_id") and link.get("transferred")
        }

    def has_heard(self, vhost: str) -> bool:
        """Return whether the upstream has reported its position in a vhost since this node started or follows it."""
        return self._lag_of(vhost).is_known

    def _lag_of(self, vhost: str) -> LagOfLogs:
        """Return the joint lag of a vhost's logs: those in the last reports, or else those in the archive."""
        linked = {log: link for log, link in self._links.items() if vhost_of(log) == vhost}
        counted = [log for log, link in linked.items() if link["state"] != ABSENT]
        if not linked:
            # Before they came, an upstream cluster's logs were waited for under the vhost's name.
            counted = [log for log, lag in self._lags.items() if vhost_of(log) == vhost and lag.is_read]
        return LagOfLogs([self._lag_of_log(log) for log in counted or [vhost]])

    def _lag_of_log(self, log: str) -> LogLag:
        return self._lags.setdefault(log, LogLag(time.monotonic()))

    def _row(self, vhost: str) -> dict[str, Any]:
        lag = self._lag_of(vhost)
        links = {log: link for log, link in sorted(self._links.items()) if vhost_of(log) == vhost}
        now_s, now_ms = time.monotonic(), clock_ms()
        return {
            "virtual_host": vhost,
            "state": self._worst_of(links.values()),
            "endpoint": ",".join(link["endpoint"] for link in links.values() if link.get("endpoint")),
            "transferred": sum(
                each.transferred for log, each in self._lags.items() if vhost_of(log) == vhost
            ),
            "is_archive_read": lag.is_read,
            "lag_records": lag.records,
            "lag_ms": lag.time_ms(now_s, now_ms),
            "heard_ago_ms": lag.heard_ago_ms(now_s),
            "missing_records": sum(link.get("missing", 0) for link in links.values()),
            "missing_messages": sum(link.get("missing_messages", 0) for link in links.values()),
            "last_timestamp": lag.newest_ms,
            "newest_age_ms": lag.newest_age_ms(now_s, now_ms),
            "error": next(filter(None, (link.get("error", "") for link in links.values())), "")
            or self._silence()
            or self.error,
            "nodes": [self._node_row(log, link) for log, link in links.items() if link.get("node")],
        }

    def _node_row(self, log: str, link: Event) -> dict[str, Any]:
        """Return the row of one upstream node's log."""
        lag = self._lag_of_log(log)
        return {
            "node": link["node"],
            "state": self._state_of(link),
            "endpoint": link.get("endpoint", ""),
            "transferred": lag.transferred,
            "lag_records": 0 if link["state"] == ABSENT else lag.records,
            "error": link.get("error", ""),
        }

    def _worst_of(self, links: Iterable[Event]) -> str:
        states = [self._state_of(link) for link in links if link["state"] != ABSENT]
        usual = "connecting" if self.runs else "disconnected"
        return next((state for state in ("recover", "connecting", "connected") if state in states), usual)

    def _state_of(self, link: Event) -> str:
        """Return the last state of a link; without recent reports it is not "connected"."""
        state = str(link["state"])
        return "connecting" if state == "connected" and self._silence() else state

    def _silence(self) -> str:
        """Return a text about a process without reports for too long, empty otherwise."""
        silent_s = time.monotonic() - self._said_s
        if not self._links or silent_s < SILENT_S:
            return ""
        return f"the transfer process has reported nothing for {silent_s:.0f} s: its last report may be out of date"

    async def _supervise(self) -> None:
        backoff_s = BACKOFF_MIN_S
        while True:
            begun_s = time.monotonic()
            try:
                job, why_not = self._wanted_job()
                self.error = why_not or self._ended_by
                if job is None:
                    await asyncio.sleep(WATCH_INTERVAL_S)
                    continue
                await self._run(job)
            except (LeveretError, OSError) as error:
                self.error = str(error)
            except Exception as error:
                # Without this task nothing would be transferred any more, and nobody would be told.
                self.error = repr(error)
                logger.exception("standby_transfer_failed")
            if self._draining:
                return
            # Shown until the next process works: most of that time is Spark's start.
            self._ended_by = self.error
            if time.monotonic() - begun_s > BACKOFF_MAX_S:
                backoff_s = BACKOFF_MIN_S
            logger.warning("standby_transfer_ended error=%s again_after_s=%g", self.error, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _run(self, job: Job) -> None:
        """Run one process until it ends."""
        self._begin_job(job)
        self._process = await PipelineProcess.start("transfer", job)
        watch = asyncio.create_task(self._watch(self._process), name="standby transfer watch")
        try:
            async for event in self._process.events():
                self._take(event)
                if event["event"] == "drained":
                    self._drained = self._process
                    return
            self.error = self._process.error
        finally:
            watch.cancel()
            process, self._process = self._process, None
            self._links.clear()
            if process is not self._drained:
                await process.stop()

    async def _watch(self, process: PipelineProcess) -> None:
        """Send changes by an operator, or by the schema sync, to the process."""
        try:
            while True:
                await asyncio.sleep(WATCH_INTERVAL_S)
                job, why_not = self._wanted_job()
                if job is None and self._job is not None:
                    # No vhost to transfer, such as after the deletion of the last one; Spark stays warm meanwhile.
                    job = self._job | {"vhosts": []}
                if job is not None and job != self._job:
                    await process.send(self._begin_job(job))
                self.error = why_not or self._ended_by
                self._log_lags(time.monotonic())
                self._log_silence()
        except Exception:
            logger.exception("standby_transfer_watch_failed action=restart")
            await process.stop()

    def _begin_job(self, job: Job) -> dict[str, Any]:
        """Begin a job; return the command for a running process.

        Reports about other endpoints may concern another upstream. If only the vhosts change, nothing else does.
        """
        before, self._job = self._job, job
        if before is not None and before["endpoints"] != job["endpoints"]:
            for lag in self._lags.values():
                lag.forget_upstream()
        vhosts: Job = {name: job[name] for name in _OF_VHOSTS if name in job}
        if before is not None and before | vhosts == job:
            self._links = {log: link for log, link in self._links.items() if link["vhost"] in job["vhosts"]}
            return {"command": "vhosts", **vhosts}
        self._links.clear()
        return {"command": "job", "job": job}

    def _works(self) -> None:
        """Clear the last error, because data were stored, or no data are left."""
        if self._ended_by:
            self._ended_by = self.error = ""

    def _log_lags(self, now_s: float) -> None:
        """Log, at most once in `LAG_LOG_INTERVAL_S`, vhosts whose transfer does not keep up."""
        if now_s - self._lag_logged_s < LAG_LOG_INTERVAL_S:
            return
        for row in self.rows(sorted(set(map(vhost_of, self._links)))):
            if row["lag_ms"] >= LAG_LOGGED_MS:
                self._lag_logged_s = now_s
                logger.warning(
                    "standby_lags vhost=%s lag_records=%d lag_ms=%d",
                    row["virtual_host"],
                    row["lag_records"],
                    row["lag_ms"],
                )

    def _log_silence(self) -> None:
        """Log a silence once, when it begins."""
        silence = self._silence()
        if silence and not self._is_silent:
            logger.warning("standby_transfer_silent error=%s", silence)
        self._is_silent = bool(silence)

    def _count_bytes(self, event: Event) -> None:
        match event["event"]:
            case "archived":
                self._archive_bytes[event["log"]] = event.get("bytes", 0)
            case "stored":
                before = self._archive_bytes.get(event["log"], 0)
                self._archive_bytes[event["log"]] = before + event.get("bytes", 0)
            case "compacted":
                before = self._archive_bytes.get(event["log"], 0)
                self._archive_bytes[event["log"]] = max(0, before - event["from_bytes"] + event["bytes"])

    def _take(self, event: Event) -> None:
        self._said_s = time.monotonic()
        self._count_bytes(event)
        match event["event"]:
            case "link" if self._job is not None and event["vhost"] not in self._job["vhosts"]:
                pass  # The report was in flight when the vhost left the job; no later report would replace it.
            case "link":
                self._take_link(event)
            case "archived" if self._lag_of_log(event["log"]).newest_ms is None:
                self._lag_of_log(event["log"]).stored(event["next"], event["newest_ms"])
            case "stored":
                self._works()
                self._lag_of_log(event["log"]).stored(event["next"], event["newest_ms"])
                self._lags_ms.append(max(0, event["at_ms"] - event["oldest_ms"]))
            case "started" if self._warming is None and event["is_local"]:
                self._warming = asyncio.create_task(_warm(), name="standby warm")
            case "compacted":
                logger.info(
                    "standby_compacted vhost=%s files=%d octets_before=%d octets=%d records=%d",
                    event["vhost"],
                    event["files"],
                    event["from_bytes"],
                    event["bytes"],
                    event["records"],
                )
            case "compaction_failed":
                logger.warning("standby_compaction_failed error=%s", event["error"])
            case "manifest_is_older":
                logger.warning("standby_manifest_is_older error=%s action=keep_the_files", event["error"])
            case "restarting":
                # For example a full disk: the links work, and no data are stored.
                self._ended_by = self.error = event["error"]
                logger.warning("standby_transfer_restarting error=%s", event["error"])

    def _take_link(self, event: Event) -> None:
        """Take the state of the link of one log."""
        before = self._links.get(event["log"], {})
        self._links[event["log"]] = event
        lag = self._lag_of_log(event["log"])
        if "transferred" in event:
            lag.stored(event["transferred"])
        if "committed" in event:
            # A lost upstream no longer reports; records of its last report that were not transferred are lost with it.
            lag.heard(event["committed"], event["committed_ms"], self._said_s)
        lag_records = lag.records
        if event["state"] == "connected" and not lag_records:
            self._works()
        if (before.get("state"), before.get("error")) != (event["state"], event.get("error")):
            _log_link(event, lag_records)
        if event.get("missing_messages", 0) > before.get("missing_messages", 0):
            logger.warning(
                "standby_begins_incomplete vhost=%s missing_messages=%d reason=retained_too_short_by_the_upstream",
                event["vhost"],
                event["missing_messages"],
            )


async def _warm() -> None:
    """Make Spark's class archive if it is missing, so that a promotion starts faster."""
    try:
        await ask("warm", {})
    except LeveretError as error:
        logger.info("standby_class_archive_not_made error=%s", error)


def _log_link(event: Event, lag_records: int) -> None:
    if "error" not in event:
        logger.info(
            "standby_link_state state=%s vhost=%s upstream=%s lag_records=%d",
            event["state"],
            event["vhost"],
            event.get("endpoint") or event["node"],
            lag_records,
        )
    else:
        logger.warning(
            "%s vhost=%s state=%s error=%s",
            "standby_incomplete" if event["state"] == "connected" else "standby_link_down",
            event["vhost"],
            event["state"],
            event["error"],
        )
