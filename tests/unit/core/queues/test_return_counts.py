"""core.queues.return_counts: what is logged of how often messages came back is enough to count them after a restart."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.queue_types import make_queue
from leveret.core.queues.return_counts import LOGGED_AT_ONCE, ReturnCounts, Returned, is_logged
from leveret.model.definitions import Queue as QueueDefinition

STEP = st.one_of(
    st.tuples(st.just("return"), st.integers(0, 20), st.integers(1, 60)),
    st.tuples(st.just("settle"), st.integers(0, 20), st.integers(1, 25)),
    st.tuples(st.just("log"), st.just(0), st.just(0)),
    st.tuples(st.just("segment"), st.just(0), st.just(0)),
)


@given(st.lists(STEP, max_size=30))
def test_what_the_log_says_is_what_is_known_but_for_a_sixteenth(steps: list[tuple[str, int, int]]) -> None:
    known, by_log = ReturnCounts(), ReturnCounts()
    for what, offset, amount in [*steps, ("log", 0, 0)]:
        if what == "return":
            for _ in range(amount):
                known.add(offset, offset + 1)
        elif what == "settle":
            known.forget(offset, offset + amount)
            by_log.forget(offset, offset + amount)
        elif what == "segment":
            # What was before it may go.
            known.log_again()
            by_log = ReturnCounts()
        while ranges := known.unlogged if what == "log" else []:
            for each in ranges:
                by_log.found(each)
            known.logged(ranges)
    for offset in range(50):
        assert known.of(offset) * 15 / 16 <= by_log.of(offset) <= known.of(offset)
        assert by_log.of(offset) == known.of(offset) or known.of(offset) > 31


def test_a_message_that_comes_back_for_ever_is_rarely_logged() -> None:
    assert [count for count in range(1, 33) if is_logged(count)] == list(range(1, 33))
    assert sum(map(is_logged, range(1, 65_537))) < 220


def test_of_a_message_that_comes_back_for_ever_little_is_written() -> None:
    returns, written = ReturnCounts(), 0
    for _ in range(10_000):
        returns.add(7, 8)
        written += len(returns.unlogged)
        returns.logged(returns.unlogged)
    assert 32 < written < 200


def test_neighbours_that_came_back_as_often_are_one_range() -> None:
    returns = ReturnCounts()
    for offset in (7, 5, 6, 9, 6):
        returns.add(offset, offset + 1)
    assert returns.unlogged == [Returned(5, 6, 1), Returned(6, 7, 2), Returned(7, 8, 1), Returned(9, 10, 1)]


def test_what_does_not_fit_one_chunk_goes_into_the_next() -> None:
    returns = ReturnCounts()
    for offset in range(0, 4 * LOGGED_AT_ONCE, 2):
        returns.add(offset, offset + 1)
    first = returns.unlogged
    assert len(first) == LOGGED_AT_ONCE
    returns.logged(first)
    assert [each.first for each in returns.unlogged] == list(range(2 * LOGGED_AT_ONCE, 4 * LOGGED_AT_ONCE, 2))


def test_what_came_back_together_is_logged_a_part_in_each_flush() -> None:
    """50,000 messages of a quorum queue that came back were a step of 69 ms."""
    returns = ReturnCounts()
    for offset in range(10 * LOGGED_AT_ONCE):
        returns.add(offset, offset + 1)
    flushes = 0
    while ranges := returns.unlogged:
        assert sum(each.end - each.first for each in ranges) <= LOGGED_AT_ONCE
        returns.logged(ranges)
        flushes += 1
        assert returns.is_much_unlogged == (flushes < 9)
    assert flushes == 10


def test_a_flush_looks_at_as_many_as_it_logs_however_many_came_back() -> None:
    """A million that came back were 45 ms of each of 245 flushes."""

    class Watched(dict[int, None]):
        looked_at = 0

        def __iter__(self) -> Iterator[int]:
            for each in super().__iter__():
                self.looked_at += 1
                yield each

    returns = ReturnCounts()
    returns.add(0, 10 * LOGGED_AT_ONCE)
    returns._unlogged = watched = Watched(returns._unlogged)
    assert returns.unlogged == [Returned(0, LOGGED_AT_ONCE, 1)]
    assert watched.looked_at == LOGGED_AT_ONCE


def test_a_quorum_queue_asks_for_flushes_until_all_that_came_back_is_logged() -> None:
    queue = make_queue(
        QueueDefinition(name="q", vhost="v", arguments={"x-queue-type": "quorum"}), lambda queue, offset: []
    )
    for offset in range(LOGGED_AT_ONCE + 1):
        queue.return_counts.add(offset, offset + 1)
    queue.dispatch(7)
    assert queue.wait_ms == 0
    queue.return_counts.logged(queue.return_counts.unlogged)
    queue.dispatch(7)
    assert queue.wait_ms is None


def test_those_that_came_back_too_often_are_told() -> None:
    returns = ReturnCounts()
    assert returns.add(0, 5, 1) == []
    assert returns.add(2, 4, 1) == [2, 3]
    assert returns.add(1, 3, None) == []
    assert [returns.of(offset) for offset in range(6)] == [1, 2, 3, 2, 1, 0]
