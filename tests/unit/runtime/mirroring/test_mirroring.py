"""A mirror's copy is its leader's log, whatever happens in between: real sockets and files, no broker."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from leveret.runtime.mirroring import copy_link, source_stream
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.testing.network.waiting import until
from leveret.wire.chunk import ChunkType, encode_entry
from leveret.wire.link import MirrorInventory, Type, pack
from tests.seeds import seeds
from tests.unit.runtime.mirroring.sites import NAMES, Node, compared_when_stopped, mirrored, pair

A, B = NAMES[:2]


def has_dropped(mirror: Node, name: str, first_offset: int) -> bool:
    """What is dropped is acked only when more is."""
    return mirror.log(name).first_offset >= first_offset


@pytest.mark.parametrize("seed", seeds(10, each_time=3))
async def test_whatever_happens_to_the_link_the_mirror_has_what_the_leader_has(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Exception] = []
    monkeypatch.setattr(copy_link.CopyLink, "fail", lambda self, copy, error: failed.append(error))
    if seed % 3:
        # Nothing is so little that it is sent in one turn.
        monkeypatch.setattr(source_stream, "FINAL_BYTES", 0 if seed % 3 == 1 else 2000)
        monkeypatch.setattr(source_stream, "STEP_BYTES", 500)
    dice = random.Random(seed)
    leader, mirror = await pair(tmp_path)
    for _ in range(dice.choice([0, 40, 400])):
        leader.change(dice, dice.choice(NAMES))
    leader.lead(*NAMES[:3], automatic=True)
    for name in NAMES:
        mirror.copies.mirror(name, "leader")
    leader.lead(NAMES[3], automatic=True)
    for _ in range(dice.randint(8, 16)):
        for _ in range(dice.randint(1, 24)):
            leader.change(dice, dice.choice(NAMES))
            if dice.random() < 0.2:
                await asyncio.sleep(dice.choice([0, 0, 0.002]))
        match dice.choice(["cut", "restart", "wait", "again", "cease", "nothing"]):
            case "cut":
                leader.cut_links()
            case "restart":
                await mirror.stop()
                for _ in range(dice.randint(0, 30)):
                    leader.change(dice, dice.choice(NAMES))
                port = mirror.via["leader"]
                mirror = Node(tmp_path / "mirror")
                mirror.via["leader"] = port
                for name in NAMES:
                    mirror.copies.mirror(name, "leader")
            case "again":
                await mirror.copies.release(A)
                mirror.copies.mirror(A, "leader")
            case "cease":
                leader.sources.cease(B)
                leader.change(dice, B)
                leader.sources.lead(B, automatic=True)
            case "wait":
                await until(lambda: leader.is_live("mirror", *NAMES), "live")
    await until(lambda: leader.is_live("mirror", *NAMES), "live at the end")
    for name in NAMES:
        log, cursor = leader.log(name), leader.sources.led[name].cursor
        await until(partial(lambda *of: (mirror.copies.cursor(of[0]) or 0) >= of[1], name, cursor), "told")
        await until(partial(has_dropped, mirror, name, log.first_offset), "dropped")
        ends = mirror.copies.ends(name)
        assert ends is not None
        assert (ends.first_offset, ends.next_offset) == (log.first_offset, log.next_offset)
    assert (await compared_when_stopped(leader, mirror)).is_identical
    assert failed == []
    assert not list((tmp_path / "mirror").rglob("divergent/*/report.json"))


async def test_a_log_that_never_had_a_record_may_begin_later_than_its_mirrors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a recovered stream, whose first messages retention had removed at its origin.
    failed: list[Exception] = []
    monkeypatch.setattr(copy_link.CopyLink, "fail", lambda self, copy, error: failed.append(error))
    leader, mirror = await pair(tmp_path)
    leader.lead(A, B, automatic=True)
    leader.append(B)
    for name in (A, B):
        mirror.log(name)
        mirror.copies.mirror(name, "leader")
    log = leader.log(A)
    await until(lambda: leader.is_live("mirror", A, B), "live")
    leader.states.clear()
    log.begin_at(775)
    leader.tree.begun(log)
    assert leader.append(A) == 776
    await until(lambda: leader.is_live("mirror", A, B), "live again")
    assert (mirror.log(A).first_offset, mirror.log(A).next_offset) == (775, 776)
    assert {name for name, _, _ in leader.states} == {A}, "the link went on"
    assert (await compared_when_stopped(leader, mirror)).is_identical
    assert failed == []


async def test_a_promise_waits_for_the_mirrors_it_is_to_wait_for(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path)
    describe: list[str] = []
    leader.lead(A, B, automatic=True)
    leader.append(A)
    leader.sources.when_acked([A, B], lambda _: describe.append("nobody"))
    leader.commits.begin()
    assert describe == ["nobody"]
    leader.sources.wait_for(A, frozenset({"mirror"}), then=lambda: describe.append("record"))
    leader.append(A)
    leader.sources.when_acked([A], lambda _: describe.append("both"))
    leader.commits.begin()
    await asyncio.sleep(0.05)
    assert describe == ["nobody"]
    mirror.copies.mirror(A, "leader")
    await until(lambda: len(describe) == 3, "told")
    assert describe == ["nobody", "record", "both"]


async def test_by_hand_a_new_mirror_gets_what_is_new_until_it_is_asked_to_synchronise(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path)
    leader.fill(A, 30_000)
    leader.lead(A)
    begin = leader.log(A).next_offset
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED, "unsynchronised")
    for _ in range(10):
        leader.append(A)
    await until(lambda: leader.sources.rows(A)[0]["lag_records"] == 0, "up to date")
    assert mirror.log(A).first_offset == begin == leader.sources.rows(A)[0]["first_offset"]
    assert mirror.log(A).next_offset == leader.log(A).next_offset
    leader.sources.synchronise(A)
    await until(lambda: leader.is_live("mirror", A), "synchronised")
    assert (await compared_when_stopped(leader, mirror)).is_identical
    assert [state for _, _, state in leader.states[:4]] == [
        MirrorState.JOINING,
        MirrorState.UNSYNCHRONISED,
        MirrorState.SYNCHRONISING,
        MirrorState.LIVE,
    ]
    assert not list((tmp_path / "mirror/.mirroring").rglob("*.segment"))


async def test_a_mirror_that_lost_its_disk_counts_for_nothing_until_it_is_whole_again(tmp_path: Path) -> None:
    """It acked what is promised, and is recorded; it comes back under its name with nothing."""
    leader, mirror = await pair(tmp_path)
    describe: list[int] = []
    leader.lead(A)
    await mirrored(leader, mirror, A)
    leader.sources.wait_for(A, frozenset({"mirror", "other"}))
    leader.append(A)
    leader.promise(describe, A)
    leader.commits.begin()
    await until(lambda: leader.is_live("mirror", A), "acked")
    await mirror.stop()
    again = Node(tmp_path / "empty", "mirror")
    again.via = mirror.via

    def on_state(name: str, node: str, state: MirrorState) -> None:
        if state is MirrorState.JOINING:
            leader.sources.wait_for(A, frozenset({"mirror"}))
            assert describe == []

    leader.on_state = on_state
    again.copies.mirror(A, "leader")
    # It is waited for, so it is sent all of it, though nobody asked for new mirrors to be synchronised.
    await until(lambda: describe == [0], "told")
    assert leader.is_live("mirror", A)
    assert (await compared_when_stopped(leader, again)).is_identical


async def test_what_waits_for_the_cut_is_not_sent_behind_a_new_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror tells anew what it has, in the turn in which something was appended."""
    failed: list[Exception] = []
    monkeypatch.setattr(copy_link.CopyLink, "fail", lambda self, copy, error: failed.append(error))
    leader, mirror = await pair(tmp_path, led=A)
    mirror.copies.mirror(A, "leader")
    leader.append(A)
    await until(lambda: leader.is_live("mirror", A), "live")
    link = leader.sources._links["mirror"]
    data = encode_entry(b"m")
    # The end that it tells of lies before this one, whose frame is not cut.
    describe = mirror.copies.describe(mirror.copies._copies[A])
    leader.log(A).append(ChunkType.USER, 1, 1, data, 1)
    link.received(Type.COPIES, memoryview(pack(Type.COPIES, MirrorInventory([describe])))[5:])
    leader.commits.begin()
    await until(lambda: leader.is_live("mirror", A), "live again")
    assert (await compared_when_stopped(leader, mirror)).is_identical
    assert failed == []
