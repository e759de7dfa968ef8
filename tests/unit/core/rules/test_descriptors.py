"""The budget of descriptors: it adds up at any limit, and nobody's share can be taken by others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.rules.descriptors import (
    LEAST,
    OWN,
    ConnectionTally,
    ListenerKind,
    ListenerLimits,
    ListenerRefusal,
    divide,
)

FREE = ListenerLimits()


@given(st.integers(LEAST, 2**20))
def test_all_shares_and_the_reserve_fit_the_limit(limit: int) -> None:
    budget = divide(limit)
    given_away = sum(budget.shares.values()) + budget.logs + budget.syncing
    assert given_away + OWN <= limit
    assert min(budget.shares.values()) >= 2
    for kind in ListenerKind:
        assert 1 <= budget.from_one_address(kind) < budget.shares[kind]
        assert 1 <= budget.unproven(kind) < budget.shares[kind]


@given(st.integers(LEAST, 2**20 - 1))
def test_a_higher_limit_takes_nothing_from_anybody(limit: int) -> None:
    less, more = divide(limit), divide(limit + 1)
    assert all(less.shares[kind] <= more.shares[kind] for kind in ListenerKind)
    assert (less.logs, less.syncing) <= (more.logs, more.syncing)


def test_without_a_limit_there_is_a_budget_too() -> None:
    assert divide(-1) == divide(2**20)


def test_one_address_leaves_room_for_others() -> None:
    tally = ConnectionTally(share=10, per_address=9)
    assert [tally.admit("a", FREE) for _ in range(10)] == [None] * 9 + [ListenerRefusal.ADDRESS]
    assert tally.admit("b", FREE) is None
    assert tally.admit("c", FREE) is ListenerRefusal.SHARE
    tally.release("a")
    assert tally.admit("a", FREE) is None
    assert (tally.count, tally.refused.total()) == (10, 2)


def test_connections_without_an_address_have_the_whole_share() -> None:
    tally = ConnectionTally(share=3, per_address=1)
    assert [tally.admit("", FREE) for _ in range(4)] == [None] * 3 + [ListenerRefusal.SHARE]
    for _ in range(3):
        tally.release("")
    assert tally.count == 0


def test_settings_allow_less_than_the_budget() -> None:
    tally = ConnectionTally(share=10, per_address=9)
    assert tally.admit("a", ListenerLimits(total=2, per_address=1)) is None
    assert tally.admit("a", ListenerLimits(total=2, per_address=1)) is ListenerRefusal.SETTING
    assert tally.admit("b", ListenerLimits(total=2, per_address=1)) is None
    assert tally.admit("c", ListenerLimits(total=2, per_address=1)) is ListenerRefusal.SETTING
