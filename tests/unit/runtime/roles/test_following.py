"""A follower's tree is its leader's, whatever happens to the link: real sockets and files, no broker.

Every run prints its seed by way of the test's parameter; the same seed does the same things in the same order.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import StorageError
from leveret.runtime.replication import catching_up, sending_link, sent_logs, sent_node
from leveret.runtime.replication.identity import IdentityFile
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.testing.applications.compare import compare
from leveret.testing.network.waiting import until
from leveret.wire.link import Octets
from tests.seeds import seeds
from tests.unit.runtime.replication.delayed_site import DelayedSite, has_received
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite, in_sync


@pytest.mark.parametrize("seed", seeds(12, each_time=3))
async def test_whatever_happens_to_the_link_the_follower_has_what_the_leader_has(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3:
        # Much happens while it is compared, and while it catches up.
        monkeypatch.setattr(sent_logs, "SLICE_S", 0.0)
        monkeypatch.setattr(sent_node, "FINAL_BYTES", 0)
        monkeypatch.setattr(sent_node, "STEP_BYTES", 500)
        for name in ("STEP_LOGS", "_STEP_CHANGES", "_NOTED_AT_ONCE"):
            monkeypatch.setattr(catching_up, name, 2)
        monkeypatch.setattr(sent_node, "FINAL_LOGS", 2)

    dice = random.Random(seed)
    leader = LeaderSite(tmp_path / "leader", dice)
    for _ in range(dice.choice([0, 40, 400])):
        leader.change()
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    for _ in range(dice.randint(8, 16)):
        for _ in range(dice.randint(1, 24)):
            leader.change()
            if dice.random() < 0.2:
                await asyncio.sleep(dice.choice([0, 0, 0.002]))
        match dice.choice(["cut", "restart", "wait", "nothing"]):
            case "cut":
                for link in list(leader.listener.followers):
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


async def test_a_follower_is_recorded_before_it_has_everything_though_the_disk_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader asks it at its next start whether it was promoted."""
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    save, refusals = leader.identity._file.save, iter([StorageError("no room")])

    def saved(state: dict[str, Any]) -> None:
        for refusal in refusals:
            raise refusal
        save(state)

    monkeypatch.setattr(leader.identity._file, "save", saved)
    FollowerSite(tmp_path / "follower", await leader.start())
    await until(lambda: in_sync(leader), "in sync")
    assert IdentityFile(tmp_path / "leader").identity.had_followers


@pytest.mark.parametrize("is_delayed", [False, True])
async def test_no_record_is_quarantined_in_the_loops_thread(
    tmp_path: Path, is_delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was replaced may have gigabytes that its successor lacks."""
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    uri, kind = await leader.start(), DelayedSite if is_delayed else FollowerSite
    names = [f"queues/{number:016x}" for number in range(1, 6)]
    for name in names:
        leader.append(name)
    follower = kind(tmp_path / "follower", uri)
    await until(lambda: has_received(leader) if is_delayed else in_sync(leader), "received")
    await follower.stop()
    await until(lambda: not leader.listener.followers, "away")
    old = LeaderSite(tmp_path / "follower", random.Random(2))
    for name in names:
        old.append(name)
    old.append("queues/00000000000000ff")
    old.identity.identity.led = True
    old.identity.save()
    await old.stop()
    threads, add = list[int](), Quarantine.add

    def counted(quarantine: Quarantine, path: str, *args: Any) -> Any:
        threads.append(threading.get_ident())
        return add(quarantine, path, *args)

    monkeypatch.setattr(Quarantine, "add", counted)
    follower = kind(tmp_path / "follower", uri)
    await until(lambda: has_received(leader) if is_delayed else in_sync(leader), "received again")
    await follower.stop()
    await leader.stop()
    assert len(threads) == len(names) + 1
    assert threading.get_ident() not in threads
    assert compare(leader.directory, follower.directory).is_identical


@pytest.mark.parametrize("seed", seeds(4, each_time=3))
async def test_a_diverged_tail_is_set_aside_and_the_rest_stays(tmp_path: Path, seed: int) -> None:
    """The follower goes on by itself, as a leader that was replaced does, and follows again."""

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
    quarantine = {
        path.parent.relative_to(again.directory / "divergent").parts[1:]
        for path in (again.directory / "divergent").rglob("*.segment")
    }
    assert quarantine == {tuple(name.split("/")) for name in divergent}


async def test_a_leader_that_comes_back_with_nothing_has_nothing_deleted(tmp_path: Path) -> None:
    """It lost its data directory and begins anew, in the same epoch: the follower has the only copy there is."""

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
    quarantine = {
        Path(*path.relative_to(again.directory / "divergent").parent.parts[1:]): path.read_bytes()
        for path in (again.directory / "divergent").rglob("*.segment")
    }
    assert quarantine == held


@pytest.mark.parametrize("is_known", [True, False])
async def test_what_only_another_leader_of_the_same_epoch_had_is_not_deleted(
    tmp_path: Path, is_known: bool
) -> None:
    """Two followers were promoted beside each other: a node that followed the one comes to the other."""

    dice = random.Random(1)
    one, other = (LeaderSite(tmp_path / name, dice) for name in ("one", "other"))
    one.append("definitions")
    one.commits.begin()
    await one.commits.all_durable()
    shutil.copytree(one.directory / "definitions", other.directory / "definitions")
    other.tree.open_all()
    one.append("queues/0000000000000001")
    other.append("queues/0000000000000002")
    if is_known:
        other.append("queues/0000000000000001")
    for leader in (one, other):
        leader.commits.begin()
    follower = FollowerSite(tmp_path / "follower", await one.start())
    await until(lambda: in_sync(one), "in sync with the one")
    await follower.stop()
    held = {path.read_bytes() for path in (tmp_path / "follower/queues").rglob("*.segment")}
    again = FollowerSite(tmp_path / "follower", await other.start())
    await until(lambda: in_sync(other), "in sync with the other")
    await again.stop()
    for leader in (one, other):
        await leader.stop()
    assert compare(other.directory, again.directory).is_identical
    quarantine = {path.read_bytes() for path in (again.directory / "divergent").rglob("*.segment")}
    assert held == quarantine


async def test_a_copy_is_none_until_all_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes log by log: a settlement of one queue may be there before what it made of the other is."""
    monkeypatch.setattr(sent_node, "FINAL_BYTES", 0)
    monkeypatch.setattr(sent_node, "STEP_BYTES", 500)

    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    for _ in range(200):
        leader.change()
    follower = FollowerSite(tmp_path / "follower", await leader.start())

    def is_rewriting() -> bool:
        return follower.identity.identity.rewriting

    await until(lambda: follower.tree.logs, "begun")
    assert is_rewriting()
    await until(lambda: in_sync(leader), "in sync")
    assert not is_rewriting()
    for link in list(leader.listener.followers):
        link.peer.abort()
    await until(lambda: not leader.listener.followers, "away")
    await until(lambda: in_sync(leader), "in sync again, having missed nothing")
    assert not is_rewriting()


async def test_what_is_passed_on_is_what_was_received_though_the_buffer_it_came_in_is_used_again(
    tmp_path: Path,
) -> None:
    """A follower's follower."""
    sent: list[bytes] = []

    class Last:
        is_live = True
        node_id = "last"

        def send_frame(self, position: int, pieces: list[Octets], octets: int) -> None:
            sent.append(b"".join(pieces))

    made = LeaderSite(tmp_path / "made", random.Random(1))
    forwarding = LeaderSite(tmp_path / "relay", random.Random(1))
    made.append("queues/0000000000000001")
    [(segment, header, octets)] = made.log("queues/0000000000000001").read_segments(0, 1)
    forwarding.feed.compresses = False
    forwarding.feed.followers.append(Last())  # type: ignore[arg-type]
    forwarding.feed.count_live()
    buffer = bytearray(octets)
    forwarding.log("queues/0000000000000001").append_raw(header, memoryview(buffer), segment)
    buffer[:] = bytes(len(buffer))
    forwarding.feed.cut()
    assert octets in sent[0]


async def test_what_a_promise_changes_while_a_follower_falls_behind_is_sent_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it any more, so promises are kept that waited for it: they append to outgoing logs."""

    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    leader.append("queues/0000000000000001")
    leader.commits.begin()
    await until(lambda: in_sync(leader), "in sync")
    [link] = leader.listener.followers
    acked = link._acked
    monkeypatch.setattr(link, "_acked", lambda sending, acked: None)
    leader.append("queues/0000000000000001")
    leader.commits.when_durable(lambda: leader.append("outgoing/v"))
    leader.commits.begin()
    await until(lambda: leader.commits._waiting_for_barrier, "on the leader's own disk")
    monkeypatch.setattr(sending_link, "LIVE_BYTES_MAX", -1)
    leader.append("queues/0000000000000001")
    leader.commits.begin()
    monkeypatch.setattr(sending_link, "LIVE_BYTES_MAX", 1 << 20)
    assert link.sending is not None
    assert not link.sending.is_live
    monkeypatch.setattr(link, "_acked", acked)
    await until(lambda: "outgoing/v" in leader.tree.logs and in_sync(leader), "in sync again")
    await follower.stop()
    await leader.stop()
    assert compare(leader.directory, follower.directory).is_identical


async def test_what_is_not_cut_when_a_slow_follower_gets_a_heartbeat_is_sent_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long answer to a question may have filled its link since the last cut."""
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    leader.append("queues/0000000000000001")
    leader.commits.begin()
    await until(lambda: in_sync(leader), "in sync")
    [link] = leader.listener.followers
    leader.tree.file(leader.directory / "standby.json").save({"x": 1})
    with monkeypatch.context() as slow:
        slow.setattr(sending_link, "LIVE_BYTES_MAX", -1)
        link.sending.beat()
    await until(lambda: in_sync(leader), "in sync again")
    await follower.stop()
    await leader.stop()
    assert compare(leader.directory, follower.directory).is_identical
    assert (follower.directory / "standby.json").exists()
