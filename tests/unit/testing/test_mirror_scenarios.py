from __future__ import annotations

import pytest

from leveret.testing.mirror_scenarios.stage import render, spans, transcripts


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], "nothing"),
        ([7], "7"),
        ([0, 1, 2, 3], "0-3"),
        ([3, 4, 0, 1, 9], "3-4, 0-1, 9"),
        ([2, 1], "2, 1"),
    ],
)
def test_numbers_are_told_in_their_order_with_runs_put_together(numbers: list[int], text: str) -> None:
    assert spans(numbers) == text


def test_transcripts_are_read_as_they_were_written() -> None:
    found = {"suite.two": ["kill A", "B declares q: 1 messages"], "suite.one": ["A has no queues"]}
    assert transcripts(render(found)) == found
    assert list(transcripts(render(found))) == ["suite.one", "suite.two"]
