"""One request: who asks, for which path, with what body; and how a resource becomes a route.

A resource file ends with its `ROUTES`; a handler takes a `Call`, reads, calls one verb of the node
and answers. Identification, 405, refusals and bodies that make no sense are dealt with here, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.core.broker.broker import Broker
from leveret.core.broker.definitions_lock import DEFINITIONS_LOCK_TIMEOUT_S
from leveret.core.queues.queue import Queue
from leveret.management.node import ClusterOperations, ManagedNode
from leveret.management.rates.history import SampleRanges, ranges_of
from leveret.management.rates.rates import Rates
from leveret.management.request.auth import Need, Requester, Unauthorised, identify
from leveret.management.request.leadership import need_serving
from leveret.management.request.listing import Listing, Row, list_reply, object_reply, plain_reply
from leveret.management.request.other_nodes import UNREACHABLE, ClusterRequest, pass_on
from leveret.management.request.replies import BadRequest, error_reply, refusal_reply
from leveret.management.request.single_node import cluster_of
from leveret.model.definitions import AnyEntity, Change, GlobalParameter, Parameter
from leveret.model.errors import InvalidCommand, LeveretError
from leveret.model.secrets import masked
from leveret.runtime.process.work_slices import in_slices

logger = logging.getLogger(__name__)

NAME_BYTES_MAX: Final = 255
_READS: Final = ("GET", "HEAD")
_UPSERTS: Final = ("PUT", "POST")
_DEFAULT_EXCHANGE_NAME: Final = "amq.default"

CHANGES_AT_ONCE: Final = 250
"""How many changes one flush has to write, and logs to remove, when many are made."""

T = TypeVar("T")


class Call(ClusterRequest):
    """A request by a caller who was identified."""

    def __init__(self, request: Request, caller: Requester) -> None:
        self.node: ManagedNode = request.app.state.node
        limit = self.node.config.management.body_bytes_max
        super().__init__(request, caller, cluster_of(self.node), body_bytes_max=limit)
        self.query: QueryParams = request.query_params
        self.broker: Broker = self.node.broker
        self.rates: Rates = request.app.state.rates
        self.imports: asyncio.Lock = request.app.state.imports
        self._ranges: SampleRanges | None = None
        self.definitions: dict[str, dict[tuple[str, ...], AnyEntity]] = self.broker.definitions.by_kind

    def path(self, name: str) -> str:
        """A part of the path, decoded; vhost `%2F` is `/`."""
        return unquote(self.request.path_params[name])

    def vhost(self) -> str:
        """The path's vhost, which exists and which the caller sees.

        Raises:
            NotFound: there is none. Unauthorised: the caller may not see it.
        """
        vhost = self.path("vhost")
        self.caller.enter(vhost)
        return vhost

    def vhost_and_user(self) -> tuple[str, str]:
        """The path's vhost and user, who is given permissions there.

        Raises:
            InvalidCommand: one of the two does not exist.
        """
        vhost, user = self.path("vhost"), self.path("user")
        if (vhost,) not in self.definitions["vhosts"] or (user,) not in self.definitions["users"]:
            raise InvalidCommand("vhost_or_user_not_found")
        return vhost, user

    def new_name(self, part: str = "name") -> str:
        """The name of what is to be made.

        Raises:
            InvalidCommand: AMQP has no room for so long a name.
        """
        name = self.path(part)
        size = len(name.encode())
        if size > NAME_BYTES_MAX:
            raise InvalidCommand(f"{part} should be at most {NAME_BYTES_MAX} bytes, actually was {size}")
        return name

    def seen_vhosts(self) -> list[str]:
        """The vhosts in which the caller is shown what there is."""
        return [name for name in self.broker.topologies if self.caller.sees(name)]

    def exchange_name(self, part: str = "name") -> str:
        """An exchange of the path; the default exchange is called `amq.default` there."""
        name = self.path(part)
        return "" if name == _DEFAULT_EXCHANGE_NAME else name

    def flag(self, name: str) -> bool:
        """Whether a query parameter is set to true."""
        return self.query.get(name) == "true"

    def ranges(self) -> SampleRanges:
        """The samples that the request asks for, see `management.rates`.

        Raises:
            InvalidCommand: a range that is no range.
        """
        if self._ranges is None:
            self._ranges = ranges_of(self.query)
        return self._ranges

    async def list(self, listing: Listing[T], *, in_pages: bool = False) -> Response:
        """A list as the query asks; see `listing`."""
        return await list_reply(listing, self.query, in_pages=in_pages, is_part=self.is_part)

    @property
    def includes_secrets(self) -> bool:
        """Whether the caller asks for passwords in parameters, and may see them."""
        return self.flag("include_secrets") and self.caller.has(Need.ADMINISTRATOR)

    def entity_json(self, entity: AnyEntity) -> dict[str, Any]:
        """A definition as it is; parameters without their secrets, unless the caller asks for them."""
        shown: dict[str, Any] = msgspec.to_builtins(entity)
        if isinstance(entity, Parameter | GlobalParameter) and not self.includes_secrets:
            shown["value"] = masked(shown["value"])
        return shown

    async def list_entities(self, existing: Iterable[AnyEntity]) -> Response:
        """A list of definitions as they are, in the order of their keys."""
        items = [*existing]
        return await self.list(Listing(items, self.entity_json, order=lambda each: each.key))

    async def plain_list(self, rows: Sequence[Row], *names: str) -> Response:
        """A list without pages, in the order of the columns `names`."""
        return await plain_reply(rows, self.query, *names)

    def show(self, row: Row) -> Response:
        """One object, with the columns that the query asks for."""
        return object_reply(row, self.query)

    async def body(self, shape: type[T]) -> T:
        """The body as JSON of this shape; no body is an empty object. RabbitMQ takes "true" for true, so do we.

        Raises:
            InvalidCommand: not JSON, or names the field that is missing or malformed.
        """
        return read_json(await self.octets() or b"{}", shape)

    async def apply(self, *changes: Change) -> None:
        """Apply changes in order, in turns if they are many, and return once they are durable.

        Raises:
            Refusal: a change was declined; those before it stand, and are durable.
        """
        try:
            async for change in in_slices(changes):
                self.broker.apply(change)
                await self.flush_some()
        finally:
            await self.node.commit()

    async def in_turns(self, begin: Callable[[Callable[..., None]], None]) -> None:
        """Begin what takes turns, as `Actor.delete_queue_in_turns` does, and return once all of it is durable.

        Args:
            begin: gets what is to be called at its end.

        Raises:
            Refusal: it was declined.
        """
        ended = asyncio.Event()
        begin(lambda *_: ended.set())
        await self.node.commit()
        while not ended.is_set():
            await self.node.commit()

    async def returned(self, queue: Queue) -> None:
        """Return once all that is coming back to a queue is back, and those who left it are gone."""
        while queue.pending_returns:
            await self.node.commit()

    async def flush_some(self) -> None:
        """Between many changes: write those so far when they are enough, for all in one flush would hold up others."""
        if len(self.broker.changes) + len(self.broker.deleted) >= CHANGES_AT_ONCE:
            await self.node.commit()


def read_json(data: bytes, shape: type[T]) -> T:
    """JSON of this shape.

    Raises:
        InvalidCommand: not JSON, or names the field that is missing or malformed.
    """
    try:
        return msgspec.convert(msgspec.json.decode(data), shape, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidCommand(str(error)) from None
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise InvalidCommand(f"not_json: {error}") from None


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]
Place: TypeAlias = Callable[[Call], Awaitable[str | None]]
"""Tells the other node of the cluster that a request is to be passed on to; None for this one."""


def resource(
    path: str,
    need: Need = Need.MANAGEMENT,
    change: Need | None = None,
    on_followers: bool = False,
    defines: bool = True,
    place: Place | None = None,
    is_download: bool = False,
    **handlers: Handler,
) -> Route:
    """The route of one path; `handlers` by HTTP method, GET answers HEAD as well.

    A caller needs `need` to read, and `change` (by default the same) for all other methods. Those change what
    is replicated, so that only a leader takes them; `on_followers` where they concern this process alone.

    In a cluster, `place` says which node answers, and only the node that has the definitions lock changes definitions:
    unless
    `defines` is False, a handler of a method that changes something is called when this one has it.

    `is_download` for what a browser stores as a file: to read it, credentials may stand in the query.
    """
    rule = _Rule(on_followers, defines, place, is_download)
    if "GET" in handlers:
        handlers = {"HEAD": handlers["GET"], **handlers}
    allow = ", ".join([*handlers, "OPTIONS"])

    async def endpoint(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(headers={"allow": allow})
        handler = handlers.get(request.method)
        if handler is None:
            return Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": allow})
        if request.method in _READS:
            return await _answer(handler, request, need, rule)
        if _comes_from_elsewhere(request):
            return error_reply(
                HTTPStatus.FORBIDDEN,
                "access_refused",
                "changes by pages of other sites are refused",
            )
        reply = await _answer(handler, request, change or need, rule)
        logger.info(
            "management_change user=%s method=%s path=%s status=%d",
            getattr(request.state, "caller", ""),
            request.method,
            request.url.path,
            reply.status_code,
        )
        return reply

    # All methods, so that it is this endpoint that says which are allowed.
    return Route(
        path,
        endpoint,
        methods=["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"],
    )


class _Rule(NamedTuple):
    """How a path is answered; see `resource`."""

    on_followers: bool
    defines: bool
    place: Place | None
    is_download: bool


async def _answer(handler: Handler, request: Request, need: Need, rule: _Rule) -> Response:
    changes = request.method not in _READS
    try:
        in_query = rule.is_download and not changes
        caller = identify(request.app.state.node, request, takes_credentials_in_query=in_query)
        request.state.caller = "control.sock" if caller.is_operator else caller.name
        caller.require(need)
        if changes and not rule.on_followers:
            need_serving(caller.node)
        call = Call(request, caller)
        in_cluster = call.cluster.is_member
        answer = _in_cluster(handler, call, rule, changes=changes) if in_cluster else handler(call)
        if changes and not rule.on_followers:
            return await _while_it_serves(caller.node, answer)
        return await answer
    except Unauthorised as refused:
        return refused.reply
    except LeveretError as refusal:
        return refusal_reply(refusal, to_change=request.method in _UPSERTS)
    except ClientDisconnect:
        # The client went before its body was here: nothing was done, and nobody reads an answer.
        return Response(status_code=HTTPStatus.BAD_REQUEST)
    except Exception as bug:
        return await internal_error(request, bug)


async def _while_it_serves(node: ManagedNode, answer: Awaitable[Response]) -> Response:
    """The answer of a node that serves.

    Raises:
        Declined: it stopped serving, as when its lease ended: what it was to do may never come to its end.
    """
    answering, ending = asyncio.ensure_future(answer), asyncio.ensure_future(node.ended.wait())
    try:
        await asyncio.wait((answering, ending), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
    finally:
        answering.cancel()
        ending.cancel()
        await asyncio.gather(answering, ending, return_exceptions=True)
    reason = "this node stopped serving meanwhile: check whether the change was made, and try again"
    raise BadRequest("unavailable", reason, HTTPStatus.SERVICE_UNAVAILABLE)


@asynccontextmanager
async def with_definitions_lock(cluster: ClusterOperations) -> AsyncIterator[None]:
    """Have the definitions lock, as soon as whoever has it gives it away.

    Raises:
        Declined: nobody gives it in time.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(DEFINITIONS_LOCK_TIMEOUT_S):
                await stack.enter_async_context(cluster.changing())
        except TimeoutError:
            status = cluster.status()
            holder, error = status["pen"], status["etcd"]["error"]
            who = f"{holder} may, and" if holder else f"nobody may, and etcd (last error: {error})"
            reason = f"definitions cannot be changed now: {who} did not hand over in {DEFINITIONS_LOCK_TIMEOUT_S:g} s"
            raise BadRequest("unavailable", reason, HTTPStatus.SERVICE_UNAVAILABLE) from None
        yield


async def _in_cluster(handler: Handler, call: Call, rule: _Rule, *, changes: bool) -> Response:
    """The answer of a member of a cluster: of another one, if that is the one to answer."""
    node = await rule.place(call) if rule.place is not None and call.passed is None else None
    if node is not None:
        try:
            return await pass_on(call, node)
        except LeveretError:
            if changes:
                raise
            # What is known here is better than nothing.
            call.unreachable.append(node)
    if changes and rule.defines:
        # A client that sends slowly must not keep the definitions lock from others.
        await call.octets()
        async with with_definitions_lock(call.cluster):
            reply = await handler(call)
    else:
        reply = await handler(call)
    if call.unreachable:
        reply.headers[UNREACHABLE] = ", ".join(sorted(set(call.unreachable)))
    return reply


def _comes_from_elsewhere(request: Request) -> bool:
    """Whether a browser sends this for a page of another site, with the credentials it remembers."""
    origin = request.headers.get("origin")
    if origin is None or origin in request.app.state.node.config.management.allowed_origins:
        return False
    return urlsplit(origin).netloc != request.headers.get("host")


async def not_found(request: Request, error: Exception) -> Response:
    """The answer for a path that is no resource."""
    return error_reply(HTTPStatus.NOT_FOUND, "Object Not Found", "Not Found")


async def internal_error(request: Request, error: Exception) -> Response:
    """The answer when a handler has a bug; the story is in the log, the node goes on."""
    logger.error(
        "request_failed method=%s path=%s",
        request.method,
        request.url.path,
        exc_info=error,
    )
    return error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", "see the node's log")
