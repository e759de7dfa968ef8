"""runtime.cluster.placement.placement_controller: queues that move by their policies, or as their node stops."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from leveret.core.rules.mirror_policy import WHEN_SYNCED, MirrorPolicy
from leveret.model import definitions as d
from leveret.model.definitions import QueueKey
from leveret.runtime.cluster.placement import placement_controller as room
from leveret.runtime.process.work_slices import in_slices
from tests.unit.runtime.cluster.placement.test_placement_controller import ALL, Q, World, begun, placed, ready


async def test_queues_that_move_by_their_policy_hold_nothing_else_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first of two moves, the second is deleted, and the leader of another queue is lost."""
    world = World(policy=MirrorPolicy(mode="nodes", params=("b",), promote_on_failure=WHEN_SYNCED))
    second, other = ("/", "second"), ("/", "other")
    for key in (Q, second):
        world.records(placed("b", "b"), key)
        world.hands.ready_ones[key] = "b"
    world.records(placed("a", "a", leader="d", run_id="d1"), other)
    is_given, given = asyncio.Event(), list[QueueKey]()

    async def hand_over_to(
        key: QueueKey, node: str, recorded: frozenset[str], *, loses: bool
    ) -> frozenset[str]:
        given.append(key)
        await is_given.wait()
        return recorded

    monkeypatch.setattr(world.hands, "hand_over_to", hand_over_to)
    await begun(world)
    await world.rest()
    world.records(None, second)
    world.ends("d")
    await world.rest()
    assert world.recorded(other).leader == "a"
    is_given.set()
    await world.rest()
    assert world.recorded().leader == "b"
    assert given == [Q]


async def test_a_node_that_hands_over_thousands_of_queues_serves_others_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To find the successors of 10,000 queues took 140 ms in one step, and as many tasks were made in the next one."""
    monkeypatch.setattr(room, "in_slices", partial(in_slices, slice_s=0))
    monkeypatch.setattr(room, "_MOVES_AT_ONCE", 2)
    world = World()
    keys = [("/", f"q{number}") for number in range(9)]
    for key in keys:
        world.records(placed("b", "b"), key)
        world.hands.ready_ones[key] = "b"
    world.placement_controller.is_held = True
    await begun(world)
    await world.rest()
    passes, looked_in = 0, set[int]()

    def policy(definition: d.Queue) -> MirrorPolicy:
        if not world.hands.given:
            looked_in.add(passes)
        return ALL

    monkeypatch.setattr(world.placement_controller._locations, "policy", policy)
    handing_over = asyncio.create_task(world.placement_controller.hand_over())
    while not handing_over.done():
        passes += 1
        world.hear()
        await asyncio.sleep(0)
    assert len(looked_in) == len(keys)
    assert {world.recorded(key).leader for key in keys} == {"b"}


async def test_a_queue_stays_if_its_policy_changes_while_the_next_leader_gets_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(policy=MirrorPolicy(mode="nodes", params=("b",), promote_on_failure=WHEN_SYNCED))
    world.records(placed("b", "b"))
    world.hands.ready_ones[Q] = "b"

    prepared: list[str] = []

    async def prepare(key: QueueKey, node: str) -> None:
        prepared.append(node)
        world.policy = ALL
        world.due.add([Q])
        for _ in range(20):
            await asyncio.sleep(0)

    monkeypatch.setattr(world.hands, "prepare", prepare)
    await begun(world)
    await world.rest()
    assert (prepared, world.hands.given) == (["b"], [])
    assert world.recorded().leader == "a"


@pytest.mark.parametrize(("comes_too", "leads"), [("", "d"), ("c", "c")])
async def test_the_first_that_a_policy_lists_has_a_moment_to_be_ready_before_others(
    comes_too: str, leads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_FIRST_LISTED_S", 0.5)
    world = World(policy=MirrorPolicy(mode="nodes", params=("c", "d"), promote_on_failure=WHEN_SYNCED))
    world.records(placed("cd", "d"))
    world.hands.ready_ones[Q] = "d"
    await begun(world)
    await world.rest()
    assert world.hands.given == []
    if comes_too:
        await ready(world, "cd")
        then = world.hands.then[Q]
        if then is not None:
            then()
    await world.rest()
    while not world.hands.given:
        await asyncio.sleep(0.01)
        await world.rest()
    assert world.hands.given == [Q]
    assert world.hands.prepared == [leads]
    while world.recorded().leader == "a":
        await world.rest()
    assert world.recorded().leader == leads


@pytest.mark.parametrize("leader", [None, "b"])
async def test_the_moment_is_over_with_the_queue_or_its_leader_here(leader: str | None) -> None:
    """It stayed for each queue that was deleted meanwhile, and a later leadership had none (2026-11-30)."""
    world = World(policy=MirrorPolicy(mode="nodes", params=("c", "d"), promote_on_failure=WHEN_SYNCED))
    world.records(placed("cd", "d"))
    world.hands.ready_ones[Q] = "d"
    await begun(world)
    await world.rest()
    assert [*world.placement_controller._patient_since_s] == [Q]
    world.records(None if leader is None else placed("cd", "d", leader=leader, run_id=f"{leader}1"))
    await world.rest()
    assert not world.placement_controller._patient_since_s
