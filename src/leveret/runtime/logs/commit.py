"""Group commit: many appends, one sync, off the event loop.

A round takes every log that was appended to and every promise that waits, and syncs the logs in
threads (which release the GIL meanwhile): few logs by an fdatasync of each, several at once; many by one
syncfs of the file system, where that is as good (see storage.sync). What is appended meanwhile
forms the next round, so the batch grows by itself with the load. Promises are kept in the order they
were made: a callback runs only after the fdatasync of a round that *began* after its append, never on
one that was under way.

A round begins at once where anybody waits for it. Settlements and messages that are not confirmed wait for a round that
somebody needs, or a few milliseconds: else each ack, and each request of a remote procedure call, would cost an
fdatasync that nobody asked for, and a confirm that comes meanwhile would have to wait for its end.

Where there are followers, the *fence* sends them what was appended while the local disk is still at it, and a
promise waits for both. See runtime.replication.feed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs.sync_threads import SyncThreads
from leveret.storage.log import Log
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.summary import summarise
from leveret.storage.sync import FileSystem, close_descriptors, sync_descriptors

logger = logging.getLogger(__name__)

SYNCS_AT_ONCE: Final = 8
"""Measured on ext4: 100 logs took 240 ms one by one, 6 ms eight at once, no less with more."""

LOGS_AT_ONCE: Final = 1024
"""A round of more goes in parts: each file or directory needs a second descriptor while it is synced."""

UNAWAITED_S: Final = 0.02
"""When a round begins for what nobody waits for: 50 a second cost little, and lost power undoes that much at most."""

SYNC_AGAIN_S: Final = 0.05
"""When the system has no descriptor for that now."""

_CLOSED: Final = "the node stops, or does not lead any more"

Promise = Callable[[], None]


class ReplicationBarrier(Protocol):
    """What promises wait for beside the local disk; positions only rise."""

    def cut(self) -> int:
        """Everything appended so far goes out now; the position behind it."""

    def committed(self) -> int:
        """The position up to which promises may be kept."""

    def confirmable(self) -> int:
        """The position up to which publishers may be told that they were."""


class _Confirm(NamedTuple):
    """What a publisher is told when a position is confirmable, or is given up."""

    position: int
    promise: Promise
    given_up: Promise | None


class GroupCommit:
    """Makes logs durable and then keeps promises; see the module.

    Attributes:
        rounds: how many times the disk was waited for.
        begun: how many rounds began: what is appended while this stays what it is, is synced by the same one.
        waited_s: how long, all rounds together.
        replication_barrier: what promises wait for beside the disk; None for nothing.
        on_gone: told of a log whose files were removed while it was open, before any promise of what was in them is
            kept; whether it sees to those. If not, this fails.
    """

    def __init__(
        self,
        *,
        fsync: bool,
        on_failure: Callable[[BaseException], None],
        logs_at_once: int = LOGS_AT_ONCE,
        file_system: FileSystem | None = None,
    ) -> None:
        """With `fsync` False (durability = os) promises are kept at once and the kernel writes when it likes.

        `file_system` is the one that the logs are on, if it can be synced as a whole; it is closed with this.
        """
        self._file_system = file_system
        self._logs_at_once = self._part = logs_at_once
        self.rounds = 0
        self.waited_s = 0.0
        self.replication_barrier: ReplicationBarrier | None = None
        self.on_gone: Callable[[Log, Corrupt], bool] = _see_to_nothing
        self._waiting_for_barrier: deque[tuple[int, list[Promise]]] = deque()
        self._confirms: deque[_Confirm] = deque()
        self._keeping = 0
        self._settling: set[asyncio.Future[None]] = set()
        self._fsync = fsync
        self._on_failure = on_failure
        self._dirty: dict[Log, None] = {}
        self._promises: list[Promise] = []
        self.begun = 0
        self._when_synced: list[Promise] = []
        self._when_round_ends: list[Promise] = []
        self._is_awaited = False
        self._later: asyncio.TimerHandle | None = None
        self._running = False
        self._began_s = 0.0
        self._failed = False
        self._closed = False
        self._threads = SyncThreads(SYNCS_AT_ONCE, "fdatasync")
        self._summaries = ThreadPoolExecutor(max_workers=1, thread_name_prefix="summary")

    def close_deleted(self, descriptor: int) -> None:
        """Close the last descriptor of a deleted file, off the loop (storage.open_segments)."""
        try:
            self._threads.call(os.close, descriptor, _ignore)
        except RuntimeError:
            # The threads have ended, or the machine gives none.
            os.close(descriptor)

    def appended(self, log: Log) -> None:
        """The log must be synced by the next round."""
        self._dirty[log] = None

    def forget(self, log: Log) -> None:
        """The log is about to be deleted, or opened anew: it needs no sync."""
        self._dirty.pop(log, None)

    def when_durable(self, promise: Promise) -> None:
        """Call `promise` on the loop once everything appended so far is durable."""
        self._promises.append(promise)
        self._is_awaited = True

    def once_durable(self, then: Promise) -> None:
        """As `when_durable`, where nobody waits: a round begins for others, or within UNAWAITED_S."""
        self._promises.append(then)

    def when_synced(self, then: Promise) -> None:
        """Call `then` on the loop once this node's disk has the names, and with fsync the data, of all appended so far.

        For records of this node about its own disk: no follower is waited for, and with durability = os the names of a
        new log are synced, too.
        """
        self._when_synced.append(then)
        self._is_awaited = True

    def when_confirmable(self, promise: Promise, given_up: Promise | None = None) -> None:
        """As `when_durable`, for what a publisher is told: the fence may want more followers for that.

        `given_up` is called instead if the node waits for those no longer; without it, it waits.
        """
        self.when_durable(lambda: self._confirms.append(_Confirm(self._keeping, promise, given_up)))

    def give_up(self) -> None:
        """What is durable and waits only for more followers is not confirmed, where somebody is to be told so."""
        waiting, self._confirms = self._confirms, deque()
        for confirm in waiting:
            if confirm.given_up is None:
                self._confirms.append(confirm)
            else:
                confirm.given_up()

    def begin(self) -> None:
        """Start a round unless one is under way (then its end starts the next), or nobody waits (then soon)."""
        if self._closed:
            return
        position = self.replication_barrier.cut() if self.replication_barrier is not None else 0
        if not self._fsync and not self._failed:
            self._durable(position, self._take_promises())
        if self._running or self._failed or not (self._promises or self._dirty or self._when_synced):
            return
        if self._fsync and self._dirty and not self._is_awaited:
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(UNAWAITED_S, self._begin_unawaited)
            return
        promises = self._take_promises()
        dirty, self._dirty = self._dirty, {}
        self.begun += 1
        self._when_round_ends, self._when_synced = self._when_synced, []
        if not self._fsync:
            # A segment counts, and lets older ones go, once what came before it is synced: nobody waits for that.
            dirty = {log: None for log in dirty if log.wants_sync}
        if not dirty:
            self._round_ended()
            self._durable(position, promises)
            return
        self._began_s = time.perf_counter()
        self._sync_logs(position, promises, list(dirty))

    def _begin_unawaited(self) -> None:
        self._later = None
        self._is_awaited = True
        self.begin()

    def _sync_logs(self, position: int, promises: list[Promise], logs: list[Log]) -> None:
        """Sync the first of these logs, then the others, then keep the promises."""
        self._running = True
        try:
            descriptors, count = self._duplicates(logs)
            part, rest = logs[:count], logs[count:]
            self._sync(descriptors, lambda error: self._finished(error, position, promises, part, rest))
        except OutOfDescriptors as error:
            self._sync_later(error, position, promises, logs)
            return
        except (StorageError, RuntimeError) as error:
            # RuntimeError: the machine gives no thread. Were that only told, whoever waits would wait for ever.
            self.fail(error)
            return
        self._part = self._logs_at_once

    def _sync_later(
        self, error: OutOfDescriptors, position: int, promises: list[Promise], logs: list[Log]
    ) -> None:
        """Nothing was synced and nothing has failed: try again with fewer, until the system has descriptors.

        What waits goes on waiting. No later round can overtake this one, which counts as running.
        """
        if self._part == self._logs_at_once:
            logger.warning("fdatasync_waits error=%s action=retry", error)
        self._part = max(1, min(self._part, len(logs)) // 2)
        asyncio.get_running_loop().call_later(SYNC_AGAIN_S, self._sync_again, position, promises, logs)

    def _sync_again(self, position: int, promises: list[Promise], logs: list[Log]) -> None:
        if not self._closed and not self._failed:
            self._sync_logs(position, promises, logs)

    def _duplicates(self, logs: list[Log]) -> tuple[list[int], int]:
        """What is to be synced of the first of these logs, and of how many; a directory above many of them is once."""
        found: list[int] = []
        shared: set[Path] = set()
        count = 0
        try:
            for log in logs:
                if len(found) >= self._part:
                    break
                found += self._unsynced(log, shared)
                count += 1
        except BaseException:
            close_descriptors(found)
            raise
        return found, count

    def _unsynced(self, log: Log, shared: set[Path]) -> list[int]:
        try:
            return log.unsynced(shared)
        except Corrupt as error:
            if not self.on_gone(log, error):
                raise
            return []

    def _synced(self, log: Log) -> None:
        try:
            log.synced()
        except Corrupt as error:
            if not self.on_gone(log, error):
                raise
        for segment in log.take_sealed():
            self._summaries.submit(summarise, segment)

    def _sync(self, descriptors: list[int], finished: Callable[[BaseException | None], None]) -> None:
        """Begin to sync, each thread its share; the loop calls `finished` once, after the last of them."""
        if self._file_system is not None and self._file_system.is_better_for(descriptors):
            sync, shares = self._file_system.sync, [descriptors]
        else:
            sync = sync_descriptors
            shares = [descriptors[at::SYNCS_AT_ONCE] for at in range(min(SYNCS_AT_ONCE, len(descriptors)))]
        errors: list[BaseException | None] = []

        def ended(error: BaseException | None) -> None:
            errors.append(error)
            if len(errors) >= len(shares):
                finished(next(filter(None, errors), None))

        for share in shares:
            self._threads.call(sync, share, ended)
        if not shares:
            asyncio.get_running_loop().call_soon(ended, None)

    def fail(self, error: BaseException) -> None:
        """After a failed fdatasync the kernel may have dropped the pages, and the next one may yet succeed.

        So nothing that waits, and nothing behind it in a log, can ever be promised: no promise is kept from
        now on, and the node stops (it recovers from what is on disk).
        """
        self._failed = True
        self._on_failure(error)

    def _finished(
        self,
        error: BaseException | None,
        position: int,
        promises: list[Promise],
        logs: list[Log],
        rest: list[Log],
    ) -> None:
        self._running = False
        if self._closed:
            # These files may be another Log's by now, whose segments have their names and states from it.
            return
        if error is not None:
            self.fail(error)
            return
        try:
            for log in logs:
                self._synced(log)
        except (StorageError, RuntimeError) as refused:
            self.fail(refused)
            return
        if rest:
            self._sync_logs(position, promises, rest)
            return
        self.rounds += 1
        self.waited_s += time.perf_counter() - self._began_s
        self._round_ended()
        self._durable(position, promises)
        self.begin()

    def _round_ended(self) -> None:
        ended, self._when_round_ends = self._when_round_ends, []
        for then in ended:
            then()

    def _durable(self, position: int, promises: list[Promise]) -> None:
        """The local disk has what these promises need; the fence may not."""
        if promises:
            self._waiting_for_barrier.append((position, promises))
        self.keep()

    def keep(self) -> None:
        """Keep every promise that may be kept; the fence's owner calls it when followers have more."""
        if self._failed or self._closed:
            return
        held, confirms, replication_barrier = (
            self._waiting_for_barrier,
            self._confirms,
            self.replication_barrier,
        )
        try:
            while held and (replication_barrier is None or held[0][0] <= replication_barrier.committed()):
                self._keeping, promises = held.popleft()
                for promise in promises:
                    promise()
            while confirms and (
                replication_barrier is None or confirms[0].position <= replication_barrier.confirmable()
            ):
                confirms.popleft().promise()
        except Exception as bug:
            # The others would never be kept: whoever waits for them would wait for ever.
            logger.critical("promise_failed action=stop", exc_info=True)
            self.fail(bug)

    def _take_promises(self) -> list[Promise]:
        promises, self._promises = self._promises, []
        self._is_awaited = False
        return promises

    async def settle(self) -> None:
        """Wait until everything appended so far is durable and its promises are kept.

        Raises:
            StorageError: this ends before.
        """
        if self._closed:
            raise StorageError(_CLOSED)
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.add(kept)
        kept.add_done_callback(self._settling.discard)
        self.when_durable(lambda: None if kept.done() else kept.set_result(None))
        self.begin()
        await kept

    async def shared(self) -> None:
        """Wait until those of the fence have everything appended so far, outside a flush too; at once without one.

        Raises:
            StorageError: this ends before.
        """
        if self.replication_barrier is not None:
            await self.settle()

    def close(self) -> None:
        """End the threads, and keep no promise any more; who waits for `settle` waits in vain, and is told."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        for kept in tuple(self._settling):
            if not kept.done():
                kept.set_exception(StorageError(_CLOSED))
        self._threads.close()
        self._summaries.shutdown(wait=True, cancel_futures=True)
        if self._file_system is not None:
            self._file_system.close()
            self._file_system = None


def _ignore(error: BaseException | None) -> None:
    """A file that is deleted has nothing to lose."""


def _see_to_nothing(log: Log, error: Corrupt) -> bool:
    """Nobody knows what was to be promised."""
    return False
