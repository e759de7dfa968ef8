"""What a copying node acks: what came on this very connection, once it is on disk."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.receiver import Copied, ReceivePhase
from leveret.model.errors import PeerError
from leveret.runtime.link.dialling import Dialling
from leveret.runtime.replication import receiving_link
from leveret.runtime.replication.receiving_link import ReceivingLink
from leveret.session.link_handshake import FollowerHandshake, ProvenLeader
from leveret.storage.secret_file import Secret
from leveret.testing.network.waiting import until
from leveret.wire.link import Acked, Frame, Type, decode
from tests.unit.runtime.replication import link_sites
from tests.unit.runtime.replication.delayed_site import append
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite, in_sync

LOGS = 120
OPEN_MAX = 16


class Peer:
    """A link to a leader, and the numbers that were acked on it."""

    received_bytes = 0
    is_closed = False

    def __init__(self) -> None:
        self.acked: list[int] = []

    def write(self, octets: bytes) -> None:
        self.acked.append(decode(Type.ACK, memoryview(octets)[5:], Acked).position)

    def abort(self, error: Exception | None = None) -> None:
        self.is_closed = True


class Logs:
    """receiver.CopiedLogs of a node without logs."""

    def copied(self, name: str) -> Copied | None:
        return Copied(None, 9)


def frame(number: int) -> memoryview:
    return memoryview(b"".join(bytes(each) for each in Frame().message(number, 0, 0)))[5:]


def linked(durable: list[Callable[[], None]]) -> tuple[ReceivingLink, Peer]:
    peer = Peer()
    commits = SimpleNamespace(
        when_durable=durable.append, begin=lambda: None, unsynced_logs=0, unsynced_logs_max=9
    )
    link = ReceivingLink(
        cast(Any, peer), Logs(), ReceivePhase.JOINING, cast(Any, commits), lambda number: None
    )
    link.take(frame(0), lambda head, changes: None)
    return link, peer


async def test_neither_a_sign_of_life_nor_a_late_sync_acks_what_came_on_another_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A former leader's number may be higher than all that this leader has cut."""
    monkeypatch.setattr(receiving_link, "_ACK_AGAIN_S", 0.005)
    durable: list[Callable[[], None]] = []
    before, former = linked(durable)
    before.receiver.joined(5000)
    before.acknowledge()
    durable.pop()()
    before.take(frame(6000), lambda head, changes: None)
    assert former.acked == [5000]
    former.is_closed = True
    link, peer = linked(durable)
    link.receiver.joined(7)
    link.acknowledge()
    ended = asyncio.Event()
    beating = asyncio.create_task(link.beat(ended))
    await until(lambda: len(peer.acked) >= 3, "it beats")
    assert set(peer.acked) == {0}
    late, joined = durable
    late()
    joined()
    ended.set()
    await beating
    assert (former.acked, peer.acked[-1]) == ([5000], 7)


async def test_nothing_is_made_of_a_frame_that_does_not_fit() -> None:
    link, _ = linked([])
    made: list[object] = []
    with pytest.raises(PeerError, match="cut 3, which is not due while this node is copying"):
        link.take(frame(3), lambda head, changes: made.append(head))
    assert made == []


async def test_a_follower_with_fewer_descriptors_than_its_leader_syncs_no_log_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is appended to closes another one at the bound, and one that is not synced has to be synced first."""
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    names = [f"queues/{number:016x}" for number in range(1, LOGS + 1)]
    for name in names:
        append(leader, name, b"first")
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    await until(lambda: in_sync(leader), "joined")
    follower.tree.open_segments.count_max = OPEN_MAX
    follower.commits.unsynced_logs_max = OPEN_MAX // 2
    follower.tree.open_segments.close_all_but(0)
    loops_thread, sync, in_loop = threading.get_ident(), os.fdatasync, list[int]()

    def slow(descriptor: int) -> None:
        if threading.get_ident() == loops_thread:
            in_loop.append(descriptor)
        else:
            time.sleep(0.002)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    for name in names:
        append(leader, name, b"second")
        # A frame each, so the follower's disk falls behind.
        leader.feed.cut()
    await until(lambda: in_sync(leader) and has_all(follower, leader), "all of it")
    assert in_loop == []
    await leader.stop()
    await follower.stop()


def has_all(follower: FollowerSite, leader: LeaderSite) -> bool:
    ends = {name: log.next_offset for name, log in leader.tree.logs.items()}
    return ends == {name: log.next_offset for name, log in follower.tree.logs.items()}


async def test_a_follower_that_cannot_list_its_files_connects_again_and_joins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader would wait for the rest of its report for ever, on a link that both sides keep alive."""
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    leader.append("queues/1")
    uri = await leader.start()
    tries: list[int] = []
    files = FollowerSite.files

    def listed(site: FollowerSite) -> list[str]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(24, "Too many open files")
        return files(site)

    monkeypatch.setattr(FollowerSite, "files", listed)
    follower = FollowerSite(tmp_path / "follower", uri)
    await until(lambda: in_sync(leader), "in sync")
    assert len(tries) == 2
    await follower.stop()
    await leader.stop()


async def test_a_follower_that_is_repairing_a_chunk_joins_behind_the_repair(tmp_path: Path) -> None:
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    leader.append("queues/q")
    uri = await leader.start()
    follower = FollowerSite(tmp_path / "follower", uri)
    follower.repairs.ended.clear()
    await until(lambda: follower.inbound.state == "joining", "joining")
    for _ in range(20):
        leader.append("queues/q")
        leader.feed.cut()
        await asyncio.sleep(0.002)
    assert not follower.tree.logs
    follower.repairs.ended.set()
    await until(lambda: in_sync(leader), "in sync")
    await follower.stop()
    await leader.stop()


@pytest.mark.parametrize("has_secret", [True, False])
async def test_a_handshake_that_ends_after_the_following_did_changes_nothing(
    tmp_path: Path, has_secret: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader answers late; the node leads, or follows another one, by now."""
    shake, is_answered, goes_on = Dialling.shake, asyncio.Event(), asyncio.Event()

    async def late(dialling: Dialling, handshake: FollowerHandshake) -> ProvenLeader:
        try:
            return await shake(dialling, handshake)
        finally:
            is_answered.set()
            await goes_on.wait()

    monkeypatch.setattr(Dialling, "shake", late)
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    if not has_secret:
        monkeypatch.setattr(link_sites, "SECRET", Secret(b"t" * 44))
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    await is_answered.wait()
    await follower.inbound.stop()
    goes_on.set()
    await follower.running
    assert follower.identity.identity.seen_epoch == 0
    await follower.stop()
    await leader.stop()
