from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from leveret.pipeline.archive.settled_offsets import (
    NOTHING,
    Mask,
    QueueIncarnation,
    SettledRanges,
    rows_by_incarnation,
)

ranges = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=40)


def mask_of(pairs: list[tuple[int, int]]) -> Mask:
    table = np.array(pairs, np.int64).reshape(len(pairs), 2)
    return Mask(table[:, 0], table[:, 1])


@given(ranges, st.integers(0, 1 << 50))
def test_a_mask_holds_what_its_ranges_hold(pairs: list[tuple[int, int]], base: int) -> None:
    expected = {base + first + i for first, count in pairs for i in range(count)}
    mask = mask_of([(base + first, count) for first, count in pairs])
    offsets = np.arange(base - 5 if base > 5 else 0, base + 350, dtype=np.int64)
    assert set(offsets[mask.contains(offsets)].tolist()) == expected
    assert mask.count_below(offsets).tolist() == [
        sum(member < offset for member in expected) for offset in offsets.tolist()
    ]


@given(ranges, st.integers(0, 340), st.integers(1, 30))
def test_a_mask_covers_a_range_when_it_holds_all_of_it(
    pairs: list[tuple[int, int]], first: int, count: int
) -> None:
    expected = {start + i for start, size in pairs for i in range(size)}
    assert mask_of(pairs).covers(first, count) == (set(range(first, first + count)) <= expected)


def test_few_intervals_over_a_long_queue_stay_small() -> None:
    mask = mask_of([(0, 10), (1 << 40, 5)])
    assert len(pickle.dumps(mask)) < 1000
    assert mask.contains(np.array([9, 10, 1 << 40, (1 << 40) + 5])).tolist() == [True, False, True, False]


def test_many_intervals_cost_one_bit_an_offset() -> None:
    every_other = np.arange(0, 1_000_000, 2, dtype=np.int64)
    mask = Mask(every_other, np.ones_like(every_other))
    assert len(pickle.dumps(mask)) < 130_000
    assert mask.contains(np.array([0, 1, 999_998, 999_999, 1_000_000])).tolist() == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_nothing_holds_nothing() -> None:
    assert not NOTHING.contains(np.arange(3)).any()
    assert not NOTHING.covers(0, 1)
    assert not NOTHING.count_below(np.arange(3)).any()


def test_ranges_of_one_queue_come_together() -> None:
    gathered = SettledRanges()
    incarnation, other = QueueIncarnation("/", "q", 1), QueueIncarnation("/", "q", 2)
    gathered.add(incarnation, [0], [5])
    gathered.add(other, [0], [1])
    gathered.add(incarnation, [5, 20], [5, 1])
    masks = gathered.masks()
    assert masks[incarnation].covers(0, 10)
    assert not masks[other].covers(0, 2)


def test_rows_are_grouped_by_queue_and_epoch_and_keep_their_order() -> None:
    import pyarrow as pa

    table = pa.table(
        {
            "queue": pa.array(["b", "a", "b", "a", "b"]).dictionary_encode(),
            "queue_epoch": pa.array([1, 1, 2, 1, 1], pa.int64()),
        }
    )
    found = {incarnation: rows.tolist() for incarnation, rows in rows_by_incarnation("v", table)}
    assert found == {
        QueueIncarnation("v", "b", 1): [0, 4],
        QueueIncarnation("v", "a", 1): [1, 3],
        QueueIncarnation("v", "b", 2): [2],
    }
