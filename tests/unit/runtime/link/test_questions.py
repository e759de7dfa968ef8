"""Questions over a link between nodes: whoever asks gets an answer, or is told that there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.link.questions import Questions, Unanswered


async def nothing(what: str, about: dict[str, Any]) -> dict[str, Any]:
    return {}


async def test_a_question_over_a_link_that_has_ended_fails_at_once() -> None:
    peer, questions = LinkPeer(), Questions(nothing)
    peer.is_closed = True
    questions.ended()
    async with asyncio.timeout(5):
        with pytest.raises(Unanswered, match="ended"):
            await questions.ask(peer, "digest", {})
