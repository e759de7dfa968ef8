"""Background work of a serving node: retention, logs that begin anew, logs of deleted queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.upstream import UpstreamCollection
from leveret.runtime.logs.engine import Engine
from leveret.runtime.logs.log_store import LogStore
from leveret.runtime.process.clock import elapsed_ms
from leveret.storage.log import Log

logger = logging.getLogger(__name__)

_RETAIN_EVERY_S: Final = 5.0
_WATCH_EVERY_S: Final = 1.0
_RECLAIM_EVERY_S: Final = 1.0
_RECLAIM_REST_S: Final = 0.01
_RECLAIMED_AT_ONCE: Final = 32
_RELOCATED_STEPS: Final = 100
"""Steps of one queue before the other queues have their turn."""


class Upkeep:
    """See the module; `retain`, `watch_logs` and `reclaim` each run for ever."""

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        collector: Collector,
        upstream: UpstreamCollection,
        log_store: LogStore,
        log_gone: Callable[[Log, Corrupt], bool],
    ) -> None:
        """Begin nothing yet. `log_gone` is called with a log whose files were removed while it was open."""
        self._broker = broker
        self._engine = engine
        self._collector = collector
        self._upstream = upstream
        self._log_store = log_store
        self._log_gone = log_gone

    async def retain(self) -> None:
        """Run the retention of streams and outgoing logs, over and over."""
        while True:
            await asyncio.sleep(_RETAIN_EVERY_S)
            try:
                await self._collector.retain()
                self._log_store.queues.release_ended()
                self._log_store.streams.retain()
                self._upstream.open_again()
                self._collector.resume(self._broker.led_queues())
            except StorageError as error:
                logger.error("retention_failed error=%s action=retry", error)

    async def reclaim(self) -> None:
        """Let the logs of consumed queues begin anew, a few at a time: each makes a file, or reads some."""
        reclaiming = self._log_store.queues.reclaiming
        while True:
            await asyncio.sleep(_RECLAIM_EVERY_S)
            due = reclaiming.look(elapsed_ms())
            await self._reclaim_in(due)
            for _ in range(_RELOCATED_STEPS):
                if unfinished := reclaiming.relocating.unfinished:
                    await self._reclaim_in(unfinished)

    async def _reclaim_in(self, queues: list[Queue]) -> None:
        for at in range(0, len(queues), _RECLAIMED_AT_ONCE):
            for queue in queues[at : at + _RECLAIMED_AT_ONCE]:
                if self._broker.queues.get(queue.key) is queue:
                    self._broker.dirty[queue] = None
            self._engine.touch()
            await asyncio.sleep(_RECLAIM_REST_S)

    async def watch_logs(self) -> None:
        """Take a queue down when its directory is gone, even if nobody publishes to it."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            try:
                there = await asyncio.to_thread(self._log_store.names_there)
            except StorageError as error:
                logger.error("logs_not_watched error=%s action=retry", error)
                continue
            for log in self._log_store.gone(there) if there else ():
                self._log_gone(log, log.missing())
