"""runtime.cluster.placement.placement_controller: a queue that moves to a node with an incomplete copy."""

from __future__ import annotations

import asyncio

import pytest

from leveret.core.replication.cluster import LossyPromotion
from leveret.runtime.cluster.placement.local_queues import Lack
from tests.unit.runtime.cluster.placement.test_placement_controller import Q, World, all_synchronised


@pytest.mark.parametrize("lack", [Lack(5, 3), Lack(0, 0)])
async def test_who_leads_from_an_incomplete_copy_is_recorded_to_also_if_no_message_is_lost(
    lack: Lack,
) -> None:
    """A mirror of a drained queue lacks no message; without the record, its missing copy would be taken for lost."""
    world = World()
    world.hands.lack = lack
    await all_synchronised(world)
    world.hands.ready_ones[Q] = "c"
    moving = asyncio.create_task(world.placement_controller.move(Q, "b", loses=True))
    await world.rest()
    assert await moving
    record = world.recorded()
    assert (record.leader, record.lost) == ("b", LossyPromotion(record.term, lack.begins_at, "a"))
    assert record.hand_over is None
