"""Nodes of a cluster ask each other by their HTTP APIs, within the process and over the links between them.

A request that another node has to answer is **passed on** to it unchanged, with its caller. For an answer that
consists of all nodes' parts, all others are asked for their **part**. An asked node neither passes on nor asks
others, so there are no cycles. Waits are short: the part of a node that does not answer is left out, and the answer's
header `leveret-unreachable` names the node.

    question   {"method", "path", "query", "headers": [[name, value]], "body", "user", "part"}
               user None is the operator
    answer     {"status", "headers": [[name, value]], "body"}
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from leveret.management.node import Answer, ClusterOperations
from leveret.management.request.auth import PASSED_SCOPE, ForwardedRequest, Requester
from leveret.management.request.conditions import IF_MATCH, IF_NONE_MATCH
from leveret.management.request.large_answers import hold_body
from leveret.management.request.replies import READS, BadRequest
from leveret.model.errors import InvalidCommand, LeveretError
from leveret.runtime.link.questions import read_json_as

T = TypeVar("T")

HTTP: Final = "http"
"""The name of this question."""
UNREACHABLE: Final = "leveret-unreachable"
PART_TIMEOUT_S: Final = 2.0
"""The wait for other nodes' parts."""
CHANGE_TIMEOUT_S: Final = 60.0
"""The wait for a node that has to make a change."""

JSON_BYTES_MAX: Final = 128 * 1024
"""The largest body of a request that carries neither a message nor a document: as large as AMQP's frames. It is decoded
in one step, in which no other client is served: 25 ms for the costliest, and 4 s for one of 20 MB."""

_SENT: Final = ("content-type", "x-reason", IF_MATCH, IF_NONE_MATCH)
_LEFT_OUT: Final = ("content-length",)


class ClusterRequest:
    """A request that other nodes may have to answer, as a whole or in part.

    Attributes:
        cluster: the node's cluster, or the single node.
        passed: set if another node asks.
        unreachable: the nodes whose part of the answer is missing.
    """

    def __init__(
        self, request: Request, caller: Requester, cluster: ClusterOperations, *, body_bytes_max: int
    ) -> None:
        """`body_bytes_max` limits the request's body. See `large_answers` for the limit of all bodies together."""
        self.request = request
        self.caller = caller
        self.cluster = cluster
        self.passed: ForwardedRequest | None = request.scope.get(PASSED_SCOPE)
        self.unreachable: list[str] = []
        self._body_bytes_max = body_bytes_max
        self._octets: bytes | None = None

    @property
    def is_part(self) -> bool:
        """Whether another node asks for this node's part only."""
        return self.passed is not None and self.passed.is_part

    async def octets(self) -> bytes:
        """The body; may be called again.

        Raises:
            InvalidCommand: the body is too large; no octet beyond the limit was kept.
            BadRequest: the bodies and answers of all clients take too much memory, with the status 503.
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
            if self.passed is None:
                # The body of a question is in memory already.
                hold_body(self.request, len(piece))
            pieces.append(piece)
        return b"".join(pieces)


def _too_large(limit: int) -> InvalidCommand:
    what = "that of this path" if limit == JSON_BYTES_MAX else "management.http.max_body_size"
    return InvalidCommand(f"Exceeded HTTP request body size limit: {what} is {limit} bytes")


class NodeAnswer(NamedTuple):
    """The answer of one node: the JSON document, with the status."""

    node: str
    status: int
    document: Any


async def pass_on(call: ClusterRequest, node: str) -> Response:
    """Have another node answer the request.

    Raises:
        BadRequest: it does not answer.
    """
    reads = call.request.method in READS
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
) -> list[NodeAnswer]:
    """The other running nodes' parts; empty for a single node, and for a node that asks for a part.

    Nodes that do not answer are noted in `call.unreachable`.
    """
    cluster = call.cluster
    if call.is_part or not cluster.is_member:
        return []
    text = str(call.request.url.query) if query is None else urlencode(list(query))
    about = _about(call, method, path, text, is_part=True)
    nodes = [node for node in cluster.members() if node != cluster.name and node in cluster.alive()]
    asked = [_asked(call, node, about, PART_TIMEOUT_S) for node in nodes]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: list[NodeAnswer] = []
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, LeveretError):
            call.unreachable.append(node)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            body = answer["body"]
            found.append(NodeAnswer(node, answer["status"], msgspec.json.decode(body) if body else None))
    return found


async def part_of(call: ClusterRequest, node: str, kind: type[T], *, query: Iterable[tuple[str, str]]) -> T:
    """The document of another node's part of the answer to this request, with another query.

    Raises:
        LeveretError: the node does not answer, or refuses; the text names it.
    """
    about = _about(call, "GET", None, urlencode(list(query)), is_part=True)
    try:
        answer = await _asked(call, node, about, CHANGE_TIMEOUT_S)
    except LeveretError as error:
        raise LeveretError(f"{node} does not answer: {error}; ask again, or ask that node itself") from error
    if answer["status"] != HTTPStatus.OK:
        document = msgspec.json.decode(answer["body"])
        raise LeveretError(f"{node}: {document.get('reason', answer['status'])}")
    return read_json_as(kind, answer["body"])


async def documents_of_others(
    call: ClusterRequest,
    *,
    method: str = "GET",
    path: str | None = None,
    query: Iterable[tuple[str, str]] | None = None,
) -> list[Any]:
    """The documents of the other nodes' `parts` without errors; nodes that failed are noted in `call.unreachable`.

    Raises:
        InvalidCommand: a part is a refusal, which becomes the request's.
    """
    documents = []
    for part in await parts(call, method=method, path=path, query=query):
        if part.status == HTTPStatus.BAD_REQUEST:
            raise InvalidCommand(str(part.document["reason"]))
        if part.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            call.unreachable.append(part.node)
        # Missing or invisible at a node that has not applied the newest change yet.
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
    """Answers other nodes' questions to the node of an application."""

    async def answer(what: str, about: Any) -> dict[str, Any]:
        if what != HTTP:
            raise InvalidCommand(f"a node of this version does not know the request '{what}'")
        return await _run(app, about)

    return answer


async def _run(app: Starlette, about: dict[str, Any]) -> dict[str, Any]:
    """Let an application answer a request without a socket."""
    status = 0
    headers: list[list[str]] = []
    pieces: list[bytes] = []
    ended = asyncio.Event()
    requests = iter([{"type": "http.request", "body": about["body"], "more_body": False}])

    async def receive() -> Message:
        for request in requests:
            return request
        # A task that waits for the caller's disconnection waits until the end.
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers[:] = [
                [name.decode("latin-1"), value.decode("latin-1")] for name, value in message["headers"]
            ]
        else:
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                ended.set()

    await app(_scope_of(about), receive, send)
    return {"status": status, "headers": headers, "body": b"".join(pieces)}


def _scope_of(about: dict[str, Any]) -> dict[str, Any]:
    """The ASGI scope of a question."""
    headers = [*about["headers"], ["content-length", str(len(about["body"]))]]
    return {
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
        PASSED_SCOPE: ForwardedRequest(about["user"], about["part"]),
    }
