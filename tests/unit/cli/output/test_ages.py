"""Ages as a person reads them."""

from __future__ import annotations

import pytest

from leveret.cli.output.ages import age


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0.0 s"),
        (340, "0.3 s"),
        (9_999, "10.0 s"),
        (40_400, "40 s"),
        (59_900, "1 min (60 s)"),
        (200_000, "3 min 20 s (200 s)"),
        (7_200_000, "2 h (7200 s)"),
        (3_600_000 + 59_000, "1 h (3659 s)"),
        (90_061_000, "1 d 1 h (90061 s)"),
    ],
)
def test_an_age_has_two_units_at_most_and_seconds(ms: int, text: str) -> None:
    assert age(ms) == text
