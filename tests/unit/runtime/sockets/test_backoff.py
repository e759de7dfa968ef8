from __future__ import annotations

import pytest

from leveret.runtime.sockets.backoff import QUICK_RETRY_S, RETRY_S, RetryWaits, delay_s


@pytest.mark.parametrize("steps", [RETRY_S, QUICK_RETRY_S, (0.005,)])
def test_each_wait_is_the_next_step_and_the_last_one_stays(steps: tuple[float, ...]) -> None:
    assert [delay_s(steps, failures) for failures in range(len(steps) + 2)] == [*steps, steps[-1], steps[-1]]


def test_what_fails_soon_after_each_try_waits_longer_and_a_try_that_lasted_begins_anew() -> None:
    waits, now_s, found = RetryWaits((1, 2, 4)), 100.0, []
    for lasted_s in (50.0, 0.0, 8.0, 8.0, 8.1, 8.0):
        now_s += lasted_s
        found.append(waits.failed(now_s))
        now_s += found[-1]
    assert found == [1, 2, 4, 4, 1, 2]
