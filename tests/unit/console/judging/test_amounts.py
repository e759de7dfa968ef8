from __future__ import annotations

import pytest

from leveret.console.judging.amounts import counted, duration_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 queues"),
        (1, "1 queue"),
        (1200, "1,200 queues"),
        (None, "an unknown number of queues"),
        ("7", "an unknown number of queues"),
    ],
)
def test_a_number_has_its_noun(number: object, text: str) -> None:
    assert counted(number, "queue") == text


def test_a_verb_agrees_with_its_number() -> None:
    said = [counted(number, "message was", "messages were") for number in (1, 2)]
    assert said == ["1 message was", "2 messages were"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.21, "3.2 s"), (50.4, "50 s"), (275.6, "5 min"), (9_000.0, "2 h"), (260_000.0, "3 days")],
)
def test_a_duration_is_as_precise_as_a_reader_needs(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
