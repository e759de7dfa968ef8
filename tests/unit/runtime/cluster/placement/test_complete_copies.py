"""runtime.cluster.placement.complete_copies: the list is true, and no write of it stops the event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import StorageError
from leveret.runtime.cluster.placement.complete_copies import FILE, CompleteCopies, complete_copies
from leveret.runtime.logs.commit import GroupCommit
from leveret.storage.state_file import StateFile
from leveret.storage.tree import ChangeReceiver, Tree
from leveret.testing.network.waiting import until

A, B = "queues/1", "queues/2"


class Barrier(ChangeReceiver):
    """Followers that have everything at once; `seen` is the list at each cut."""

    def __init__(self, tree: Tree) -> None:
        self.files: dict[str, bytes | None] = {}
        self.seen: list[dict[str, bytes | None]] = []
        tree.receivers.append(self)

    def replaced(self, name: str, octets: bytes | None) -> None:
        self.files[name] = octets

    def cut(self) -> int:
        self.seen.append(dict(self.files))
        return 0

    def committed(self) -> int:
        return 0

    def confirmable(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.runtime.cluster.placement.complete_copies._LATER_S", 0.02)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name in (A, B):
        (tmp_path / name).mkdir(parents=True)
    return Tree(tmp_path)


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
def commits(failures: list[BaseException]) -> Iterator[GroupCommit]:
    commits = GroupCommit(fsync=True, on_failure=failures.append)
    yield commits
    commits.close()
    assert not failures


def listed(tree: Tree) -> set[str]:
    """The list on disk, as a later process reads it."""
    return set(complete_copies(Tree(tree.root)) or ())


async def saved(tree: Tree, *names: str) -> None:
    await until(lambda: listed(tree) == set(names), f"{names} to be listed")


async def test_a_list_of_many_logs_is_not_written_in_the_loops_thread(
    tree: Tree, commits: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, loops_thread, in_loop = os.fsync, threading.get_ident(), list[int]()

    def counted(descriptor: int) -> None:
        if threading.get_ident() == loops_thread:
            in_loop.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    complete = CompleteCopies(tree, commits)
    names = [f"queues/{number}" for number in range(1000)]
    for name in names:
        complete.add(name)
    await saved(tree, *names)
    complete.discard(names[0])
    await saved(tree, *names[1:])
    complete.strike_out(names[1])
    await commits.all_durable()
    assert listed(tree) == set(names[2:])
    assert not in_loop


async def test_what_begins_anew_is_struck_out_before_its_next_record_is_promised_or_sent(
    tree: Tree, commits: GroupCommit
) -> None:
    followers = commits.replication_barrier = Barrier(tree)
    complete = CompleteCopies(tree, commits)
    complete.add(A)
    complete.add(B)
    await saved(tree, A, B)
    complete.strike_out(A)
    followers.seen.clear()
    seen = list[set[str]]()
    commits.when_durable(lambda: seen.append(listed(tree)))
    commits.begin()
    assert [A.encode() in (each[FILE] or b"") for each in followers.seen] == [False]
    await until(lambda: bool(seen), "the promise")
    assert seen == [{B}]
    complete.add(A)
    await until(lambda: A.encode() in (followers.files[FILE] or b""), "the list at the followers")
    assert listed(tree) == {A, B}, "they get what is on disk"


async def test_what_an_earlier_process_listed_is_struck_out_too(tree: Tree, commits: GroupCommit) -> None:
    tree.file(tree.root / FILE).save({"logs": [A, B, "queues/gone"]})
    complete = CompleteCopies(tree, commits)
    complete.strike_out(A)
    await commits.all_durable()
    assert listed(tree) == {B}


async def test_a_list_that_the_disk_refuses_is_written_later_and_promises_go_on(
    tree: Tree, commits: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = StateFile.write, list[Any]()

    def full(self: StateFile, octets: bytes) -> None:
        if not refused:
            refused.append(octets)
            raise StorageError("no room")
        write(self, octets)

    monkeypatch.setattr(StateFile, "write", full)
    complete = CompleteCopies(tree, commits)
    complete.add(A)
    await until(lambda: bool(refused), "a refusal")
    await commits.all_durable()
    await saved(tree, A)


def test_a_damaged_list_is_begun_anew(tree: Tree, commits: GroupCommit) -> None:
    (tree.root / FILE).write_bytes(b"{")
    complete = CompleteCopies(tree, commits)
    complete.stop()


async def test_after_a_start_the_list_has_no_log_of_a_queue_that_was_deleted_meanwhile(
    tree: Tree, commits: GroupCommit
) -> None:
    """The log is there as the list is read, and is removed later in the start."""
    complete = CompleteCopies(tree, commits)
    complete.add(A)
    complete.add(B)
    await saved(tree, A, B)
    again = CompleteCopies(tree, commits)
    again.keep({B: ("/", "q")})
    await saved(tree, B)
    complete.stop()
    again.stop()
