"""runtime.roles.status: what a follower reports of its leader's data, by a real link."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication import inbound as inbound_module
from leveret.runtime.replication import outbound, sent_node
from leveret.runtime.roles.operations import ReplicationCommands
from leveret.runtime.roles.status import follower_status, would_lose
from leveret.storage.log import Log
from leveret.testing.network.waiting import until
from leveret.wire.chunk import Chunk
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite, in_sync

QUEUE = "queues/0000000000000001"
LAG = ("lag_records", "lag_bytes", "lag_s")


def reported(follower: FollowerSite, *fields: str) -> tuple[Any, ...]:
    status = follower_status(follower.inbound, follower.identity.identity, 0, clock_ms())
    assert status is not None
    return tuple(status[each] for each in fields)


class BreakingSite(FollowerSite):
    """A follower whose link ends with the first record that it receives while it `breaks`."""

    breaks = False

    def replayed(self, name: str, log: Log, chunk: Chunk) -> None:
        super().replayed(name, log, chunk)
        if self.breaks and self.inbound._link is not None:
            self.inbound._link.peer.close()


async def test_of_records_that_were_to_come_when_the_leader_was_lost_only_the_octets_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_node, "FINAL_BYTES", 0)
    monkeypatch.setattr(sent_node, "STEP_BYTES", 500)
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    leader.append(QUEUE)
    follower = BreakingSite(tmp_path / "follower", await leader.start())
    assert reported(follower, "position", *LAG) == (None, None, None, None)
    assert would_lose(follower.inbound, clock_ms())["bytes"] is None
    await until(lambda: in_sync(leader), "in sync")
    await until(lambda: reported(follower, *LAG) == (0, 0, 0.0), "no lag")
    leader.listener.send_away_all("for a while")
    follower.breaks = True
    for _ in range(20):
        leader.append(QUEUE)
    leader.commits.begin()
    await until(lambda: follower.inbound.progress.is_torn, "broken off")
    await leader.stop()
    await until(lambda: follower.inbound.state == "connecting")
    position, records, octets, age_s = reported(follower, "position", *LAG)
    assert (position, records, age_s) == (None, None, None)
    assert octets > 0
    lost = would_lose(follower.inbound, clock_ms())
    assert (lost["known"], lost["messages"], lost["bytes"]) == (False, None, octets)


async def test_of_two_followers_the_one_with_the_newest_record_has_all_of_the_other(tmp_path: Path) -> None:
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    leader.append(QUEUE)
    uri = await leader.start()
    followers = [FollowerSite(tmp_path / name, uri) for name in ("away", "whole")]
    away, whole = (each.applier for each in followers)

    def newest_ms() -> int:
        return max(log.last_timestamp_ms for log in leader.tree.logs.values())

    leader.commits.begin()
    await until(lambda: away.last_timestamp_ms == whole.last_timestamp_ms == newest_ms(), "even")
    await followers[0].stop()
    before_ms = newest_ms()
    await until(lambda: clock_ms() > before_ms, "the next millisecond")
    leader.append(QUEUE)
    leader.commits.begin()
    await until(lambda: whole.last_timestamp_ms == newest_ms(), "even")
    assert whole.last_timestamp_ms > away.last_timestamp_ms == before_ms


async def test_a_leader_that_is_silent_may_have_confirmed_more(tmp_path: Path) -> None:
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    leader.append(QUEUE)
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    await until(lambda: in_sync(leader), "in sync")
    heard_at_ms = follower.inbound.progress.heard_at_ms
    assert heard_at_ms is not None
    lost = would_lose(follower.inbound, heard_at_ms + 2_000)
    assert lost == {"known": True, "messages": 0, "bytes": 0, "seconds": 0.0}
    lost = would_lose(follower.inbound, heard_at_ms + 3_000)
    assert (lost["known"], lost["messages"], lost["bytes"]) == (False, 0, 0)
    assert lost["seconds"] >= 3.0
    # As if this process had stood still, and had read the leader's last frame long after.
    follower.inbound.progress.cut_at_ms -= 10_000
    assert would_lose(follower.inbound, heard_at_ms + 3_000)["seconds"] >= 13.0


@pytest.mark.parametrize("answers", [True, False])
async def test_a_promotion_reports_a_loss_of_nothing_only_if_the_leader_has_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(inbound_module, "TAKE_OVER_TIMEOUT_S", 60.0 if answers else 0.05)
    if not answers:
        monkeypatch.setattr(outbound.Outbound, "_hand_over", lambda *about: None)
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    leader.append(QUEUE)
    follower = FollowerSite(tmp_path / "follower", await leader.start())
    await until(lambda: in_sync(leader), "in sync")

    async def take_over(until_ms: int) -> None:
        await follower.inbound.take_over(2)
        await follower.stop()

    roles: Any = SimpleNamespace(
        role="follower",
        state="streaming",
        identity=follower.identity.identity,
        inbound=follower.inbound,
        following=SimpleNamespace(inbound=follower.inbound, delaying=None),
        elected=None,
        refuse_if_leading=lambda: None,
        take_over=take_over,
        occupied_address=lambda: "",
    )
    outcome = await ReplicationCommands(roles).promote(dry_run=False, force=False)
    assert outcome["promoted"], outcome
    assert outcome["would_lose"]["known"] is answers
