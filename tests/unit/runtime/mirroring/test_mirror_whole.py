"""What a mirror counts for: nothing before it is whole, and nothing that is on no disk."""

from __future__ import annotations

from pathlib import Path

from leveret.runtime.mirroring.led_log import MirrorState
from leveret.testing.network.waiting import until
from tests.unit.runtime.mirroring.sites import NAMES, Node, pair

NAME = NAMES[0]


async def test_what_was_promised_before_a_mirror_began_is_not_kept_before_it_has_the_head(
    tmp_path: Path,
) -> None:
    leader, mirror = await pair(tmp_path, sync_bytes_s_max=2000)
    leader.fill(NAME, 40_000)
    leader.lead(NAME, automatic=True)
    leader.sources.wait_for(NAME, frozenset({"mirror"}))
    describe: list[int] = []
    leader.append(NAME)
    leader.promise(describe, NAME)
    leader.commits.begin()
    end = leader.log(NAME).next_offset
    mirror.copies.mirror(NAME, "leader")

    def acked() -> bool:
        return any(row["acked_offset"] > end for row in leader.sources.rows(NAME))

    await until(acked, "it has acked the end, and what it begins with")
    await until(lambda: leader.state(NAME, "mirror") is not MirrorState.JOINING, "it has joined")
    assert leader.state(NAME, "mirror") is MirrorState.SYNCHRONISING
    assert not leader.sources.has_all(NAME, "mirror")
    assert describe == []
    leader.sources.sync_bytes_s_max = 0
    await until(lambda: describe, "it is whole")
    assert leader.state(NAME, "mirror") is MirrorState.LIVE
    assert leader.sources.has_all(NAME, "mirror")


async def test_what_a_killed_process_left_is_on_the_disk_before_anything_is_acked(tmp_path: Path) -> None:
    mirror = Node(tmp_path / "mirror")
    end = mirror.append(NAME, count=3)
    await mirror.commits.all_durable()
    mirror.tree.logs.pop(NAME).close()
    mirror.via["leader"] = 1
    mirror.copies.mirror(NAME, "leader")
    log = mirror.tree.logs[NAME]
    assert log.synced_offset < log.next_offset == end
    await mirror.commits.all_durable()
    assert log.synced_offset == end
