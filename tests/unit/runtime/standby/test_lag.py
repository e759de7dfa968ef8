"""How far a transfer is behind, by two clocks: no story makes it look better than it is."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from leveret.runtime.standby.lag import HEARD_MS, LogLag

EPOCH_MS = 1_000_000
Story = list[tuple[str, int]]
"""The upstream takes records, this node hears of all, stores so many more of those; time passes, in ms."""


def now_ms(now_s: float) -> int:
    return EPOCH_MS + round(now_s * 1000)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("takes"), st.integers(1, 5)),
            st.tuples(st.just("heard"), st.just(0)),
            st.tuples(st.just("stores"), st.integers(1, 5)),
            st.tuples(st.just("passes"), st.integers(1, 20_000)),
        ),
        max_size=30,
    )
)
# An upstream that is dead for 40 s: few random stories have it.
@example([("heard", 0), ("takes", 1), ("passes", 40_000)])
def test_lag_in_time_is_never_less_than_the_age_of_what_is_missing(story: Story) -> None:
    lag, now_s, taken_s, here, heard = LogLag(0.0), 0.0, [0.0], 1, 0
    lag.stored(1, now_ms(0.0))
    for what, amount in story:
        match what:
            case "takes":
                taken_s += [now_s] * amount
            case "heard":
                heard = len(taken_s)
                lag.heard(heard, now_ms(taken_s[-1]), now_s)
            case "stores":
                here = max(here, min(here + amount, heard))
                lag.stored(here, now_ms(taken_s[here - 1]))
            case "passes":
                now_s += amount / 1000
        told_ms = lag.time_ms(now_s, now_ms(now_s))
        missing_ms = (now_s - taken_s[here]) * 1000 if here < len(taken_s) else 0.0
        is_known = here < heard or (lag.heard_ago_ms(now_s) or 0) >= HEARD_MS
        assert told_ms + (1 if is_known else HEARD_MS) >= missing_ms
        assert told_ms <= now_s * 1000 + 1, "nor more than ever was waited for"


def test_nothing_that_came_and_nothing_heard_is_a_lag_since_it_is_waited_for() -> None:
    lag = LogLag(10.0)
    assert (lag.time_ms(50.0, now_ms(50.0)), lag.heard_ago_ms(50.0), lag.newest_age_ms(50.0, 1)) == (
        40_000,
        None,
        None,
    )
    lag.heard(7, now_ms(50.0), 50.0)
    assert (lag.records, lag.time_ms(51.0, now_ms(51.0))) == (7, 41_000)


def test_after_a_start_without_the_upstream_the_newest_record_tells() -> None:
    lag = LogLag(0.0)
    lag.stored(9, EPOCH_MS - 60_000)
    assert lag.time_ms(1.0, now_ms(1.0)) == 61_000


def test_one_record_after_hours_of_nothing_is_no_lag_of_hours() -> None:
    lag = LogLag(0.0)
    lag.stored(9, EPOCH_MS)
    lag.heard(9, EPOCH_MS, 7199.5)
    lag.heard(10, now_ms(7200.0), 7200.0)
    assert lag.time_ms(7200.0, now_ms(7200.0)) == 500


def test_a_clock_that_is_behind_makes_the_newest_record_no_younger_than_the_upstream_says() -> None:
    lag = LogLag(0.0)
    lag.stored(5, EPOCH_MS)
    lag.heard(9, EPOCH_MS + 30_000, 40.0)
    hour_ms = 3_600_000
    assert lag.newest_age_ms(50.0, EPOCH_MS - hour_ms) == 40_000
    assert lag.newest_age_ms(50.0, EPOCH_MS + 50_000) == 50_000
    nothing_heard = LogLag(0.0)
    nothing_heard.stored(5, EPOCH_MS)
    assert nothing_heard.newest_age_ms(50.0, EPOCH_MS - hour_ms) == 0
