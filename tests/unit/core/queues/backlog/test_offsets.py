"""core.queues.backlog.offsets: a set of offsets, against Python's own."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from leveret.core.queues.backlog.offsets import OffsetSet

OFFSET = st.integers(0, 60)


class OffsetSetMachine(RuleBasedStateMachine):
    """Adding any ranges in any order, asked about after each."""

    @initialize(floor=st.integers(0, 20))
    def begin(self, floor: int) -> None:
        self.set = OffsetSet(floor)
        self.model = set(range(floor))

    @rule(first=OFFSET, count=st.integers(0, 12))
    def add_anywhere(self, first: int, count: int) -> None:
        self.set.add(first, first + count)
        self.model |= set(range(first, first + count))

    @rule(count=st.integers(0, 12))
    def add_at_the_floor(self, count: int) -> None:
        floor = self.set.floor
        self.set.add(floor, floor + count)
        self.model |= set(range(floor, floor + count))

    @rule(first=OFFSET, end=st.integers(0, 90))
    def gaps_are_what_is_missing(self, first: int, end: int) -> None:
        gaps = list(self.set.gaps(first, end))
        assert [offset for start, stop in gaps for offset in range(start, stop)] == [
            offset for offset in range(first, end) if offset not in self.model
        ]
        assert self.set.count_gaps(first, end) == sum(stop - start for start, stop in gaps)
        assert all(start < stop for start, stop in gaps)
        assert all(before[1] < after[0] for before, after in pairwise(gaps))

    @invariant()
    def it_holds_what_was_added_and_nothing_else(self) -> None:
        assert {offset for offset in range(self.end() + 3) if offset in self.set} == self.model

    @invariant()
    def the_floor_is_as_high_as_it_can_be(self) -> None:
        assert self.set.floor == min(set(range(self.end() + 1)) - self.model)

    @invariant()
    def it_counts_what_is_missing(self) -> None:
        for end in (self.end(), self.end() + 7):
            assert self.set.count_missing(end) == end - len(self.model)

    def end(self) -> int:
        return max(self.model, default=-1) + 1


TestOffsetSet = OffsetSetMachine.TestCase
TestOffsetSet.settings = settings(max_examples=60, stateful_step_count=25)


@given(st.permutations(range(12)))
def test_single_offsets_in_any_order_become_one_floor(order: list[int]) -> None:
    offsets = OffsetSet()
    for offset in order:
        offsets.add(offset, offset + 1)
    assert offsets.floor == 12
    assert offsets.count_missing(12) == 0
    assert list(offsets.gaps(0, 15)) == [(12, 15)]


def test_adding_nothing_changes_nothing() -> None:
    offsets = OffsetSet()
    offsets.add(5, 5)
    offsets.add(9, 3)
    assert list(offsets.gaps(0, 10)) == [(0, 10)]
    assert 5 not in offsets
