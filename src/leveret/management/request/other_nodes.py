"""Nodes of a cluster ask each other by their HTTP APIs, within the process and over the links between them.

A request that another node has to answer is **passed on** to it as it is, with who asks it. What consists of what all
nodes have is asked of all others as their **part**. Who is asked neither passes on nor asks others for its part, so
nothing goes round in circles. Nobody is waited for long: what a node that does not answer has is left out, and the
answer's header `leveret-unreachable` names it.

    question   {"method", "path", "query", "headers": [[name, value]], "body", "user", "part"}
               user None is the operator
    answer     {"status", "headers": [[name, value]], "body"}
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from leveret.management.node import Answer, ClusterOperations
from leveret.management.request.auth import PASSED_SCOPE, Passed, Requester
from leveret.management.request.replies import BadRequest
from leveret.model.errors import InvalidCommand, LeveretError

HTTP: Final = "http"
"""The word by which this question is told from others."""
UNREACHABLE: Final = "leveret-unreachable"
PART_TIMEOUT_S: Final = 2.0
"""How long nodes are waited for that are asked what they have."""
CHANGE_TIMEOUT_S: Final = 60.0
"""The same of one that is asked to do something."""

_SENT: Final = ("content-type", "x-reason")
_LEFT_OUT: Final = ("content-length",)


class ClusterRequest:
    """A request, as far as other nodes may have to answer it, or a part of it.

    Attributes:
        cluster: that of the node; a node alone is one as well.
        passed: set if another node of it asks.
        unreachable: the nodes whose part of the answer is missing.
    """

    def __init__(
        self, request: Request, caller: Requester, cluster: ClusterOperations, *, body_bytes_max: int
    ) -> None:
        """`body_bytes_max`: of the request."""
        self.request = request
        self.caller = caller
        self.cluster = cluster
        self.passed: Passed | None = request.scope.get(PASSED_SCOPE)
        self.unreachable: list[str] = []
        self._body_bytes_max = body_bytes_max
        self._octets: bytes | None = None

    @property
    def is_part(self) -> bool:
        """Whether another node asks, for what there is here only."""
        return self.passed is not None and self.passed.is_part

    async def octets(self) -> bytes:
        """The body; it may be asked for again.

        Raises:
            InvalidCommand: it is too large; nothing beyond the limit was kept.
        """
        if self._octets is None:
            self._octets = await self._read()
        return self._octets

    async def _read(self) -> bytes:
        limit = self._body_bytes_max
        announced = self.request.headers.get("content-length", "")
        if announced.isdecimal() and len(announced) < 20 and int(announced) > limit:
            raise _too_large(limit)
        pieces: list[bytes] = []
        size = 0
        async for piece in self.request.stream():
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
        return b"".join(pieces)


def _too_large(limit: int) -> InvalidCommand:
    return InvalidCommand(
        f"Exceeded HTTP request body size limit: management.http.max_body_size is {limit} bytes"
    )


class Part(NamedTuple):
    """What one node answered: the JSON document, with the status."""

    node: str
    status: int
    document: Any


async def pass_on(call: ClusterRequest, node: str) -> Response:
    """Have another node answer the request.

    Raises:
        Declined: it does not.
    """
    reads = call.request.method in ("GET", "HEAD")
    about = _about(call, call.request.method, None, str(call.request.url.query), is_part=False)
    if not reads:
        about["body"] = await call.octets()
    try:
        answer = await _asked(call, node, about, PART_TIMEOUT_S if reads else CHANGE_TIMEOUT_S)
    except LeveretError as error:
        reason = f"{node}, which has to do this, does not answer: {error}"
        raise BadRequest("unavailable", reason, HTTPStatus.SERVICE_UNAVAILABLE) from error
    headers = {name: value for name, value in answer["headers"] if name not in _LEFT_OUT}
    return Response(answer["body"], answer["status"], headers)


async def parts(
    call: ClusterRequest,
    *,
    method: str = "GET",
    path: str | None = None,
    query: Iterable[tuple[str, str]] | None = None,
) -> list[Part]:
    """What the other nodes that run have of the request; of a cluster of one, or for who asks for a part, nothing.

    Nodes that do not answer are noted in `call.unreachable`.

    Raises:
        InvalidCommand: they refuse the request.
    """
    cluster = call.cluster
    if call.is_part or not cluster.is_member:
        return []
    text = str(call.request.url.query) if query is None else urlencode(list(query))
    about = _about(call, method, path, text, is_part=True)
    nodes = [node for node in cluster.members() if node != cluster.name and node in cluster.alive()]
    asked = [_asked(call, node, about, PART_TIMEOUT_S) for node in nodes]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: list[Part] = []
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, LeveretError):
            call.unreachable.append(node)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            body = answer["body"]
            found.append(Part(node, answer["status"], msgspec.json.decode(body) if body else None))
    return found


def rows_of(found: Iterable[Part]) -> list[Any]:
    """The documents of parts that are all good.

    Raises:
        InvalidCommand: one is a refusal; it is that of the request.
    """
    documents = []
    for part in found:
        if part.status == HTTPStatus.BAD_REQUEST:
            raise InvalidCommand(str(part.document["reason"]))
        # What is not there, or may not be seen, on a node that has not applied the newest change yet.
        if part.status == HTTPStatus.OK:
            documents.append(part.document)
    return documents


async def _asked(call: ClusterRequest, node: str, about: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            answer: dict[str, Any] = await call.cluster.ask(node, HTTP, about)
            return answer
    except TimeoutError:
        raise LeveretError(f"no answer within {timeout_s:g} s") from None


def _about(
    call: ClusterRequest, method: str, path: str | None, query: str, *, is_part: bool
) -> dict[str, Any]:
    headers = call.request.headers
    return {
        "method": method,
        "path": call.request.scope["path"] if path is None else path,
        "query": query,
        "headers": [[name, headers[name]] for name in _SENT if name in headers],
        "body": b"",
        "user": None if call.caller.is_operator else call.caller.name,
        "part": is_part,
    }


def answer_by(app: Starlette) -> Answer:
    """Answers what other nodes ask the node of an application."""

    async def answer(what: str, about: Any) -> Any:
        if what != HTTP:
            raise InvalidCommand(f"'{what}' is an unknown question for a node of this version")
        return await _run(app, about)

    return answer


async def _run(app: Starlette, about: dict[str, Any]) -> dict[str, Any]:
    """Let an application answer a request that no socket brought."""
    body: bytes = about["body"]
    headers = [*about["headers"], ["content-length", str(len(body))]]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": about["method"],
        "scheme": "http",
        "path": about["path"],
        "raw_path": about["path"].encode(),
        "root_path": "",
        "query_string": about["query"].encode(),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": None,
        "server": None,
        PASSED_SCOPE: Passed(about["user"], about["part"]),
    }
    status = 0
    reported: list[list[str]] = []
    pieces: list[bytes] = []
    ended = asyncio.Event()
    requests = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for request in requests:
            return request
        # Who listens for the caller to hang up, while it answers, hears nothing.
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            reported[:] = [
                [name.decode("latin-1"), value.decode("latin-1")] for name, value in message["headers"]
            ]
        else:
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                ended.set()

    await app(scope, receive, send)
    return {"status": status, "headers": reported, "body": b"".join(pieces)}
