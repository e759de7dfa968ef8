"""Logs that are opened anew, or removed, while a round of group commit goes through thousands of logs in parts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.runtime.logs import commit as commit_module
from leveret.runtime.logs.commit import GroupCommit
from leveret.storage.log import Log
from leveret.storage.sync import sync_descriptors
from leveret.storage.tree import Tree
from leveret.testing.network.waiting import until


def cut(commit: GroupCommit, tree: Tree, log: Log) -> None:
    """As a mirror whose last records its new leader does not have."""
    commit.forget(log)
    log.close()
    del tree.logs[log.name]
    tree.log(log.directory).open(with_messages=False, cut_at=1)


def give_up(commit: GroupCommit, tree: Tree, log: Log) -> None:
    """As a mirror's part of a log before its begin that is of no use any more: nobody opens it again."""
    commit.forget(log)
    log.close()
    del tree.logs[log.name]
    shutil.rmtree(log.directory)


def remove(commit: GroupCommit, tree: Tree, log: Log) -> None:
    commit.forget(log)
    log.delete()


def reopen(commit: GroupCommit, tree: Tree, log: Log) -> None:
    """As a mirror that leads from now on."""
    commit.forget(log)
    log.close()
    del tree.logs[log.name]
    commit.appended(tree.log(log.directory).open(with_messages=False, sync=False))


@pytest.mark.parametrize("change", [cut, give_up, remove, reopen])
async def test_a_log_that_is_cut_before_its_part_of_a_round_fails_no_node(
    change: Callable[[GroupCommit, Tree, Log], None], monkeypatch: pytest.MonkeyPatch, disk_path: Path
) -> None:
    failures: list[BaseException] = []
    gate, syncing = threading.Semaphore(0), [0]

    def sync(descriptors: list[int]) -> None:
        syncing[0] += 1
        assert gate.acquire(timeout=10)
        sync_descriptors(descriptors)

    monkeypatch.setattr(commit_module, "sync_descriptors", sync)
    commit = GroupCommit(fsync=True, on_failure=failures.append, logs_at_once=1)
    tree = Tree(disk_path)
    first, second = (tree.log(disk_path / "queues" / name).open() for name in "ab")
    for log in (first, second):
        for _ in range(2):
            log.append(0, 1, 1, b"x", 0)
            log.sync()
            log.roll()
        log.append(0, 1, 1, b"x", 0)
        commit.appended(log)
    kept: list[int] = []
    commit.when_durable(lambda: kept.append(1))
    commit.begin()
    await until(lambda: bool(syncing[0]))
    change(commit, tree, second)
    gate.release(100)
    await until(lambda: bool(kept or failures))
    assert (kept, failures) == ([1], [])
    await commit.all_durable()
    commit.close()
    tree.close()


async def test_a_log_whose_files_are_gone_and_that_nobody_gave_up_is_a_failure_in_any_part(
    disk_path: Path,
) -> None:
    failures: list[BaseException] = []
    commit = GroupCommit(fsync=True, on_failure=failures.append, logs_at_once=1)
    tree = Tree(disk_path)
    logs = [tree.log(disk_path / "queues" / name).open() for name in "abc"]
    for log in logs:
        log.append(0, 1, 1, b"x", 0)
        commit.appended(log)
    kept: list[int] = []
    commit.when_durable(lambda: kept.append(1))
    commit.begin()
    commit.forget(logs[0])
    logs[2].close()
    shutil.rmtree(logs[2].directory)
    await until(lambda: bool(kept or failures))
    assert (kept, len(failures)) == ([], 1)
    commit.close()
    tree.close()
