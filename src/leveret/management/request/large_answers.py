"""One bound for the bodies of all requests, and all large answers that are made, or that wait for clients.

An answer goes to its client in parts, and the next part waits until the client has read; so the whole of it is in
memory until then. A large answer whose size is known beforehand is refused while the others hold too much. A list of
messages ends earlier, or is refused before it takes a message. The body of a request is in memory while it arrives and
until the answer is sent; a large one is refused where it would exceed the bound. The operator, who has a socket of its
own, gets all.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leveret.management.request.auth import OPERATOR_SCOPE
from leveret.management.request.replies import READS, BadRequest, error_reply

HELD_BYTES_MAX: Final = 128 * 1024 * 1024
"""The most octets that all bodies and large answers hold together; one answer may exceed it by its last message."""
PART_BYTES: Final = 256 * 1024
"""The octets that are sent at once. An answer, or a body, up to this size is small."""
_SCOPE: Final = "leveret.answer"
NO_ROOM: Final = (
    "answers that their clients have not read yet hold too much memory: ask again later, or for less at once"
)
_NO_ROOM_FOR_BODY: Final = (
    "bodies of requests, and answers that their clients have not read yet, hold too much memory: "
    "send the request again later"
)


class LargeAnswers:
    """The middleware; see the module.

    Attributes:
        held: the octets of the bodies, and of the answers that are made, or not read.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Hold nothing."""
        self._app = app
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = HeldAnswer(self, is_operators=bool(scope.get(OPERATOR_SCOPE)))
        is_refused = False

        async def send_in_parts(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start":
                more = _announced(message) - answer.octets
                if scope["method"] in READS and not answer.may_hold(more):
                    is_refused = True
                    refusal = error_reply(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", NO_ROOM)
                    await refusal(scope, receive, send)
                    return
                # Nothing else knows of an answer of another node, whose messages may be settled there by now.
                answer.add(max(0, more))
            if is_refused:
                return
            for part in _parts(message):
                await send(part)

        try:
            await self._app({**scope, _SCOPE: answer}, receive, send_in_parts)
        finally:
            self.held -= answer.octets + answer.body_octets


class HeldAnswer:
    """One answer, while it is made and until its client has read it; before that, the body of its request arrives.

    Attributes:
        octets: its size so far.
        body_octets: the size of the body so far.
    """

    def __init__(self, answers: LargeAnswers, *, is_operators: bool = False) -> None:
        self._answers = answers
        self._is_operators = is_operators
        self.octets = self.body_octets = 0

    @property
    def has_room(self) -> bool:
        """Whether it may grow by one message."""
        return self._is_operators or self._answers.held < HELD_BYTES_MAX

    def may_hold(self, more: int) -> bool:
        """Return whether it may grow by this size."""
        is_small = more <= PART_BYTES
        return self._is_operators or is_small or self._answers.held + more <= HELD_BYTES_MAX

    def add(self, octets: int) -> None:
        """Count more octets of it."""
        self.octets += octets
        self._answers.held += octets

    def add_to_body(self, octets: int) -> None:
        """Count more octets of the request's body."""
        self.body_octets += octets
        self._answers.held += octets


def answer_to(request: Request) -> HeldAnswer:
    """The answer to a request that came through the middleware."""
    found: HeldAnswer = request.scope[_SCOPE]
    return found


def need_room(request: Request) -> None:
    """Check that the answer to a request may grow.

    Raises:
        BadRequest: it may not, with the status 503.
    """
    if not answer_to(request).has_room:
        raise BadRequest("unavailable", NO_ROOM, HTTPStatus.SERVICE_UNAVAILABLE)


def hold_body(request: Request, octets: int) -> None:
    """Count further octets of the body of a request that came through the middleware.

    Raises:
        BadRequest: there is no room for them, with the status 503.
    """
    answer = answer_to(request)
    is_small = answer.body_octets + octets <= PART_BYTES
    if not is_small and not answer.has_room:
        raise BadRequest("unavailable", _NO_ROOM_FOR_BODY, HTTPStatus.SERVICE_UNAVAILABLE)
    answer.add_to_body(octets)


def _announced(message: Message) -> int:
    """The size of an answer, as its begin has it; 0 if that is not known."""
    headers: dict[bytes, Any] = dict(message["headers"])
    return int(headers.get(b"content-length", 0))


def _parts(message: Message) -> list[Message]:
    """The message, as several if it is a large body."""
    body = memoryview(message.get("body", b""))
    if len(body) <= PART_BYTES:
        return [message]
    begins = range(0, len(body), PART_BYTES)
    more = message.get("more_body", False)
    return [
        {
            "type": "http.response.body",
            "body": body[begin : begin + PART_BYTES],
            "more_body": more or begin != begins[-1],
        }
        for begin in begins
    ]
