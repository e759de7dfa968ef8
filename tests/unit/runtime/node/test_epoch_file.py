"""runtime.node.epoch_file: no epoch is given twice, and an import of many queues seldom waits for the disk."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from leveret.core.broker.epochs import Epochs
from leveret.model.definitions import Queue
from leveret.model.errors import StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.node.epoch_file import BLOCK, BLOCK_MAX, EpochFile
from leveret.storage.state_file import StateFile

QUEUE = Queue(vhost="v", name="q")


class CountedFile(StateFile):
    """Counts what it saves, and refuses it while its disk is full."""

    saved = 0
    is_full = False

    def save(self, state: dict[str, Any]) -> None:
        if self.is_full:
            raise StorageError("no room")
        self.saved += 1
        super().save(state)


@pytest.fixture
def file(tmp_path: Path) -> CountedFile:
    return CountedFile(tmp_path / "epochs.json")


def test_no_epoch_is_given_again_by_a_later_process_and_ten_thousand_wait_for_the_disk_four_times(
    file: CountedFile,
) -> None:
    epochs = Epochs(EpochFile(file).reserve)
    given = [epochs.stamp(QUEUE).epoch for _ in range(10_000)]
    assert given == list(range(1, 10_001))
    assert file.saved == 4
    assert given[-1] <= EpochFile(file).last() <= given[-1] + BLOCK_MAX


def test_a_full_disk_is_asked_again_for_the_next_epoch_and_makes_no_block_larger(file: CountedFile) -> None:
    epochs = EpochFile(file)
    file.is_full = True
    assert epochs.reserve(7) == 7
    file.is_full = False
    assert epochs.reserve(8) == 8 + BLOCK


async def test_an_import_of_ten_thousand_queues_waits_once_in_the_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops_thread, fsync, in_loop = threading.get_ident(), os.fsync, list[int]()

    def counted(descriptor: int) -> None:
        if threading.get_ident() == loops_thread:
            in_loop.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    failures = list[BaseException]()
    commits = GroupCommit(fsync=True, on_failure=failures.append)
    sent = list[bytes | None]()
    file = StateFile(tmp_path / "epochs.json", lambda path, octets: sent.append(octets))
    epochs = Epochs(EpochFile(file, commits).reserve)
    given = list[int]()
    for _ in range(100):
        given += [epochs.stamp(QUEUE).epoch for _ in range(100)]
        assert given[-1] <= EpochFile(file).last(), "on disk before it is given"
        # As after an import's flush.
        await commits.all_durable()
        await asyncio.sleep(0)
    commits.close()
    assert given == list(range(1, 10_001))
    assert len(in_loop) == 2, "the first block: the file and its name"
    assert sent[-1] == file.octets(), "followers have it too"
    assert not failures


async def test_a_block_that_is_used_up_while_a_thread_writes_is_waited_for(tmp_path: Path) -> None:
    commits = GroupCommit(fsync=True, on_failure=lambda error: None)
    file = CountedFile(tmp_path / "epochs.json")
    epochs = Epochs(EpochFile(file, commits).reserve)
    last = [epochs.stamp(QUEUE).epoch for _ in range(5000)][-1]
    assert last <= EpochFile(file).last()
    await commits.all_durable()
    for _ in range(10_000):
        last = epochs.stamp(QUEUE).epoch
    assert last == 15_000 <= EpochFile(file).last()
    commits.close()
