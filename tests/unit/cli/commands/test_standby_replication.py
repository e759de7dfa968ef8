from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.cli.api import CtlError
from leveret.cli.commands.standby_replication import _follow

ROW = {"first_timestamp": "a", "last_timestamp": "b", "message_count": 3, "virtual_host": "v"}
NEWS: list[dict[str, Any]] = [
    {"progress": {"event": "started"}},
    {"progress": {"event": "planned", "queues": {"q": 2, "r": 1}}},
    {"progress": {"event": "published", "messages": 3}},
]


def steps(*last: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from NEWS
    yield from last


@pytest.mark.parametrize("shows", [True, False])
def test_a_promotion_is_followed_to_its_summary(shows: bool) -> None:
    assert _follow(steps({"summary": [ROW]}), shows=shows) == [ROW]


def test_a_promotion_that_fails_ends_the_command_with_its_reason() -> None:
    with pytest.raises(CtlError, match="the disk is full") as caught:
        _follow(steps({"error": "PipelineFailed", "reason": "the disk is full"}), shows=False)
    assert caught.value.status == 70


def test_a_node_that_goes_away_half_way_is_told_from_one_that_finished() -> None:
    with pytest.raises(CtlError, match="promote again") as caught:
        _follow(steps(), shows=False)
    assert caught.value.status == 69


def test_nothing_is_drawn_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    _follow(steps({"summary": []}), shows=False)
    assert capsys.readouterr() == ("", "")
