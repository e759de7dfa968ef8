"""Questions and answers over a link between nodes, from either side, beside the link's other messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from leveret.model.errors import LeveretError
from leveret.runtime.link.peer import LinkPeer
from leveret.wire.link import Answer, LinkError, Question, Type, decode, pack

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 60.0
_QUESTIONS_MAX: Final = 100_000
"""More than a node has reason to ask at once; each costs a task here."""

Finder = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Returns the answer to a question; the other side receives the text of a raised error."""


class Unanswered(LeveretError):
    """The other side could not answer, did not in time, or is gone."""


def in_thread(answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Finder:
    """Return a finder that runs `answer` in a thread, because it reads from disk."""

    async def find(what: str, about: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(answer, what, about)

    return find


class Questions:
    """The questions of both sides of one link at a time."""

    def __init__(self, find: Finder) -> None:
        """Start without a question; `find` answers the other side's, and is cancelled with the link."""
        self._find_answer = find
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, peer: LinkPeer, what: str, about: dict[str, Any]) -> dict[str, Any]:
        """Return the other side's answer.

        Raises:
            Unanswered: the other side reported an error, did not answer in time, or the link ended.
        """
        if peer.is_closed:
            # Nobody would be told that no answer comes: `ended` may have been called already.
            raise Unanswered(f"the link to {peer.address} has ended")
        self._last_number += 1
        number = self._last_number
        waits: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waits
        peer.write(pack(Type.QUESTION, Question(number, what, about)))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await waits
        except TimeoutError:
            raise Unanswered(f"{peer.address} did not answer within {ANSWER_TIMEOUT_S:.0f} s") from None
        finally:
            self._waiting.pop(number, None)

    def received(self, peer: LinkPeer, kind: Type, payload: memoryview) -> None:
        """Take a QUESTION or an ANSWER.

        Raises:
            LinkError: the message is malformed, or one question too many.
        """
        if kind is Type.QUESTION:
            question = decode(kind, payload, Question)
            if len(self._tasks) >= _QUESTIONS_MAX:
                raise LinkError(f"{_QUESTIONS_MAX} questions wait for an answer already")
            task = asyncio.get_running_loop().create_task(self._find(peer, question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        answer = decode(kind, payload, Answer)
        waits = self._waiting.get(answer.number)
        if waits is not None and not waits.done():
            if answer.error:
                waits.set_exception(Unanswered(answer.error))
            else:
                waits.set_result(dict(answer.found))

    async def _find(self, peer: LinkPeer, question: Question) -> None:
        try:
            found = await self._find_answer(question.what, dict(question.about))
            if not isinstance(found, dict):
                # Sent as it is, it would end the link at the asking side.
                raise TypeError(f"the answer to {question.what!r} is no object but {type(found).__name__}")
            answer = Answer(question.number, "", found)
        except LeveretError as error:
            answer = Answer(question.number, str(error) or type(error).__name__, {})
        except Exception as bug:
            # The other side must not wait for an answer in vain.
            logger.exception("question_failed what=%s", question.what)
            answer = Answer(question.number, f"it failed there: {type(bug).__name__}", {})
        peer.write(pack(Type.ANSWER, answer))

    def ended(self) -> None:
        """Cancel the answers in progress, and fail all waiting questions, because the link ended."""
        for task in self._tasks:
            task.cancel()
        for waits in self._waiting.values():
            if not waits.done():
                waits.set_exception(Unanswered("the link ended"))
