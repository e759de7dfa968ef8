from __future__ import annotations

import pytest

from bench.standby import lag_s

PUBLISHED = [(100.0, 0), (101.0, 1000), (102.0, 2000)]


@pytest.mark.parametrize(
    ("at", "have", "lag"),
    [
        (101.5, 500, 1.0),
        (102.0, 1000, 1.0),
        (101.5, 0, 1.5),
        (101.5, 1500, 0.0),
        (101.5, 9999, 0.0),
        (105.0, 1999, 3.001),
    ],
)
def test_lag_is_the_age_of_the_first_message_the_downstream_lacks(at: float, have: int, lag: float) -> None:
    assert lag_s(PUBLISHED, at, have) == pytest.approx(lag)


def test_before_anything_was_published_there_is_no_lag() -> None:
    assert lag_s(PUBLISHED, 100.0, 0) == 0.0
