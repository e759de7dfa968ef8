"""A delayed follower has what its leader has, and can be what that was: real sockets and files, no broker."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import PreconditionFailed, StorageError
from leveret.model.moment import moment_text
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.process.clock import clock_ms, elapsed_ms
from leveret.runtime.replication import delaying, sending_link, sent_node
from leveret.runtime.replication.applier import Applier, WaitingChanges
from leveret.runtime.replication.delaying import ALL_MS, follower_data
from leveret.runtime.replication.point_in_time import refuse_to_lead
from leveret.storage.delayed.index import (
    DelayIndex,
    EntryKind,
    FramePart,
    IndexBase,
    IndexedFrame,
    IndexEntry,
)
from leveret.storage.log import Log
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.testing.applications.compare import compare
from leveret.testing.network.waiting import until
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.wire.chunk import ChunkType, encode_entry
from leveret.wire.link import ChangeKind, FrameHead, LogChange
from tests.seeds import seeds
from tests.unit.runtime.replication.delayed_site import (
    DELAY_MS,
    NOT_DROPPED,
    QUEUE,
    AloneSite,
    DelayedSite,
    append,
    assert_is,
    assert_was,
    delayed_pair,
    delaying_of,
    go_back,
    has_received,
    moment,
    pair_with_a_message,
)
from tests.unit.runtime.replication.link_sites import SEGMENT_BYTES, FollowerSite, LeaderSite

OTHER = "queues/00000000000000ff"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaying, "_PAUSE_S", (0.001, 0.005))


def delete(leader: LeaderSite, name: str) -> None:
    log = leader.tree.logs[name]
    leader.commits.forget(log)
    log.delete()
    leader.commits.begin()


async def with_a_divergent_tail(
    directory: Path,
) -> tuple[DelayedSite, LeaderSite, list[tuple[int, Path]]]:
    """Return a stopped follower whose leader has truncated a log and appended another record since.

    The second value is the leader, the third what it had at a time before.
    """
    leader, follower, at_ms = await pair_with_a_message(directory)
    append(leader, QUEUE, b"second")
    moments = [(at_ms, directory / "0"), (await moment(leader, directory / "1"), directory / "1")]
    await follower.stop()
    leader.cut(QUEUE)
    append(leader, QUEUE, b"another")
    return follower, leader, moments


def assert_has_all(follower: Path, leader: Path) -> None:
    """What the leader has, and perhaps segments that the leader has dropped."""
    found = compare(leader, follower)
    assert not found.wrong, found
    assert all(each.endswith(NOT_DROPPED) for each in found.behind), found


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [1, 3, *(pytest.param(each, marks=pytest.mark.story) for each in (0, 2, 4, 5))]
)
async def test_it_can_be_what_its_leader_was_at_every_time(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3:
        monkeypatch.setattr(sent_node, "FINAL_BYTES", 0)
        monkeypatch.setattr(sent_node, "STEP_BYTES", 500)
    if seed % 4 == 3:
        monkeypatch.setattr(sending_link, "LIVE_BYTES_MAX", 3000)
    dice = random.Random(seed)
    leader = LeaderSite(tmp_path / "leader", dice)
    leader.change_often(dice.choice([0, 40]))
    follower = DelayedSite(tmp_path / "follower", await leader.start())
    moments = [(await moment(leader, tmp_path / "0"), tmp_path / "0")]
    assert_is(follower.directory, moments[0][1])
    for number in range(1, 5):
        for _ in range(dice.randint(1, 60)):
            leader.change()
            if dice.random() < 0.2:
                await asyncio.sleep(dice.choice([0, 0, 0.002]))
            match dice.choice([*["cut", "restart"] * 3, *["kill"] * 6, *["nothing"] * 36]):
                case "cut":
                    for link in leader.listener.followers:
                        link.peer.abort()
                case "restart":
                    await follower.stop()
                    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
                case "kill":
                    await follower.kill()
                    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
        moments.append((await moment(leader, tmp_path / str(number)), tmp_path / str(number)))
        assert_has_all(follower.directory, moments[-1][1])
    await leader.stop()
    await (follower.kill() if dice.random() < 0.5 else follower.stop())
    await assert_was(follower.directory, moments, tmp_path / "copy")
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    middle_ms = moments[2][0]
    await follower.expire_until(middle_ms)
    await follower.stop()
    # A drop is skipped once its delay has passed if the log was destroyed since, and no way back remembers it.
    destroyed = set(follower.delaying._drops._kept_at)
    await assert_was(follower.directory, moments[2:], tmp_path / "copy", late=destroyed)
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await follower.expire_until(moments[-1][0])
    assert_is(follower.directory, moments[-1][1])
    assert not follower.delaying.waits
    assert follower.delaying.delayed_changes()[:3] == (0, 0, 0)
    assert not list((follower.directory / "delayed" / "kept").glob("*"))


async def test_the_begin_of_the_window_is_not_written_in_the_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await delayed_pair(tmp_path, 1)
    leader.change_often(40)
    at_ms = await moment(leader, tmp_path / "0")
    write, threads = DelayIndex.write, list[int]()

    def counted(self: DelayIndex, encoded: bytes) -> None:
        threads.append(threading.get_ident())
        write(self, encoded)

    monkeypatch.setattr(DelayIndex, "write", counted)
    follower.delaying._drops.due["queues/none"] = 1
    await follower.expire_until(at_ms)
    assert threads
    assert threading.get_ident() not in threads


async def test_no_file_of_a_deleted_log_is_kept_in_the_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    names = [f"queues/{number:016x}" for number in range(1, 41)]
    for name in names:
        append(leader, name, b"x")
    follower = DelayedSite(tmp_path / "follower", await leader.start())
    moments = [(await moment(leader, tmp_path / "0"), tmp_path / "0")]
    await until(lambda: has_received(leader))
    threads, link = list[int](), os.link

    def counted(source: str, target: str) -> None:
        threads.append(threading.get_ident())
        link(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", counted)
        for name in names:
            delete(leader, name)
        append(leader, OTHER, b"later")
        await until(lambda: has_received(leader))
    assert len(threads) >= len(names)
    assert threading.get_ident() not in threads
    await leader.stop()
    await follower.stop()
    await assert_was(follower.directory, moments, tmp_path / "scratch")


@pytest.mark.parametrize("joins_again", [False, True])
async def test_a_drop_is_made_though_the_leader_truncates_the_log_before_the_delay_has_passed(
    tmp_path: Path, joins_again: bool
) -> None:
    """In a join one frame has the truncation and the drop, which is not new to a follower where it waits."""
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    for _ in range(20):
        append(leader, QUEUE, bytes(SEGMENT_BYTES // 3))
    follower = DelayedSite(tmp_path / "follower", await leader.start())
    await until(lambda: has_received(leader))
    await leader.commits.all_durable()
    log = leader.log(QUEUE)
    assert log.drop_before(log.next_offset - 8)
    append(leader, OTHER, b"another frame")
    await until(lambda: has_received(leader))
    if joins_again:
        await follower.stop()
    leader.cut(QUEUE)
    append(leader, OTHER, b"another frame")
    if joins_again:
        follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await until(lambda: has_received(leader))
    last_ms = await moment(leader, tmp_path / "last")
    assert_has_all(follower.directory, tmp_path / "last")
    await follower.expire_until(last_ms)
    assert_is(follower.directory, tmp_path / "last")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_link_that_ends_while_files_are_kept_leaves_the_frame_to_the_next_one(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    names = [f"queues/{number:016x}" for number in range(1, 21)]
    for name in names:
        append(leader, name, b"x")
    follower = DelayedSite(tmp_path / "follower", await leader.start())
    moments = [(await moment(leader, tmp_path / "0"), tmp_path / "0")]
    await until(lambda: has_received(leader))
    kept, ends = threading.Event(), threading.Event()
    link = DelayIndex.link

    def slowly(self: DelayIndex, *about: Any) -> None:
        if when == "after":
            link(self, *about)
        kept.set()
        assert ends.wait(20)
        if when == "before":
            link(self, *about)

    with monkeypatch.context() as patch:
        patch.setattr(DelayIndex, "link", slowly)
        for name in names:
            delete(leader, name)
        await until(kept.is_set)
        joined = follower.inbound.progress.connected_at_ms
        assert follower.inbound._link is not None
        follower.inbound._link.peer.abort()
        await until(lambda: follower.inbound._link is None)
        assert set(names) <= set(follower.tree.logs), "nothing of the frame was made"
        ends.set()
    await until(lambda: has_received(leader) and not set(names) & set(follower.tree.logs))
    assert joined
    await leader.stop()
    await follower.stop()
    await assert_was(follower.directory, moments, tmp_path / "scratch")


async def test_a_follower_that_stops_in_a_join_keeps_no_log_as_the_next_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a time it had a chunk of later: a thread of the former link kept the log again, after the truncation."""
    follower, leader, moments = await with_a_divergent_tail(tmp_path)
    adds, goes_on, add = threading.Event(), threading.Event(), Quarantine.add

    def slowly(self: Quarantine, *about: Any) -> Any:
        adds.set()
        assert goes_on.wait(20)
        return add(self, *about)

    monkeypatch.setattr(Quarantine, "add", slowly)
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await until(adds.is_set)
    stopping = asyncio.create_task(follower.stop())
    await asyncio.wait((stopping,), timeout=0.1)
    assert not stopping.done(), "the next follower would change the log meanwhile"
    goes_on.set()
    await stopping
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await until(lambda: has_received(leader))
    await leader.stop()
    await follower.stop()
    await assert_was(follower.directory, moments, tmp_path / "scratch")


async def test_a_follower_stops_in_a_join_though_its_disk_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, _, _ = await with_a_divergent_tail(tmp_path)
    waits, never = asyncio.Event(), asyncio.Event()

    async def failed(self: GroupCommit) -> None:
        waits.set()
        await never.wait()

    monkeypatch.setattr(GroupCommit, "all_durable", failed)
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await waits.wait()
    async with asyncio.timeout(5):
        await follower.kill()


@pytest.mark.parametrize("seed", seeds(3, each_time=2))
@pytest.mark.long
def test_a_loss_of_power_takes_no_time_that_was_acked(tmp_path: Path, seed: int) -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        dice = random.Random(seed)
        leader = LeaderSite(tmp_path / "leader", dice)
        leader.change_often(30)
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        moments = [(await moment(leader, tmp_path / "0"), tmp_path / "0")]
        losses: list[tuple[Path, int]] = []
        for number in range(1, 5):
            for _ in range(dice.randint(1, 40)):
                leader.change()
                if dice.random() < 0.3:
                    await asyncio.sleep(dice.choice([0, 0.001, 0.003]))
                if dice.random() < 0.05 or (number == 4 and not losses):
                    lost = tmp_path / f"lost-{len(losses)}"
                    disk.power_lost(follower.directory, lost, random.Random(dice.random()))
                    losses.append((lost, number))
            moments.append((await moment(leader, tmp_path / str(number)), tmp_path / str(number)))
        await follower.stop()
        await leader.stop()
        assert losses
        for lost, acked in losses:
            await assert_was(lost, moments[:acked][-2:], tmp_path / "copy")

    with SimulatedDisk(tmp_path) as disk:
        asyncio.run(scenario(disk))


async def test_what_is_here_is_not_sent_again(tmp_path: Path) -> None:
    leader, follower = await delayed_pair(tmp_path, 3)
    await moment(leader, tmp_path / "0")
    for number in range(100):
        append(leader, QUEUE, bytes((number,)) * 1000)
    await until(lambda: has_received(leader), "received")
    [link] = leader.listener.followers
    sent_bytes = link.peer.sent_bytes
    assert follower.delaying.delayed_changes().messages == 100
    await follower.stop()
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await until(lambda: has_received(leader), "back")
    [link] = leader.listener.followers
    assert link.peer.sent_bytes < sent_bytes / 4
    assert not leader.feed.in_sync.members
    extent = follower.delaying.delayed_changes()
    assert (extent.messages, extent.error) == (100, "")


async def test_a_leader_whose_clock_is_ahead_is_not_kept_back_any_longer(tmp_path: Path) -> None:
    leader, follower = await delayed_pair(tmp_path, 5)
    await moment(leader, tmp_path / "0")
    follower.at_ms = own_ms = clock_ms() - 600_000
    append(leader, QUEUE, b"x")
    await until(lambda: has_received(leader), "received")
    assert follower.delaying.delayed_changes().newest_at_ms == own_ms
    follower.at_ms = own_ms + DELAY_MS
    await until(lambda: not follower.delaying.waits, "the delay has passed")


async def test_a_join_that_was_broken_off_is_no_time_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_node, "FINAL_BYTES", 0)
    monkeypatch.setattr(sent_node, "STEP_BYTES", 500)
    leader, follower = await delayed_pair(tmp_path, 4)
    await moment(leader, tmp_path / "0")
    await follower.stop()
    leader.change_often(200)
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await until(lambda: follower.delaying.is_torn, "in the middle of a join")
    await follower.inbound.stop()
    await follower.expire_until(ALL_MS - DELAY_MS)
    left = await follower.delaying.left_after(clock_ms())
    assert left.records == follower.delaying.delayed_changes().records > 0
    await follower.stop()
    await assert_was(follower.directory, [(clock_ms(), tmp_path / "0")], tmp_path / "copy")
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    at_ms = await moment(leader, tmp_path / "1")
    assert not follower.delaying.is_torn
    await follower.stop()
    await assert_was(follower.directory, [(at_ms, tmp_path / "1")], tmp_path / "copy")


async def test_a_log_that_is_damaged_comes_anew_and_can_be_what_it_was(tmp_path: Path) -> None:
    other = "queues/0000000000000002"
    leader = LeaderSite(tmp_path / "leader", random.Random(4))
    for each in (QUEUE, other):
        append(leader, each, b"before")
    follower = DelayedSite(tmp_path / "follower", await leader.start())
    before = await moment(leader, tmp_path / "0"), tmp_path / "0"
    for each in (QUEUE, other):
        append(leader, each, b"later")
    later = await moment(leader, tmp_path / "1"), tmp_path / "1"
    await follower.stop()
    shutil.rmtree(follower.directory / QUEUE)
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    assert follower.delaying.is_torn
    assert follower.delaying.lacks(before[0]).startswith(f"log {QUEUE} does not have all of that time")
    await moment(leader, tmp_path / "2")
    assert [follower.delaying.lacks(at_ms) for at_ms, _ in (before, later)] == ["", ""]
    await follower.stop()
    await assert_was(follower.directory, [before, later], tmp_path / "copy")


@pytest.mark.parametrize("what", ["index", "damage"])
async def test_without_its_index_it_has_all_and_begins_to_delay_anew(tmp_path: Path, what: str) -> None:
    leader, follower = await delayed_pair(tmp_path, 4)
    at_ms = await moment(leader, tmp_path / "0")
    leader.change_often(50)
    await moment(leader, tmp_path / "1")
    await follower.stop()
    index = follower.directory / "delayed" / "index"
    if what == "index":
        shutil.rmtree(index)
    else:
        [*_, path] = sorted(index.iterdir())
        octets = path.read_bytes()
        path.write_bytes(octets[:60] + bytes((octets[60] ^ 1,)) + octets[61:])
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    assert follower.delaying.why_not(at_ms) == "changes of the leader after that time are applied already"
    leader.change_often(30)
    times = [(await moment(leader, tmp_path / "2"), tmp_path / "2")]
    leader.change_often(30)
    await moment(leader, tmp_path / "3")
    await follower.stop()
    await leader.stop()
    shutil.copytree(follower.directory, tmp_path / "copy")
    await go_back(tmp_path / "copy", times[0][0])
    assert_has_all(tmp_path / "copy", tmp_path / "2")


@pytest.mark.parametrize("kind", [ChangeKind.DROP, ChangeKind.TRUNCATE, ChangeKind.DELETE])
async def test_what_a_damaged_index_had_noted_holds_up_no_drop_of_the_next(
    tmp_path: Path, kind: ChangeKind
) -> None:
    alone = AloneSite(tmp_path)
    log = Log(tmp_path / QUEUE, epoch=1, segment_bytes_max=1).open()
    for number in range(3):
        log.append(ChunkType.USER, 1, 1, encode_entry(b"x"), number)
    log.close()
    assert not alone.tree.open_all()
    damaged = DelayIndex(tmp_path)
    damaged.begin(IndexBase(ends={QUEUE: 3}))
    noted = {
        ChangeKind.DROP: EntryKind.DROP,
        ChangeKind.TRUNCATE: EntryKind.TRUNCATED,
        ChangeKind.DELETE: EntryKind.DELETED,
    }
    for _ in range(5):
        damaged.append(IndexedFrame(FramePart.WHOLE, [IndexEntry(noted[kind], QUEUE, 3)]), 1)
    damaged.log.append(ChunkType.USER, 1, 1, b"no frame", 1)
    damaged.close()
    delaying = delaying_of(tmp_path, alone.applier, alone.commits)
    delaying.open()
    assert (tmp_path / "divergent").exists()
    delaying.take_at(2, FrameHead(1, 1, 2, 0, 0), [LogChange(ChangeKind.DROP, QUEUE, 2)])
    await alone.commits.all_durable()
    await delaying.expire(3)
    await alone.commits.all_durable()
    delaying.drop_due()
    assert alone.tree.logs[QUEUE].first_offset == 2
    await delaying.stop()
    await alone.close()


@pytest.mark.parametrize("is_in_join", [False, True])
async def test_a_stop_forgets_no_drop_that_is_due(tmp_path: Path, is_in_join: bool) -> None:
    """Otherwise its segments stay until a leader sends the drop once more, and another delay has passed."""
    alone = AloneSite(tmp_path)
    log = Log(tmp_path / QUEUE, epoch=1, segment_bytes_max=1).open()
    for number in range(3):
        log.append(ChunkType.USER, 1, 1, encode_entry(b"x"), number)
    log.close()
    assert not alone.tree.open_all()
    delaying = delaying_of(tmp_path, alone.applier, alone.commits)
    delaying.open()
    delaying.take_at(2, FrameHead(1, 1, 2, 0, 0), [LogChange(ChangeKind.DROP, QUEUE, 2)])
    await alone.commits.all_durable()
    delaying._removes_at_s = 0 if is_in_join else float("inf")
    delaying._begins_join = is_in_join
    await delaying.expire(3)
    assert delaying._drops.due == {QUEUE: 2}
    await delaying.stop()
    await alone.close()
    alone = AloneSite(tmp_path)
    delaying = delaying_of(tmp_path, alone.applier, alone.commits)
    delaying.open()
    await delaying.expire(3)
    await alone.commits.all_durable()
    delaying.drop_due()
    assert alone.tree.logs[QUEUE].first_offset == 2
    await delaying.stop()
    await alone.close()


# -- a disk that refuses --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["index", "queues"])
async def test_a_full_disk_is_told_and_nothing_is_lost(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await delayed_pair(tmp_path, 2)
    moments = [(await moment(leader, tmp_path / "0"), tmp_path / "0")]
    write = Log._write

    def full(log: Log, *args: object) -> None:
        if name in (log.directory.name, log.directory.parent.name) and "follower" in log.directory.parts:
            raise StorageError(f"log {log.directory}: append failed: No space left on device")
        write(log, *args)  # type: ignore[arg-type]  # as they came

    with monkeypatch.context() as patched:
        patched.setattr(Log, "_write", full)
        leader.change_often(20)
        await until(lambda: "No space left" in follower.inbound.progress.error, "the disk is full")
        assert follower.inbound.state == "failed"
    moments.append((await moment(leader, tmp_path / "1"), tmp_path / "1"))
    assert_has_all(follower.directory, tmp_path / "1")
    await follower.stop()
    await leader.stop()
    await assert_was(follower.directory, moments, tmp_path / "copy")


async def test_what_is_due_and_cannot_be_removed_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LeaderSite(tmp_path / "leader", random.Random(2))
    for number in range(20):
        append(leader, QUEUE, bytes((number,)) * 1000)
    follower = DelayedSite(tmp_path / "follower", await leader.start())
    await moment(leader, tmp_path / "0")
    log = leader.tree.logs[QUEUE]
    # A segment can be dropped once the next one is synced, and nobody waits for that here.
    await until(lambda: not log.wants_sync, "the leader's own sync")
    assert log.drop_before(log.next_offset) > 1
    leader.commits.begin()
    at_ms = await moment(leader, tmp_path / "1")
    assert follower.tree.logs[QUEUE].first_offset == 0

    def full(index: DelayIndex, base: object) -> None:
        raise StorageError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(DelayIndex, "write", full)
        follower.at_ms = at_ms + DELAY_MS
        await until(lambda: "No space left" in follower.inbound.error, "told")
        assert follower.tree.logs[QUEUE].first_offset == 0, "dropped before the base is durable"
    follower.delaying._removes_at_s = 0.0
    await until(lambda: follower.delaying.delayed_changes() == WaitingChanges(), "no error any more")
    await until(lambda: follower.tree.logs[QUEUE].first_offset == log.first_offset, "dropped")
    assert_is(follower.directory, tmp_path / "1")


# -- a promotion ----------------------------------------------------------------------------------


async def test_what_is_left_out_is_to_be_said(tmp_path: Path) -> None:
    leader, follower, at_ms = await pair_with_a_message(tmp_path)
    assert follower.delaying.why_not(None) == ""
    too_early = "changes of the leader after that time are applied already"
    assert follower.delaying.why_not(at_ms - 60_000) == too_early
    append(leader, QUEUE, b"second")
    await moment(leader, tmp_path / "1")
    assert "can leave changes out" in follower.delaying.why_not(None)
    assert follower.delaying.why_not(at_ms) == ""
    assert (await follower.delaying.left_after(at_ms)).messages == 1
    assert (await follower.delaying.left_after(ALL_MS)).messages == 0
    await follower.stop()
    again = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    assert again.delaying.why_not(at_ms - 60_000) == too_early
    assert "can leave changes out" in again.delaying.why_not(None)
    await again.stop()
    with pytest.raises(PreconditionFailed, match="can leave changes out"):
        refuse_to_lead(follower.directory, clock_ms())
    refuse_to_lead(follower.directory, clock_ms() + DELAY_MS)
    assert not (follower.directory / "delayed").exists()


async def test_a_time_in_the_future_is_refused(tmp_path: Path) -> None:
    """An operator's local time, taken for UTC, was one: the promotion applied the mistake for good."""
    leader, follower, at_ms = await pair_with_a_message(tmp_path)
    append(leader, QUEUE, b"by mistake")
    later_ms = await moment(leader, tmp_path / "1")
    follower.at_ms = later_ms + 1000
    now = f"by this node's clock it is {moment_text(later_ms + 1000)} now"
    assert now in follower.delaying.why_not(later_ms + 1001)
    with pytest.raises(PreconditionFailed, match="in the future"):
        await follower.delaying.hold(later_ms + 1001)
    assert [follower.delaying.why_not(each) for each in (at_ms, later_ms + 1000, ALL_MS)] == ["", "", ""]
    # Its clock was set back since the last change came.
    follower.at_ms = at_ms - 60_000
    assert follower.delaying.why_not(at_ms) == ""


async def test_a_time_that_is_over_by_then_is_refused_before_the_leader_hands_over(tmp_path: Path) -> None:
    """The delay passed between the operator's choice and the return: it was led by what the leader did later."""
    leader, follower, at_ms = await pair_with_a_message(tmp_path)
    append(leader, QUEUE, b"second")
    later_ms = await moment(leader, tmp_path / "1")
    assert follower.delaying.why_not(at_ms) == ""
    await follower.expire_until(later_ms)
    with pytest.raises(PreconditionFailed, match="applied already"):
        await follower.delaying.hold(at_ms)
    append(leader, QUEUE, b"third")
    third_ms = await moment(leader, tmp_path / "2")
    # It goes on with what is due after a refusal, and waits once it is held.
    follower.at_ms = third_ms + DELAY_MS
    await until(lambda: not follower.delaying.waits, "removed")
    append(leader, QUEUE, b"fourth")
    await until(lambda: has_received(leader), "received")
    await follower.delaying.hold(ALL_MS)
    follower.at_ms = clock_ms() + 2 * DELAY_MS
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert follower.delaying.waits


@pytest.mark.parametrize("until_ms", [1, ALL_MS], ids=["a time", "all"])
async def test_an_index_that_cannot_be_read_or_written_is_noticed_before_the_leader_hands_over(
    tmp_path: Path, until_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower, at_ms = await pair_with_a_message(tmp_path)
    append(leader, QUEUE, b"second")
    await moment(leader, tmp_path / "1")

    def refuse(*args: object) -> Any:
        raise StorageError("refused")

    for name in ("groups", "write"):
        with monkeypatch.context() as patched:
            patched.setattr(DelayIndex, name, refuse)
            with pytest.raises(StorageError, match="refused"):
                await follower.delaying.hold(max(at_ms, until_ms))
    await follower.delaying.hold(max(at_ms, until_ms))


async def test_a_disk_without_room_for_what_came_later_is_a_reason_not_to_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower, at_ms = await pair_with_a_message(tmp_path)
    append(leader, QUEUE, bytes(3000))
    later_ms = await moment(leader, tmp_path / "1")
    free = 3000
    monkeypatch.setattr(delaying, "free_disk_bytes", lambda directory: free)
    assert "the disk has 3000 octets free" in follower.delaying.lacks(at_ms)
    assert follower.delaying.lacks(later_ms) == ""
    free = 30_000
    assert follower.delaying.lacks(at_ms) == ""


async def test_without_a_delay_it_is_what_its_leader_is_and_keeps_nothing(tmp_path: Path) -> None:
    leader, follower = await delayed_pair(tmp_path, 2)
    await moment(leader, tmp_path / "0")
    leader.change_often(80)
    await moment(leader, tmp_path / "1")
    await follower.stop()
    await leader.stop()
    plain = FollowerSite(tmp_path / "follower", follower.inbound.uri)
    data = await follower_data(
        plain.directory,
        plain.applier,
        plain.commits,
        apply_delay_ms=0,
        has_joined=True,
        clock_ms=clock_ms,
        elapsed_ms=elapsed_ms,
        on_damage=plain.damaged,
    )
    assert data is plain.applier
    assert isinstance(data, Applier)
    assert_is(plain.directory, tmp_path / "1")
    assert not (plain.directory / "delayed").exists()
    await plain.stop()
