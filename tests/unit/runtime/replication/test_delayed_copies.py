"""A delayed follower of a cluster's node, whose copies begin anew, diverge and get segments in front at any moment."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from leveret.runtime.replication import delaying, listener, sent_node
from leveret.storage.tree import Tree
from leveret.testing.applications.compare import compare
from leveret.testing.network.waiting import until
from tests.seeds import seeds
from tests.unit.runtime.replication.delayed_site import (
    QUEUE,
    DelayedSite,
    append,
    go_back,
    has_received,
    moment,
    pair_with_a_message,
)
from tests.unit.runtime.replication.test_copied_logs import MirroringNode, is_at_rest
from tests.unit.runtime.replication.test_point_in_time import OTHER, cut_at

Extents = dict[str, tuple[int, int]]


def extents(tree: Tree) -> Extents:
    """Where each log begins and ends."""
    return {name: (log.first_offset, log.next_offset) for name, log in tree.logs.items()}


def assert_ends(directory: Path, expected: Extents) -> None:
    """Each log ends where it ended; of two empty ones, the begin of one that has no file may be in memory alone."""
    tree = Tree(directory)
    assert not tree.open_all()
    here = extents(tree)
    tree.close()
    ends = {
        name: end
        for name, (first, end) in expected.items()
        if first < end or len({*here.get(name, (0, 0))}) == 2
    }
    assert {name: here[name][1] for name in ends if name in here} == ends
    assert here.keys() <= expected.keys()


async def upset(leader: MirroringNode, follower: DelayedSite) -> DelayedSite:
    """Perhaps cut the link, or stop or kill the follower; return it, or the next one."""
    match leader.dice.choice(["cut", "stop", *["kill"] * 2, *["nothing"] * 8]):
        case "cut":
            for link in list(leader.listener.followers):
                link.peer.abort()
        case "stop":
            await follower.stop()
            return DelayedSite(follower.directory, follower.inbound.uri)
        case "kill":
            await follower.kill()
            return DelayedSite(follower.directory, follower.inbound.uri)
    return follower


@pytest.mark.parametrize("seed", seeds(6, each_time=2))
@pytest.mark.long
async def test_it_can_be_what_the_node_was_at_every_time(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have segments that the node had dropped, or got in front only later; each log ends where it ended."""
    monkeypatch.setattr(delaying, "_PAUSE_S", (0.001, 0.005))
    monkeypatch.setattr(listener, "BEAT_S", 0.05)
    if seed % 2:
        monkeypatch.setattr(sent_node, "FINAL_BYTES", 0)
        monkeypatch.setattr(sent_node, "STEP_BYTES", 500)
    dice = random.Random(seed)
    leader = MirroringNode(tmp_path / "leader", tmp_path / "origin", dice)
    follower = DelayedSite(tmp_path / "follower", await leader.start())
    moments = []
    for number in range(5):
        for _ in range(dice.randint(1, 40)):
            await leader.change_copy()
            follower = await upset(leader, follower)
            if dice.random() < 0.3:
                await asyncio.sleep(dice.choice([0, 0.001, 0.02]))
        await leader.rest()
        await until(lambda: has_received(leader) and is_at_rest(leader), "at rest")
        at_ms = await moment(leader, tmp_path / str(number))
        moments.append((at_ms, tmp_path / str(number), extents(leader.tree)))
    assert [follower.delaying.lacks(at_ms) for at_ms, *_ in moments] == [""] * 5
    await leader.stop()
    await follower.stop()
    for at_ms, expected, ends in moments:
        scratch = tmp_path / "scratch"
        shutil.copytree(follower.directory, scratch)
        await go_back(scratch, at_ms)
        found = compare(expected, scratch)
        assert not found.wrong, found
        assert_ends(scratch, ends)
        shutil.rmtree(scratch)
    follower = DelayedSite(tmp_path / "follower", follower.inbound.uri)
    await follower.expire_until(moments[-1][0])
    found = compare(moments[-1][1], follower.directory)
    assert found.is_identical, found


async def test_a_log_without_a_record_lacks_nothing_of_a_time(tmp_path: Path) -> None:
    """A start need not find one that is empty from offset 0 on: it was refused like a damaged one."""
    leader, follower, _ = await pair_with_a_message(tmp_path)
    cut_at(leader, 0)
    append(leader, OTHER, b"x")
    at_ms = await moment(leader, tmp_path / "1")
    assert follower.delaying.lacks(at_ms) == ""
    await follower.stop()
    await leader.stop()
    shutil.rmtree(follower.directory / QUEUE)
    follower = DelayedSite(follower.directory, follower.inbound.uri)
    assert follower.delaying.lacks(at_ms) == ""
    assert not follower.delaying._begins_join
