"""A delayed follower is what its leader was, at every time and whatever happens: real sockets and files, no broker.

The follower's clock is the test's, so a delay of an hour takes no time.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.config.uris import NodeUri
from leveret.model.errors import PreconditionFailed, StorageError
from leveret.runtime.node import clock_ms
from leveret.runtime.replication import delaying, outbound
from leveret.runtime.replication.applier import Applier
from leveret.runtime.replication.delaying import ALL_MS, Delaying, hands_of, refuse_to_lead
from leveret.storage.divergent import SetAside
from leveret.storage.divergent_report import reports
from leveret.storage.log import Log
from leveret.storage.spool import Spool
from leveret.testing.compare import compare
from leveret.wire.chunk import ChunkType, encode_entry
from leveret.wire.link import Change
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite, until

DELAY_MS = 3_600_000
SEGMENT_BYTES = 8192


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaying, "_PAUSE_S", (0.001, 0.005))


class DelayedSite(FollowerSite):
    """A follower's tree, spool and link.

    Attributes:
        at_ms: its clock, if that stands still.
    """

    at_ms: int | None = None

    def hands(self) -> Delaying:
        self.delaying = Delaying(
            Spool(self.directory, segment_bytes_max=SEGMENT_BYTES),
            self.applier,
            self.commits,
            apply_delay_ms=DELAY_MS,
            has_joined=self.identity.identity.followed_epoch > 0,
            clock_ms=lambda: self.at_ms or clock_ms(),
        )
        self.delaying.open()
        self.delaying.start()
        return self.delaying

    async def apply_until(self, at_ms: int) -> None:
        """Have it apply what its leader had done by then, when that is due."""
        self.at_ms = at_ms + DELAY_MS
        await self.delaying.apply_until(at_ms)

    def keeper(self, logs_dir: Path) -> SetAside:
        return SetAside(
            self.directory,
            at_ms=clock_ms(),
            from_epoch=1,
            to_epoch=3,
            node_id="f" * 24,
            leader_id="f" * 24,
            leader_uri="",
            name_of=lambda name: None,
            logs_dir=logs_dir,
        )

    async def stop(self) -> None:
        self.inbound.stop()
        await self.delaying.stop()
        await super().stop()

    async def kill(self) -> None:
        """Nothing is finished or noted any more."""
        self.inbound.stop()
        self.running.cancel()
        await self.delaying.stop()
        self.commits._dirty.clear()
        self.commits.close()
        self.tree.close()


def has_received(leader: LeaderSite) -> bool:
    """Whether the one follower has everything, on disk."""
    leader.feed.cut()
    return [(link.state, link.acked_position) for link in leader.listener.followers] == [
        ("delayed", leader.feed.position)
    ]


async def moment(leader: LeaderSite, to: Path) -> int:
    """Keep what the leader has, once the follower has received it; the time, behind which nothing was done yet."""
    await until(lambda: has_received(leader), "received")
    shutil.copytree(leader.directory, to)
    at_ms = clock_ms()
    while clock_ms() == at_ms:
        await asyncio.sleep(0.001)
    return at_ms


def assert_is(follower: Path, leader: Path) -> None:
    found = compare(leader, follower)
    assert found.is_identical, found


@pytest.mark.parametrize("seed", range(12))
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
                        for link in leader.listener.links:
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
        assert follower.delaying.held_back()[:3] == (0, 0, 0)
        await follower.stop()

    asyncio.run(scenario())


def test_what_waits_is_not_sent_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(3))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        for _ in range(100):
            append(leader, "queues/0000000000000001", b"x" * 1000)
        await until(lambda: has_received(leader), "received")
        [link] = leader.listener.followers
        assert link.peer.sent_bytes > 100_000
        assert follower.delaying.held_back().messages == 100
        await follower.stop()
        follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
        await until(lambda: has_received(leader), "back")
        [link] = leader.listener.followers
        assert link.peer.sent_bytes < 2000
        assert not leader.feed.in_sync.members
        held = follower.delaying.held_back()
        assert (held.messages, held.error) == (100, "")
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


def append(leader: LeaderSite, name: str, body: bytes) -> None:
    log = leader.log(name)
    log.append(ChunkType.USER, 1, 1, encode_entry(body), clock_ms())
    leader.commits.appended(log)
    leader.commits.begin()


async def replaced(
    tmp_path: Path, dice: random.Random
) -> tuple[DelayedSite, LeaderSite, list[tuple[int, Path]]]:
    """A delayed follower in whose spool there is the tail of a leader that was replaced, and what replaced it.

    Returns:
        The follower, its present leader, and what the leaders had at some times.
    """
    old = LeaderSite(tmp_path / "old", dice)
    follower = DelayedSite(tmp_path / "follower", await old.start())
    for _ in range(60):
        old.change()
    moments = [(await moment(old, tmp_path / "0"), tmp_path / "0")]
    for name in sorted(old.tree.logs)[:3]:
        old.append(name)
        old.commits.begin()
    moments.append((await moment(old, tmp_path / "1"), tmp_path / "1"))
    for name in sorted(old.tree.logs):
        old.append(name)
    old.append("queues/00000000000000ff")
    old.commits.begin()
    moments.append((await moment(old, tmp_path / "2"), tmp_path / "2"))
    await old.stop()
    # It was promoted when it had what the old one had at the second time.
    shutil.copytree(tmp_path / "1", tmp_path / "new")
    new = LeaderSite(tmp_path / "new", dice, epoch=2)
    for _ in range(30):
        new.change()
    await follower.stop()
    follower = DelayedSite(tmp_path / "follower", await new.start())
    moments.append((await moment(new, tmp_path / "3"), tmp_path / "3"))
    for _ in range(30):
        new.change()
    moments.append((await moment(new, tmp_path / "4"), tmp_path / "4"))
    return follower, new, moments


@pytest.mark.parametrize("seed", range(4))
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


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_change_it_goes_on(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and behind each tenth change that it makes, its directory is kept as it is, and gone on with."""

    async def scenario() -> None:
        follower, leader, moments = await replaced(tmp_path, random.Random(seed))
        await follower.stop()
        await leader.stop()
        uri = follower.inbound.uri
        copies: list[Path] = []
        made = 0
        apply: Callable[[Applier, Change], None] = Applier.apply

        def keep(directory: Path) -> None:
            copies.append(tmp_path / f"killed-{len(copies)}")
            shutil.copytree(directory, copies[-1])

        def watched(applier: Applier, change: Change) -> None:
            nonlocal made
            made += 1
            is_kept = made % 10 == seed or change.kind in delaying._SETS_ASIDE
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
        at_ms, last = moments[-1]
        assert_is(follower.directory, last)
        assert len(copies) > 10
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
            (await follower.delaying.left_after(ALL_MS)).records == follower.delaying.held_back().records > 0
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


# -- promotion ------------------------------------------------------------------------------------


def test_what_is_not_applied_is_set_aside(tmp_path: Path) -> None:
    """Also of a leader that was replaced: then there are two chunks for one offset, and a report for each."""

    async def scenario() -> None:
        follower, leader, moments = await replaced(tmp_path, random.Random(1))
        held = follower.delaying.held_back()
        at_ms, directory = moments[0]
        left = await follower.delaying.left_after(at_ms)
        assert (left.messages, left.newest_at_ms) == (held.messages, held.newest_at_ms)
        assert left.messages > 0
        assert "holds changes back" in follower.delaying.why_not(None)
        assert follower.delaying.why_not(at_ms) == ""
        with pytest.raises(PreconditionFailed, match="holds changes back"):
            refuse_to_lead(follower.directory)
        follower.inbound.stop()
        await follower.delaying.finish(at_ms, follower.keeper)
        assert_is(follower.directory, directory)
        found = reports(follower.directory)
        assert [each.is_finished for each in found] == [True] * len(found)
        assert len(found) == 2
        assert sum(log.messages for report in found for log in report.logs) == left.messages
        refuse_to_lead(follower.directory)
        assert not (follower.directory / "delayed").exists()
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


def test_what_is_applied_cannot_be_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(1))
        append(leader, "queues/0000000000000001", b"first")
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        at_ms = await moment(leader, tmp_path / "0")
        assert follower.delaying.why_not(None) == ""
        assert (
            follower.delaying.why_not(at_ms - 60_000)
            == "what the leader did after that time is applied already"
        )
        await follower.stop()
        again = DelayedSite(tmp_path / "follower", follower.inbound.uri)
        assert (
            again.delaying.why_not(at_ms - 60_000) == "what the leader did after that time is applied already"
        )
        await again.stop()
        await leader.stop()

    asyncio.run(scenario())


def test_without_a_delay_what_waits_from_before_is_applied_at_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(2))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        for _ in range(50):
            leader.change()
        await moment(leader, tmp_path / "1")
        await follower.stop()
        await leader.stop()
        plain = FollowerSite(tmp_path / "follower", follower.inbound.uri)
        hands = await hands_of(
            plain.directory,
            plain.applier,
            plain.commits,
            apply_delay_ms=0,
            has_joined=True,
            clock_ms=clock_ms,
        )
        assert hands is plain.applier
        assert_is(plain.directory, tmp_path / "1")
        assert not (plain.directory / "delayed").exists()
        await plain.stop()

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

        def full(applier: Applier, change: Change) -> None:
            raise StorageError("No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(Applier, "apply", full)
            follower.at_ms = at_ms + DELAY_MS
            await until(lambda: "No space left" in follower.delaying.held_back().error, "told")
            assert follower.delaying.held_back().messages == 1
        await until(lambda: not follower.delaying.waits, "applied")
        assert follower.delaying.held_back().error == ""
        assert_is(follower.directory, tmp_path / "1")
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())
