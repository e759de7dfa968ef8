"""Mirrors that lead, leaders that mirror: late ones and divergent ones are told apart, nothing is thrown away."""

from __future__ import annotations

import asyncio
import random
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.runtime.mirroring import copy_link
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.replication.applier import Applier, CopyOwner
from leveret.storage.log import Log
from leveret.storage.quarantine.report import reports
from leveret.testing.applications.compare import logs_of
from leveret.testing.network.waiting import until
from leveret.wire.link import ChangeKind, LogChange
from tests.seeds import seeds
from tests.unit.runtime.mirroring.sites import NAMES, Node, compared, compared_when_stopped, mirrored, pair

A, B = NAMES[:2]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_link, "RETRY_S", (0.005,))


def raise_epoch(node: Node, name: str, epoch: int) -> None:
    node.tree.epoch = epoch
    node.log(name).epoch = epoch


async def copied(leader: Node, mirror: Node) -> None:
    """The mirror has all of the log, and copies it no more; nobody leads it now."""
    await mirrored(leader, mirror, A)
    await mirror.copies.release(A)
    await until(lambda: not leader.sources.rows(A), "released")
    leader.sources.cease(A)


def octets(directory: Path) -> dict[int, bytes]:
    """What stands in the files of the log, by the offset that each begins with."""
    return {start: path.read_bytes() for start, path in logs_of(directory)[A].items()}


def octets_aside(mirror: Node) -> dict[int, bytes]:
    """The same of what was set aside, once."""
    [report] = reports(mirror.directory)
    return octets(mirror.directory / "divergent" / report.id)


@pytest.mark.parametrize("seed", seeds(4, each_time=2))
async def test_leading_goes_round_and_what_nobody_confirmed_is_set_aside(tmp_path: Path, seed: int) -> None:
    """Three nodes; the leader goes with something that its mirrors lack, and comes back as a mirror."""
    dice = random.Random(seed)
    nodes = {name: Node(tmp_path / name) for name in ("a", "b", "c")}
    for node in nodes.values():
        port = await node.listen()
        for other in nodes.values():
            other.via[node.name] = port
    epoch, leader = 1, nodes["a"]
    leader.lead(A, automatic=True)
    divergent = 0
    for _ in range(4):
        mirrors = [node for node in nodes.values() if node is not leader]
        for node in mirrors:
            node.copies.mirror(A, leader.name)
        for _ in range(dice.randint(1, 40)):
            leader.change(dice, A)
        for node in mirrors:
            await until(partial(leader.is_live, node.name, A), "live")
        # The links go first: what it appends now nobody has.
        for node in mirrors:
            await node.copies.release(A)
        has_more = dice.random() < 0.7
        if has_more:
            leader.append(A, 900)
            divergent += 1
        await leader.commits.all_durable()
        leader.sources.cease(A)
        old, leader, epoch = leader, dice.choice(mirrors), epoch + 1
        raise_epoch(leader, A, epoch)
        leader.lead(A, automatic=True)
        for _ in range(dice.randint(0, 3)):
            leader.append(A)
        old.copies.mirror(A, leader.name)
        await until(partial(leader.is_live, old.name, A), "live")
    for node in nodes.values():
        if node is not leader:
            node.copies.mirror(A, leader.name)
    for node in nodes.values():
        if node is not leader:
            await until(partial(leader.is_live, node.name, A), "live at the end")
    for node in nodes.values():
        await node.stop()
    found = []
    for node in nodes.values():
        if node is not leader:
            assert compared(leader, node).is_identical
        found += [log for report in reports(node.directory) for log in report.logs]
    assert len(found) == divergent
    assert {(log.path, log.vhost, log.queue, log.messages) for log in found} <= {(A, "/", A, 1)}


@pytest.mark.parametrize("is_divergent", [False, True])
async def test_a_mirror_whose_messages_are_gone_by_now_is_late_unless_another_led_since(
    tmp_path: Path, is_divergent: bool
) -> None:
    """Nothing is left to compare with: the epoch says whether what it has may be what nobody confirmed."""
    leader, mirror = await pair(tmp_path, led=A)
    for _ in range(4):
        leader.append(A, 900, 4)
    await copied(leader, mirror)
    if is_divergent:
        raise_epoch(mirror, A, 2)
        mirror.append(A)
        await mirror.commits.all_durable()
    raise_epoch(leader, A, 3)
    leader.lead(A, automatic=True)
    for _ in range(6):
        leader.append(A, 900, 4)
    await leader.commits.all_durable()
    leader.log(A).drop_before(leader.log(A).next_offset)
    assert leader.log(A).first_offset >= 17
    await mirrored(leader, mirror, A)
    assert (await compared_when_stopped(leader, mirror)).is_identical
    quarantine = [(log.from_offset, log.messages) for each in reports(mirror.directory) for log in each.logs]
    assert quarantine == ([(16, 1)] if is_divergent else [])


@pytest.mark.parametrize("count", [0, 1, 40])
async def test_of_a_leader_that_stood_still_while_its_queue_was_drained_only_what_nobody_else_had_is_set_aside(
    tmp_path: Path, count: int
) -> None:
    """The successor has delivered the messages that both had: to publish them again would double them."""
    old, new = (Node(tmp_path / name) for name in ("a", "b"))
    new.via["a"], old.via["b"] = await old.listen(), await new.listen()
    old.lead(A, automatic=True)
    for _ in range(60):
        old.append(A, 900, 4)
    await mirrored(old, new, A)
    await new.copies.release(A)
    old.sources.cease(A)
    end = old.log(A).next_offset
    for _ in range(count):
        old.append(A)
    await old.commits.all_durable()
    raise_epoch(new, A, 2)
    new.lead(A, automatic=True)
    new.append(A)
    new.begin_segment(A)
    await new.commits.all_durable()
    new.log(A).drop_before(new.log(A).newest_segment)
    assert new.log(A).first_offset > end
    await mirrored(new, old, A)
    for node in (old, new):
        await node.stop()
    assert compared(new, old).is_identical
    quarantine = [(log.from_offset, log.messages) for each in reports(old.directory) for log in each.logs]
    assert quarantine == ([(end, count)] if count else [])


@pytest.mark.parametrize("begins_later", [False, True])
async def test_who_is_counted_on_is_not_wiped_before_the_record_says_that_it_is_not(
    tmp_path: Path, begins_later: bool
) -> None:
    """The old leader told it to drop what was settled, by what only it has; or this one has dropped all that both had.

    Either way nothing of what the mirror has is of use any more. As long as it is recorded as having everything it may
    have to lead, so it keeps that; in the second case without the tail that this leader never had.
    """
    leader, mirror = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    await copied(leader, mirror)
    log = mirror.log(A)
    shared = {} if begins_later else octets(mirror.directory)
    mirror.append(A)
    if begins_later:
        log.drop_before(log.next_offset // 2)
        assert log.first_offset > leader.log(A).first_offset
    await mirror.commits.all_durable()
    raise_epoch(leader, A, 2)
    if not begins_later:
        for _ in range(6):
            leader.append(A, 900, 4)
        await leader.commits.all_durable()
        leader.log(A).drop_before(leader.log(A).next_offset)
        assert leader.log(A).first_offset > log.next_offset
    leader.lead(A, automatic=True)
    leader.sources.wait_for(A, frozenset({"mirror"}))
    extent = octets(mirror.directory)
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED, "found out")
    for _ in range(3):
        leader.append(A)
        leader.sources.cut()
        await leader.commits.all_durable()
    assert octets(mirror.directory) == (extent if begins_later else shared)
    leader.sources.wait_for(A, frozenset())
    await until(lambda: leader.is_live("mirror", A), "live again")
    assert (await compared_when_stopped(leader, mirror)).is_identical
    assert octets_aside(mirror) == {at: held for at, held in extent.items() if at not in shared}


async def test_a_drop_that_waits_ends_with_the_leader_that_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old leader dropped messages that its last records settle; its successor has neither."""
    old, mirror = await pair(tmp_path, led=A)
    old.fill(A, 20_000)
    await mirrored(old, mirror, A)
    shutil.copytree(tmp_path / "leader", tmp_path / "new")
    # The disk of the mirror refuses the drop, as a full one may.
    monkeypatch.setattr(Applier, "_drop_if_due", lambda applier, name: None)
    old.append(A)
    old.log(A).drop_before(old.log(A).next_offset // 2)
    old.commits.begin()
    await until(lambda: old.is_live("mirror", A), "received")
    new = Node(tmp_path / "new")
    mirror.via["new"] = await new.listen()
    raise_epoch(new, A, 2)
    new.lead(A, automatic=True)
    await mirrored(new, mirror, A)
    monkeypatch.undo()
    mirror.copies.drop_due()
    for node in (mirror, old, new):
        await node.stop()
    assert compared(new, mirror).is_identical


async def test_a_leader_that_lost_everything_has_nothing_deleted(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    await mirrored(leader, mirror, A)
    await leader.stop()
    await mirror.copies.release(A)
    extent = octets(mirror.directory)
    empty = Node(tmp_path / "empty", "leader", epoch=2)
    mirror.via["leader"] = await empty.listen()
    empty.lead(A, automatic=True)
    await mirrored(empty, mirror, A)
    empty.append(A)
    await until(lambda: empty.is_live("mirror", A), "still live")
    assert (await compared_when_stopped(empty, mirror)).is_identical
    assert octets_aside(mirror) == extent


@pytest.mark.parametrize("is_closed", [False, True])
async def test_what_is_released_can_be_led_and_what_is_discarded_is_gone(
    tmp_path: Path, is_closed: bool
) -> None:
    leader, mirror = await pair(tmp_path)
    leader.lead(A, B, automatic=True)
    for name in (A, B):
        leader.fill(name, 20_000)
        mirror.copies.mirror(name, "leader")
    await until(lambda: leader.is_live("mirror", A, B), "live")
    leader.sources.delivered(A, 7)
    leader.sources.delivered(A, 5)
    end = leader.append(A)
    leader.append(A)
    await until(lambda: leader.is_live("mirror", A), "live")
    await mirror.copies.release(A)
    assert A not in mirror.tree.logs
    ends = mirror.copies.ends(A)
    assert ends is not None
    assert (ends.epoch, ends.first_offset, ends.next_offset) == (1, 0, end + 1)
    assert [mirror.copies.take_cursor(A), mirror.copies.cursor(A)] == [7, None]
    if is_closed:
        await mirror.copies.release(B)
    await mirror.copies.discard(B)
    assert mirror.copies.ends(B) is None
    assert not (mirror.directory / B).exists()
    assert [row["name"] for row in mirror.copies.rows()] == []
    await until(lambda: not leader.sources.rows(A) and not leader.sources.rows(B), "released")
    leader.append(A)
    leader.append(B)
    await leader.commits.all_durable()
    assert mirror.copies.ends(A) == ends
    raise_epoch(mirror, A, 2)
    mirror.lead(A)
    mirror.append(A)
    # Not a mirror's any more, whatever a link says.
    assert mirror.log(A).next_offset == end + 2


async def test_a_copy_that_is_cut_counts_nothing_behind_as_delivered(tmp_path: Path) -> None:
    """Readers of a stream's mirror would get what the next leader has not committed at these offsets."""
    leader, mirror = await pair(tmp_path, led=A)
    for _ in range(5):
        leader.append(A)
    await mirrored(leader, mirror, A)
    leader.sources.delivered(A, 5)
    leader.append(A)
    await until(lambda: mirror.copies.cursor(A) == 5, "told")
    await leader.stop()
    new = Node(tmp_path / "new", "leader", epoch=2)
    for _ in range(2):
        new.append(A)
    await new.commits.all_durable()
    mirror.via["leader"] = await new.listen()
    new.lead(A, automatic=True)
    await until(lambda: new.is_live("mirror", A), "live")
    assert (mirror.copies.cursor(A) or 0) <= 2
    for node in (mirror, new):
        await node.stop()


async def test_what_is_released_is_on_this_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node may lead it from then on, and promises what it has."""
    leader, mirror = await pair(tmp_path, led=A)
    leader.append(A)
    await mirrored(leader, mirror, A)
    log, closed = mirror.tree.logs[A], list[int]()
    monkeypatch.setattr(log, "close", lambda: closed.append(log.synced_offset))
    with monkeypatch.context() as patch:
        patch.setattr(mirror.commits, "begin", lambda: None)
        end = leader.append(A)
        await until(lambda: log.next_offset == end, "received")
        assert log.synced_offset < end
    await mirror.copies.release(A)
    assert closed == [end]
    monkeypatch.undo()
    log.close()


async def test_a_copy_that_is_wanted_again_while_its_deletion_waits_stays(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path, led=A)
    leader.append(A)
    await mirrored(leader, mirror, A)
    [segment] = (mirror.directory / A).glob("*.segment")
    aside, inode = asyncio.Event(), segment.stat().st_ino
    # As while a part of it is quarantined.
    mirror.copies._copies[A].busy = asyncio.create_task(aside.wait())  # type: ignore[arg-type]
    deletion = asyncio.create_task(mirror.copies.discard(A))
    await until(lambda: not mirror.copies.rows(), "the end of the copy")
    mirror.copies.mirror(A, "leader")
    aside.set()
    await deletion
    await until(lambda: leader.is_live("mirror", A), "live again")
    assert segment.stat().st_ino == inode, "it is not deleted and sent again"
    assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_a_copy_that_is_cut_takes_nothing_meanwhile_and_who_reads_it_ends(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path, led=A)
    leader.append(A)
    await mirrored(leader, mirror, A)
    ended = list[str]()
    mirror.copies.readers[A] = cast(Any, SimpleNamespace(end=lambda: ended.append(A)))
    copy = mirror.copies._copies[A]
    mirror.copies.change(copy, LogChange(ChangeKind.TRUNCATE, A))
    assert (ended, copy.is_accepting, mirror.copies.readable(A)) == ([A], False, None)
    await until(lambda: copy.is_accepting and leader.is_live("mirror", A), "live again")
    assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_a_deleted_log_needs_no_mirror_and_one_led_elsewhere_promises_nothing(tmp_path: Path) -> None:
    leader, _mirror = await pair(tmp_path)
    describe: list[int] = []
    answers: list[bool] = []
    leader.lead(A, B)
    for name in (A, B):
        leader.append(name)
        leader.sources.wait_for(name, frozenset({"mirror"}))
        leader.append(name)
        leader.promise(describe, name)
    leader.sources.when_acked([A, B], answers.append)
    leader.commits.begin()
    assert describe == answers == []
    leader.sources.cease(B)
    assert describe == []
    assert answers == [False], "whoever waits is told"
    leader.commits.forget(leader.log(A))
    leader.log(A).delete()
    assert describe == [0]


@pytest.mark.long
@pytest.mark.parametrize("is_automatic", [False, True])
async def test_a_mirror_of_what_is_all_settled_knows_on_its_disk_where_it_begins(
    tmp_path: Path, is_automatic: bool
) -> None:
    """It is counted on at once, and nothing may come for long: a start finds a chunk, at the leader's offset."""
    leader, mirror = await pair(tmp_path)
    leader.lead(A, automatic=is_automatic)
    for _ in range(400):
        leader.append(A, 900, 4)
    end = leader.log(A).next_offset
    leader.sources.floor(A, end)
    await mirrored(leader, mirror, A)
    await mirror.stop()
    await leader.stop()
    found = Log(mirror.tree.path_of(A), epoch=0).open(must_exist=True)
    assert found.first_offset == end
    assert [header.chunk_id for header, _ in found.headers_before(found.next_offset, 9)] == [end]


@pytest.mark.parametrize("is_discarded", [False, True])
@pytest.mark.parametrize("has_log", [False, True])
async def test_a_mirror_of_a_leader_that_lost_everything_may_lead_although_nothing_came_since(
    tmp_path: Path, is_discarded: bool, has_log: bool
) -> None:
    """The leader lost its power before anything was confirmed. Its mirror had records, and had them taken away."""
    leader, mirror = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    await mirrored(leader, mirror, A)
    await leader.stop()
    await mirror.copies.release(A)
    if is_discarded:
        await mirror.copies.discard(A)
    empty = Node(tmp_path / "empty", "leader", epoch=2)
    mirror.via["leader"] = await empty.listen()
    if has_log:
        empty.log(A)
    empty.lead(A, automatic=True)
    await mirrored(empty, mirror, A)
    await mirror.stop()
    await empty.stop()
    assert mirror.has_log(A)
    found = Log(mirror.tree.path_of(A), epoch=0).open(must_exist=True)
    assert (found.first_offset, found.next_offset) == (0, 0)


async def test_a_mirror_that_was_told_to_begin_has_a_file_before_anything_comes(tmp_path: Path) -> None:
    """Should it end just then, it is an empty copy that begins there, and none that has all of nothing."""
    node = Node(tmp_path / "mirror")
    applier = Applier(node.tree, node.commits, CopyOwner())
    applier.apply(LogChange(ChangeKind.BEGIN, A, 4711))
    await node.stop()
    found = Log(node.tree.path_of(A), epoch=0).open(must_exist=True)
    assert (found.first_offset, found.next_offset) == (4711, 4711)


async def test_a_copy_that_is_counted_on_and_gone_is_no_copy_of_nothing(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path, led=A)
    leader.append(A)
    await copied(leader, mirror)
    shutil.rmtree(mirror.tree.path_of(A))
    mirror.copies.mirror(A, "leader", is_counted_on=True)
    assert mirror.copies.damaged == {A}, "it says so, and others lead"
    leader.lead(A, automatic=True)
    # Begun anew, once nobody counts on it.
    await mirrored(leader, mirror, A)
    assert mirror.copies.damaged == set()
    assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_what_led_two_leaders_ago_is_late_by_what_the_log_says_of_its_epoch(tmp_path: Path) -> None:
    """All of it is dropped here, and so is what the next leader wrote: but nothing of it is divergent."""
    leader, mirror = await pair(tmp_path, led=A)
    for _ in range(4):
        leader.append(A, 900, 4)
    await copied(leader, mirror)
    for epoch in (3, 4):
        raise_epoch(leader, A, epoch)
        for _ in range(6):
            leader.append(A, 900, 4)
    leader.log(A).drop_before(leader.log(A).next_offset)
    leader.lead(A, automatic=True)
    await mirrored(leader, mirror, A)
    assert reports(mirror.directory) == []
    assert (await compared_when_stopped(leader, mirror)).is_identical


@pytest.mark.parametrize("has_more", [False, True])
async def test_of_a_copy_from_before_a_leader_that_lacked_messages_only_these_are_set_aside_before_it_is_deleted(
    tmp_path: Path, has_more: bool
) -> None:
    """The queue has the others: to publish them again would double them. Nothing was published in the new term."""
    leader, mirror = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    await copied(leader, mirror)
    end = leader.log(A).next_offset
    if has_more:
        mirror.append(A, count=3)
        await mirror.commits.all_durable()
    raise_epoch(leader, A, 2)
    leader.lead(A, lost=(0, 2))
    assert mirror.copies.may_be_the_only_one(A, 2)
    assert not mirror.copies.may_be_the_only_one(A, 1)
    assert await mirror.copies.compare(A, "leader")
    await mirror.copies.discard(A)
    assert A not in logs_of(mirror.directory)
    found = [
        (log.from_offset, log.messages, log.is_lost)
        for each in reports(mirror.directory)
        for log in each.logs
    ]
    assert found == ([(end, 3, True)] if has_more else [])


async def test_a_comparison_ends_without_a_result_if_the_copy_is_released(tmp_path: Path) -> None:
    """As when the queue gets another leader meanwhile; this one leads nothing yet."""
    _leader, mirror = await pair(tmp_path)
    mirror.append(A)
    comparing = asyncio.create_task(mirror.copies.compare(A, "leader"))
    await until(lambda: bool(mirror.copies.rows()) and mirror.copies.rows()[0]["leader"] == "leader", "begun")
    await mirror.copies.release(A)
    assert not await comparing


async def test_what_a_leader_began_without_is_set_aside_as_lost_where_it_is_and_the_rest_stays(
    tmp_path: Path,
) -> None:
    """The first leader comes back to a mirror that led on without the head of the log."""
    leader, first = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    await copied(leader, first)

    def has_no_head() -> bool:
        """Segments go once the leader's own disk has them, too."""
        leader.log(A).drop_before(leader.log(A).next_offset)
        return leader.log(A).first_offset > 0

    await until(has_no_head, "a log without its head")
    begin, end = leader.log(A).first_offset, leader.log(A).next_offset
    assert begin < end
    raise_epoch(leader, A, 2)
    leader.lead(A, automatic=True, lost=(begin, 2))
    leader.append(A)
    await mirrored(leader, first, A)
    assert (await compared_when_stopped(leader, first)).is_identical
    [report] = reports(first.directory)
    [kept] = report.logs
    assert (kept.from_offset, kept.next_offset, kept.messages, kept.is_lost) == (0, begin, begin, True)
    assert report.summary()["lost"] == begin
