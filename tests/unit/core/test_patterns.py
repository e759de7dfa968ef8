"""core.patterns: what users write is found as Python finds it, and never stops the node."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.patterns import MATCH_TIMEOUT_S, Pattern, PatternError, compiled


@given(
    text=st.sampled_from(
        ["^a", "a$", "(ab)+c", ".*", "^(?!amq\\.).*", "(a|b)*c{1,2}", "a.*b.*c.*d", "x{2,}"]
    ),
    name=st.text("abcdx.amq", max_size=30),
)
def test_a_pattern_covers_what_python_finds(text: str, name: str) -> None:
    assert Pattern(text).covers(name) == (re.search(text, name) is not None)


@pytest.mark.parametrize("text", ["(a|aa)+$", "(a|a)*$", "(.*a){12}$", "a*a*a*a*a*a*$", "(x+x+)+y"])
def test_a_pattern_that_would_take_for_ever_gives_up(text: str) -> None:
    pattern = Pattern(text)
    began = time.process_time()
    for name in ("a" * 254 + "b", "x" * 255):
        pattern.covers(name)
    assert time.process_time() - began < 100 * MATCH_TIMEOUT_S


@pytest.mark.parametrize("text", ["(", "*", "[a", "a{2,1}", "(?P<x>"])
def test_what_is_no_pattern_is_told_with_its_place(text: str) -> None:
    with pytest.raises(PatternError) as told:
        compiled(text)
    assert told.value.reason
    assert told.value.position >= 0


def test_case_may_be_ignored() -> None:
    assert Pattern("ORDERS", ignore_case=True).covers("my-orders")
    assert not Pattern("ORDERS").covers("my-orders")
