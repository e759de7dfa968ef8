"""Group commit: many appends, one fdatasync, off the event loop.

A round takes every log that was appended to and every promise that waits, and syncs the logs in
threads (fdatasync releases the GIL), several at once: the kernel makes one commit of its journal of
what waits together, so a hundred logs cost a round hardly more than a few. What is appended meanwhile
forms the next round, so the batch grows by itself with the load. Promises are kept in the order they
were made: a callback runs only after the fdatasync of a round that *began* after its append, never on
one that was under way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from leveret.model.errors import StorageError
from leveret.storage.log import Log, sync_descriptors
from leveret.storage.summary import summarise

logger = logging.getLogger(__name__)

SYNCS_AT_ONCE: Final = 8
"""Measured on ext4: 100 logs took 240 ms one by one, 6 ms eight at once, no less with more."""

LOGS_AT_ONCE: Final = 1024
"""A round of more logs goes in parts: each needs a second descriptor of its file while it is synced."""

Promise = Callable[[], None]


class GroupCommit:
    """Makes logs durable and then keeps promises; see the module.

    Attributes:
        rounds: how many times the disk was waited for.
        waited_s: how long, all rounds together.
    """

    def __init__(self, *, fsync: bool, on_failure: Callable[[BaseException], None]) -> None:
        """With `fsync` False (durability = os) promises are kept at once and the kernel writes when it likes."""
        self.rounds = 0
        self.waited_s = 0.0
        self._fsync = fsync
        self._on_failure = on_failure
        self._dirty: dict[Log, None] = {}
        self._promises: list[Promise] = []
        self._running = False
        self._began_s = 0.0
        self._failed = False
        self._executor = ThreadPoolExecutor(max_workers=SYNCS_AT_ONCE, thread_name_prefix="fdatasync")
        self._summaries = ThreadPoolExecutor(max_workers=1, thread_name_prefix="summary")

    def appended(self, log: Log) -> None:
        """The log must be synced by the next round."""
        self._dirty[log] = None

    def when_durable(self, promise: Promise) -> None:
        """Call `promise` on the loop once everything appended so far is durable."""
        self._promises.append(promise)

    def begin(self) -> None:
        """Start a round unless one is under way (then its end starts the next)."""
        if not self._fsync and not self._failed:
            self._keep(self._take_promises())
        if self._running or self._failed or not (self._promises or self._dirty):
            return
        promises = self._take_promises()
        dirty, self._dirty = self._dirty, {}
        if not self._fsync:
            # A segment counts, and lets older ones go, once what came before it is synced: nobody waits for that.
            dirty = {log: None for log in dirty if log.is_rolling}
        if not dirty:
            self._keep(promises)
            return
        self._began_s = time.perf_counter()
        self._sync_logs(promises, list(dirty))

    def _sync_logs(self, promises: list[Promise], logs: list[Log]) -> None:
        """Sync the first of these logs, then the others, then keep the promises."""
        part, rest = logs[:LOGS_AT_ONCE], logs[LOGS_AT_ONCE:]
        try:
            descriptors = [fd for log in part for fd in log.unsynced()]
        except StorageError as error:
            self._fail(error)
            return
        self._running = True
        done = asyncio.gather(*self._sync(descriptors))
        done.add_done_callback(lambda future: self._finished(future, promises, part, rest))

    def _sync(self, descriptors: list[int]) -> list[asyncio.Future[None]]:
        """Begin to sync, each thread its share."""
        loop = asyncio.get_running_loop()
        shares = [descriptors[at::SYNCS_AT_ONCE] for at in range(min(SYNCS_AT_ONCE, len(descriptors)))]
        return [loop.run_in_executor(self._executor, sync_descriptors, share) for share in shares]

    def _fail(self, error: BaseException) -> None:
        """After a failed fdatasync the kernel may have dropped the pages, and the next one may yet succeed.

        So nothing that waits, and nothing behind it in a log, can ever be promised: no promise is kept from
        now on, and the node stops (it recovers from what is on disk).
        """
        self._failed = True
        self._on_failure(error)

    def _finished(
        self, future: asyncio.Future[list[None]], promises: list[Promise], logs: list[Log], rest: list[Log]
    ) -> None:
        self._running = False
        error = future.exception()
        if error is not None:
            self._fail(error)
            return
        for log in logs:
            log.synced()
            for segment in log.take_sealed():
                self._summaries.submit(summarise, segment)
        if rest:
            self._sync_logs(promises, rest)
            return
        self.rounds += 1
        self.waited_s += time.perf_counter() - self._began_s
        try:
            self._keep(promises)
        except Exception as bug:
            # The others would never be kept: whoever waits for them would wait for ever.
            logger.critical("promise_failed action=stop", exc_info=True)
            self._fail(bug)
            return
        self.begin()

    def _take_promises(self) -> list[Promise]:
        promises, self._promises = self._promises, []
        return promises

    def _keep(self, promises: list[Promise]) -> None:
        for promise in promises:
            promise()

    async def settle(self) -> None:
        """Wait until everything appended so far is durable and its promises are kept."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_durable(lambda: None if kept.done() else kept.set_result(None))
        self.begin()
        await kept

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown(wait=True)
        self._summaries.shutdown(wait=True, cancel_futures=True)
