"""A delayed follower goes back in time, whatever happened since, and whenever that is broken off."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leveret.runtime.replication.applier import Applier
from leveret.runtime.replication.point_in_time import past, quarantine_bytes
from leveret.storage.quarantine.report import reports
from leveret.testing.network.waiting import until
from leveret.wire.link import LogChange
from tests.seeds import seeds
from tests.unit.runtime.replication.delayed_site import (
    QUEUE,
    AloneSite,
    append,
    assert_is,
    assert_was,
    delaying_of,
    go_back,
    has_received,
    moment,
    pair_with_a_message,
    replaced,
)
from tests.unit.runtime.replication.link_sites import SEGMENT_BYTES, LeaderSite

OTHER = "queues/00000000000000ff"


@pytest.mark.parametrize("seed", seeds(3, each_time=1))
async def test_behind_a_leader_that_was_replaced_it_can_be_what_that_was(tmp_path: Path, seed: int) -> None:
    follower, leader, moments = await replaced(tmp_path, random.Random(seed))
    assert follower.identity.identity.followed_epoch == 2
    await follower.stop()
    await leader.stop()
    await assert_was(follower.directory, moments, tmp_path / "copy")


async def test_what_came_later_is_quarantined(tmp_path: Path) -> None:
    """Also of a leader that was replaced: then there are two chunks for one offset, and a report for each."""
    follower, leader, moments = await replaced(tmp_path, random.Random(1))
    at_ms, expected = moments[0]
    left = await follower.delaying.left_after(at_ms)
    assert left.messages > 0
    await follower.stop()
    await leader.stop()
    await go_back(follower.directory, at_ms)
    assert_is(follower.directory, expected)
    found = reports(follower.directory)
    assert [each.is_finished for each in found] == [True] * len(found)
    assert len(found) > 1
    queues = [log for report in found for log in report.logs if log.path.startswith("queues/")]
    assert sum(log.messages for log in queues) >= left.messages


async def test_a_log_whose_kept_files_are_gone_is_named_before_anything_is_changed(tmp_path: Path) -> None:
    """It was left as it is now, without a word: later records counted as those of that time."""
    follower, leader, moments = await replaced(tmp_path, random.Random(1))
    at_ms, last_ms = moments[0][0], moments[-1][0]
    then = past(follower.delaying._index, follower.delaying._base, at_ms)
    assert then.kept
    assert follower.delaying.lacks(at_ms) == ""
    assert quarantine_bytes(then, follower.tree, follower.delaying._index) > quarantine_bytes(
        replace(then, kept={}), follower.tree, follower.delaying._index
    ), "records from before each destruction are quarantined, too"
    shutil.rmtree(follower.directory / "delayed/kept")
    lack = follower.delaying.lacks(at_ms)
    assert any(
        lack == f"the files of log {name}, which were kept when it was truncated or deleted, are gone"
        for name in then.kept
    )
    assert follower.delaying.lacks(last_ms) == ""
    await follower.stop()
    await leader.stop()


@pytest.mark.parametrize("seed", seeds(2, each_time=1))
@pytest.mark.long
async def test_broken_off_at_any_change_it_is_gone_on_with(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each third change that it makes, its directory is kept as it is: that one goes back as well."""
    follower, leader, moments = await replaced(tmp_path, random.Random(seed))
    await follower.stop()
    await leader.stop()
    at_ms, expected = moments[seed]
    directory = follower.directory
    copies: list[Path] = []
    apply: Callable[[Applier, LogChange], None] = Applier.apply
    alone = AloneSite(directory)
    made = 0

    def watched(applier: Applier, change: LogChange) -> None:
        nonlocal made
        assert alone.is_rewriting, "a node in the middle of this must not lead"
        if made % 3 == seed:
            copies.append(tmp_path / f"broken-{len(copies)}")
            shutil.copytree(directory, copies[-1])
        made += 1
        apply(applier, change)

    delaying = delaying_of(directory, alone.applier, alone.commits)
    delaying.open()
    delaying.start()
    with monkeypatch.context() as patched:
        patched.setattr(Applier, "apply", watched)
        await alone.finish(delaying, at_ms)
    assert_is(directory, expected)
    assert len(copies) > 3
    for copy in copies:
        await go_back(copy, at_ms)
        assert_is(copy, expected)


def cut_at(leader: LeaderSite, offset: int) -> None:
    """Truncate the leader's log, without the end of a frame."""
    log = leader.tree.logs[QUEUE]
    leader.commits.forget(log)
    log.close()
    del leader.tree.logs[QUEUE]
    cut = leader.tree.log(log.directory, segment_bytes_max=SEGMENT_BYTES)
    cut.open(cut_at=offset)
    leader.tree.truncated(cut)


@pytest.mark.parametrize(
    ("then", "quarantined"),
    [("deletes", 1 + 2), ("deletes and makes anew", 1 + 3), ("truncates again", 3 + 3)],
)
async def test_a_log_that_one_frame_truncates_and_destroys_further_is_what_it_was(
    tmp_path: Path, then: str, quarantined: int
) -> None:
    """Only the truncation was noted: what ended before it counted as here, and was another log, or none."""
    leader, follower, first_ms = await pair_with_a_message(tmp_path)
    append(leader, QUEUE, b"second")
    moments = [(first_ms, tmp_path / "0"), (await moment(leader, tmp_path / "1"), tmp_path / "1")]
    append(leader, QUEUE, b"third")
    moments.append((await moment(leader, tmp_path / "2"), tmp_path / "2"))
    cut_at(leader, 2)
    if then == "truncates again":
        cut_at(leader, 0)
    else:
        leader.commits.forget(leader.log(QUEUE))
        leader.log(QUEUE).delete()
    append(leader, OTHER if then == "deletes" else QUEUE, b"another one")
    for number in (3, 4):
        moments.append((await moment(leader, tmp_path / str(number)), tmp_path / str(number)))
        append(leader, QUEUE, b"later")
    await until(lambda: has_received(leader), "received")
    assert [follower.delaying.lacks(at_ms) for at_ms, _ in moments] == [""] * 5
    await follower.stop()
    await leader.stop()
    await assert_was(follower.directory, moments, tmp_path / "copy")
    await go_back(follower.directory, moments[1][0])
    queues = [log for report in reports(follower.directory) for log in report.logs if log.path == QUEUE]
    # What the leader had truncated, and what came later than the time.
    assert sum(log.messages for log in queues) == quarantined
