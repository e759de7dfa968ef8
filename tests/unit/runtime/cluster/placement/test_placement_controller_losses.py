"""The record of a queue that is led on without messages says so, as long as that matters."""

from __future__ import annotations

import msgspec
import pytest

from leveret.core.replication.cluster import LossyPromotion, Presence
from leveret.core.replication.placement import ClusterView, following, withdrawn
from leveret.core.rules.mirror_policy import MirrorPolicy
from tests.unit.runtime.cluster.placement.test_placement_controller import Q, World, begun, placed


async def test_a_mirror_that_lacks_messages_and_leads_says_so_until_who_has_them_is_back() -> None:
    world = World(alive="ab", policy=MirrorPolicy(mode="all", promote_on_failure="always"))
    world.records(msgspec.structs.replace(placed("a", ""), leader="c"))
    await begun(world)
    await world.rest()
    found = world.recorded()
    assert (found.leader, found.lost) == ("a", LossyPromotion(found.term, 7, "c"))
    kept = following(found, world.policy, ["b"], ["b"], world.placement_controller._cluster_view()).placement
    assert kept.lost == found.lost
    back = following(found, world.policy, [], ["c"], world.placement_controller._cluster_view()).placement
    assert back.lost == LossyPromotion(found.term, 7, "")


@pytest.mark.parametrize("ran", [True, False])
async def test_a_mirror_that_lacks_messages_leads_only_if_it_ran_when_the_leader_was_lost(ran: bool) -> None:
    """After a start of all nodes, the leader and the mirrors that have everything come a moment later."""
    world = World(alive="a" if ran else "", policy=MirrorPolicy(mode="all", promote_on_failure="always"))
    world.records(msgspec.structs.replace(placed("abd", "d"), leader="c"))
    if not ran:
        world.runs("a")
    await begun(world)
    await world.rest()
    assert world.recorded().leader == ("a" if ran else "c")
    world.runs("d")
    await world.rest()
    assert (world.recorded().leader, world.recorded().lost is None) == (("a", False) if ran else ("c", True))


async def test_a_mirror_that_withdraws_does_not_make_later_runs_count_as_earlier() -> None:
    """The leader, and the mirror that has everything, come a moment later than one that lacks messages."""
    world = World(alive="b", policy=MirrorPolicy(mode="all", promote_on_failure="always"))
    world.records(msgspec.structs.replace(placed("abd", "bd"), leader="c"))
    written = world.store.revision
    world.runs("a")
    world.records(withdrawn(world.recorded(), "b", written))
    await begun(world)
    await world.rest()
    assert (world.recorded().leader, world.recorded().synchronised) == ("c", ("d",))
    # It withdraws itself too, and the revision of the leader's record stays known.
    world.hands.damaged.add(Q)
    world.placement_controller.changed(Q)
    await world.rest()
    assert (world.recorded().mirrors, world.recorded().leader_wrote) == (("d", "b", "a"), written)


def test_who_had_led_is_a_mirror_until_what_it_alone_has_is_quarantined() -> None:
    alive = {name: Presence(f"{name}1", "tcp://there", "", 0, "1.0") for name in "abc"}
    cluster_view = ClusterView("a", "a1", "abcd", alive, list)
    policy = MirrorPolicy(mode="exactly", params=2)
    lossy = placed("b", "b", lost=LossyPromotion(2, 7, "c"))
    assert following(lossy, policy, ["b"], ["b"], cluster_view).placement.mirrors == ("b", "c")
    compared = following(lossy, policy, ["b"], ["b", "c"], cluster_view).placement
    assert (compared.mirrors, compared.lost) == (("b",), LossyPromotion(2, 7, ""))
    away = placed("b", "b", lost=LossyPromotion(2, 7, "d"))
    assert following(away, policy, ["b"], ["b"], cluster_view).placement.mirrors == ("b",)
    # Until all mirrors have everything, those that stopped keep their copies: it is a mirror, and not one of these.
    stopped = placed("b", stopped=("d", "c"), lost=LossyPromotion(2, 7, "c"))
    kept = following(stopped, policy, [], ["b"], cluster_view).placement
    assert (kept.mirrors, kept.stopped) == (("b", "c"), ("d",))
    # The leader without all messages was forgotten, so this node leads again with its own.
    leads_again = placed("b", "b", lost=LossyPromotion(2, 7, "a"))
    assert following(leads_again, policy, ["b"], ["b"], cluster_view).placement.lost == LossyPromotion(
        2, 7, ""
    )


async def test_all_records_are_followed_before_other_nodes_can_find_this_one() -> None:
    """Messages that they forward would be confirmed without the mirrors of the queue."""
    world = World()
    world.records(placed("bcd", "bcd"))
    world.hear()
    await world.placement_controller.begin()
    assert world.hands.followed == [placed("bcd", "bcd")]
