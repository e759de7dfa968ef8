"""A follower of a cluster's node: what that mirrors is cut, begun anew, and gets segments in front, at any moment."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.config.uris import NodeUri
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication import listener
from leveret.runtime.replication.applier import Applier, CopyOwner
from leveret.runtime.replication.prefix_segment import CopiedPrefix
from leveret.runtime.replication.sent_node import SentNode
from leveret.storage.log import Log
from leveret.storage.segment import has_segments
from leveret.storage.tree import Tree
from leveret.testing.applications.compare import compare
from leveret.testing.network.waiting import until
from leveret.wire.chunk import Chunk, ChunkType, decode_chunk, encode_entry
from leveret.wire.link import ChangeKind, LogChange, Octets
from tests.seeds import seeds
from tests.unit.runtime.replication.delayed_site import DelayedSite
from tests.unit.runtime.replication.link_sites import SEGMENT_BYTES, FollowerSite, LeaderSite, in_sync

NAMES = [f"queues/{number:016x}" for number in range(1, 6)]
CLUSTER = "c1"


class Kept:
    """Quarantines nothing: the mirroring node has done it."""

    def add(self, path: str, at_offset: int = 0) -> object:
        return None


class MirroringNode(LeaderSite):
    """A node of a cluster whose logs are copies of those of other nodes; these are the `origin`."""

    def __init__(self, directory: Path, origin: Path, dice: random.Random) -> None:
        super().__init__(directory, dice, cluster=CLUSTER)
        origin.mkdir(exist_ok=True)
        self.origin = Tree(origin, epoch=1 << 32)
        self.applier = Applier(self.tree, self.commits, CopyOwner())
        self.applier.quarantine = Kept()
        self.dropped_to: dict[str, int] = {}
        self.term = 1

    def log_of_origin(self, name: str) -> Log:
        log = self.origin.log(self.origin.root / name, segment_bytes_max=SEGMENT_BYTES)
        return log if log.is_open else log.open()

    def write(self, log: Log, records: int = 3) -> None:
        bodies = [self.dice.randbytes(self.dice.choice([3, 100, 900])) for _ in range(records)]
        log.append(ChunkType.USER, records, records, b"".join(map(encode_entry, bodies)), clock_ms())

    def chunks(self, name: str, offset: int) -> Iterator[tuple[int, Chunk, Octets]]:
        for segment, header, octets in list(self.log_of_origin(name).read_segments(offset, 1 << 30)):
            if header.chunk_id >= offset:
                yield segment, decode_chunk(bytes(octets)), bytes(octets)

    # -- what happens to a copy ---------------------------------------------------------------

    def catch_up(self, name: str, chunks_max: int = 1 << 30) -> None:
        log = self.tree.logs.get(name)
        for segment, chunk, octets in list(self.chunks(name, log.next_offset if log is not None else 0))[
            :chunks_max
        ]:
            self.applier.apply(LogChange(ChangeKind.APPEND, name, segment, chunk, octets))

    def diverge(self, name: str) -> None:
        """It led for a moment, and another one leads now without the end of what it had."""
        log = self.tree.logs[name]
        at = log.next_offset
        log.epoch = self.term << 32 | 7
        for _ in range(self.dice.randint(1, 9)):
            self.write(log)
        self.commits.appended(log)
        self.commits.begin()
        if self.dice.random() < 0.3:
            self.dropped_to.pop(name, None)
            self.applier.apply(LogChange(ChangeKind.QUARANTINE, name))
        else:
            self.applier.apply(LogChange(ChangeKind.TRUNCATE, name, at))

    def begin_anew(self, name: str) -> None:
        """It has nothing that is of use, and begins at a segment of the leader's log."""
        starts = sorted({segment for segment, _, _ in self.chunks(name, 0)})
        if starts:
            self.dropped_to.pop(name, None)
            self.applier.apply(LogChange(ChangeKind.BEGIN, name, self.dice.choice(starts)))

    def precede(self, name: str) -> None:
        """The next segment in front is whole."""
        log, origin = self.tree.logs[name], self.log_of_origin(name)
        start = origin.segment_before(log.first_offset)
        if start is None or log.first_offset <= self.dropped_to.get(name, 0):
            # What was dropped does not come back: core.replication.sender.
            return
        prefix = CopiedPrefix(name, self.tree, self.commits, lambda error: pytest.fail(str(error)))
        for segment, chunk, octets in self.chunks(name, start):
            if segment == start:
                prefix.append(start, chunk, octets)

    def close(self, name: str) -> None:
        """Nobody leads or mirrors it for a moment."""
        log = self.tree.logs.pop(name, None)
        if log is not None:
            self.commits.forget(log)
            log.sync()
            log.close()

    def open(self, name: str) -> None:
        if self.tree.is_closed(name):
            self.tree.log(self.directory / name, segment_bytes_max=SEGMENT_BYTES).open()

    async def change_copy(self) -> None:
        dice, name = self.dice, self.dice.choice(NAMES)
        self.open(name)
        for _ in range(dice.randint(0, 4)):
            self.write(self.log_of_origin(name))
        log = self.tree.logs.get(name)
        match dice.choices(
            ["append", "diverge", "begin", "precede", "drop", "close"], [30, 10, 10, 14, 6, 8]
        )[0]:
            case "append":
                self.catch_up(name, dice.randint(1, 5))
            case "diverge" if log is not None:
                self.diverge(name)
            case "begin":
                self.begin_anew(name)
            case "precede" if log is not None and log.size_bytes:
                await self.commits.all_durable()
                self.precede(name)
                # A copy has one such prefix at a time.
                await self.commits.all_durable()
            case "drop" if log is not None:
                self.applier.apply(LogChange(ChangeKind.DROP, name, dice.randint(0, log.next_offset)))
                self.applier.drop_due()
                self.dropped_to[name] = log.first_offset
            case "close":
                self.close(name)
        self.commits.begin()

    async def rest(self) -> None:
        for name in NAMES:
            self.open(name)
        await self.commits.all_durable()


def is_at_rest(leader: MirroringNode) -> bool:
    """Whether the follower lacks nothing in front either, nor has to come again for a log that was closed."""
    [link] = leader.listener.followers
    sending = link.sending
    assert sending is not None
    return not leader.feed.prefixes and not sending.skipped & leader.tree.logs.keys()


@pytest.mark.parametrize("seed", seeds(6, each_time=2))
@pytest.mark.long
async def test_a_follower_takes_cuts_resets_and_segments_in_front_of_single_logs(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "BEAT_S", 0.1)
    dice = random.Random(seed)
    leader = MirroringNode(tmp_path / "leader", tmp_path / "origin", dice)
    uri = await leader.start()
    for _ in range(40):
        await leader.change_copy()
    for _ in range(3):
        follower = FollowerSite(tmp_path / "follower", uri)
        for _ in range(60):
            await leader.change_copy()
            if dice.random() < 0.3:
                await asyncio.sleep(dice.choice([0, 0.001, 0.02]))
        await leader.rest()
        await until(lambda: in_sync(leader) and is_at_rest(leader), f"in sync, seed {seed}")
        await follower.stop()
        found = compare(tmp_path / "leader", tmp_path / "follower")
        assert found.is_identical, f"seed {seed}: {found}"
        for _ in range(20):
            await leader.change_copy()


async def test_a_log_that_was_closed_while_a_new_follower_joined_is_sent_once_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower had no copy to compare, so it counted as in sync and got only what came later (2026-11-30)."""
    monkeypatch.setattr(listener, "BEAT_S", 0.05)
    leader = MirroringNode(tmp_path / "leader", tmp_path / "origin", random.Random(1))
    [name, *_] = NAMES
    for _ in range(40):
        leader.write(leader.log_of_origin(name))
    starts = [
        count
        for count, (segment, chunk, _) in enumerate(leader.chunks(name, 0))
        if chunk.header.chunk_id == segment
    ]
    leader.catch_up(name, starts[-1])
    await leader.rest()
    leader.close(name)
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    await until(lambda: has_acked(leader), "joined")
    assert name not in follower.tree.logs
    leader.open(name)
    # It begins a segment; otherwise the follower would not take it.
    leader.catch_up(name, 1)
    await leader.rest()
    await until(lambda: in_sync(leader) and is_at_rest(leader), "in sync")
    await follower.stop()
    found = compare(tmp_path / "leader", tmp_path / "follower")
    assert found.is_identical, found


@pytest.mark.parametrize("moment", ["compared", "skip_closed"])
async def test_a_log_that_is_closed_between_its_comparison_and_its_first_records_is_sent_once_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It was compared, so nobody skipped it, and none of its records was noted as missing (2026-12-01)."""
    monkeypatch.setattr(listener, "BEAT_S", 0.05)
    leader = MirroringNode(tmp_path / "leader", tmp_path / "origin", random.Random(1))
    [name, *_] = NAMES
    leader.write(leader.log_of_origin(name))
    leader.catch_up(name)
    await leader.rest()
    closing = [name]
    step = getattr(SentNode, moment)

    def step_and_close(sent: SentNode) -> None:
        step(sent)
        while closing:
            leader.close(closing.pop())

    monkeypatch.setattr(SentNode, moment, step_and_close)
    paths = SentNode.paths
    # The list of names is as old as that of a node with many logs.
    monkeypatch.setattr(SentNode, "paths", lambda sent: {*paths(sent), name})
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    await until(lambda: has_acked(leader), "joined")
    leader.open(name)
    await until(lambda: in_sync(leader) and is_at_rest(leader), "in sync")
    await follower.stop()
    found = compare(tmp_path / "leader", tmp_path / "follower")
    assert found.is_identical, found


async def test_a_follower_that_fell_behind_still_has_to_join_again_for_a_closed_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the plan of its second catch-up a log that was opened since its join counts as sent."""
    leader = MirroringNode(tmp_path / "leader", tmp_path / "origin", random.Random(1))
    [name, *_] = NAMES
    leader.write(leader.log_of_origin(name))
    leader.catch_up(name)
    await leader.rest()
    leader.close(name)
    uri = await leader.start()
    follower = FollowerSite(tmp_path / "follower", uri)
    await until(lambda: has_acked(leader), "joined")
    [link] = leader.listener.followers
    assert link.sending is not None
    leader.open(name)
    link.sending._fall_behind()
    monkeypatch.setattr(listener, "BEAT_S", 0.05)
    await until(lambda: in_sync(leader) and is_at_rest(leader), "in sync")
    await follower.stop()
    found = compare(tmp_path / "leader", tmp_path / "follower")
    assert found.is_identical, found


async def test_a_node_that_streams_is_told_of_each_change_without_a_new_join(tmp_path: Path) -> None:
    leader = MirroringNode(tmp_path / "leader", tmp_path / "origin", random.Random(1))
    [name, *_] = NAMES
    uri = await leader.start()
    for _ in range(40):
        leader.write(leader.log_of_origin(name))
    follower = FollowerSite(tmp_path / "follower", uri)
    await until(lambda: in_sync(leader), "in sync")
    [link] = leader.listener.followers
    middle = leader.log_of_origin(name).segment_before(60)
    leader.applier.apply(LogChange(ChangeKind.BEGIN, name, middle or 0))
    leader.catch_up(name)
    leader.diverge(name)
    leader.catch_up(name)
    await leader.commits.all_durable()
    while leader.tree.logs[name].first_offset:
        leader.precede(name)
        await leader.commits.all_durable()
    await until(lambda: in_sync(leader) and not leader.feed.prefixes, "in sync")
    await leader.commits.all_durable()
    await until(lambda: name in follower.tree.logs and not follower.tree.logs[name].first_offset, "all of it")
    assert leader.listener.followers == [link]
    assert follower.inbound.state == "streaming"
    assert not follower.identity.identity.rewriting
    assert name in follower.logs_rewritten
    await follower.stop()
    found = compare(tmp_path / "leader", tmp_path / "follower")
    assert found.is_identical, found
    assert list((tmp_path / "follower" / "divergent").glob(f"*/{name}/*.segment"))


def has_acked(leader: LeaderSite) -> bool:
    """Whether the one follower has everything, on disk, whether promises wait for it or not."""
    leader.feed.cut()
    return [link.acked_position for link in leader.listener.followers] == [leader.feed.position]


@pytest.mark.parametrize("is_linked", [True, False], ids=["linked", "before the next link"])
@pytest.mark.parametrize("kind", [FollowerSite, DelayedSite], ids=["follower", "delayed"])
@pytest.mark.long
async def test_segments_that_the_node_gets_again_after_the_join_stay(
    tmp_path: Path, kind: type[FollowerSite], is_linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's copy began anew while its follower was away: it lacks its prefix at the join, and gets it then.

    The follower sees that, or is away again and finds them there at its next join.
    """
    leader = MirroringNode(tmp_path / "leader", tmp_path / "origin", random.Random(1))
    [name, *_] = NAMES
    uri = await leader.start()
    for _ in range(60):
        leader.write(leader.log_of_origin(name), 8)
    leader.catch_up(name)
    leader.commits.begin()
    follower = kind(tmp_path / "follower", uri)
    await until(lambda: has_acked(leader), "received")
    await follower.stop()

    log = leader.log_of_origin(name)
    middle = log.segment_before(log.next_offset // 2)
    assert middle
    leader.applier.apply(LogChange(ChangeKind.BEGIN, name, middle))
    leader.catch_up(name)
    await leader.commits.all_durable()
    # No sync of the follower ends before the segments have come, so its drop waits for that long.
    held: list[str] = []
    monkeypatch.setattr(Applier, "_drop_if_due", lambda applier, name: held.append(name))
    follower = kind(tmp_path / "follower", uri)
    await until(lambda: has_acked(leader), "joined")
    if not is_linked:
        follower.inbound.uri = NodeUri("tcp", "127.0.0.1", 1)
        leader.listener.send_away_all("the test wants it")
        await until(lambda: "cannot connect" in follower.inbound.error, "away")
    while leader.tree.logs[name].first_offset:
        leader.precede(name)
        await leader.commits.all_durable()
    follower.inbound.uri = uri
    await until(lambda: has_acked(leader) and not leader.feed.prefixes, "received")
    assert bool(held) == (kind is FollowerSite)
    monkeypatch.undo()
    await follower.commits.all_durable()
    follower.applier.drop_due()
    if isinstance(follower, DelayedSite):
        await follower.expire_until(clock_ms())
    await follower.stop()
    found = compare(tmp_path / "leader", tmp_path / "follower")
    assert found.is_identical, found


async def test_a_drop_that_waits_ends_with_the_leader_that_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old leader dropped messages that its last records settle; its successor has neither."""
    old = LeaderSite(tmp_path / "old", random.Random(1))
    follower = FollowerSite(tmp_path / "follower", await old.start())
    [name, *_] = NAMES
    for _ in range(30):
        old.append(name)
    await old.commits.all_durable()
    await until(lambda: in_sync(old), "in sync")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    # The disk of the follower refuses the drop, as a full one may.
    monkeypatch.setattr(Applier, "_drop_if_due", lambda applier, name: None)
    old.append(name)
    old.commits.begin()
    old.tree.logs[name].drop_before(old.tree.logs[name].next_offset // 2)
    await until(lambda: has_acked(old), "received")
    new = LeaderSite(tmp_path / "new", random.Random(2), epoch=2)
    follower.inbound.uri = await new.start()
    await old.stop()
    await until(lambda: in_sync(new), "in sync with the new one")
    monkeypatch.undo()
    follower.applier.drop_due()
    await follower.stop()
    found = compare(tmp_path / "new", tmp_path / "follower")
    assert found.is_identical, found


@pytest.mark.parametrize("kind", [FollowerSite, DelayedSite], ids=["follower", "delayed"])
@pytest.mark.parametrize("had", [0, 3], ids=["new", "with records that the leader lost"])
async def test_a_log_that_is_empty_at_the_leader_has_a_file_at_a_follower(
    tmp_path: Path, kind: type[FollowerSite], had: int
) -> None:
    """Its definitions say that the log exists, so without a file a start or a promotion would take it for lost."""
    leader, [name, *_] = MirroringNode(tmp_path / "leader", tmp_path / "origin", random.Random(1)), NAMES
    uri = await leader.start()
    leader.tree.log(leader.directory / name).open().make()
    before = Tree(tmp_path / "follower", epoch=1)
    for _ in range(had):
        log = before.log(before.root / name)
        leader.write(log if log.is_open else log.open())
    for log in before.logs.values():
        log.sync()
        log.close()
    follower = kind(tmp_path / "follower", uri)
    await until(lambda: has_acked(leader), "joined")
    await follower.stop()
    assert has_segments(follower.directory / name)


async def test_a_log_that_begins_anew_without_a_chunk_has_a_file_at_a_follower(tmp_path: Path) -> None:
    leader, [name, *_] = MirroringNode(tmp_path / "leader", tmp_path / "origin", random.Random(1)), NAMES
    uri = await leader.start()
    leader.write(leader.log_of_origin(name))
    leader.catch_up(name)
    follower = FollowerSite(tmp_path / "follower", uri)
    await until(lambda: in_sync(leader), "in sync")
    leader.applier.apply(LogChange(ChangeKind.BEGIN, name, 0))
    leader.applier.make_empty()
    await until(lambda: has_acked(leader) and not follower.tree.logs[name].next_offset, "told")
    await follower.stop()
    assert has_segments(follower.directory / name)
