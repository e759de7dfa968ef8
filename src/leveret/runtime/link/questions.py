"""Questions and answers over a link between nodes, from either side, beside the link's other messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Never, TypeVar

import msgspec

import leveret
from leveret.model.errors import LeveretError
from leveret.model.foreign_json import LEVELS_MAX, split_json
from leveret.runtime.link.peer import LinkPeer
from leveret.wire.link import Answer, LinkError, Question, Type, decode, pack

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 60.0
_QUESTIONS_MAX: Final = 100_000
"""More than a node has reason to ask at once; each costs a task here."""

_REMEDY: Final = (
    f"its version is another than this node's ({leveret.__version__}); "
    "let all nodes run the same one, and try again"
)

T = TypeVar("T")

Finder = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Returns the answer to a question; the other side receives the text of a raised error."""


class Unanswered(LeveretError):
    """The other side could not answer, did not in time, or is gone."""


def in_thread(answer: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Finder:
    """Return a finder that runs `answer` in a thread, because it reads from disk."""

    async def find(what: str, about: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(answer, what, about)

    return find


class OtherVersion(LeveretError):
    """A question or an answer of the other side is not as this version knows it."""


class Fields(dict[str, Any]):
    """The fields of a question or an answer; one that this version needs, and the other side's does not send, is told.

    Raises, by `[]`:
        OtherVersion: the field is missing; the text names the sender, and the question.
    """

    def __init__(self, sender: str, what: str, fields: Mapping[str, Any], levels: int = LEVELS_MAX) -> None:
        """Raises OtherVersion: they are nested too deeply."""
        if not levels:
            raise OtherVersion(
                f"{sender}, {what!r}: its fields are nested more than {LEVELS_MAX} levels deep"
            )
        nested = {
            name: Fields(sender, what, value, levels - 1) if isinstance(value, dict) else value
            for name, value in fields.items()
        }
        super().__init__(nested)
        self._where = f"{sender}, {what!r}"

    def __missing__(self, name: str) -> Never:
        raise OtherVersion(f"{self._where}: the field {name!r} is missing: {_REMEDY}")


def read_as(kind: type[T], value: object) -> T:
    """Return what another node sent as an object.

    Raises:
        OtherVersion: it is none of this kind.
    """
    with _in_one_version(kind):
        return msgspec.convert(value, kind)


def read_json_as(kind: type[T], octets: bytes) -> T:
    """Return what another node sent as JSON; `msgspec.Raw` in it stays octets.

    Raises:
        OtherVersion: it is none of this kind.
    """
    with _in_one_version(kind):
        return split_json(octets, kind)


@contextmanager
def _in_one_version(kind: type) -> Iterator[None]:
    try:
        yield
    except msgspec.DecodeError as error:
        raise OtherVersion(f"another node sent no {kind.__name__}: {error}: {_REMEDY}") from None


class Questions:
    """The questions of both sides of one link at a time."""

    def __init__(self, find: Finder, sender: str = "the other node") -> None:
        """Start without a question; `find` answers the other side's, and is cancelled with the link.

        `sender` names the other side.
        """
        self._sender = sender
        self._find_answer = find
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, peer: LinkPeer, what: str, about: dict[str, Any]) -> Fields:
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
                return Fields(self._sender, what, await waits)
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
            found = await self._find_answer(
                question.what, Fields(self._sender, question.what, question.about)
            )
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
