"""The record of a queue that is led on without messages says so, as long as that matters."""

from __future__ import annotations

import msgspec

from leveret.core.replication.cluster import Lost
from leveret.core.replication.placement import following
from leveret.core.rules.mirror_policy import MirrorPolicy
from tests.unit.runtime.cluster.test_placement_controller import World, begun, placed, play


def test_a_mirror_that_lacks_messages_and_leads_says_so_until_who_has_them_is_back() -> None:
    async def story(world: World) -> None:
        world.records(msgspec.structs.replace(placed("a", ""), leader="c"))
        await begun(world)
        await world.rest()
        found = world.recorded()
        assert (found.leader, found.lost) == ("a", Lost(found.term, 7, "c"))
        kept = following(found, world.policy, ["b"], world.placing._around()).placement
        assert kept.lost == found.lost
        back = following(found, world.policy, ["c"], world.placing._around()).placement
        assert back.lost == Lost(found.term, 7, "")

    play(story, alive="ab", policy=MirrorPolicy(mode="all", promote_on_failure="always"))
