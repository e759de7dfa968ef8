"""runtime.logs.commit: a promise is kept after a sync that began after what it promises, in order, or never."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.runtime.logs import commit as commit_module
from leveret.runtime.logs.commit import GroupCommit
from leveret.storage import dirty_memory, sync
from leveret.storage.kernel_syncs import KernelSyncs
from leveret.storage.log import Log
from leveret.storage.sync import close_descriptors, sync_descriptors
from leveret.testing.network.waiting import until
from tests.endings import at_end
from tests.unit.memory import scratch


class Disk:
    """fdatasync that a test lets go one at a time; knows what is durable when a promise is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.log = Log(directory, epoch=1).open()
        self.failures: list[BaseException] = []
        self.error: OSError | None = None
        self.syncing = 0
        self._gate = threading.Semaphore(0)
        monkeypatch.setattr(commit_module, "sync_descriptors", self._sync)

    def commit(self, *, fsync: bool = True) -> GroupCommit:
        """A commit that ends with its test."""
        commit = GroupCommit(fsync=fsync, on_failure=self.failures.append)

        async def close() -> None:
            commit.close()

        at_end(close)
        return commit

    def append(self, commit: GroupCommit) -> int:
        """Append a record; returns the end that a promise about it needs."""
        self.log.append(0, 1, 1, b"x", 0)
        commit.appended(self.log)
        return self.log.next_offset

    def let_go(self, syncs: int = 1) -> None:
        self._gate.release(syncs)

    def _sync(self, descriptors: list[int]) -> None:
        self.syncing += 1
        assert self._gate.acquire(timeout=10)
        if self.error is not None:
            sync_descriptors(descriptors)
            raise self.error
        sync_descriptors(descriptors)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    return Disk(monkeypatch, tmp_path / "log")


def promise(commit: GroupCommit, kept: list[str], name: str) -> None:
    """Have a round begin, and the name among what is kept once all that was appended is durable."""
    commit.when_durable(lambda: kept.append(name))
    commit.begin()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


async def test_a_promise_waits_for_the_sync(disk: Disk) -> None:
    commit, kept = disk.commit(), list[str]()
    disk.append(commit)
    promise(commit, kept, "a")
    await until(lambda: disk.syncing == 1)
    assert kept == []
    disk.let_go()
    await until(lambda: kept)
    assert (kept, commit.rounds) == (["a"], 1)


async def test_a_promise_is_not_kept_by_a_round_that_began_before_its_append(disk: Disk) -> None:
    commit, kept = disk.commit(), list[str]()
    disk.append(commit)
    promise(commit, kept, "a")
    await until(lambda: disk.syncing == 1)
    for name in ("b", "c"):
        disk.append(commit)
        commit.when_durable(lambda name=name: kept.append(name))  # type: ignore[misc]
        commit.begin()
    disk.let_go()
    await until(lambda: disk.syncing == 2)
    assert (kept, commit.rounds) == (["a"], 1)
    disk.let_go()
    await until(lambda: len(kept) == 3)
    assert (kept, commit.rounds) == (["a", "b", "c"], 2)
    assert commit.waited_s > 0


async def test_a_promise_about_nothing_new_is_kept_at_once_but_not_before_a_round_under_way(
    disk: Disk,
) -> None:
    commit, kept = disk.commit(), list[str]()
    promise(commit, kept, "nothing")
    assert kept == ["nothing"]
    disk.append(commit)
    commit.begin()
    promise(commit, kept, "behind")
    await until(lambda: disk.syncing == 1)
    assert kept == ["nothing"]
    disk.let_go()
    await until(lambda: len(kept) == 2)
    assert disk.syncing == 1


async def test_no_round_begins_for_what_nobody_waits_for_until_somebody_does(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "UNAWAITED_S", 60)

    commit, kept = disk.commit(), list[str]()
    disk.let_go(9)
    end = disk.append(commit)
    commit.once_durable(lambda: kept.append("unawaited"))
    commit.begin()
    await asyncio.sleep(0.02)
    assert (kept, disk.syncing) == ([], 0)
    promise(commit, kept, "awaited")
    await until(lambda: kept == ["unawaited", "awaited"])
    assert (disk.syncing, disk.log.synced_offset) == (1, end)
    disk.append(commit)
    commit.begin()
    await asyncio.sleep(0.02)
    assert disk.syncing == 1


async def test_a_round_for_what_nobody_waits_for_begins_soon(disk: Disk) -> None:
    commit, kept = disk.commit(), list[str]()
    disk.let_go(9)
    for number in ("a", "b"):
        end = disk.append(commit)
        commit.once_durable(lambda number=number: kept.append(number))  # type: ignore[misc]
        commit.begin()
    await until(lambda: kept)
    assert (kept, disk.syncing, disk.log.synced_offset) == (["a", "b"], 1, end)
    end = disk.append(commit)
    commit.begin()
    await until(lambda: disk.log.synced_offset == end)


async def test_what_nobody_waits_for_and_no_disk_has_to_keep_does_not_wait(disk: Disk) -> None:
    commit, kept = disk.commit(), list[str]()
    commit.once_durable(lambda: kept.append("a"))
    commit.begin()
    assert kept == ["a"]


async def test_few_logs_are_synced_by_the_kernel_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "sync_descriptors", None)
    failures, syncs = list[BaseException](), KernelSyncs()
    commit = GroupCommit(fsync=True, on_failure=failures.append, kernel_syncs=syncs)
    logs = [Log(tmp_path / str(each), epoch=1).open() for each in range(3)]
    for _ in range(3):
        for log in logs:
            log.append(0, 1, 1, b"x", 0)
            commit.appended(log)
        await commit.all_durable()
        assert [log.synced_offset for log in logs] == [log.next_offset for log in logs]
    assert (failures, commit.rounds) == ([], 3)


async def test_an_error_of_the_kernels_sync_keeps_no_promise(tmp_path: Path) -> None:
    class Failing(KernelSyncs):
        def ended(self) -> list[tuple[int, OSError | None]]:
            return [(number, OSError(errno.EIO, "refused")) for number, _ in super().ended()]

    failures, kept = list[BaseException](), list[str]()
    commit = GroupCommit(fsync=True, on_failure=failures.append, kernel_syncs=Failing())
    log = Log(tmp_path, epoch=1).open()
    log.append(0, 1, 1, b"x", 0)
    commit.appended(log)
    promise(commit, kept, "a")
    await until(lambda: bool(failures))
    assert "refused" in str(failures[0])
    assert (kept, log.synced_offset) == ([], 0)


async def test_what_is_dirty_is_written_back_for_nobody_and_the_next_round_is_one_syncfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "meminfo"
    memory.write_bytes(b"Dirty: 900000 kB\n")
    monkeypatch.setattr(dirty_memory, "_MEMORY", str(memory))
    monkeypatch.setattr(dirty_memory, "SHORT_S", 60.0)
    synced: list[str] = []
    monkeypatch.setattr(sync, "syncfs", lambda fd: synced.append(threading.current_thread().name))
    logs = [Log(tmp_path / str(each), epoch=1).open() for each in range(sync.TOGETHER_MIN)]

    failures: list[BaseException] = []
    file_system = sync.FileSystem(tmp_path)
    commit = GroupCommit(fsync=True, on_failure=failures.append, file_system=file_system)
    for round_number in range(2):
        for log in logs:
            log.append(0, 1, 1, b"x", 0)
            commit.appended(log)
        await commit.all_durable()
        await until(lambda count=round_number + 1: len(synced) == count)  # type: ignore[misc]
        await until(lambda: not file_system._dirty._is_written_back)
    assert synced[0].startswith("write_back")
    assert synced[1].startswith("fdatasync")
    assert failures == []


class Followers:
    """Those that a test says to have so much."""

    def __init__(self) -> None:
        self.shipped = 0
        self.acked = 0
        self.enough = 0

    def cut(self) -> int:
        self.shipped += 1
        return self.shipped

    def committed(self) -> int:
        return self.acked

    def confirmable(self) -> int:
        return self.enough


async def test_a_promise_waits_for_the_followers_too_and_a_confirm_for_enough_of_them(disk: Disk) -> None:
    commit, kept, followers = disk.commit(), list[str](), Followers()
    commit.replication_barrier = followers
    disk.append(commit)
    commit.when_durable(lambda: kept.append("reply"))
    commit.when_confirmable(lambda: kept.append("confirm"))
    commit.begin()
    disk.let_go()
    await until(lambda: commit.rounds == 1)
    assert kept == []
    followers.acked = followers.shipped
    commit.keep()
    assert kept == ["reply"]
    followers.enough = followers.shipped
    commit.keep()
    assert kept == ["reply", "confirm"]


async def test_a_promise_may_append_and_promise_again(disk: Disk) -> None:
    commit, kept = disk.commit(), list[str]()

    def first() -> None:
        kept.append("a")
        disk.append(commit)
        promise(commit, kept, "b")

    disk.append(commit)
    commit.when_durable(first)
    commit.begin()
    disk.let_go()
    await until(lambda: disk.syncing == 2)
    assert kept == ["a"]
    disk.let_go()
    await until(lambda: kept == ["a", "b"])


async def test_after_a_failed_sync_no_promise_is_ever_kept(disk: Disk) -> None:
    commit, kept = disk.commit(), list[str]()
    disk.append(commit)
    promise(commit, kept, "a")
    await until(lambda: disk.syncing == 1)
    disk.append(commit)
    commit.when_durable(lambda: kept.append("b"))
    disk.error = OSError(5, "Input/output error")
    disk.let_go()
    await until(lambda: disk.failures)
    assert disk.failures == [disk.error]
    disk.error = None
    disk.append(commit)
    promise(commit, kept, "c")
    disk.let_go()
    commit.close()
    await asyncio.sleep(0)
    assert (kept, disk.syncing, len(disk.failures)) == ([], 1, 1)


async def test_a_log_that_cannot_be_synced_at_all_is_a_failure_too(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, kept = disk.commit(), list[str]()
    disk.append(commit)
    commit.when_durable(lambda: kept.append("a"))

    def refuse(fd: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "dup", refuse)
    commit.begin()
    (failure,) = disk.failures
    assert "Input/output error" in str(failure)
    commit.begin()
    assert (kept, disk.syncing, len(disk.failures)) == ([], 0, 1)


def test_a_round_waits_for_descriptors_and_takes_fewer_logs_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promise is neither kept before its fdatasync nor given up because the system has no descriptor for a moment."""
    held: set[int] = set()
    available = 0
    real_dup = os.dup

    def dup(fd: int) -> int:
        if len(held) >= available:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        copy = real_dup(fd)
        held.add(copy)
        return copy

    def closerange(first: int, end: int) -> None:
        held.difference_update(range(first, end))
        real_closerange(first, end)

    def close(fd: int) -> None:
        held.discard(fd)
        real_close(fd)

    real_closerange, real_close = os.closerange, os.close
    monkeypatch.setattr(os, "dup", dup)
    monkeypatch.setattr(os, "close", close)
    monkeypatch.setattr(os, "closerange", closerange)
    monkeypatch.setattr(commit_module, "SYNC_AGAIN_S", 0.001)

    async def scenario() -> None:
        nonlocal available
        failures, kept = list[BaseException](), list[str]()
        commit = GroupCommit(fsync=True, on_failure=failures.append)
        logs = [Log(tmp_path / str(number), epoch=1).open() for number in range(5)]
        for log in logs:
            log.append(0, 1, 1, b"x", 0)
            commit.appended(log)
        commit.when_durable(lambda: kept.append("a"))
        tried: list[int] = []
        real_again = commit._sync_again

        def again(*about: Any) -> None:
            tried.append(1)
            real_again(*about)

        monkeypatch.setattr(commit, "_sync_again", again)
        commit.begin()
        await until(lambda: len(tried) > 3)
        assert (kept, failures, held) == ([], [], set())
        available = 1
        await until(lambda: kept == ["a"])
        assert [log.synced_offset for log in logs] == [1] * 5
        assert (failures, held) == ([], set())
        commit.close()

    run(scenario)


@pytest.mark.parametrize("wants", ["sync", "summary"])
async def test_a_machine_that_gives_no_thread_is_a_failure_and_nobody_waits_for_ever(
    wants: str, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, kept = disk.commit(), list[str]()

    def start(
        thread: threading.Thread, begin: Callable[[threading.Thread], None] = threading.Thread.start
    ) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        begin(thread)

    names = {"sync": "fdatasync", "summary": "summary"}[wants]
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(disk.log, "take_sealed", lambda: [Path("sealed")])
    disk.append(commit)
    promise(commit, kept, "a")
    disk.let_go(2)
    await until(lambda: disk.failures)
    assert (str(disk.failures[0]), kept) == ("can't start new thread", [])
    commit.begin()
    assert len(disk.failures) == 1


async def test_a_promise_that_cannot_be_kept_is_a_failure_and_none_after_it_is_kept(disk: Disk) -> None:
    commit, kept = disk.commit(), list[str]()
    bug = RuntimeError("a bug")

    def broken() -> None:
        raise bug

    disk.append(commit)
    commit.when_durable(broken)
    promise(commit, kept, "after")
    disk.let_go()
    await until(lambda: disk.failures)
    assert (disk.failures, kept) == ([bug], [])


@pytest.mark.parametrize(
    ("where", "fsync", "kept_before"),
    [
        ("when synced", True, []),
        ("when synced", False, ["a"]),
        ("a write beside", True, []),
        ("a write beside", False, []),
        ("the next round", True, ["a"]),
        ("the next round", False, ["a"]),
    ],
)
async def test_a_bug_in_a_round_is_told_and_a_failure_and_no_promise_is_kept_after_it(
    disk: Disk, caplog: pytest.LogCaptureFixture, where: str, fsync: bool, kept_before: list[str]
) -> None:
    """Else promises that the round took with it would wait for ever, or be kept without what they wait for."""
    commit, kept = disk.commit(fsync=fsync), list[str]()
    bug = RuntimeError("a bug")

    def broken() -> Any:
        raise bug

    disk.append(commit)
    if where == "when synced":
        commit.when_synced(broken)
    elif where == "a write beside":
        commit.beside(broken)
    else:
        commit.when_durable(lambda: commit.beside(broken))
    promise(commit, kept, "a")
    disk.let_go()
    if not fsync:
        commit.begin()
    await until(lambda: disk.failures)
    assert "round_failed action=stop" in caplog.text
    promise(commit, kept, "later")
    assert (disk.failures, kept) == ([bug], kept_before)


async def test_one_share_that_fails_is_a_failure_though_others_are_still_at_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No promise is kept, and every descriptor is given back."""
    disk.log.segment_bytes_max = 1
    closed: list[int] = []
    first = threading.Event()

    def close(descriptors: list[int]) -> None:
        closed.extend(descriptors)
        close_descriptors(descriptors)

    def sync(descriptors: list[int]) -> None:
        if not first.is_set():
            first.set()
            raise OSError(5, "Input/output error")

    commit, kept = disk.commit(), list[str]()
    monkeypatch.setattr(commit_module, "sync_descriptors", sync)
    monkeypatch.setattr(commit_module, "close_descriptors", close)
    for _ in range(20):
        disk.append(commit)
    promise(commit, kept, "a")
    await until(lambda: disk.failures)
    commit.close()
    await asyncio.sleep(0)
    assert (kept, len(disk.failures), len(closed), len(set(closed))) == ([], 1, 21, 21)


async def test_a_thread_frees_removed_files_and_a_closed_commit_leaves_them_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = list[tuple[str, bool]]()

    def free(path: Path) -> None:
        freed.append((path.name, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(commit_module, "free", free)
    commit = GroupCommit(fsync=True, on_failure=lambda error: None)
    commit.free(tmp_path / "a")
    await until(lambda: freed)
    commit.close()
    commit.free(tmp_path / "b")
    assert freed == [("a", False)]


async def test_without_fsync_promises_are_kept_at_once(disk: Disk) -> None:
    commit, kept = disk.commit(fsync=False), list[str]()
    disk.append(commit)
    promise(commit, kept, "a")
    assert (kept, disk.syncing) == (["a"], 0)


async def test_without_fsync_a_segment_counts_once_it_is_synced_beside_and_nobody_waits(
    disk: Disk, tmp_path: Path
) -> None:
    disk.log.segment_bytes_max = 1

    commit, kept = disk.commit(fsync=False), list[str]()
    disk.append(commit)
    disk.append(commit)
    promise(commit, kept, "a")
    await until(lambda: disk.syncing == 3)
    disk.append(commit)
    promise(commit, kept, "b")
    assert kept == ["a", "b"]
    disk.let_go(9)
    await until(lambda: not disk.log.is_rolling)
    assert disk.log.drop_before(2) == 2


async def test_a_round_of_many_logs_goes_in_parts_and_its_promises_wait_for_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: set[int] = set()
    most = 0
    real_dup = os.dup

    def dup(fd: int) -> int:
        nonlocal most
        copy = real_dup(fd)
        held.add(copy)
        most = max(most, len(held))
        return copy

    def sync(descriptors: list[int]) -> None:
        sync_descriptors(descriptors)
        held.difference_update(descriptors)

    monkeypatch.setattr(os, "dup", dup)
    monkeypatch.setattr(commit_module, "sync_descriptors", sync)

    commit = GroupCommit(fsync=True, on_failure=lambda error: None, logs_at_once=2)
    logs = [Log(tmp_path / str(number), epoch=1).open() for number in range(5)]
    for log in logs:
        log.append(0, 1, 1, b"x", 0)
        commit.appended(log)
    durable: list[int] = []
    commit.when_durable(lambda: durable.extend(log.synced_offset for log in logs))
    await commit.all_durable()
    assert (durable, most, commit.rounds) == ([1] * 5, 2, 1)


async def test_settle_waits_until_everything_so_far_is_durable(disk: Disk) -> None:
    commit = disk.commit()
    await commit.all_durable()
    disk.append(commit)
    waiting = asyncio.ensure_future(commit.all_durable())
    await until(lambda: disk.syncing == 1)
    assert not waiting.done()
    disk.let_go()
    await asyncio.wait_for(waiting, 60)


async def test_a_synced_segment_gets_its_final_name(disk: Disk, tmp_path: Path) -> None:
    disk.log.segment_bytes_max = 1

    commit = disk.commit()
    disk.append(commit)
    disk.append(commit)
    assert [path.suffix for path in sorted((tmp_path / "log").iterdir())] == [".segment", ".new"]
    disk.let_go(3)
    await commit.all_durable()
    assert [path.suffix for path in sorted((tmp_path / "log").iterdir())] == [".segment", ".segment"]


STEP = st.sampled_from(["append", "promise", "promise that nobody waits for", "begin", "let go"])


@settings(max_examples=60)
@given(st.lists(STEP, max_size=30))
def test_whatever_the_order_promises_are_kept_in_order_and_never_before_their_sync(steps: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, scratch() as directory:
        disk = Disk(monkeypatch, directory / "log")
        durable = [0]
        sync = disk._sync

        def noted(descriptors: list[int]) -> None:
            end = disk.log.next_offset
            sync(descriptors)
            durable.append(end)

        monkeypatch.setattr(commit_module, "sync_descriptors", noted)

        async def scenario() -> None:
            commit, made, kept = disk.commit(), 0, list[int]()

            def keep(number: int, needs: int) -> None:
                assert durable[-1] >= needs
                kept.append(number)

            for step in steps:
                if step == "append":
                    disk.append(commit)
                elif step.startswith("promise"):
                    number, needs = made, disk.log.next_offset
                    made += 1
                    tie = commit.when_durable if step == "promise" else commit.once_durable
                    tie(lambda number=number, needs=needs: keep(number, needs))  # type: ignore[misc]
                elif step == "begin":
                    commit.begin()
                    await asyncio.sleep(0)
                else:
                    disk.let_go()
                    await asyncio.sleep(0.001)
            for _ in steps:
                disk.let_go()
            await asyncio.wait_for(commit.all_durable(), 60)
            assert kept == list(range(made))
            commit.close()

        run(scenario)


async def test_what_is_under_way_when_it_is_closed_changes_nothing_any_more(disk: Disk) -> None:
    """The files are another Log's then, as when a leader becomes a follower: it knows them by their names of now."""

    commit, kept, failed = disk.commit(), list[str](), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
    disk.append(commit)
    disk.log.roll()
    disk.append(commit)
    promise(commit, kept, "a")
    await until(lambda: disk.syncing == 3)
    disk.let_go(3)
    commit.close()
    names = sorted(path.name for path in disk.log.directory.iterdir())
    for _ in range(5):
        await asyncio.sleep(0)
    assert sorted(path.name for path in disk.log.directory.iterdir()) == names
    assert (kept, failed) == ([], [])
    with pytest.raises(StorageError, match="no longer leads"):
        await commit.all_durable()
