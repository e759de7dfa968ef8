"""A delayed follower is what its leader was, at every time and whatever happens: real sockets and files, no broker."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication import delaying, outbound
from leveret.runtime.replication.applier import Applier, WaitingChanges
from leveret.runtime.replication.delaying import ALL_MS
from leveret.storage.log import Log
from leveret.storage.quarantine.report import reports
from leveret.testing.applications.compare import compare
from leveret.testing.network.waiting import until
from leveret.wire.link import ChangeKind, LogChange
from tests.unit.runtime.replication.delayed_site import (
    DELAY_MS,
    DelayedSite,
    append,
    assert_is,
    has_received,
    moment,
    replaced,
)
from tests.unit.runtime.replication.link_sites import LeaderSite


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaying, "_PAUSE_S", (0.001, 0.005))


@pytest.mark.parametrize("seed", range(6))
def test_at_every_time_it_is_what_its_leader_was(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3:
        monkeypatch.setattr(outbound, "FINAL_BYTES", 0)
        monkeypatch.setattr(outbound, "STEP_BYTES", 500)
    if seed % 4 == 3:
        monkeypatch.setattr(outbound, "LIVE_BYTES_MAX", 3000)

    async def scenario() -> None:
        dice = random.Random(seed)
        leader = LeaderSite(tmp_path / "leader", dice)
        for _ in range(dice.choice([0, 40])):
            leader.change()
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        moments = [(await moment(leader, tmp_path / "0"), tmp_path / "0")]
        assert_is(follower.directory, moments[0][1])
        for number in range(1, 5):
            for _ in range(dice.randint(1, 60)):
                leader.change()
                if dice.random() < 0.2:
                    await asyncio.sleep(dice.choice([0, 0, 0.002]))
                match dice.choice(["cut", "restart", "kill", *["nothing"] * 40]):
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
        assert_is(follower.directory, moments[0][1])
        await leader.stop()
        for at_ms, directory in moments:
            await follower.apply_until(at_ms)
            assert_is(follower.directory, directory)
            if dice.random() < 0.5:
                await (follower.kill() if dice.random() < 0.5 else follower.stop())
                follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
                follower.at_ms = at_ms + DELAY_MS
        assert not follower.delaying.waits
        assert follower.delaying.delayed_changes()[:3] == (0, 0, 0)
        await follower.stop()

    asyncio.run(scenario())


def test_what_waits_is_not_sent_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(3))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        for number in range(100):
            append(leader, "queues/0000000000000001", bytes((number,)) * 1000)
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
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


def test_a_leader_whose_clock_is_ahead_is_not_kept_back_any_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(5))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        follower.at_ms = own_ms = clock_ms() - 600_000
        append(leader, "queues/0000000000000001", b"x")
        await until(lambda: has_received(leader), "received")
        assert follower.delaying.delayed_changes().newest_at_ms == own_ms
        follower.at_ms = own_ms + DELAY_MS
        await until(lambda: not follower.delaying.waits, "applied")
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_that_was_replaced_is_followed_up_to_its_end_and_then_the_new_one(
    tmp_path: Path, seed: int
) -> None:
    async def scenario() -> None:
        follower, leader, moments = await replaced(tmp_path, random.Random(seed))
        assert follower.identity.identity.followed_epoch == 1
        for at_ms, directory in moments:
            await follower.apply_until(at_ms)
            assert_is(follower.directory, directory)
        assert follower.identity.identity.followed_epoch == 2
        [report] = reports(follower.directory)
        assert report.is_finished
        assert report.logs
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_change_it_goes_on(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and behind each twentieth change that it makes, its directory is kept as it is, and gone on with."""

    async def scenario() -> None:
        follower, leader, moments = await replaced(tmp_path, random.Random(seed))
        await follower.stop()
        await leader.stop()
        uri = follower.inbound.uri
        copies: list[Path] = []
        made = 0
        marked: set[tuple[bool, bool]] = set()
        apply: Callable[[Applier, LogChange], None] = Applier.apply

        def keep(directory: Path) -> None:
            copies.append(tmp_path / f"killed-{len(copies)}")
            shutil.copytree(directory, copies[-1])

        def watched(applier: Applier, change: LogChange) -> None:
            nonlocal made
            made += 1
            if change.kind is ChangeKind.APPEND:
                is_in_join = follower.delaying._applied_joining is not None
                marked.add((is_in_join, follower.identity.identity.rewriting))
            is_kept = made % 20 == seed or change.kind in delaying._QUARANTINES
            if is_kept:
                keep(follower.directory)
            apply(applier, change)
            if is_kept:
                keep(follower.directory)

        with monkeypatch.context() as patched:
            patched.setattr(Applier, "apply", watched)
            follower = DelayedSite(tmp_path / "follower", uri)
            await follower.apply_until(ALL_MS)
            await follower.stop()
        # As for every follower: in the middle of a join it is no copy.
        assert marked == {(False, False), (True, True)}
        at_ms, last = moments[-1]
        assert_is(follower.directory, last)
        assert len(copies) > 8
        for copy in copies:
            again = DelayedSite(copy, uri)
            await again.apply_until(at_ms)
            assert_is(copy, last)
            await again.stop()
            [report] = reports(copy)
            assert report.is_finished

    asyncio.run(scenario())


def test_a_join_that_was_broken_off_is_not_applied_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "FINAL_BYTES", 0)
    monkeypatch.setattr(outbound, "STEP_BYTES", 500)

    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(4))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        await follower.stop()
        for _ in range(200):
            leader.change()
        follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
        await until(lambda: follower.delaying.is_torn, "in the middle of a join")
        follower.inbound.stop()
        await follower.apply_until(ALL_MS - DELAY_MS)
        assert_is(follower.directory, tmp_path / "0")
        assert (
            (await follower.delaying.left_after(ALL_MS)).records
            == follower.delaying.delayed_changes().records
            > 0
        )
        await follower.stop()
        follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
        at_ms = await moment(leader, tmp_path / "1")
        assert not follower.delaying.is_torn
        await follower.apply_until(at_ms)
        assert_is(follower.directory, tmp_path / "1")
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


def test_a_log_that_is_damaged_comes_anew_while_others_wait(tmp_path: Path) -> None:
    """What waits of it cannot be applied without what was there: it is passed over, up to where it begins anew."""
    name, other = "queues/0000000000000001", "queues/0000000000000002"

    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(4))
        for each in (name, other):
            append(leader, each, b"before")
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        for each in (name, other):
            append(leader, each, b"waits")
        at_ms = await moment(leader, tmp_path / "1")
        await follower.stop()
        shutil.rmtree(follower.directory / name)
        follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
        later_ms = await moment(leader, tmp_path / "2")
        await follower.apply_until(at_ms)
        assert compare(tmp_path / "1", follower.directory).behind == [f"{name}: the follower has no such log"]
        await follower.apply_until(later_ms)
        assert_is(follower.directory, tmp_path / "1")
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


# -- a disk that refuses --------------------------------------------------------------------------


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(2))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        write = Log._write

        def full(log: Log, *args: object) -> None:
            if log.directory.name == "delayed":
                raise StorageError(f"log {log.directory}: append failed: No space left on device")
            write(log, *args)  # type: ignore[arg-type]  # as they came

        with monkeypatch.context() as patched:
            patched.setattr(Log, "_write", full)
            for _ in range(20):
                leader.change()
            await until(lambda: "No space left" in follower.inbound.progress.error, "the disk is full")
            assert follower.inbound.state == "failed"
        at_ms = await moment(leader, tmp_path / "1")
        await follower.apply_until(at_ms)
        assert_is(follower.directory, tmp_path / "1")
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


def test_what_is_due_and_cannot_be_applied_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(2))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        append(leader, "queues/0000000000000001", b"x")
        at_ms = await moment(leader, tmp_path / "1")

        def full(applier: Applier, change: LogChange) -> None:
            raise StorageError("No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(Applier, "apply", full)
            follower.at_ms = at_ms + DELAY_MS
            await until(lambda: "No space left" in follower.inbound.error, "told")
            assert follower.delaying.delayed_changes().messages == 1
        await until(lambda: follower.delaying.delayed_changes() == WaitingChanges(), "applied")
        assert_is(follower.directory, tmp_path / "1")
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())
