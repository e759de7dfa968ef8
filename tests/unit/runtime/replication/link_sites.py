"""A leader's and a follower's side of a link over real sockets and files, without a broker."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from isal.isal_zlib import crc32

from leveret.config.uris import NodeUri
from leveret.core.replication.in_sync import InSync
from leveret.model.errors import Corrupt, LeveretError, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication.applier import Applier, CopyOwner, FollowerData
from leveret.runtime.replication.feed import Feed
from leveret.runtime.replication.identity import IdentityFile, LinkEnd
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.replication.listener import ReplicationListener
from leveret.runtime.replication.sent_node import LeaderState
from leveret.runtime.sockets.tls import ListenerTls
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.log import Log
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.secret_file import Secret
from leveret.storage.tree import Tree
from leveret.wire.chunk import Chunk, ChunkType, encode_entry
from tests.endings import at_end

SECRET = Secret(b"s" * 44)
SEGMENT_BYTES = 4096


def link_end(
    identity: IdentityFile,
    name: str = "",
    tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    cluster: str = "",
) -> LinkEnd:
    """Of a node that nobody follows."""
    return LinkEnd(SECRET, identity, name, lambda: "", tls, lambda: cluster)


def unheard(*_: Any) -> dict[str, Any]:
    return {}


def fail(error: BaseException) -> None:
    pytest.fail(str(error))


class LeaderSite:
    """A leader's tree and listener, and hands that change it at random. It stops with its test.

    Attributes:
        damaged: names of logs that it cannot read.
    """

    def __init__(self, directory: Path, dice: random.Random, epoch: int = 1, cluster: str = "") -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.dice = dice
        self.tree = Tree(directory, epoch=epoch)
        self.tree.open_all()
        self.commits = GroupCommit(fsync=True, on_failure=fail)
        self.identity = IdentityFile(directory)
        self.identity.identity.epoch = epoch
        self.identity.identity.leader_id = self.identity.identity.node_id
        self.feed = Feed(
            self.tree,
            InSync(ack_timeout_ms=60_000, min_in_sync=0),
            clock_ms,
            waits=True,
            compress=dice.random() < 0.3,
        )
        self.commits.replication_barrier = self.feed
        self.damaged: set[str] = set()
        leading = LeaderState(
            tree=self.tree,
            feed=self.feed,
            commits=self.commits,
            own=link_end(self.identity, "leader", cluster=cluster),
            bandwidth_bytes_s=None,
            clock_ms=clock_ms,
            noticed=lambda: None,
            met=lambda follower: False,
            damaged=lambda: set(self.damaged),
            unreadable=self._unreadable,
            hand_over=lambda follower, epoch: None,
            answer=unheard,
            accept_client=lambda by, peer: pytest.fail("a client came"),
        )
        self.listener = ReplicationListener(leading)
        self._has_ended = False
        at_end(self._end)

    def _unreadable(self, name: str, error: StorageError) -> None:
        self.damaged.add(name)

    async def start(self, tls: ListenerTls | None = None) -> NodeUri:
        await self.listener.start("127.0.0.1", 0, tls)
        assert self.listener.address is not None
        return NodeUri("tls" if tls else "tcp", *self.listener.address)

    def log(self, name: str) -> Log:
        log = self.tree.log(self.directory / name, segment_bytes_max=SEGMENT_BYTES)
        return log if log.is_open else log.open()

    def change_often(self, times: int) -> None:
        for _ in range(times):
            self.change()

    def change(self) -> None:
        """One change of some log or state file, then the group commit begins a round."""
        dice = self.dice
        names = ["definitions", *(f"queues/{each:016x}" for each in range(12)), "outgoing/v"]
        name = dice.choice(names)
        changes = ["append", "drop", "cut", "delete", "file", "remove"]
        match dice.choices(changes, [30, 6, 8, 8, 4, 2])[0]:
            case "append":
                self.append(name)
            case "drop" if name in self.tree.logs:
                log = self.tree.logs[name]
                log.drop_before(dice.randint(log.first_offset, log.next_offset))
            case "cut" if name in self.tree.logs and name != "definitions":
                self.cut(name)
            case "delete" if name in self.tree.logs and name != "definitions":
                log = self.tree.logs[name]
                self.commits.forget(log)
                self.tree.file(log.directory / "identity.json").remove()
                log.delete()
            case "file":
                place = dice.choice(["standby.json", "schema_sync.json", "outgoing/v/identity.json"])
                # As an outgoing log does, before anything is in it.
                (self.directory / place).parent.mkdir(parents=True, exist_ok=True)
                self.tree.file(self.directory / place).save({"x": dice.random()})
            case "remove":
                place = dice.choice(["standby.json", "outgoing/v/identity.json"])
                self.tree.file(self.directory / place).remove()
        self.commits.begin()

    def cut(self, name: str) -> None:
        """Truncate a log at one of its last chunks, as a mirror of a queue does whose leader's log differs."""
        log = self.tree.logs[name]
        headers = log.headers_before(log.next_offset, self.dice.randint(1, 4))
        ends = [header.chunk_id for header, _ in headers if header.chunk_id > log.first_offset]
        self.commits.forget(log)
        log.close()
        del self.tree.logs[name]
        cut = self.tree.log(log.directory, segment_bytes_max=SEGMENT_BYTES)
        cut.open(cut_at=min(ends, default=log.next_offset))
        self.tree.truncated(cut)

    def append(self, name: str) -> None:
        bodies = [
            self.dice.randbytes(self.dice.choice([0, 3, 100, 900])) for _ in range(self.dice.randint(1, 5))
        ]
        data = b"".join(map(encode_entry, bodies))
        log = self.log(name)
        log.append(ChunkType.USER, len(bodies), len(bodies), data, clock_ms())
        self.commits.appended(log)

    async def _end(self) -> None:
        if not self._has_ended:
            await self.stop()

    async def stop(self) -> None:
        self._has_ended = True
        await self.listener.stop()
        self.commits.close()
        self.tree.close()


class Repairs:
    """The repair of a chunk, which a test may hold up."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.ended.set()

    async def wait(self) -> None:
        await self.ended.wait()


class FollowerSite(CopyOwner):
    """A follower's tree and link; also its own inbound.FollowingNode. It stops with its test."""

    def __init__(
        self,
        directory: Path,
        uri: NodeUri,
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        on_hopeless: Callable[[LeveretError], None] = fail,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.tree = Tree(directory)
        assert not self.tree.open_all()
        self.commits = GroupCommit(fsync=True, on_failure=fail)
        self.identity = IdentityFile(directory)
        self.repairs = Repairs()
        self.seen: dict[str, list[int]] = {}
        self.damage: list[Corrupt] = []
        self.hopeless = on_hopeless
        self.logs_rewritten: list[str] = []
        self.applier = Applier(self.tree, self.commits, self)
        self.inbound = Inbound(
            uri,
            link_end(self.identity, "follower", tls),
            data=self.follower_data(),
            commits=self.commits,
            followed=self,
            clock_ms=clock_ms,
            answer=unheard,
            repaired=self.repairs.wait,
        )
        self.running = asyncio.create_task(self.inbound.run())
        self._has_ended = False
        at_end(self._end)

    def damaged(self, error: Corrupt) -> None:
        self.damage.append(error)

    def follower_data(self) -> FollowerData:
        """What stands at the link."""
        return self.applier

    def replayed(self, name: str, log: Log, chunk: Chunk) -> None:
        assert crc32(chunk.data) == chunk.header.crc
        self.seen.setdefault(name, []).append(chunk.header.chunk_id)

    def rewriting(self) -> None:
        self.identity.identity.rewriting = True

    def rewritten(self, name: str) -> None:
        self.logs_rewritten.append(name)

    def files(self) -> list[str]:
        return [name for name, _ in self.tree.files()]

    def leader_epoch(self, leader: ProvenLeader) -> None:
        self.identity.identity.seen_epoch = leader.epoch

    def joining(self, leader: ProvenLeader) -> None:
        self.applier.quarantine = self._quarantine(leader)

    def quarantine_now(self, leader: ProvenLeader, name: str, at: int) -> None:
        quarantine = self._quarantine(leader)
        quarantine.add(name, at)
        quarantine.finish()

    def _quarantine(self, leader: ProvenLeader) -> Quarantine:
        join = DivergentReport.begun(
            clock_ms(),
            from_epoch=self.identity.identity.epoch,
            to_epoch=leader.epoch,
            node_id="f" * 24,
            leader_id=leader.node_id,
        )
        return Quarantine(self.directory, join, lambda name: None)

    def joined(self, leader: ProvenLeader) -> None:
        if isinstance(self.applier.quarantine, Quarantine):
            self.applier.quarantine.finish()
            self.applier.quarantine = None
        self.identity.identity.followed_epoch = self.identity.identity.epoch = leader.epoch
        self.identity.identity.leader_id = leader.leader_id
        self.identity.identity.led = self.identity.identity.rewriting = False
        self.identity.save()

    async def _end(self) -> None:
        if not self._has_ended:
            await self.stop()

    async def stop(self) -> None:
        self._has_ended = True
        await self.inbound.stop()
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.commits.all_durable()
        self.commits.close()
        self.tree.close()


def in_sync(leader: LeaderSite) -> bool:
    """Whether the one follower has everything, on disk."""
    feed = leader.feed
    feed.cut()
    return len(feed.in_sync.members) == 1 and all(
        link.acked_position == feed.position for link in leader.listener.followers
    )
