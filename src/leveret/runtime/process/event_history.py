"""The events of this node, for operators: rehearsals, promotions, fail-overs, each with the user who began it.

A state file of the tree keeps the last events, so followers have them too, and a promoted node knows the events of its
leader. A long event is stored twice: at its begin, so that an event that its node did not survive is known as
interrupted, and at its end. The history informs people: if the disk refuses it, the node logs that, and no work waits
for it or fails because of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from leveret.model.errors import StorageError
from leveret.model.job_progress import JobProgress
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

EVENTS_MAX: Final = 200
FILE: Final = "event_history.json"


class NodeEvent(msgspec.Struct, kw_only=True):
    """One event.

    Attributes:
        kind: `rehearsal`, `promotion`, `recovery_into`, `rejoin`, `follower_promotion`, `fail_over`, `queues_led_on`.
        by: the user who began it; empty if the node began it.
        ended_ms: the time of its end; None while it runs, and for ever if its node did not survive it.
        error: the reason of its failure; empty if it did not fail.
        result: numbers and short texts that describe the outcome.
    """

    kind: str
    begun_ms: int
    by: str = ""
    ended_ms: int | None = None
    error: str = ""
    result: dict[str, Any] = {}


class RunningEvent:
    """A running event with its `progress`."""

    def __init__(self, event: NodeEvent) -> None:
        """Start an event."""
        self.event = event
        self.progress = JobProgress("beginning")


class EventHistory:
    """See the module."""

    def __init__(self, file: StateFile, clock_ms: Callable[[], int]) -> None:
        """Read nothing yet: on a follower the leader may replace the file at any time."""
        self._file = file
        self._clock_ms = clock_ms
        self._running: list[RunningEvent] = []
        self._last_ms = 0
        self._saving = threading.Lock()

    # -- store ------------------------------------------------------------------------------

    async def add(self, kind: str, by: str = "", **result: Any) -> None:
        """Store an event without duration."""
        begun_ms = self._begun_ms()
        await self._save(NodeEvent(kind=kind, begun_ms=begun_ms, by=by, ended_ms=begun_ms, result=result))

    async def begin(self, kind: str, by: str, **result: Any) -> RunningEvent:
        """Store the begin of an event; the caller calls `end` later. `result` holds what is known so far."""
        running = RunningEvent(NodeEvent(kind=kind, begun_ms=self._begun_ms(), by=by, result=result))
        self._running.append(running)
        await self._save(running.event)
        return running

    async def withdraw(self, running: RunningEvent) -> None:
        """Remove an event whose request was declined."""
        if running in self._running:
            self._running.remove(running)
            await self._save(running.event, is_withdrawn=True)

    def note(self, running: RunningEvent, step: Mapping[str, Any]) -> None:
        """Take a report of the event's pipeline process."""
        running.progress.take(step, self._clock_ms())

    async def end(self, running: RunningEvent, error: str = "", **result: Any) -> None:
        """Store the end of an event."""
        if running not in self._running:
            return
        self._running.remove(running)
        event = running.event
        event.ended_ms, event.error, event.result = self._clock_ms(), error, event.result | result
        await self._save(event)

    def _begun_ms(self) -> int:
        """Return the time, made unique in this process: kind and begin identify an event."""
        self._last_ms = max(self._clock_ms(), self._last_ms + 1)
        return self._last_ms

    async def led(self, node: str, epoch: int) -> None:
        """Store a fail-over: this node leads in an epoch that is neither the first nor stored already."""
        led = [each.result.get("epoch", 0) for each in self._load() if each.kind == "fail_over"]
        if epoch > max([1, *led]):
            await self.add("fail_over", epoch=epoch, leader=node)

    # -- show ------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Return all events, newest first, with `is_running`."""
        begun = {(each.event.kind, each.event.begun_ms) for each in self._running}
        rows: list[dict[str, Any]] = msgspec.to_builtins(list(reversed(self._load())))
        return [row | {"is_running": (row["kind"], row["begun_ms"]) in begun} for row in rows]

    def running(self) -> list[dict[str, Any]]:
        """Return the running events with their progress, from memory."""
        now_ms = self._clock_ms()
        return [
            {
                "kind": each.event.kind,
                "by": each.event.by,
                "begun_ms": each.event.begun_ms,
                "step": each.progress.step,
                "done": each.progress.done,
                "total": each.progress.total,
                "seconds_left": each.progress.seconds_left(now_ms),
            }
            for each in self._running
        ]

    def _load(self) -> list[NodeEvent]:
        try:
            return msgspec.convert(self._file.load().get("events", []), list[NodeEvent])
        except (StorageError, msgspec.ValidationError) as error:
            logger.error("event_history_not_read error=%s", error)
            return []

    async def _save(self, event: NodeEvent, *, is_withdrawn: bool = False) -> None:
        try:
            loop = asyncio.get_running_loop()
            await asyncio.to_thread(self._keep, msgspec.to_builtins(event), is_withdrawn, loop)
        except StorageError as error:
            logger.warning("event_not_kept kind=%s error=%s", event.kind, error)

    def _keep(self, event: dict[str, Any], is_withdrawn: bool, loop: asyncio.AbstractEventLoop) -> None:
        """Append an event, and remove the entry of its begin."""
        with self._saving:
            # A file that cannot be read now, for want of a descriptor, is not replaced by a history of one event.
            self._file.octets()
            kept = [
                each
                for each in msgspec.to_builtins(self._load())
                if (each["kind"], each["begun_ms"]) != (event["kind"], event["begun_ms"])
            ]
            events = (kept if is_withdrawn else [*kept, event])[-EVENTS_MAX:]
            self._file.save_in_thread({"events": events}, loop.call_soon_threadsafe)
