"""The order of a cluster's logs: which answers of its nodes are those of a whole site."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.site_order import LogCoverage, is_whole, mark_of, sum_of

QUEUES = [(name, epoch) for name in ("a", "b", "orders.\u00e9") for epoch in (1, 7)]


def coverage(led: Sequence[int], known: Sequence[int] = range(len(QUEUES)), end: int = 5) -> LogCoverage:
    marks = [mark_of(*each) for each in QUEUES]
    return LogCoverage(1, end, sum_of(sum(marks[at] for at in led)), sum_of(sum(marks[at] for at in known)))


@given(st.lists(st.sets(st.integers(0, len(QUEUES) - 1)), min_size=1, max_size=4))
def test_a_site_is_whole_if_each_queue_has_one_leader(led: list[set[int]]) -> None:
    every = sorted(at for each in led for at in each)
    assert is_whole([coverage([*each]) for each in led]) is (every == [*range(len(QUEUES))])


@pytest.mark.parametrize("other", [coverage([3, 4, 5], end=-1), coverage([3, 4, 5], known=range(5))])
def test_a_log_that_lacks_something_or_another_view_of_the_queues_makes_no_whole(other: LogCoverage) -> None:
    assert is_whole([coverage([0, 1, 2]), coverage([3, 4, 5])])
    assert not is_whole([coverage([0, 1, 2]), other])


def test_a_standing_is_what_its_statistics_say() -> None:
    assert LogCoverage.of(coverage([1])._asdict()) == coverage([1])
