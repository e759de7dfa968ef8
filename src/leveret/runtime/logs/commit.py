"""Group commit: many appends, one sync, off the event loop.

A round takes every log that was appended to and every waiting promise, and syncs the logs: few by an fdatasync of each,
which the kernel does by itself where it can (storage.kernel_syncs), or else threads; many by a thread's syncfs of the
file system, where that is as good (storage.sync). Appends during a round form the next one, so the batch grows by
itself with the load. Promises are kept in their order: a callback runs only after the sync of a round that *began*
after its append, never after one that was running then.

A round begins at once if a promise to a client waits for it. Settlements and unconfirmed messages wait for such a
round, or a few milliseconds. Otherwise each ack, and each request of a remote procedure call, would cost an fdatasync
without need, and a confirm during that sync would have to wait for its end.

If there are followers, the *replication barrier* sends them the appended records while the local sync runs, and a
promise waits for both. See runtime.replication.feed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs.loop_syncs import LoopSyncs
from leveret.runtime.logs.sync_threads import SyncThreads
from leveret.storage.kernel_syncs import KernelSyncs
from leveret.storage.log import Log
from leveret.storage.open_segments import DiskFailed, OutOfDescriptors
from leveret.storage.removed import free
from leveret.storage.summary import summarise
from leveret.storage.sync import FileSystem, close_descriptors, sync_descriptors

logger = logging.getLogger(__name__)

SYNCS_AT_ONCE: Final = 8
"""Measured on ext4: 100 logs took 240 ms one by one, 6 ms eight at once, and no less with more."""

BY_KERNEL_BYTES_MAX: Final = 64 * 1024
"""With more octets, threads sync few logs, too: the kernel's thread uses the processor of the event loop."""

LOGS_AT_ONCE: Final = 1024
"""A larger round goes in parts: each file or directory needs a second descriptor while it is synced."""

UNAWAITED_S: Final = 0.02
"""The wait of a round without promises: 50 rounds a second cost little, and power loss undoes no more than that time.
"""

SYNC_AGAIN_S: Final = 0.05
"""The wait for a descriptor when the system has none left."""

_CLOSED: Final = "the node stops, or no longer leads"

Promise = Callable[[], None]
Write = Callable[[], None]
"""A write that a thread does beside the syncs of a round; it handles its own errors."""


class ReplicationBarrier(Protocol):
    """The position of other nodes that promises wait for beside the local disk; positions only rise."""

    def cut(self) -> int:
        """Send everything appended so far, and return the position behind it."""

    def committed(self) -> int:
        """The position up to which promises may be kept."""

    def confirmable(self) -> int:
        """The position up to which publishers may get confirms."""


class _Confirm(NamedTuple):
    """The callbacks for a publisher when a position is confirmable, or is given up."""

    position: int
    promise: Promise
    given_up: Promise | None


class GroupCommit:
    """Makes logs durable and then keeps promises; see the module.

    Attributes:
        rounds: the number of finished rounds.
        begun: the number of rounds that began; all appends while it is constant are synced by the same round.
        waited_s: the time of all rounds together.
        unsynced_logs_max: while more logs are unsynced, no other log should be appended to (logs.backpressure).
        replication_barrier: the followers' part of promises; None without followers.
        on_gone: called with a log whose files were removed while it was open, before any promise of their records is
            kept; returns whether it prevents those promises. If it does not, the commit fails.
    """

    def __init__(
        self,
        *,
        fsync: bool,
        on_failure: Callable[[BaseException], None],
        logs_at_once: int = LOGS_AT_ONCE,
        file_system: FileSystem | None = None,
        kernel_syncs: KernelSyncs | None = None,
    ) -> None:
        """Without `fsync` (durability = os) promises are kept at once, and the kernel writes at its own time.

        `file_system` is the logs' file system, if it can be synced as a whole, `kernel_syncs` the kernel's queue for
        single files, if it has one; `close` closes both.
        """
        self._file_system = file_system
        self._loop_syncs = LoopSyncs(kernel_syncs)
        self._logs_at_once = self._part = logs_at_once
        self.rounds = 0
        self.waited_s = 0.0
        self.replication_barrier: ReplicationBarrier | None = None
        self.on_gone: Callable[[Log, Corrupt], bool] = _see_to_nothing
        self._waiting_for_barrier: deque[tuple[int, list[Promise]]] = deque()
        self._confirms: deque[_Confirm] = deque()
        self._keeping = 0
        self._awaiting_durable: set[asyncio.Future[None]] = set()
        self._fsync = fsync
        self._on_failure = on_failure
        self._dirty: dict[Log, None] = {}
        self._forgotten: set[Log] = set()
        self._promises: list[Promise] = []
        self.begun = 0
        self._when_synced: list[Promise] = []
        self._when_round_ends: list[Promise] = []
        self._prepared: list[Callable[[], Write]] = []
        self._writes: list[Write] = []
        self._is_awaited = False
        self._later: asyncio.TimerHandle | None = None
        self._running = False
        self._syncing_logs = 0
        self.unsynced_logs_max = sys.maxsize
        self._began_s = 0.0
        self._failed = False
        self._closed = False
        self._threads = SyncThreads(SYNCS_AT_ONCE, "fdatasync")
        self._write_back = SyncThreads(1, "write_back")
        self._freeing = SyncThreads(1, "free")
        self._summaries = ThreadPoolExecutor(max_workers=1, thread_name_prefix="summary")

    def free(self, path: Path) -> None:
        """Remove a file or directory for good, off the loop (storage.removed); the next start does it after `close`."""
        try:
            self._freeing.call(self._free, path, _ignore)
        except RuntimeError:
            # No loop runs, the threads have ended, or the machine gives none.
            self._free(path)

    def _free(self, path: Path) -> None:
        if not self._closed:
            free(path)

    @property
    def unsynced_logs(self) -> int:
        """The number of logs that the running round, or the next one, has to sync."""
        return self._syncing_logs + len(self._dirty)

    def appended(self, log: Log) -> None:
        """Have the next round sync this log."""
        self._dirty[log] = None

    def forget(self, log: Log) -> None:
        """Exclude a log from syncs, because it is going to be deleted or opened anew.

        A round that goes in parts may come to it later: then its files may be gone, and nothing of it is promised.
        """
        self._dirty.pop(log, None)
        if self._running:
            self._forgotten.add(log)

    def beside(self, prepare: Callable[[], Write]) -> None:
        """Have the next round do a write in a thread beside its syncs, so all promises from now on wait for it.

        `prepare` is called on the loop at the next `begin`, before changes are sent to the followers, and returns the
        write. With durability = os, promises do not wait.
        """
        self._prepared.append(prepare)

    def when_durable(self, promise: Promise) -> None:
        """Call `promise` on the loop once everything appended so far is durable."""
        self._promises.append(promise)
        self._is_awaited = True

    def once_durable(self, then: Promise) -> None:
        """As `when_durable`, without starting a round: `then` waits for another one, or UNAWAITED_S."""
        self._promises.append(then)

    def when_synced(self, then: Promise) -> None:
        """Call `then` on the loop once this node's disk has all names so far and, with fsync, all data.

        This is for records of this node about its own disk: it waits for no follower, and with durability = os the
        names of a new log are synced, too.
        """
        self._when_synced.append(then)
        self._is_awaited = True

    def when_confirmable(self, promise: Promise, given_up: Promise | None = None) -> None:
        """As `when_durable`, for confirms, for which the replication barrier may need more followers.

        `given_up` is called instead if the node stops waiting for them; without it, the confirm waits on.
        """
        self.when_durable(lambda: self._confirms.append(_Confirm(self._keeping, promise, given_up)))

    def give_up(self) -> None:
        """Give up confirms that are durable and wait for more followers only, if they have a `given_up`."""
        waiting, self._confirms = self._confirms, deque()
        for confirm in waiting:
            if confirm.given_up is None:
                self._confirms.append(confirm)
            else:
                confirm.given_up()

    def begin(self) -> None:
        """Start a round unless one is running (its end starts the next), or no promise waits (then it starts soon)."""
        if self._has_work:
            self._step(self._begin)

    @property
    def _has_work(self) -> bool:
        """Whether a begin has an effect; many flushes in quick succession, such as those of gets, leave none to do."""
        if not self._fsync or self._prepared or self.replication_barrier is not None:
            return True
        is_coming = self._later is not None and self._dirty and not self._is_awaited
        return bool(self._promises or self._dirty or self._when_synced or self._writes) and not is_coming

    def _step(self, step: Callable[..., None], *arguments: Any) -> None:
        """Do a step of a round, and stop the node if a bug ends it half-way.

        What the step took with it is lost: promises, which would wait for ever without a sentence in the log, or a
        write that later promises wait for, which would be kept without it. Whether their records are on disk does not
        matter then: none is confirmed, the next start recovers from the disk, and publishers send again.
        """
        try:
            step(*arguments)
        except Exception as bug:
            logger.critical("round_failed action=stop", exc_info=True)
            self.fail(bug)

    def _begin(self) -> None:
        if self._closed:
            return
        prepared, self._prepared = self._prepared, []
        self._writes += [prepare() for prepare in prepared]
        position = self.replication_barrier.cut() if self.replication_barrier is not None else 0
        if not self._fsync and not self._failed:
            self._durable(position, self._take_promises())
        is_due = self._promises or self._dirty or self._when_synced or self._writes
        if self._running or self._failed or not is_due:
            return
        if self._fsync and (self._dirty or self._writes) and not self._is_awaited:
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(
                    UNAWAITED_S, self._step, self._begin_unawaited
                )
            return
        promises = self._take_promises()
        dirty, self._dirty = self._dirty, {}
        self.begun += 1
        self._when_round_ends, self._when_synced = self._when_synced, []
        if not self._fsync:
            # A new segment becomes final, and old ones can go, once its predecessor is synced, with or without a
            # promise.
            dirty = {log: None for log in dirty if log.wants_sync}
        if not (dirty or self._writes):
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
        self._running, self._syncing_logs = True, len(logs)
        try:
            unsynced_bytes = sum(log.unsynced_bytes for log in logs)
            descriptors, count = self._duplicates(logs)
            part, rest = logs[:count], logs[count:]
            is_small = unsynced_bytes <= BY_KERNEL_BYTES_MAX and len(descriptors) <= SYNCS_AT_ONCE
            self._sync(
                descriptors,
                lambda error: self._step(self._finished, error, position, promises, part, rest),
                is_small=is_small,
            )
        except OutOfDescriptors as error:
            self._sync_later(error, position, promises, logs)
            return
        except (StorageError, RuntimeError) as error:
            # RuntimeError: the machine gives no thread. Unless this fails, the promises would wait for ever.
            self.fail(error)
            return
        self._part = self._logs_at_once

    def _sync_later(
        self, error: OutOfDescriptors, position: int, promises: list[Promise], logs: list[Log]
    ) -> None:
        """Try again with fewer logs, until the system has descriptors; no sync has failed.

        All promises wait on. No later round can overtake this one, which counts as running.
        """
        if self._part == self._logs_at_once:
            logger.warning("fdatasync_waits error=%s action=retry", error)
        self._part = max(1, min(self._part, len(logs)) // 2)
        asyncio.get_running_loop().call_later(
            SYNC_AGAIN_S, self._step, self._sync_again, position, promises, logs
        )

    def _sync_again(self, position: int, promises: list[Promise], logs: list[Log]) -> None:
        if not self._closed and not self._failed:
            self._sync_logs(position, promises, logs)

    def _duplicates(self, logs: list[Log]) -> tuple[list[int], int]:
        """The descriptors to sync for the first of these logs, and the number of these logs.

        Shared directories come once.
        """
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
            if log not in self._forgotten and not self.on_gone(log, error):
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

    def _sync(
        self, descriptors: list[int], finished: Callable[[BaseException | None], None], *, is_small: bool
    ) -> None:
        """Sync the descriptors, which are closed afterwards; the loop calls `finished` once, after the last sync."""
        errors: list[BaseException | None] = []

        def ended(error: BaseException | None) -> None:
            errors.append(error)
            if len(errors) >= due:
                finished(next(filter(None, errors), None))

        by_kernel = 0
        if self._file_system is not None and self._file_system.is_better_for(descriptors):
            sync, shares = self._file_system.sync, [descriptors]
        else:
            if self._file_system is not None and self._file_system.begin_write_back():
                self._write_back.call(self._file_system.write_back, None, _ignore)
            if is_small:
                by_kernel = self._loop_syncs.begin(descriptors, ended)
                close_descriptors(descriptors[:by_kernel])
                descriptors = descriptors[by_kernel:]
            sync = sync_descriptors
            shares = [descriptors[at::SYNCS_AT_ONCE] for at in range(min(SYNCS_AT_ONCE, len(descriptors)))]
        writes, self._writes = self._writes, []
        due = by_kernel + len(shares) + len(writes)
        for share in shares:
            self._threads.call(sync, share, ended, close_descriptors)
        for write in writes:
            self._threads.call(_do, write, ended)
        if not due:
            asyncio.get_running_loop().call_soon(ended, None)

    def fail(self, error: BaseException) -> None:
        """Keep no promise from now on, and stop the node, because an fdatasync failed.

        The kernel may have dropped the dirty pages, and the next fdatasync may succeed without them. So no waiting
        record, and no later one in the same log, can ever be promised. The next start recovers from the disk.
        """
        self._failed = True
        self._on_failure(error)

    def refused(self, error: StorageError) -> None:
        """As `fail`, if a refused append means that this disk takes nothing any more.

        A mirror, a follower or the next start serves better than a node that refuses everything.
        """
        if isinstance(error, DiskFailed):
            self.fail(error)

    def _finished(
        self,
        error: BaseException | None,
        position: int,
        promises: list[Promise],
        logs: list[Log],
        rest: list[Log],
    ) -> None:
        self._running, self._syncing_logs = False, len(rest)
        if self._closed:
            # The files may belong to another Log by now, which gave their segments their names and states.
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
        self._forgotten.clear()
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
        """Note that the local disk has these promises' records; the followers may not."""
        if promises:
            self._waiting_for_barrier.append((position, promises))
        self.keep()

    def keep(self) -> None:
        """Keep every promise that may be kept; the replication barrier's owner calls it when followers have more."""
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
            # The other promises would wait for ever.
            logger.critical("promise_failed action=stop", exc_info=True)
            self.fail(bug)

    def _take_promises(self) -> list[Promise]:
        promises, self._promises = self._promises, []
        self._is_awaited = False
        return promises

    async def summarised(self) -> None:
        """Wait until each segment that was sealed so far has its summary, if it gets one (storage.summary).

        Raises:
            StorageError: the node ends before.
        """
        if self._closed:
            raise StorageError(_CLOSED)
        await asyncio.get_running_loop().run_in_executor(self._summaries, _nothing)

    async def all_durable(self) -> None:
        """Wait until everything appended so far is durable and its promises are kept.

        Raises:
            StorageError: the node ends before.
        """
        if self._closed:
            raise StorageError(_CLOSED)
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaiting_durable.add(kept)
        kept.add_done_callback(self._awaiting_durable.discard)
        self.when_durable(lambda: None if kept.done() else kept.set_result(None))
        self.begin()
        await kept

    async def shared(self) -> None:
        """Wait until the followers have everything appended so far; may be called outside a flush.

        At once without followers.

        Raises:
            StorageError: the node ends before.
        """
        if self.replication_barrier is not None:
            await self.all_durable()

    def close(self) -> None:
        """End the threads and keep no more promises; waiting calls of `all_durable` raise."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        for kept in tuple(self._awaiting_durable):
            if not kept.done():
                kept.set_exception(StorageError(_CLOSED))
        self._threads.close()
        self._loop_syncs.close()
        self._write_back.close()
        self._freeing.close()
        self._summaries.shutdown(wait=True, cancel_futures=True)
        if self._file_system is not None:
            self._file_system.close()
            self._file_system = None


def _ignore(error: BaseException | None) -> None:
    """Ignore an error: a deleted file has nothing to lose, and a round hears of what a write-back finds wrong."""


def _nothing() -> None:
    """Follow what a thread does before it."""


def _do(write: Write) -> None:
    write()


def _see_to_nothing(log: Log, error: Corrupt) -> bool:
    """Prevent no promise."""
    return False
