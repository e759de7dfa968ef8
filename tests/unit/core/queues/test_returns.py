"""core.queues.returns: what is logged of how often messages came back is enough to count them after a restart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.returns import RANGES_MAX, Returned, Returns, is_logged

STEP = st.one_of(
    st.tuples(st.just("return"), st.integers(0, 20), st.integers(1, 60)),
    st.tuples(st.just("settle"), st.integers(0, 20), st.integers(1, 25)),
    st.tuples(st.just("log"), st.just(0), st.just(0)),
    st.tuples(st.just("segment"), st.just(0), st.just(0)),
)


@given(st.lists(STEP, max_size=30))
def test_what_the_log_says_is_what_is_known_but_for_a_sixteenth(steps: list[tuple[str, int, int]]) -> None:
    known, reported = Returns(), Returns()
    for what, offset, amount in [*steps, ("log", 0, 0)]:
        if what == "return":
            for _ in range(amount):
                known.add(offset)
        elif what == "settle":
            known.forget(offset, offset + amount)
            reported.forget(offset, offset + amount)
        elif what == "segment":
            # What was before it may go.
            known.log_again()
            reported = Returns()
        while ranges := known.unlogged if what == "log" else []:
            for each in ranges:
                reported.found(each)
            known.logged(ranges)
    for offset in range(50):
        assert known.of(offset) * 15 / 16 <= reported.of(offset) <= known.of(offset)
        assert reported.of(offset) == known.of(offset) or known.of(offset) > 31


def test_a_message_that_comes_back_for_ever_is_rarely_logged() -> None:
    assert [count for count in range(1, 33) if is_logged(count)] == list(range(1, 33))
    assert sum(map(is_logged, range(1, 1_000_001))) < 300


def test_neighbours_that_came_back_as_often_are_one_range() -> None:
    returns = Returns()
    for offset in (7, 5, 6, 9, 6):
        returns.add(offset)
    assert returns.unlogged == [Returned(5, 6, 1), Returned(6, 7, 2), Returned(7, 8, 1), Returned(9, 10, 1)]


def test_what_does_not_fit_one_chunk_goes_into_the_next() -> None:
    returns = Returns()
    for offset in range(0, 4 * RANGES_MAX, 2):
        returns.add(offset)
    first = returns.unlogged
    assert len(first) == RANGES_MAX
    returns.logged(first)
    assert [each.first for each in returns.unlogged] == list(range(2 * RANGES_MAX, 4 * RANGES_MAX, 2))
