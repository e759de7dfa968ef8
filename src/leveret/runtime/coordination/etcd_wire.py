"""Requests to etcd and its answers, as JSON over HTTP, and the connections for them; see coordination.etcd."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from http import HTTPStatus
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

import httpx
import msgspec

from leveret.core.replication.cluster import Event
from leveret.core.replication.election import (
    DeleteKey,
    Holds,
    PutKey,
    StoredValue,
    StoreTransaction,
    Unchanged,
)
from leveret.model import foreign_json
from leveret.model.errors import LeveretError

CLOSE_TIMEOUT_S: Final = 1.0
_DECODE: Final = partial(msgspec.json.decode, strict=False)
_AGAIN_ELSEWHERE: Final = frozenset({1, 4, 14})
"""gRPC's codes of a member that cannot answer now: canceled, deadline exceeded, unavailable."""
_UNKNOWN: Final = 2
_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Keepalives detect a lost machine within five seconds although nothing is sent: a watch only receives."""

Answer = TypeVar("Answer")


class EtcdError(LeveretError):
    """A request to etcd failed."""


class EtcdUnreachable(EtcdError):
    """No endpoint answered in time; whether the request took effect is unknown."""


class EtcdRefused(EtcdError):
    """etcd refused a request.

    Attributes:
        code: gRPC's code.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class EtcdCompacted(EtcdUnreachable):
    """The requested revision is compacted: the keys have to be read again."""


class EndpointFailed(Exception):
    """An endpoint gave no proper answer; the text has the reason."""


FAILURES: Final = (httpx.HTTPError, OSError, TimeoutError, EndpointFailed)


class Snapshot(NamedTuple):
    """Keys at one revision of etcd."""

    revision: int
    entries: Mapping[str, StoredValue]


class WatchEvents(NamedTuple):
    """All changes of watched keys in one revision of etcd."""

    revision: int
    events: list[Event]


class GrantedLease(NamedTuple):
    """A lease that etcd granted; `ttl_s` may be longer than requested."""

    id: int
    ttl_s: int


# The used parts of etcd's answers. etcd omits zeros, encodes 64-bit numbers as strings, and octets in base64.


class ResponseHeader(msgspec.Struct):
    """The begin of every answer: the store's revision."""

    revision: int


class KeyValue(msgspec.Struct):
    """A key, its value, the revisions that wrote and that made it, and the lease that it is bound to."""

    key: bytes
    mod_revision: int
    create_revision: int = 0
    value: bytes = b""
    lease: int = 0

    @property
    def name(self) -> str:
        """The key as text; a key that is no text is not Leveret's."""
        return self.key.decode(errors="replace")


class Ranged(msgspec.Struct):
    """Keys that were read; `more` follow."""

    header: ResponseHeader
    kvs: list[KeyValue] = []
    more: bool = False


class Transacted(msgspec.Struct):
    """Whether the conditions of a transaction held."""

    header: ResponseHeader
    succeeded: bool = False


class Granted(msgspec.Struct):
    """A new lease."""

    id: int = msgspec.field(name="ID")
    ttl_s: int = msgspec.field(name="TTL")


class Renewal(msgspec.Struct):
    """The remaining time of a lease; 0: it has ended."""

    ttl_s: int = msgspec.field(name="TTL", default=0)


class Renewed(msgspec.Struct):
    """The first of a stream of renewals."""

    result: Renewal


class Revoked(msgspec.Struct):
    """A lease is over."""

    header: ResponseHeader


class HistoryCompacted(msgspec.Struct):
    """Earlier revisions are forgotten."""

    header: ResponseHeader


class LoggedIn(msgspec.Struct):
    """The token that authenticates later requests."""

    token: str


class KeyEvent(msgspec.Struct):
    """A key was written, or deleted."""

    kv: KeyValue
    type: str = "PUT"

    @property
    def event(self) -> Event:
        """The change as an Event."""
        kv = self.kv
        if self.type == "DELETE":
            return Event(kv.name, None, kv.mod_revision)
        return Event(kv.name, kv.value, kv.mod_revision, created=kv.create_revision)


class WatchResponse(msgspec.Struct):
    """A report of a watch."""

    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: list[KeyEvent] = []

    def batches(self) -> Iterator[WatchEvents]:
        """Yield the changes, one revision after the other."""
        for revision, events in groupby(self.events, key=lambda event: event.kv.mod_revision):
            yield WatchEvents(revision, [one.event for one in events])


class WatchMessage(msgspec.Struct):
    """One message of a watch's stream."""

    result: WatchResponse


class _Trouble(msgspec.Struct):
    message: str = ""
    code: int = 0
    grpc_code: int = 0


class _Problem(msgspec.Struct):
    """A refusal: flat, or within `error` where the answers are a stream."""

    error: str | _Trouble = ""
    message: str = ""
    code: int = 0


class ConnectionPool:
    """Connections that several requests share; after an error, until the last of these requests ends.

    Attributes:
        transport: makes, keeps and uses the connections.
        is_retired: whether new requests must use another pool.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        # No limit: a connection that was given up while it was made would count for ever. Without a context there is
        # no https endpoint, so there is nothing to verify.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.transport = httpx.AsyncHTTPTransport(
            verify=tls or False, limits=limits, trust_env=False, socket_options=_ALIVE
        )
        self.is_retired = False
        self._users = 0

    async def __aenter__(self) -> httpx.AsyncHTTPTransport:
        self._users += 1
        return self.transport

    async def __aexit__(self, *error: object) -> None:
        self._users -= 1
        if self.is_retired:
            await self.retire()

    async def retire(self) -> None:
        """Close the connections now, or after their last use: closing does not work while one connects."""
        self.is_retired = True
        if not self._users:
            # A peer that hangs must not delay the caller.
            with suppress(httpx.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self.transport.aclose()


async def sent(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
    """Send a request; return the response once its head has arrived.

    Raises:
        FAILURES: this endpoint does not answer.
    """
    try:
        return await transport.handle_async_request(request)
    except AttributeError as error:
        # httpcore sets options of the new connection's socket, which is gone if the peer has reset it by then.
        raise EndpointFailed("the connection was reset as it was made") from error


async def post(transport: httpx.AsyncHTTPTransport, request: httpx.Request, kind: type[Answer]) -> Answer:
    """Send a request and return its answer.

    Raises:
        EtcdRefused: etcd refuses the request.
        EndpointFailed: this endpoint cannot answer now, or is no etcd.
    """
    response = await sent(transport, request)
    async with aclosing(response):
        return decoded(response, await response.aread(), kind)


def decoded(response: httpx.Response, octets: bytes, kind: type[Answer]) -> Answer:
    """Decode an answer, or a piece of one; for errors see `post`."""
    try:
        if response.status_code == HTTPStatus.OK:
            with suppress(msgspec.ValidationError):
                return foreign_json.decoded(_DECODE, octets, kind)
        problem = foreign_json.decoded(_DECODE, octets, _Problem)
    except msgspec.DecodeError:
        raise EndpointFailed(
            f"HTTP status {response.status_code}, not the words of etcd 3.4 or later"
        ) from None
    inner = problem.error if isinstance(problem.error, _Trouble) else _Trouble(problem.error)
    code = problem.code or inner.code or inner.grpc_code or _UNKNOWN
    text = problem.message or inner.message or f"HTTP status {response.status_code} without a reason"
    if code in _AGAIN_ELSEWHERE:
        raise EndpointFailed(text)
    raise EtcdRefused(code, text)


def prefix_range(prefix: str) -> dict[str, bytes]:
    """Return the range of all keys with this prefix: those from it to before the next text of its length."""
    octets = prefix.encode()
    return {"key": octets, "range_end": octets[:-1] + bytes((octets[-1] + 1,))}


def transaction_body(transaction: StoreTransaction, lease_id: int) -> dict[str, object]:
    """Return a transaction in etcd's format."""
    return {
        "compare": [_compare(condition) for condition in transaction.conditions],
        "success": [_request(write, lease_id) for write in transaction.writes],
    }


def _compare(condition: Unchanged | Holds) -> dict[str, str | bytes | int]:
    match condition:
        case Unchanged(key, modified):
            return {"key": key.encode(), "result": "EQUAL", "target": "MOD", "mod_revision": modified}
        case Holds(key, value):
            return {"key": key.encode(), "result": "EQUAL", "target": "VALUE", "value": value}


def _request(write: PutKey | DeleteKey, lease_id: int) -> dict[str, object]:
    match write:
        case PutKey(key, value, leased):
            return {"request_put": {"key": key.encode(), "value": value, "lease": lease_id * leased}}
        case DeleteKey(key, is_prefix):
            return {"request_delete_range": prefix_range(key) if is_prefix else {"key": key.encode()}}


def words(error: BaseException) -> str:
    """Return an error's text; some timeouts have none."""
    is_late = isinstance(error, TimeoutError | httpx.TimeoutException)
    return str(error) or ("no answer in time" if is_late else type(error).__name__)
