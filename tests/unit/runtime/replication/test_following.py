"""A follower's tree is its leader's, whatever happens to the link: real sockets and files, no broker.

Every run prints its seed by way of the test's parameter; the same seed does the same things in the same order.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from isal.isal_zlib import crc32

from leveret.config.uris import NodeUri
from leveret.core.in_sync import InSync
from leveret.runtime.commit import GroupCommit
from leveret.runtime.node import clock_ms
from leveret.runtime.replication import outbound
from leveret.runtime.replication.applier import Applier
from leveret.runtime.replication.feed import Feed
from leveret.runtime.replication.identity import IdentityFile
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.replication.listener import ReplicationListener
from leveret.runtime.replication.outbound import Leading
from leveret.session.link_handshake import Leader
from leveret.storage.divergent import SetAside
from leveret.storage.log import Log
from leveret.storage.secret_file import Secret
from leveret.storage.tree import Tree
from leveret.testing.compare import compare
from leveret.wire.chunk import Chunk, ChunkType, encode_entry

SECRET = Secret(b"s" * 44)
SEGMENT_BYTES = 4096
TIMEOUT_S = 20.0
POLL_S = 0.005


def unheard(*_: Any) -> dict[str, Any]:
    return {}


def fail(error: BaseException) -> None:
    pytest.fail(str(error))


class LeaderSite:
    """A leader's tree and listener, and hands that change it at random."""

    def __init__(self, directory: Path, dice: random.Random, epoch: int = 1) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.dice = dice
        self.tree = Tree(directory, epoch=epoch)
        self.tree.open_all()
        self.commits = GroupCommit(fsync=True, on_failure=fail)
        self.identity = IdentityFile(directory)
        self.identity.identity.epoch = epoch
        self.feed = Feed(
            self.tree,
            InSync(ack_timeout_ms=60_000, min_in_sync=0),
            clock_ms,
            waits=True,
            compress=dice.random() < 0.3,
        )
        self.commits.fence = self.feed
        leading = Leading(
            tree=self.tree,
            feed=self.feed,
            commits=self.commits,
            secret=SECRET,
            identity=self.identity,
            name="leader",
            bandwidth_bytes_s=None,
            clock_ms=clock_ms,
            uri=lambda: "",
            met=lambda follower: False,
            damaged=set,
            hand_over=lambda follower, epoch: None,
            answer=unheard,
        )
        self.listener = ReplicationListener(leading, lambda: None)

    async def start(self) -> NodeUri:
        await self.listener.start("127.0.0.1", 0, None)
        assert self.listener.address is not None
        return NodeUri("tcp", *self.listener.address)

    def log(self, name: str) -> Log:
        log = self.tree.log(self.directory / name, segment_bytes_max=SEGMENT_BYTES)
        return log if log.is_open else log.open()

    def change(self) -> None:
        """One change of some log or state file, then the group commit begins a round."""
        dice = self.dice
        names = ["definitions", *(f"queues/{each:016x}" for each in range(12)), "outgoing/v"]
        name = dice.choice(names)
        match dice.choices(["append", "drop", "delete", "file", "remove"], [30, 4, 5, 1, 1])[0]:
            case "append":
                self.append(name)
            case "drop" if name in self.tree.logs:
                log = self.tree.logs[name]
                log.drop_before(dice.randint(log.first_offset, log.next_offset))
            case "delete" if name in self.tree.logs and name != "definitions":
                log = self.tree.logs[name]
                self.commits.forget(log)
                log.delete()
            case "file":
                self.tree.file(self.directory / dice.choice(["standby.json", "schema_sync.json"])).save(
                    {"x": dice.random()}
                )
            case "remove":
                self.tree.file(self.directory / "standby.json").remove()
        self.commits.begin()

    def append(self, name: str) -> None:
        bodies = [
            self.dice.randbytes(self.dice.choice([0, 3, 100, 900])) for _ in range(self.dice.randint(1, 5))
        ]
        data = b"".join(map(encode_entry, bodies))
        log = self.log(name)
        log.append(ChunkType.USER, len(bodies), len(bodies), data, clock_ms())
        self.commits.appended(log)

    async def stop(self) -> None:
        await self.listener.stop()
        self.commits.close()
        self.tree.close()


class FollowerSite:
    """A follower's tree and link; also its own inbound.Followed."""

    def __init__(self, directory: Path, uri: NodeUri) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.tree = Tree(directory)
        assert not self.tree.open_all()
        self.commits = GroupCommit(fsync=True, on_failure=fail)
        self.identity = IdentityFile(directory)
        self.seen: dict[str, list[int]] = {}
        self.applier = Applier(self.tree, self.commits, self._replayed)
        self.inbound = Inbound(
            uri,
            secret=SECRET,
            identity=self.identity,
            name="follower",
            own_uri=lambda: "",
            applier=self.applier,
            commits=self.commits,
            followed=self,
            clock_ms=clock_ms,
            tls=lambda: None,
            answer=unheard,
            on_hopeless=fail,
        )
        self.running = asyncio.create_task(self.inbound.run())

    def _replayed(self, name: str, log: Log, chunk: Chunk) -> None:
        assert crc32(chunk.data) == chunk.header.crc
        self.seen.setdefault(name, []).append(chunk.header.chunk_id)

    def files(self) -> list[str]:
        return [name for name, _ in self.tree.files()]

    def leader_epoch(self, leader: Leader) -> None:
        self.applier.aside = SetAside(
            self.directory,
            at_ms=clock_ms(),
            from_epoch=self.identity.identity.epoch,
            to_epoch=leader.epoch,
            node_id="f" * 24,
            leader_id=leader.node_id,
            leader_uri="",
            name_of=lambda name: None,
        )

    def joined(self, leader: Leader) -> None:
        assert isinstance(self.applier.aside, SetAside)
        self.applier.aside.finish()
        self.identity.identity.followed_epoch = self.identity.identity.epoch = leader.epoch
        self.identity.identity.led = False
        self.identity.save()

    async def stop(self) -> None:
        self.inbound.stop()
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.commits.settle()
        self.commits.close()
        self.tree.close()


async def until(condition: Any, what: str) -> None:
    for _ in range(round(TIMEOUT_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    pytest.fail(f"not {what} within {TIMEOUT_S:g} s")


def in_sync(leader: LeaderSite) -> bool:
    """Whether the one follower has everything, on disk."""
    feed = leader.feed
    feed.cut()
    return len(feed.in_sync.members) == 1 and all(
        link.acked_position == feed.position for link in leader.listener.followers
    )


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_to_the_link_the_follower_has_what_the_leader_has(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3:
        # Much happens while it catches up.
        monkeypatch.setattr(outbound, "FINAL_BYTES", 0)
        monkeypatch.setattr(outbound, "STEP_BYTES", 500)

    async def scenario() -> None:
        dice = random.Random(seed)
        leader = LeaderSite(tmp_path / "leader", dice)
        for _ in range(dice.choice([0, 40, 400])):
            leader.change()
        follower = FollowerSite(tmp_path / "follower", await leader.start())
        for _ in range(dice.randint(3, 6)):
            for _ in range(dice.randint(1, 60)):
                leader.change()
                if dice.random() < 0.2:
                    await asyncio.sleep(dice.choice([0, 0, 0.002]))
            match dice.choice(["cut", "restart", "wait", "nothing"]):
                case "cut":
                    for link in leader.listener.links:
                        link.peer.abort()
                case "restart":
                    await follower.stop()
                    for _ in range(dice.randint(0, 30)):
                        leader.change()
                    follower = FollowerSite(tmp_path / "follower", follower.inbound.uri)
                case "wait":
                    await until(lambda: in_sync(leader), "in sync")
        await until(lambda: in_sync(leader), "in sync at the end")
        await follower.stop()
        await leader.stop()
        found = compare(leader.directory, follower.directory)
        assert found.is_identical, found

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_a_diverged_tail_is_set_aside_and_the_rest_stays(tmp_path: Path, seed: int) -> None:
    """The follower goes on by itself, as a leader that was replaced does, and follows again."""

    async def scenario() -> None:
        dice = random.Random(seed)
        leader = LeaderSite(tmp_path / "leader", dice)
        follower = FollowerSite(tmp_path / "follower", await leader.start())
        for _ in range(60):
            leader.change()
        await until(lambda: in_sync(leader), "in sync")
        await follower.stop()
        common = {name: log.next_offset for name, log in leader.tree.logs.items()}
        old = LeaderSite(tmp_path / "follower", dice, epoch=1)
        divergent: dict[str, int] = {}
        for name in sorted(dice.sample(sorted(common), min(3, len(common)))):
            old.append(name)
            divergent[name] = old.log(name).next_offset - common[name]
        old.identity.identity.led = True
        old.identity.save()
        old.commits.begin()
        await old.stop()
        leader.tree.epoch = leader.identity.identity.epoch = 2
        for log in leader.tree.logs.values():
            log.epoch = 2
        for _ in range(20):
            leader.append(dice.choice(sorted(leader.tree.logs)))
            leader.commits.begin()
        again = FollowerSite(tmp_path / "follower", follower.inbound.uri)
        await until(lambda: in_sync(leader), "in sync again")
        await again.stop()
        await leader.stop()
        found = compare(leader.directory, again.directory)
        assert found.is_identical, found
        aside = {
            path.parent.relative_to(again.directory / "divergent").parts[1:]
            for path in (again.directory / "divergent").rglob("*.segment")
        }
        assert aside == {tuple(name.split("/")) for name in divergent}

    asyncio.run(scenario())


def test_a_leader_that_comes_back_with_nothing_has_nothing_deleted(tmp_path: Path) -> None:
    """It lost its data directory and begins anew, in the same epoch: the follower has the only copy there is."""

    async def scenario() -> None:
        dice = random.Random(1)
        leader = LeaderSite(tmp_path / "leader", dice)
        follower = FollowerSite(tmp_path / "follower", await leader.start())
        leader.append("definitions")
        for name in ("queues/0000000000000001", "queues/0000000000000002", "outgoing/v"):
            leader.append(name)
        leader.commits.begin()
        await until(lambda: in_sync(leader), "in sync")
        await follower.stop()
        held = {
            path.relative_to(follower.directory).parent: path.read_bytes()
            for path in follower.directory.rglob("*.segment")
        }
        await leader.stop()
        empty = LeaderSite(tmp_path / "empty", dice)
        empty.append("definitions")
        empty.commits.begin()
        again = FollowerSite(tmp_path / "follower", await empty.start())
        await until(lambda: in_sync(empty), "in sync with the new one")
        await again.stop()
        await empty.stop()
        assert compare(empty.directory, again.directory).is_identical
        aside = {
            Path(*path.relative_to(again.directory / "divergent").parent.parts[1:]): path.read_bytes()
            for path in (again.directory / "divergent").rglob("*.segment")
        }
        assert aside == held

    asyncio.run(scenario())
