"""core.replication.downstream_confirms: what is kept, and what cannot be, beside a model that looks at everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.replication.downstream_confirms import ALL, ANY, DownstreamConfirms

A, B = "eu.1", "us.2"


def test_one_downstream_is_enough_for_any_and_all_are_needed_for_all() -> None:
    confirms: DownstreamConfirms[str] = DownstreamConfirms()
    assert not confirms.can_be_met(ANY)
    assert not confirms.can_be_met(ALL)
    assert confirms.acked(A, 3) == []
    assert confirms.acked(B, 3) == []
    assert confirms.promise(ANY, 3, "there already") == ["there already"]
    assert confirms.promise(ANY, 5, "any") == []
    assert confirms.promise(ALL, 5, "all") == []
    assert confirms.acked(A, 4) == []
    assert confirms.acked(A, 7) == ["any"]
    assert confirms.acked(B, 5) == ["all"]


def test_who_is_away_is_waited_for_by_all_and_what_it_had_acked_counts() -> None:
    confirms: DownstreamConfirms[str] = DownstreamConfirms()
    confirms.known(B, 9)
    confirms.acked(A, 2)
    assert confirms.can_be_met(ANY)
    assert not confirms.can_be_met(ALL)
    assert confirms.promise(ALL, 5, "p") == []
    assert confirms.acked(A, 5) == ["p"], "the other one had it before it left"
    confirms.acked(B, 9)
    assert confirms.can_be_met(ALL)
    confirms.left(B)
    assert not confirms.can_be_met(ALL)
    confirms.left(A)
    assert not confirms.can_be_met(ANY)


def test_a_downstream_that_has_lost_something_counts_for_nothing_below() -> None:
    confirms: DownstreamConfirms[str] = DownstreamConfirms()
    confirms.acked(A, 10)
    confirms.acked(A, 4)
    assert confirms.promise(ANY, 8, "p") == []
    assert confirms.acked(A, 8) == ["p"]


def test_nothing_waits_for_a_downstream_that_an_operator_has_forgotten() -> None:
    confirms: DownstreamConfirms[str] = DownstreamConfirms()
    confirms.acked(A, 1)
    confirms.acked(B, 6)
    assert confirms.promise(ALL, 6, "p") == []
    assert confirms.forgotten(A) == ["p"]
    assert confirms.promise(ALL, 7, "q") == []
    assert confirms.forgotten(B) == [], "with nobody left nothing is confirmed: it is late"
    assert confirms.forgotten(B) == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.sampled_from([A, B]), st.integers(0, 20)),
        st.tuples(st.just("promise"), st.sampled_from([ANY, ALL]), st.integers(0, 20)),
    ),
    max_size=30,
)


@given(steps)
def test_a_promise_is_kept_when_by_its_rule_everything_is_there_and_once(
    taken: list[tuple[str, str, int]],
) -> None:
    confirms: DownstreamConfirms[int] = DownstreamConfirms()
    has: dict[str, int] = {}
    open_: dict[int, tuple[str, int]] = {}
    confirms.acked(A, 0)
    has[A] = 0
    for number, (what, name, offset) in enumerate(taken):
        if what == "ack":
            has[name] = offset
            kept = confirms.acked(name, offset)
        else:
            open_[number] = (name, offset)
            kept = confirms.promise(name, offset, number)
        rules = {ANY: max(has.values()), ALL: min(has.values())}
        due = {each for each, (rule, end) in open_.items() if end <= rules[rule]}
        assert set(kept) == due
        assert len(kept) == len(due)
        for each in due:
            del open_[each]
