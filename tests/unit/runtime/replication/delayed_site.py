"""A delayed follower's side of a link, and leaders for it to follow: real sockets and files, no broker.

The follower's clock is the test's, so a delay of an hour takes no time. `as_of` has a copy of its data go back.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from leveret.model.errors import Corrupt
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication.applier import Applier, CopyOwner
from leveret.runtime.replication.delaying import Delaying
from leveret.storage.delayed.index import DelayIndex
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.tree import Tree
from leveret.testing.applications.compare import compare
from leveret.testing.network.waiting import until
from leveret.wire.chunk import ChunkType, encode_entry
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite, fail

DELAY_MS = 3_600_000
QUEUE = "queues/0000000000000001"
SEGMENT_BYTES = 8192
NOT_DROPPED = "the leader has dropped it, the follower has not"


def delaying_of(
    directory: Path,
    applier: Applier,
    commits: GroupCommit,
    *,
    has_joined: bool = True,
    clock: Callable[[], int] = clock_ms,
    elapsed: Callable[[], int] | None = None,
    on_damage: Callable[[Corrupt], None] = fail,
) -> Delaying:
    return Delaying(
        DelayIndex(directory, segment_bytes_max=SEGMENT_BYTES),
        applier,
        commits,
        apply_delay_ms=DELAY_MS,
        has_joined=has_joined,
        clock_ms=clock,
        elapsed_ms=elapsed or clock,
        on_damage=on_damage,
    )


class DelayedSite(FollowerSite):
    """A follower's tree, index and link.

    Attributes:
        at_ms: its clock, if that stands still.
    """

    at_ms: int | None = None

    def follower_data(self) -> Delaying:
        self.delaying = delaying_of(
            self.directory,
            self.applier,
            self.commits,
            has_joined=self.identity.identity.followed_epoch > 0,
            clock=lambda: self.at_ms or clock_ms(),
            on_damage=self.damaged,
        )
        self.delaying.open()
        self.delaying.start()
        return self.delaying

    async def expire_until(self, at_ms: int) -> None:
        """Have the delay pass for what its leader had done by then."""
        self.at_ms = at_ms + DELAY_MS
        self.delaying._removes_at_s = 0.0
        await self.delaying.expire(at_ms)
        await self.commits.all_durable()
        self.delaying.drop_due()

    async def stop(self) -> None:
        await self.inbound.stop()
        await self.delaying.stop()
        await super().stop()

    async def kill(self) -> None:
        """Nothing is finished or noted any more."""
        self._has_ended = True
        await self.inbound.stop()
        self.running.cancel()
        await self.delaying.halt()
        if self.delaying.log is not None:
            self.delaying.log.close()
        self.commits._dirty.clear()
        self.commits.close()
        self.tree.close()


class AloneSite(CopyOwner):
    """The data of a delayed follower without a link, started as after its end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = Tree(directory)
        assert not self.tree.open_all()
        self.commits = GroupCommit(fsync=True, on_failure=fail)
        self.is_rewriting = False
        self.applier = Applier(self.tree, self.commits, self)

    def rewriting(self) -> None:
        self.is_rewriting = True

    def keeper(self) -> Quarantine:
        join = DivergentReport.begun(
            clock_ms(), from_epoch=1, to_epoch=3, node_id="f" * 24, leader_id="f" * 24
        )
        return Quarantine(self.directory, join, lambda name: None)

    async def finish(self, delaying: Delaying, at_ms: int) -> None:
        """Go back to that time, and close all."""
        keeper = self.keeper()
        await delaying.finish(at_ms, keeper)
        keeper.finish()
        await self.close()

    async def close(self) -> None:
        self.commits.close()
        self.tree.close()


async def go_back(directory: Path, at_ms: int) -> None:
    """Have the data in a directory, which nobody has open, go back to a time."""
    alone = AloneSite(directory)
    delaying = delaying_of(directory, alone.applier, alone.commits)
    delaying.open()
    delaying.start()
    await alone.finish(delaying, at_ms)


async def assert_was(
    directory: Path, moments: list[tuple[int, Path]], scratch: Path, late: Collection[str] = ()
) -> None:
    """Of copies of a delayed follower's data each goes back to one of these times: then it is what the leader was.

    Of the logs in `late` it may have segments that the leader had dropped.
    """
    for at_ms, expected in moments:
        shutil.copytree(directory, scratch)
        await go_back(scratch, at_ms)
        assert_is(scratch, expected, late)
        assert not (scratch / "delayed").exists()
        shutil.rmtree(scratch)


def has_received(leader: LeaderSite) -> bool:
    """Whether the one follower has everything, on disk."""
    leader.feed.cut()
    return [(link.state, link.acked_position) for link in leader.listener.followers] == [
        ("delayed", leader.feed.position)
    ]


async def delayed_pair(directory: Path, seed: int) -> tuple[LeaderSite, DelayedSite]:
    leader = LeaderSite(directory / "leader", random.Random(seed))
    return leader, DelayedSite(directory / "follower", await leader.start())


async def pair_with_a_message(directory: Path) -> tuple[LeaderSite, DelayedSite, int]:
    """A leader and its follower, which has its first message and was as `directory / "0"` at that time."""
    leader = LeaderSite(directory / "leader", random.Random(1))
    append(leader, QUEUE, b"first")
    follower = DelayedSite(directory / "follower", await leader.start())
    return leader, follower, await moment(leader, directory / "0")


async def moment(leader: LeaderSite, to: Path) -> int:
    """Keep what the leader has, once the follower has received it; the time, behind which nothing was done yet."""
    await until(lambda: has_received(leader), "received")
    shutil.copytree(leader.directory, to)
    at_ms = clock_ms()
    await until(lambda: clock_ms() > at_ms, "later")
    return at_ms


def assert_is(follower: Path, leader: Path, late: Collection[str] = ()) -> None:
    """It is what its leader was; of the logs in `late` it may have segments that the leader has dropped."""
    found = compare(leader, follower)
    assert not found.wrong, found
    more = [f"{name} segment " for name in late]
    behind = [
        each for each in found.behind if not (each.endswith(NOT_DROPPED) and each.startswith(tuple(more)))
    ]
    assert not behind, found


def append(leader: LeaderSite, name: str, body: bytes) -> None:
    log = leader.log(name)
    log.append(ChunkType.USER, 1, 1, encode_entry(body), clock_ms())
    leader.commits.appended(log)
    leader.commits.begin()


async def replaced(
    tmp_path: Path, dice: random.Random
) -> tuple[DelayedSite, LeaderSite, list[tuple[int, Path]]]:
    """A delayed follower whose leader was replaced, with a tail that the present one has not.

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
