"""The table of elections, over all combinations: of a node among its followers, and of a queue among its mirrors."""

from __future__ import annotations

from itertools import chain, combinations, product

import pytest

from leveret.core.replication.cluster import Placement
from leveret.core.replication.election import (
    Candidacy,
    Candidate,
    ElectedLeader,
    ElectionKeys,
    Observed,
    RememberedStore,
    stand,
)
from leveret.core.replication.election_turns import ElectionTurn, LocalCopy, RecordedLeader, Successor, turn
from leveret.core.replication.leader_and_mirrors import QueuePromotion
from leveret.core.replication.placement import promotion
from leveret.core.rules.mirror_policy import ALL, ALWAYS, MAJORITY, WHEN_SYNCED, MirrorPolicy

NODES = ("a", "b", "c", "d")
THIS = {Successor.ONLY_THIS, Successor.THIS, Successor.THIS_WITH_LOSS}


def subsets(nodes: tuple[str, ...]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(nodes, count) for count in range(len(nodes) + 1)))


@pytest.mark.parametrize(("leader", "copy", "successor"), list(product(RecordedLeader, LocalCopy, Successor)))
def test_every_combination_has_a_turn_that_its_leader_allows(
    leader: RecordedLeader, copy: LocalCopy, successor: Successor
) -> None:
    due = turn(leader, copy, successor)
    allowed = {
        RecordedLeader.HERE: {ElectionTurn.LEAD, ElectionTurn.HAND_OVER, ElectionTurn.WAIT},
        RecordedLeader.ELSEWHERE: {ElectionTurn.FOLLOW},
        RecordedLeader.GONE: {
            ElectionTurn.TAKE_OVER,
            ElectionTurn.GIVE_WAY,
            ElectionTurn.WAIT,
            ElectionTurn.DOWN,
        },
    }
    assert due in allowed[leader]
    if due is ElectionTurn.TAKE_OVER:
        assert successor in THIS
        assert copy is not LocalCopy.UNREADABLE
        assert copy is LocalCopy.WHOLE or successor is not Successor.THIS
    if due is ElectionTurn.HAND_OVER:
        assert (copy, successor) == (LocalCopy.UNREADABLE, Successor.OTHER)
    if due is ElectionTurn.LEAD:
        assert copy is not LocalCopy.UNREADABLE


def test_a_heir_is_this_node_or_another_one_with_or_without_loss() -> None:
    assert Successor.by(QueuePromotion(None), "a") is Successor.NOBODY
    assert Successor.by(QueuePromotion("a"), "a") is Successor.THIS
    assert Successor.by(QueuePromotion("a"), "a", is_only=True) is Successor.ONLY_THIS
    assert Successor.by(QueuePromotion("a", is_complete=False), "a", is_only=True) is Successor.THIS_WITH_LOSS
    assert Successor.by(QueuePromotion("b"), "a") is Successor.OTHER
    assert Successor.by(QueuePromotion("b", is_complete=False), "a") is Successor.OTHER_WITH_LOSS


@pytest.mark.parametrize("majority", [False, True])
@pytest.mark.parametrize("on_failure", [ALWAYS, WHEN_SYNCED])
def test_of_all_nodes_that_see_the_same_record_one_at_most_takes_a_queue_over(
    on_failure: str, majority: bool
) -> None:
    policy = MirrorPolicy(mode=ALL, promote_on_failure=on_failure, confirm=MAJORITY if majority else ALL)
    mirrors = NODES[1:]
    for synchronised, running in product(subsets(mirrors), subsets(NODES)):
        placement = Placement(
            epoch=1,
            leader="a",
            run_id="i",
            term=1,
            mirrors=mirrors,
            synchronised=synchronised,
            majority=majority,
        )
        promoted = promotion(placement, policy, running)
        turns = {
            me: turn(RecordedLeader.seen("a", me, running), LocalCopy.WHOLE, Successor.by(promoted, me))
            for me in running
        }
        takes = [me for me, due in turns.items() if due is ElectionTurn.TAKE_OVER]
        if "a" in running:
            assert set(turns.values()) <= {ElectionTurn.LEAD, ElectionTurn.FOLLOW}
            continue
        assert takes == ([promoted.leader] if promoted.leader else [])
        if on_failure == WHEN_SYNCED or (not majority and set(synchronised) & set(running)):
            assert set(takes) <= set(synchronised)


@pytest.mark.parametrize(("is_torn", "force"), list(product([False, True], repeat=2)))
def test_a_node_stands_if_the_record_lets_it_lead_without_loss_or_an_operator_accepts_the_loss(
    is_torn: bool, force: bool
) -> None:
    keys = ElectionKeys.under("leveret")
    records = [None, *(frozenset(each) for each in subsets(NODES))]
    for recorded, remembered, leads in product(records, records, [False, True]):
        leader = ElectedLeader("b", "tcp://b:1", 3) if leads else None
        observed = Observed(leader, 7 if leads else 0, 3, recorded, {})
        found = stand(
            keys,
            observed,
            RememberedStore(2, remembered),
            Candidate("a", "tcp://a:1", 1, is_torn),
            force=force,
        )
        known = remembered if recorded is None else recorded
        is_complete = known is None or "a" in known
        may = not leads and (force or (is_complete and (not is_torn or recorded == frozenset("a"))))
        assert isinstance(found, Candidacy) == may
        if isinstance(found, Candidacy):
            assert found.leader.epoch == 4
            assert found.in_sync == (recorded if recorded is not None and is_complete else {"a"})
