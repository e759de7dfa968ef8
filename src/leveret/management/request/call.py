"""One request: the caller, the path and the body; and the routes of resources.

A resource file ends with its `ROUTES`; a handler takes a `Call`, reads, calls one operation of the node and answers.
Identification, 405, refusals and invalid bodies are handled here, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cached_property
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
from leveret.management.request.auth import Requester, Requirement, Unauthorised, identify
from leveret.management.request.conditions import check_conditions, entity_tag
from leveret.management.request.leadership import need_serving
from leveret.management.request.other_nodes import JSON_BYTES_MAX, UNREACHABLE, ClusterRequest, pass_on
from leveret.management.request.paged_lists import Listing, Row, list_reply, object_reply, plain_reply
from leveret.management.request.replies import READS, BadRequest, error_reply, refusal_reply
from leveret.management.request.single_node import cluster_of
from leveret.model.definitions import AnyEntity, Change, GlobalParameter, Parameter
from leveret.model.errors import InvalidCommand, LeveretError
from leveret.model.foreign_json import decode_json
from leveret.model.secrets import masked
from leveret.runtime.process.work_slices import in_slices

logger = logging.getLogger(__name__)

NAME_BYTES_MAX: Final = 255
_UPSERTS: Final = ("PUT", "POST")
_DEFAULT_EXCHANGE_NAME: Final = "amq.default"

CHANGES_AT_ONCE: Final = 250
"""The number of changes to write, and logs to remove, at which a flush comes between many changes."""

T = TypeVar("T")


class Call(ClusterRequest):
    """A request of an identified caller."""

    def __init__(self, request: Request, caller: Requester, *, takes_documents: bool) -> None:
        self.node: ManagedNode = request.app.state.node
        limit = self.node.config.management.body_bytes_max
        if not takes_documents:
            limit = min(limit, JSON_BYTES_MAX)
        super().__init__(request, caller, cluster_of(self.node), body_bytes_max=limit)
        self.query: QueryParams = request.query_params
        self.broker: Broker = self.node.broker
        self.rates: Rates = request.app.state.rates
        self.imports: asyncio.Lock = request.app.state.imports
        self._ranges: SampleRanges | None = None
        self.definitions: dict[str, dict[tuple[str, ...], AnyEntity]] = self.broker.definitions.by_kind

    @cached_property
    def has_follower_in_sync(self) -> bool:
        """Whether a follower of this node has everything, or this node is one: the same for all queues of an answer."""
        return self.node.replication.has_follower_in_sync

    def path(self, name: str) -> str:
        """A part of the path, decoded; vhost `%2F` is `/`."""
        return unquote(self.request.path_params[name])

    def vhost(self) -> str:
        """The path's vhost, which must exist and which the caller must see.

        Raises:
            NotFound: there is no such vhost. Unauthorised: the caller may not see it.
        """
        vhost = self.path("vhost")
        self.caller.enter(vhost)
        return vhost

    def vhost_and_user(self) -> tuple[str, str]:
        """The path's vhost and user, for permissions.

        Raises:
            InvalidCommand: one of the two does not exist.
        """
        vhost, user = self.path("vhost"), self.path("user")
        if (vhost,) not in self.definitions["vhosts"] or (user,) not in self.definitions["users"]:
            raise InvalidCommand("vhost_or_user_not_found")
        return vhost, user

    def new_name(self, part: str = "name") -> str:
        """The name of a new object.

        Raises:
            InvalidCommand: the name is longer than AMQP allows.
        """
        name = self.path(part)
        size = len(name.encode())
        if size > NAME_BYTES_MAX:
            raise InvalidCommand(f"{part} should be at most {NAME_BYTES_MAX} bytes, actually was {size}")
        return name

    def seen_vhosts(self) -> list[str]:
        """The vhosts whose content the caller may see."""
        return [name for name in self.broker.topologies if self.caller.sees(name)]

    def exchange_name(self, part: str = "name") -> str:
        """An exchange of the path, in which the default exchange is `amq.default`."""
        name = self.path(part)
        return "" if name == _DEFAULT_EXCHANGE_NAME else name

    def flag(self, name: str) -> bool:
        """Whether a query parameter is set to true."""
        return self.query.get(name) == "true"

    def ranges(self) -> SampleRanges:
        """The request's ranges of samples, see `rates.history`.

        Raises:
            InvalidCommand: a range is invalid.
        """
        if self._ranges is None:
            self._ranges = ranges_of(self.query)
        return self._ranges

    async def list(self, listing: Listing[T], *, in_pages: bool = False) -> Response:
        """A list by the query; see `Listing`."""
        return await list_reply(listing, self.query, in_pages=in_pages, is_part=self.is_part)

    @property
    def includes_secrets(self) -> bool:
        """Whether the caller asks for passwords in parameters, and may see them."""
        return self.flag("include_secrets") and self.caller.has(Requirement.ADMINISTRATOR)

    def entity_json(self, entity: AnyEntity) -> dict[str, Any]:
        """A definition; parameters without their secrets, unless the caller asks for these."""
        shown: dict[str, Any] = msgspec.to_builtins(entity)
        if isinstance(entity, Parameter | GlobalParameter) and not self.includes_secrets:
            shown["value"] = masked(shown["value"])
        return shown

    async def list_entities(self, existing: Iterable[AnyEntity]) -> Response:
        """A list of definitions, in the order of their keys."""
        items = [*existing]
        return await self.list(Listing(items, self.entity_json, order=lambda each: each.key))

    async def plain_list(self, rows: Sequence[Row], *names: str) -> Response:
        """A list without pages, in the order of the columns `names`."""
        return await plain_reply(rows, self.query, *names)

    def show(self, row: Row, entity: AnyEntity | None = None) -> Response:
        """One object, with the columns in the query; of a definition with its entity tag."""
        reply = object_reply(row, self.query)
        if entity is not None:
            reply.headers["etag"] = entity_tag(entity)
        return reply

    def check_conditions(self, existing: AnyEntity | None) -> None:
        """Check the conditions under which the request changes this object; without an await before the change.

        Raises:
            BadRequest: one does not hold, see `conditions`.
        """
        check_conditions(self.request.headers, existing)

    async def body(self, shape: type[T]) -> T:
        """The body as JSON of this shape; no body is an empty object. As in RabbitMQ, "true" counts as true.

        Raises:
            InvalidCommand: the body is no JSON, or a field, which the text names, is missing or malformed.
        """
        return read_json(await self.octets() or b"{}", shape)

    async def apply(self, *changes: Change) -> None:
        """Apply changes in order, in steps if they are many, and return once they are durable.

        Raises:
            Refusal: a change was refused; those before it are durable.
            StorageError: the disk refuses them; they hold, and are logged once it takes them.
        """
        try:
            async for change in in_slices(changes):
                self.broker.apply(change)
                await self.flush_some()
        finally:
            await self.node.commit()

    async def in_turns(self, begin: Callable[[Callable[..., None]], None]) -> None:
        """Begin an operation of several steps, such as `Actor.delete_queue_in_turns`, and return once it is durable.

        Args:
            begin: gets the function to call at its end.

        Raises:
            Refusal: it was refused.
        """
        ended = asyncio.Event()
        begin(lambda *_: ended.set())
        await self.node.commit()
        while not ended.is_set():
            await self.node.commit()

    async def returned(self, queue: Queue) -> None:
        """Return once unfinished returns to a queue, and removals of its consumers, are done."""
        while queue.pending_returns:
            await self.node.messages_durable()

    async def flush_some(self) -> None:
        """Flush between many changes, when they are enough, because one flush for all would hold up other work."""
        if len(self.broker.changes) + len(self.broker.deleted) >= CHANGES_AT_ONCE:
            await self.node.commit()


def read_json(data: bytes, shape: type[T]) -> T:
    """JSON of this shape.

    Raises:
        InvalidCommand: the data are no JSON, or a field, which the text names, is missing or malformed.
    """
    with json_errors():
        return msgspec.convert(decode_json(data, Any), shape, strict=False)


@contextmanager
def json_errors() -> Iterator[None]:
    """Errors of JSON that is read in it are told to the caller.

    Raises:
        InvalidCommand: not JSON, or names the field that is missing or malformed.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        raise InvalidCommand(str(error)) from None
    except (msgspec.DecodeError, OverflowError) as error:
        raise InvalidCommand(f"not_json: {error}") from None


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]
Place: TypeAlias = Callable[[Call], Awaitable[str | None]]
"""The other node of the cluster to which a request is passed on; None for this one."""


def resource(
    path: str,
    *,
    need: Requirement = Requirement.MANAGEMENT,
    change: Requirement | None = None,
    on_followers: bool = False,
    defines: bool = True,
    place: Place | None = None,
    is_download: bool = False,
    takes_documents: bool = False,
    **handlers: Handler,
) -> Route:
    """The route of one path; `handlers` by HTTP method, GET answers HEAD as well.

    A caller needs `need` to read, and `change` (by default the same) for all other methods. These change replicated
    data, so only a leader accepts them; `on_followers` for those that concern this process alone.

    In a cluster, `place` chooses the node that answers. Unless `defines` is False, the handler of a changing method
    is called while this node holds the definitions lock.

    `is_download` is for files of a browser: credentials may be in the query. With `takes_documents`, a body may be as
    large as the settings allow, and the handler decodes it in short steps.
    """
    rule = _Rule(on_followers, defines, place, is_download, takes_documents)
    if "GET" in handlers:
        handlers = {"HEAD": handlers["GET"], **handlers}
    allow = ", ".join([*handlers, "OPTIONS"])

    async def endpoint(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(headers={"allow": allow})
        handler = handlers.get(request.method)
        if handler is None:
            return Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": allow})
        if request.method in READS:
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

    # All methods, because this endpoint answers which ones are allowed.
    return Route(
        path,
        endpoint,
        methods=["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"],
    )


class _Rule(NamedTuple):
    """The rules for the answers of a path; see `resource`."""

    on_followers: bool
    defines: bool
    place: Place | None
    is_download: bool
    takes_documents: bool


async def _answer(handler: Handler, request: Request, need: Requirement, rule: _Rule) -> Response:
    changes = request.method not in READS
    try:
        in_query = rule.is_download and not changes
        caller = identify(request.app.state.node, request, takes_credentials_in_query=in_query)
        request.state.caller = "control.sock" if caller.is_operator else caller.name
        caller.require(need)
        if changes and not rule.on_followers:
            need_serving(caller.node)
        call = Call(request, caller, takes_documents=rule.takes_documents)
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
        # The client left before its body was complete: nothing was done, and the answer is not read.
        return Response(status_code=HTTPStatus.BAD_REQUEST)
    except Exception as bug:
        return await internal_error(request, bug)


async def _while_it_serves(node: ManagedNode, answer: Awaitable[Response]) -> Response:
    """Await the answer while the node serves.

    Raises:
        BadRequest: the node stopped serving, for example at the end of its lease; the change may never be finished.
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
    """Hold the definitions lock, once its holder hands it over.

    Raises:
        BadRequest: it was not handed over in time.
    """
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(DEFINITIONS_LOCK_TIMEOUT_S):
                await stack.enter_async_context(cluster.changing())
        except TimeoutError:
            status = cluster.status()
            holder, error = status["pen"], status["etcd"]["error"]
            who = (
                f"its holder is {holder}"
                if holder
                else f"no node holds it; etcd's last error: {error or 'none'}"
            )
            reason = (
                "definitions cannot be changed now: the definitions lock was not handed over within "
                f"{DEFINITIONS_LOCK_TIMEOUT_S:g} s; {who}"
            )
            raise BadRequest("unavailable", reason, HTTPStatus.SERVICE_UNAVAILABLE) from None
        yield


async def _in_cluster(handler: Handler, call: Call, rule: _Rule, *, changes: bool) -> Response:
    """The answer of a member of a cluster, or of the other member that has to answer."""
    node = await rule.place(call) if rule.place is not None and call.passed is None else None
    if node is not None:
        try:
            return await pass_on(call, node)
        except LeveretError:
            if changes:
                raise
            # This node's knowledge is better than none.
            call.unreachable.append(node)
    if changes and rule.defines:
        # A slow client must not keep the definitions lock from others.
        await call.octets()
        async with with_definitions_lock(call.cluster):
            reply = await handler(call)
    else:
        reply = await handler(call)
    if call.unreachable:
        reply.headers[UNREACHABLE] = ", ".join(sorted(set(call.unreachable)))
    return reply


def _comes_from_elsewhere(request: Request) -> bool:
    """Whether a browser sends this for a page of another site, with stored credentials."""
    origin = request.headers.get("origin")
    if origin is None or origin in request.app.state.node.config.management.allowed_origins:
        return False
    try:
        return urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:
        # No browser sends such an origin.
        return True


async def not_found(request: Request, error: Exception) -> Response:
    """The answer for a path that is no resource."""
    return error_reply(HTTPStatus.NOT_FOUND, "Object Not Found", "Not Found")


async def internal_error(request: Request, error: Exception) -> Response:
    """The answer after a bug in a handler; the stack trace is in the log, and the node goes on."""
    logger.error(
        "request_failed method=%s path=%s",
        request.method,
        request.url.path,
        exc_info=error,
    )
    return error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", "see the node's log")
