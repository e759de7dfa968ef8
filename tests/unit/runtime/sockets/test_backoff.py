from __future__ import annotations

import pytest

from leveret.runtime.sockets.backoff import QUICK_RETRY_S, RETRY_S, delay_s


@pytest.mark.parametrize("steps", [RETRY_S, QUICK_RETRY_S, (0.005,)])
def test_each_wait_is_the_next_step_and_the_last_one_stays(steps: tuple[float, ...]) -> None:
    assert [delay_s(steps, failures) for failures in range(len(steps) + 2)] == [*steps, steps[-1], steps[-1]]
