from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.whole_number import whole_number


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_a_number_within_its_bounds_is_taken_and_no_other(number: int, least: int, most: int) -> None:
    assert whole_number(str(number), least=least, most=most) == (number if least <= number <= most else None)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1_0", "1.0", "0x1", "\u0663", "\u00b2", "one", "9" * 5_000]
)
def test_what_is_no_number_in_decimal_digits_is_none(text: str) -> None:
    assert whole_number(text, most=1 << 62) is None
