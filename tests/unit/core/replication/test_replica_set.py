"""core.replication.replica_set: phases of a replica, as a table over all pairs, and the sets that promises wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from leveret.core.replication.replica_set import Acks, Phase, ReplicaSet

A, B, C = "a", "b", "c"
JOIN, PROMISED = 5, 7


class Replica:
    """Replica A of a leader that promised up to 7, while another one was faster; A joins at cut 5."""

    def __init__(self) -> None:
        self.set = ReplicaSet()
        self.set.advance(PROMISED)
        self.acks = Acks()

    def joins(self) -> None:
        self.acks = Acks()
        self.set.joined(A, self.acks, JOIN)

    def acks_below(self) -> None:
        self.acks.cut = max(self.acks.cut, JOIN - 1)

    def acks_join(self) -> None:
        self.acks.cut = max(self.acks.cut, JOIN)

    def acks_all(self) -> None:
        self.acks.cut = max(self.acks.cut, PROMISED)

    def leaves(self) -> None:
        self.set.left(A)

    def begins_anew(self) -> None:
        self.set.begins_anew(A)


EVENTS: Final[tuple[Callable[[Replica], None], ...]] = (
    Replica.joins,
    Replica.acks_below,
    Replica.acks_join,
    Replica.acks_all,
    Replica.leaves,
    Replica.begins_anew,
)
WAYS: Final[dict[Phase, tuple[Callable[[Replica], None], ...]]] = {
    Phase.GONE: (),
    Phase.JOINING: (Replica.joins,),
    Phase.HOLDING_BACK: (Replica.joins, Replica.acks_join),
    Phase.MEMBER: (Replica.joins, Replica.acks_all),
}
TABLE: Final = {
    #                     joins          below                join                 all            leaves      anew
    Phase.GONE: (Phase.JOINING, Phase.GONE, Phase.GONE, Phase.GONE, Phase.GONE, Phase.GONE),
    Phase.JOINING: (Phase.JOINING, Phase.JOINING, Phase.HOLDING_BACK, Phase.MEMBER, Phase.GONE, Phase.GONE),
    Phase.HOLDING_BACK: (
        Phase.JOINING,
        Phase.HOLDING_BACK,
        Phase.HOLDING_BACK,
        Phase.MEMBER,
        Phase.GONE,
        Phase.GONE,
    ),
    Phase.MEMBER: (Phase.JOINING, Phase.MEMBER, Phase.MEMBER, Phase.MEMBER, Phase.GONE, Phase.GONE),
}
HAS_AFTER: Final = {
    # What it had acked it has as long as it may be counted on, unless it begins anew.
    Phase.GONE: (0, 0, 0, 0, 0, 0),
    Phase.JOINING: (0, 0, JOIN, PROMISED, 0, 0),
    Phase.HOLDING_BACK: (JOIN, JOIN, JOIN, PROMISED, JOIN, 0),
    Phase.MEMBER: (PROMISED, PROMISED, PROMISED, PROMISED, PROMISED, 0),
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", range(len(EVENTS)), ids=[each.__name__ for each in EVENTS])
def test_phases_follow_the_table(phase: Phase, event: int) -> None:
    replica = Replica()
    for each in WAYS[phase]:
        each(replica)
    assert replica.set.phase(A) is phase
    EVENTS[event](replica)
    assert replica.set.phase(A) is TABLE[phase][event]
    assert replica.set.has(A) == HAS_AFTER[phase][event]


def replicas(**acked: int) -> ReplicaSet:
    found = ReplicaSet()
    for node, cut in acked.items():
        acks = Acks()
        acks.cut = cut
        found.joined(node, acks, 0)
    return found


def test_one_that_holds_back_is_waited_for_and_what_was_promised_stays_promised() -> None:
    found = replicas(a=9)
    found.wait_for([frozenset({A})])
    assert (found.advance(12), found.promised) == (9, 9)
    acks = Acks()
    acks.cut = 4
    found.joined(B, acks, 4)
    found.wait_for([frozenset({A, B})])
    assert (found.advance(12), found.promised, found.phase(B)) == (4, 9, Phase.HOLDING_BACK)
    acks.cut = 9
    assert (found.advance(12), found.phase(B)) == (9, Phase.MEMBER)


@pytest.mark.parametrize(
    ("mirrors", "needed"), [("", 0), ("a", 1), ("ab", 1), ("abc", 2), ("abcd", 2), ("abcde", 3)]
)
def test_a_majority_counts_the_leader(mirrors: str, needed: int) -> None:
    for count in range(len(mirrors) + 1):
        found = replicas(**{node: int(index < count) for index, node in enumerate(mirrors)})
        found.wait_for([frozenset(mirrors)], majority=True)
        assert (found.reached(1) == 1) == (count >= needed)


def test_a_record_in_flight_needs_a_majority_of_the_old_and_of_the_new_set() -> None:
    """Leader, a and b; b is to be dropped. What only a majority with b has is not enough for the new set."""
    found = replicas(a=0, b=2)
    found.wait_for([frozenset({A, B})], majority=True)
    assert found.reached(3) == 2
    found.wait_for([frozenset({A, B}), frozenset({A})], majority=True)
    assert found.reached(3) == 0


def test_one_that_left_counts_with_what_it_had_until_nobody_waits_for_it() -> None:
    found = replicas(a=3)
    found.wait_for([frozenset({A})])
    found.left(A)
    assert (found.reached(5), found.has(A)) == (3, 3)
    found.wait_for([])
    assert (found.reached(5), found.has(A)) == (5, 0)
