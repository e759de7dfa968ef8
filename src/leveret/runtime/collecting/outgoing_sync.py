"""Makes outgoing logs durable, and serves what is durable; outside the confirm path, by a timer, in threads."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from leveret.model.errors import StorageError
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.storage.log_reader import uncache
from leveret.storage.summary import summarise
from leveret.storage.sync import sync_and_close

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S: Final = 0.05
BUSY_INTERVAL_S: Final = 0.01
BUSY_TIMES: Final = 4
"""While records come for a downstream, the pause after a sync: so many times its duration, but at least the first."""


class OutgoingSync:
    """See the module.

    Attributes:
        has_stopped: whether a sync failed, so that no more is served before a restart.
    """

    def __init__(self, logs: Mapping[str, OutgoingLog], shared: Callable[[], Awaitable[None]]) -> None:
        """Sync these logs, by vhost; the mapping may change. `shared` waits until followers have everything so far."""
        self.has_stopped = False
        self._logs = logs
        self._shared = shared
        self._has_logs = asyncio.Event()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outgoing")
        # A summary reads a whole segment again; a sync behind it would come that much later.
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outgoing-beside")

    def log_opened(self) -> None:
        """Note that there is a log."""
        self._has_logs.set()

    async def run(self) -> None:
        """Sync and serve until cancelled, while there is an outgoing log; the longest pause is FLUSH_INTERVAL_S.

        The pause is a part of a downstream's lag, and of a confirm that waits for one.
        """
        refused, pause_s = "", FLUSH_INTERVAL_S
        while True:
            if not self._logs:
                self._has_logs.clear()
                await self._has_logs.wait()
            await asyncio.sleep(pause_s)
            begun_s, pause_s = asyncio.get_running_loop().time(), FLUSH_INTERVAL_S
            try:
                pending = self._begin_commits()
            except StorageError as error:
                # Such as a moment without descriptors. Nothing counts as synced: it is due again.
                if str(error) != refused:
                    refused = str(error)
                    logger.error("collected_not_synced error=%s action=retry", error)
                continue
            refused = ""
            if any(fds for _, fds, _, _ in pending):
                if not await self._commit(pending):
                    return
                if any(log.downstreams.by_reference for log in self._logs.values()):
                    took_s = asyncio.get_running_loop().time() - begun_s
                    pause_s = min(FLUSH_INTERVAL_S, max(BUSY_INTERVAL_S, BUSY_TIMES * took_s))
            for log in self._logs.values():
                if transferred := log.take_transferred():
                    self._beside.submit(uncache, transferred)

    async def _commit(self, pending: list[tuple[OutgoingLog, list[int], int, int]]) -> bool:
        """Sync, and serve what is synced; return whether that goes on."""
        descriptors = [fd for _, fds, _, _ in pending for fd in fds]
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, sync_and_close, descriptors)
        except OSError as error:
            # Unsynced records may be gone from memory too: no more is served until a restart has completed
            # the outgoing logs from the queues' logs. The broker itself goes on.
            logger.critical("outgoing_fdatasync_failed error=%s action=restart_the_node", error)
            for log, *_ in pending:
                with suppress(StorageError):
                    log.sync_failed()
            self._stop_all()
            return False
        # Not before followers in sync have the records: a new leader completes its logs in an order of its
        # own, so downstreams that had got offsets early would miss records.
        try:
            await self._shared()
        except StorageError:
            return False
        for log, _, end, last in pending:
            try:
                log.log.synced()
            except StorageError as error:
                logger.critical("outgoing_log_gone error=%s action=restart_the_node", error)
                self._stop_all()
                return False
            log.commit(end, last)
            for segment in log.log.take_sealed():
                self._beside.submit(summarise, segment)
        return True

    def _stop_all(self) -> None:
        """Tell downstreams that the logs have stopped: everything committed is no longer everything."""
        self.has_stopped = True
        for log in self._logs.values():
            log.has_stopped = True

    def _begin_commits(self) -> list[tuple[OutgoingLog, list[int], int, int]]:
        """The pending syncs of each log, see `begin_commit`; of all logs or of none."""
        pending: list[tuple[OutgoingLog, list[int], int, int]] = []
        try:
            for log in self._logs.values():
                pending.append((log, *log.begin_commit()))
        except StorageError:
            for fd in (fd for _, fds, _, _ in pending for fd in fds):
                os.close(fd)
            raise
        return pending

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown(wait=True)
        self._beside.shutdown(wait=True)
