"""Questions over a link between nodes: whoever asks gets an answer, or is told that there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.model.foreign_json import LEVELS_MAX
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.link.questions import Fields, OtherVersion, Questions, Unanswered


async def nothing(what: str, about: dict[str, Any]) -> dict[str, Any]:
    return {}


async def test_a_question_over_a_link_that_has_ended_fails_at_once() -> None:
    peer, questions = LinkPeer(), Questions(nothing)
    peer.is_closed = True
    questions.ended()
    async with asyncio.timeout(5):
        with pytest.raises(Unanswered, match="ended"):
            await questions.ask(peer, "digest", {})


def test_fields_are_nested_so_deep_and_no_deeper() -> None:
    def nested(levels: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for _ in range(levels - 1):
            fields = {"f": fields}
        return fields

    assert Fields("n2", "status", nested(LEVELS_MAX)) == nested(LEVELS_MAX)
    with pytest.raises(OtherVersion, match="n2, 'status': its fields are nested more than 100 levels deep"):
        Fields("n2", "status", nested(LEVELS_MAX + 1))
