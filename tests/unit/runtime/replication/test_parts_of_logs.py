"""What single changes of logs cost a copy, and what damage in a leader's prefix costs it; without a link."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.join import DropBefore
from leveret.model.errors import StorageError
from leveret.runtime.replication.applier import Applier, CopyOwner
from leveret.runtime.replication.catching_up import CatchUpPlan
from leveret.runtime.replication.prefix_segment import CopiedPrefix
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.chunk import HEADER_BYTES, ChunkType, decode_chunk, encode_entry
from leveret.wire.link import ChangeKind, LogChange, decode_frame

NAME = "queues/0000000000000001"


def written(root: Path, chunks: int) -> tuple[Tree, Log]:
    """A tree with a log whose segments hold a few of these chunks each."""
    tree = Tree(root)
    log = tree.log(root / NAME, segment_bytes_max=300).open()
    for _ in range(chunks):
        log.append(ChunkType.USER, 1, 1, encode_entry(b"x" * 100), 0)
    log.sync()
    return tree, log


def test_a_damaged_prefix_keeps_no_follower_from_catching_up(tmp_path: Path) -> None:
    tree, log = written(tmp_path, 9)
    top = log.newest_segment
    first = next(iter(log.directory.glob("*0.sealed.segment")))
    octets = bytearray(first.read_bytes())
    octets[HEADER_BYTES + 9] ^= 1
    first.write_bytes(octets)
    plan = CatchUpPlan(tree, {NAME: log.next_offset}, set(), lambda name, error: pytest.fail(str(error)))
    plan.precede(NAME, top)
    for _ in range(9):
        plan.step(1 << 20)
    assert plan.is_nothing


def test_segments_that_came_in_front_meanwhile_are_not_dropped(tmp_path: Path) -> None:
    """A drop waits until all records of its log are sent, behind those of many logs: the log may begin earlier then."""
    tree, log = written(tmp_path, 9)
    plan = CatchUpPlan(tree, {NAME: 7}, set(), lambda name, error: pytest.fail(str(error)))
    plan.take(DropBefore(NAME, 5))  # it began there when it was compared
    plan.noted(NAME)
    [message, *rest] = plan.step(1 << 20).message(0, 0, 0)
    frame = b"".join([message[5:], *rest])
    _, changes = decode_frame(memoryview(frame), {})
    assert plan.is_nothing
    assert [change.offset for change in changes() if change.kind is ChangeKind.DROP] == [log.first_offset]


def test_a_segment_is_moved_in_front_only_once_this_copy_of_it_is_on_disk(tmp_path: Path) -> None:
    """A copy that was forgotten before its sync had ended stands for no later one."""
    leader, log = written(tmp_path / "leader", 9)
    top = log.newest_segment
    start = log.segment_before(top)
    assert start is not None
    synced: list[Callable[[], None]] = []
    commits: Any = SimpleNamespace(
        appended=lambda log: None, forget=lambda log: None, when_durable=synced.append
    )
    tree = Tree(tmp_path / "mirror")
    copy = tree.log(tree.root / NAME).open(first_offset=top)
    prefix = CopiedPrefix(NAME, tree, commits, lambda error: pytest.fail(str(error)))

    def sent() -> None:
        for segment, header, octets in log.read_segments(start, 1 << 20):
            if segment == start and header.next_offset <= top:
                prefix.append(start, decode_chunk(octets), octets)

    sent()
    prefix.forget()
    sent()
    first, second = synced
    first()
    assert copy.first_offset == top
    second()
    assert copy.first_offset == start
    leader.close()


def test_a_segment_that_was_dropped_and_comes_again_is_moved_in_front(tmp_path: Path) -> None:
    """All of it within one round of syncs; the leader has another leader meanwhile, which has not dropped it."""
    leader, log = written(tmp_path / "leader", 9)
    top = log.newest_segment
    start = log.segment_before(top)
    assert start is not None
    synced: list[Callable[[], None]] = []
    commits: Any = SimpleNamespace(
        appended=lambda log: None, forget=lambda log: None, when_durable=synced.append
    )
    tree = Tree(tmp_path / "follower")
    copy = tree.log(tree.root / NAME).open(first_offset=top)
    applier = Applier(tree, commits, CopyOwner())
    for _ in range(2):
        for segment, header, octets in log.read_segments(start, 1 << 20):
            if segment == start and header.next_offset <= top:
                applier.apply(LogChange(ChangeKind.HEAD, NAME, start, decode_chunk(octets), octets))
        if len(synced) == 1:
            applier.apply(LogChange(ChangeKind.DROP, NAME, top))
    for then in synced:
        then()
    assert copy.first_offset == start
    leader.close()


def test_each_dropped_log_is_looked_at_for_itself(tmp_path: Path) -> None:
    """One frame may drop segments of thousands of logs."""
    looks: list[str] = []

    class Unsynced:
        first_offset = 0

        def __init__(self, name: str) -> None:
            self.name = name

        def want_sync(self) -> int:
            return 1

        @property
        def synced_offset(self) -> int:
            looks.append(self.name)
            return 0

    names = [f"queues/{number}" for number in range(300)]
    tree = Tree(tmp_path)
    tree.logs = cast(Any, {name: Unsynced(name) for name in names})
    applier = Applier(tree, cast(Any, SimpleNamespace(appended=lambda log: None)), CopyOwner())
    for name in names:
        applier.apply(LogChange(ChangeKind.DROP, name, 1))
    assert looks == names


def test_a_log_whose_segments_cannot_be_dropped_keeps_no_others(tmp_path: Path) -> None:
    dropped: list[str] = []

    class Dropping:
        first_offset = synced_offset = 0

        def __init__(self, name: str) -> None:
            self.name = name

        def want_sync(self) -> int:
            return 1

        def drop_before(self, offset: int) -> None:
            if self.name == "queues/0":
                raise StorageError("segment cannot be deleted")
            dropped.append(self.name)

    names = [f"queues/{number}" for number in range(3)]
    tree = Tree(tmp_path)
    logs = {name: Dropping(name) for name in names}
    tree.logs = cast(Any, logs)
    applier = Applier(tree, cast(Any, SimpleNamespace(appended=lambda log: None)), CopyOwner())
    for name in names:
        applier.apply(LogChange(ChangeKind.DROP, name, 1))
    for log in logs.values():
        log.synced_offset = 1
    with pytest.raises(StorageError, match="cannot be deleted"):
        applier.drop_due()
    assert dropped == names[1:]
