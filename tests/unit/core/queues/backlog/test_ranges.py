"""core.queues.backlog.ranges: a set of offsets that is taken from its front."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.backlog import ranges as ranges_module
from leveret.core.queues.backlog.ranges import OffsetRanges


@given(data=st.data(), compact_at=st.sampled_from([1, 3, 1024]))
def test_ranges_behave_like_a_sorted_list_of_offsets(data: st.DataObject, compact_at: int) -> None:
    ranges_module._COMPACT_AT, before = compact_at, ranges_module._COMPACT_AT
    try:
        ranges, model = OffsetRanges(), set[int]()
        for _ in range(data.draw(st.integers(0, 40))):
            what = data.draw(st.sampled_from(["take", "add", "add", "remove"]))
            if what == "remove":
                first = data.draw(st.integers(0, 60))
                end = first + data.draw(st.integers(1, 20))
                ranges.remove(first, end)
                model -= set(range(first, end))
            elif model and what == "take":
                first, end = ranges.take(data.draw(st.integers(1, 5)))
                assert list(range(first, end)) == sorted(model)[: end - first]
                model -= set(range(first, end))
            else:
                first = data.draw(st.integers(0, 60))
                end = first
                while end not in model and end < first + 6:
                    end += 1
                if end > first:
                    ranges.add(first, end)
                    model |= set(range(first, end))
            assert ranges.count == len(model)
            assert [offset for a, b in ranges for offset in range(a, b)] == sorted(model)
            assert all(b < c for (_, b), (c, _) in zip(list(ranges), list(ranges)[1:], strict=False))
            front = ranges.first()
            assert (front[0] if front else None) == min(model, default=None)
    finally:
        ranges_module._COMPACT_AT = before


def test_what_is_cleared_is_empty() -> None:
    ranges = OffsetRanges()
    ranges.add(3, 9)
    ranges.take(2)
    ranges.clear()
    assert (ranges.count, ranges.first(), list(ranges)) == (0, None, [])
