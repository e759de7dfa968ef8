from __future__ import annotations

import pytest

from leveret.console.judging.counts import counted


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
