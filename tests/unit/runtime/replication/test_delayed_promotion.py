"""What becomes of what a delayed follower holds back, when it is promoted or is not to be delayed any longer."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from leveret.model.errors import PreconditionFailed
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication.delaying import follower_data, refuse_to_lead
from leveret.storage.quarantine.report import reports
from tests.unit.runtime.replication.delayed_site import DelayedSite, append, assert_is, moment, replaced
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite


def test_what_is_not_applied_is_set_aside(tmp_path: Path) -> None:
    """Also of a leader that was replaced: then there are two chunks for one offset, and a report for each."""

    async def scenario() -> None:
        follower, leader, moments = await replaced(tmp_path, random.Random(1))
        extent = follower.delaying.delayed_changes()
        at_ms, directory = moments[0]
        left = await follower.delaying.left_after(at_ms)
        assert (left.messages, left.newest_at_ms) == (extent.messages, extent.newest_at_ms)
        assert left.messages > 0
        assert "holds changes back" in follower.delaying.why_not(None)
        assert follower.delaying.why_not(at_ms) == ""
        with pytest.raises(PreconditionFailed, match="holds changes back"):
            refuse_to_lead(follower.directory)
        follower.inbound.stop()
        await follower.delaying.finish(at_ms, follower.keeper)
        assert_is(follower.directory, directory)
        found = reports(follower.directory)
        assert [each.is_finished for each in found] == [True] * len(found)
        assert len(found) > 1
        assert sum(log.messages for report in found for log in report.logs) == left.messages
        refuse_to_lead(follower.directory)
        assert not (follower.directory / "delayed").exists()
        await follower.stop()
        await leader.stop()

    asyncio.run(scenario())


def test_what_is_applied_cannot_be_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(1))
        append(leader, "queues/0000000000000001", b"first")
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        at_ms = await moment(leader, tmp_path / "0")
        assert follower.delaying.why_not(None) == ""
        assert (
            follower.delaying.why_not(at_ms - 60_000)
            == "what the leader did after that time is applied already"
        )
        await follower.stop()
        again = DelayedSite(tmp_path / "follower", follower.inbound.uri)
        assert (
            again.delaying.why_not(at_ms - 60_000) == "what the leader did after that time is applied already"
        )
        await again.stop()
        await leader.stop()

    asyncio.run(scenario())


def test_without_a_delay_what_waits_from_before_is_applied_at_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = LeaderSite(tmp_path / "leader", random.Random(2))
        follower = DelayedSite(tmp_path / "follower", await leader.start())
        await moment(leader, tmp_path / "0")
        for _ in range(50):
            leader.change()
        await moment(leader, tmp_path / "1")
        await follower.stop()
        await leader.stop()
        plain = FollowerSite(tmp_path / "follower", follower.inbound.uri)
        data = await follower_data(
            plain.directory,
            plain.applier,
            plain.commits,
            apply_delay_ms=0,
            has_joined=True,
            clock_ms=clock_ms,
            on_damage=plain.damaged.append,
        )
        assert data is plain.applier
        assert_is(plain.directory, tmp_path / "1")
        assert not (plain.directory / "delayed").exists()
        await plain.stop()

    asyncio.run(scenario())
