from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.management.rates.history import (
    DAY,
    MINUTES,
    Block,
    Range,
    RateHistory,
    SampleRanges,
    SummedHistory,
    ranges_of,
    show,
)
from leveret.model.errors import InvalidCommand

INTERVAL_MS = 5000
BLOCK = (Block(("publish",), 0, "", "msg_rates", always=True),)


def history_of(counts: list[int], tiers: Any = MINUTES, rows_max: int = 1000) -> RateHistory:
    """What a counter of one column showed at 0, 5, 10, ... seconds."""
    history = RateHistory((counts[0],), 0)
    for tick, count in enumerate(counts[1:], 1):
        history.add((count,), tick * INTERVAL_MS, INTERVAL_MS, tiers, rows_max)
    return history


def test_the_rate_is_that_of_the_last_interval() -> None:
    assert history_of([0, 10, 60]).rates(10_000) == [10.0]


def test_the_first_sight_is_no_rate() -> None:
    assert history_of([1000]).rates(0) == [0.0]


def test_what_stood_still_since_the_last_tick_has_no_rate() -> None:
    assert history_of([0, 10, 10]).rates(10_000) == [0.0]


def test_a_burst_after_a_pause_is_not_spread_over_the_pause() -> None:
    assert history_of([0, 5, 5, 5, 5, 25]).rates(25_000) == [4.0]


def test_lengths_fall_at_a_negative_rate() -> None:
    assert history_of([0, 50, 0]).rates(10_000) == [-10.0]


def test_samples_are_the_counts_at_whole_steps_newest_first() -> None:
    history = history_of([0, 10, 10, 40])
    shown = show(BLOCK, history, (40,), SampleRanges(msg_rates=Range(15_000, 5000)), 15_000)
    assert shown == {
        "publish": 40,
        "publish_details": {
            "rate": 6.0,
            "samples": [
                {"sample": 40, "timestamp": 15_000},
                {"sample": 10, "timestamp": 10_000},
                {"sample": 10, "timestamp": 5000},
                {"sample": 0, "timestamp": 0},
            ],
            "avg_rate": 40 / 15,
            "avg": 15.0,
        },
    }


def test_a_range_of_one_sample_has_no_average() -> None:
    shown = show(BLOCK, history_of([0, 10]), (10,), SampleRanges(msg_rates=Range(4000, 5000)), 5000)
    assert shown["publish_details"] == {"rate": 0.0, "samples": [{"sample": 10, "timestamp": 5000}]}


def test_a_range_that_begins_before_the_history_begins_with_zeros() -> None:
    history = RateHistory((7,), 10_000)
    shown = show(BLOCK, history, (7,), SampleRanges(msg_rates=Range(10_000, 5000)), 10_000)
    assert [each["sample"] for each in shown["publish_details"]["samples"]] == [7, 0, 0]


def test_blocks_of_zeros_are_left_out_unless_they_are_always_told() -> None:
    blocks = (Block(("a",), 0, "message_stats", "msg_rates"), Block(("b",), 1, "", "lengths", always=True))
    shown = show(blocks, RateHistory((0, 0), 0), (0, 0), SampleRanges(), 0)
    assert shown == {"b": 0, "b_details": {"rate": 0.0}}


def test_several_histories_are_summed() -> None:
    both = SummedHistory([history_of([0, 10, 60]), history_of([5, 5, 10])], 1)
    assert both.values == (70,)
    assert both.rates(10_000) == [11.0]
    assert both.at(5000) == (15,)


def test_nothing_together_is_zeros() -> None:
    assert (SummedHistory([], 2).values, SummedHistory([], 2).rates(0)) == ((0, 0), [0, 0])


def test_a_history_stays_bounded_and_reaches_back_with_coarser_steps() -> None:
    ticks = 24 * 720 + 1
    history = history_of(list(range(ticks)), DAY)
    rows = [len(rows.times) for rows in history._rows]
    assert [count <= tier.rows_max for count, tier in zip(rows, DAY, strict=True)] == [True] * 4
    end_ms = (ticks - 1) * INTERVAL_MS
    for age_ms, coarseness_ms in ((60_000, 0), (600_000, 0), (3_600_000, 60_000), (80_000_000, 1_800_000)):
        exact = (end_ms - age_ms) // INTERVAL_MS
        assert exact - coarseness_ms // INTERVAL_MS <= history.at(end_ms - age_ms)[0] <= exact


def test_many_things_keep_a_minute_each() -> None:
    history = history_of(list(range(100)), rows_max=13)
    assert history.at(99 * INTERVAL_MS - 60_000) == (87,)
    assert [len(rows.times) <= 13 for rows in history._rows] == [True, True]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_value_at_a_tick_is_what_was_counted_then(steps: list[int]) -> None:
    counts = [sum(steps[: end + 1]) for end in range(len(steps))]
    history = history_of([0, *counts])
    for tick, count in enumerate([0, *counts]):
        assert history.at(tick * INTERVAL_MS) == (count,)


def test_ranges_are_read_from_the_query() -> None:
    ranges = ranges_of(
        {"lengths_age": "60", "lengths_incr": "5", "msg_rates_age": "x", "msg_rates_incr": "5"}
    )
    assert ranges == SampleRanges(lengths=Range(60_000, 5000))


@pytest.mark.parametrize(
    ("age", "step"),
    [("0", "5"), ("60", "0"), ("-1", "5"), ("501", "1"), ("1" * 4300, "1" * 4300), ("60", "1" * 19)],
)
def test_a_range_that_is_no_range_is_refused(age: str, step: str) -> None:
    with pytest.raises(InvalidCommand, match=f"Invalid range parameters: age {age[:20]}, incr {step[:20]}"):
        ranges_of({"lengths_age": age, "lengths_incr": step})
