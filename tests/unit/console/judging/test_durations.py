from __future__ import annotations

import pytest

from leveret.console.judging.durations import duration_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.21, "3.2 s"), (50.4, "50 s"), (275.6, "5 min"), (9_000.0, "2 h"), (260_000.0, "3 days")],
)
def test_a_duration_is_as_precise_as_a_reader_needs(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
