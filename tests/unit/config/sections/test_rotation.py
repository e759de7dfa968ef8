from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.config import load
from leveret.config.sections.rotation import OptionalRotation, Rotation
from leveret.model.errors import ConfigError

SATURDAY = datetime(2026, 11, 21, 8, 45, 30)


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("$D0", datetime(2026, 11, 22, 0, 0)),
        ("$D23", datetime(2026, 11, 21, 23, 0)),
        ("$D8", datetime(2026, 11, 22, 8, 0)),
        ("$H30", datetime(2026, 11, 21, 9, 30)),
        ("$H50", datetime(2026, 11, 21, 8, 50)),
        ("$W0D23", datetime(2026, 11, 22, 23, 0)),
        ("$W6D8", datetime(2026, 11, 28, 8, 0)),
        ("$M1D0", datetime(2026, 12, 1, 0, 0)),
        ("$M31D5", datetime(2026, 12, 31, 5, 0)),
    ],
)
def test_the_next_time_is_the_first_that_fits(text: str, following: datetime) -> None:
    rotation = OptionalRotation().parse(text)
    assert rotation is not None
    assert rotation.after(SATURDAY) == following


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), st.integers(0, 23), st.integers(0, 6))
def test_a_weekly_moment_comes_within_a_week(moment: datetime, hour: int, weekday: int) -> None:
    following = Rotation("", hour=hour, weekday=weekday).after(moment)
    assert 0 < (following - moment).total_seconds() <= 7 * 86_400
    assert (following.hour, following.minute, following.isoweekday() % 7) == (hour, 0, weekday)


@pytest.mark.parametrize("text", ["$D24", "$W7D0", "$M0D0", "$M32D0", "D0", "$", "$W1", "daily"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected "):
        load(None, {"log.file.rotation.date": text})


@pytest.mark.parametrize("text", ["$D0", "$W3D5", "none"])
def test_a_moment_that_is_shown_is_read_back(text: str) -> None:
    kind = OptionalRotation()
    assert kind.show(kind.parse(text)) == text
