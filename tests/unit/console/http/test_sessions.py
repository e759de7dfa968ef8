from __future__ import annotations

import pytest

from leveret.console.http.sessions import IDLE_S, WHOLE_S, ConsoleSession


@pytest.mark.parametrize(
    ("seen_s", "now_s", "is_over"),
    [
        (0, IDLE_S, False),
        (0, IDLE_S + 1, True),
        (WHOLE_S - 1, WHOLE_S, False),
        (WHOLE_S, WHOLE_S + 1, True),
    ],
)
def test_a_session_ends_half_an_hour_after_its_last_page_and_after_twelve_hours(
    seen_s: float, now_s: float, is_over: bool
) -> None:
    assert ConsoleSession("guest", {}, began_s=0, seen_s=seen_s).is_over(now_s) is is_over
