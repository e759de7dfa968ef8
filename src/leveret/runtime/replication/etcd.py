"""A client of etcd for what an election needs: read, transact, lease, watch.

etcd (3.4 and later) answers JSON over HTTP at the port of its own protocol; this speaks that through httpx's
transport. There are several endpoints: a request goes to the one that answered last, then to each of the
others, and no attempt takes longer than `attempt_timeout_s`. A connection on which something went wrong is
not used again. Only a linearizable read counts as what etcd holds; the stream of changes is a bell.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

import httpx
import msgspec

from leveret.config.uris import Endpoint
from leveret.core.election import Entry, Holds, Transaction, Unchanged
from leveret.model.errors import LeveretError

CLOSE_TIMEOUT_S: Final = 1.0
CONNECT_SHARE: Final = 0.45
"""Of an attempt's time, for TCP and for TLS each."""
_AGAIN_ELSEWHERE: Final = frozenset({1, 4, 14})
"""gRPC's codes of a member that can not answer now: canceled, deadline exceeded, unavailable."""
_UNKNOWN: Final = 2
_NOT_FOUND: Final = 5
_UNAUTHENTICATED: Final = 16
_TOKEN_IS_OLD: Final = ("invalid auth token", "auth: revision in header is old")
_NO_AUTHENTICATION: Final = "authentication is not enabled"

Answer = TypeVar("Answer")


class EtcdError(LeveretError):
    """etcd did not do what it was asked."""


class EtcdAway(EtcdError):
    """No endpoint answered in time. Whether what was asked for happened is not known."""


class EtcdRefused(EtcdError):
    """etcd answered that it will not.

    Attributes:
        code: gRPC's.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Failed(Exception):
    """This endpoint does not answer as it should; the text says how."""


_FAILURES: Final = (httpx.HTTPError, OSError, TimeoutError, _Failed)


class Snapshot(NamedTuple):
    """Keys at one revision of etcd."""

    revision: int
    entries: Mapping[str, Entry]


class Lease(NamedTuple):
    """A lease that etcd gave; `ttl_s` may be more than was asked for."""

    id: int
    ttl_s: int


# What etcd answers, as far as it is asked. Zeros are left out, 64-bit numbers are strings, octets are base64.


class _Header(msgspec.Struct):
    revision: int


class _KeyValue(msgspec.Struct):
    key: bytes
    mod_revision: int
    value: bytes = b""
    lease: int = 0


class _Ranged(msgspec.Struct):
    header: _Header
    kvs: list[_KeyValue] = []


class _Transacted(msgspec.Struct):
    header: _Header
    succeeded: bool = False


class _Granted(msgspec.Struct):
    id: int = msgspec.field(name="ID")
    ttl_s: int = msgspec.field(name="TTL")


class _Renewal(msgspec.Struct):
    ttl_s: int = msgspec.field(name="TTL", default=0)


class _Renewed(msgspec.Struct):
    result: _Renewal


class _Revoked(msgspec.Struct):
    header: _Header


class _LoggedIn(msgspec.Struct):
    token: str


class _Watching(msgspec.Struct):
    created: bool = False
    canceled: bool = False


class _Watched(msgspec.Struct):
    result: _Watching


class _Trouble(msgspec.Struct):
    message: str = ""
    code: int = 0
    grpc_code: int = 0


class _Problem(msgspec.Struct):
    """A refusal: flat, or within `error` where the answers are a stream."""

    error: str | _Trouble = ""
    message: str = ""
    code: int = 0


class Etcd:
    """The client; close it when it is no longer needed.

    Attributes:
        endpoint: the one that the next request goes to first.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        attempt_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to nothing yet; reads the system's certificates where an endpoint is `https`.

        Args:
            endpoints: members of one etcd, at least one.
            attempt_timeout_s: how long one endpoint has for an answer.
            tls: whom to trust instead of whom the system trusts, and which certificate to show.
        """
        self._endpoints = list(endpoints)
        self._attempt_timeout_s = attempt_timeout_s
        self.endpoint = self._endpoints[0]
        if tls is None and any(one.url.startswith("https:") for one in endpoints):
            tls = ssl.create_default_context()
        self._tls = tls
        self._shared: _Connections | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        self._tokens: dict[str, str] = {}

    async def close(self) -> None:
        """End the connections; what is under way gets a moment for that."""
        if self._shared is not None:
            await self._shared.retire()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_TIMEOUT_S)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def read(self, prefix: str) -> Snapshot:
        """All keys that begin with `prefix`, as a majority of etcd has them.

        Raises:
            EtcdError: it can not be had.
        """
        answer = await self._call("kv/range", _range(prefix), _Ranged)
        entries = {
            pair.key.decode(errors="replace"): Entry(pair.value, pair.mod_revision, pair.lease)
            for pair in answer.kvs
        }
        return Snapshot(answer.header.revision, entries)

    async def transact(self, transaction: Transaction, lease_id: int = 0) -> int | None:
        """Do the writes if the conditions hold: the revision they made, or None when one did not hold.

        None may also mean that an attempt at another endpoint did them, whose answer was lost: the caller has
        to read what etcd holds.

        Raises:
            EtcdAway: whether they were done is not known; they may yet be, for as long as the conditions hold.
            EtcdRefused: they were not done; code 5 when the lease is over.
        """
        body = {
            "compare": [_compare(condition) for condition in transaction.conditions],
            "success": [
                {"request_put": {"key": put.key.encode(), "value": put.value, "lease": lease_id * put.leased}}
                for put in transaction.puts
            ],
        }
        answer = await self._call("kv/txn", body, _Transacted)
        return answer.header.revision if answer.succeeded else None

    async def grant(self, ttl_s: int) -> Lease:
        """A new lease.

        Raises:
            EtcdError: there is none to be had.
        """
        answer = await self._call("lease/grant", {"TTL": ttl_s}, _Granted)
        return Lease(answer.id, answer.ttl_s)

    async def keep_alive(self, lease_id: int) -> int:
        """Have a lease begin anew: the seconds it lasts from now, 0 when it is over.

        Raises:
            EtcdError: it may last or not.
        """
        return (await self._call("lease/keepalive", {"ID": lease_id}, _Renewed)).result.ttl_s

    async def revoke(self, lease_id: int) -> None:
        """End a lease, and with it the keys that are tied to it; nothing happens when it is over.

        Raises:
            EtcdError: it may last until it ends by itself.
        """
        try:
            await self._call("lease/revoke", {"ID": lease_id}, _Revoked)
        except EtcdRefused as error:
            if error.code != _NOT_FOUND:
                raise

    async def changes(self, prefix: str, revision: int) -> AsyncIterator[None]:
        """Yield soon after keys under `prefix` were changed behind `revision`, once or more often; ends never.

        On a connection of its own. It may be cut without anybody noticing: read from time to time.

        Raises:
            EtcdError: there are no more changes to be had here.
        """
        endpoint, own = self.endpoint, _Connections(self._tls)
        try:
            token = await self._in_time(self._connect(own, endpoint, prefix))
            body = {"create_request": {**_range(prefix), "start_revision": revision + 1}}
            request = self._request(endpoint, "watch", body, token, read=None)
            async with asyncio.timeout(self._attempt_timeout_s):
                response = await own.transport.handle_async_request(request)
            async with aclosing(response):
                async for line in response.aiter_lines():
                    result = _decoded(response, line.encode(), _Watched).result
                    if result.canceled:
                        break
                    if not result.created:
                        yield
            raise EtcdAway(f"etcd at {endpoint} ended the watch of {prefix}")
        except _FAILURES as error:
            raise EtcdAway(f"etcd at {endpoint}: {_words(error)}") from error
        finally:
            await own.retire()

    async def _connect(self, connections: _Connections, endpoint: Endpoint, prefix: str) -> str:
        """Leave a connection that the next request finds; return what that is to show."""
        async with connections as transport:
            token = await self._token(transport, endpoint)
            question = {**_range(prefix), "serializable": True, "count_only": True}
            await _post(transport, self._request(endpoint, "kv/range", question, token), _Ranged)
            return token

    async def _call(self, path: str, body: object, kind: type[Answer]) -> Answer:
        """Ask one endpoint after the other; the first answer counts."""
        failures: list[str] = []
        begin = self._endpoints.index(self.endpoint)
        for endpoint in self._endpoints[begin:] + self._endpoints[:begin]:
            self.endpoint = endpoint
            if self._shared is None or self._shared.is_retired:
                self._shared = _Connections(self._tls)
            connections = self._shared
            try:
                return await self._in_time(self._ask(connections, endpoint, path, body, kind))
            except _FAILURES as error:
                failures.append(f"{endpoint} ({_words(error)})")
                await connections.retire()
        raise EtcdAway(
            f"no endpoint of etcd answers: {', '.join(failures)}; "
            "see that etcd runs and that cluster.etcd.endpoints says where"
        )

    async def _in_time(self, attempt: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for an attempt as long as it may take.

        Nobody's waiting any more does not cut it off, as that would leave a socket behind that was about to
        connect: it ends by its own timeouts.
        """
        task = asyncio.get_running_loop().create_task(attempt)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        async with asyncio.timeout(self._attempt_timeout_s):
            return await asyncio.shield(task)

    async def _ask(
        self,
        connections: _Connections,
        endpoint: Endpoint,
        path: str,
        body: object,
        kind: type[Answer],
    ) -> Answer:
        """Ask one endpoint, logging in where it wants that, and anew when it has forgotten the login."""
        async with connections as transport:
            token = await self._token(transport, endpoint)
            try:
                return await _post(transport, self._request(endpoint, path, body, token), kind)
            except EtcdRefused as error:
                is_old = error.code == _UNAUTHENTICATED or any(text in str(error) for text in _TOKEN_IS_OLD)
                if not (endpoint.username and is_old):
                    raise
            self._tokens.pop(endpoint.url, None)
            token = await self._token(transport, endpoint)
            return await _post(transport, self._request(endpoint, path, body, token), kind)

    async def _token(self, transport: httpx.AsyncHTTPTransport, endpoint: Endpoint) -> str:
        """What shows an endpoint who we are; empty where nobody asks."""
        if not endpoint.username:
            return ""
        if endpoint.url not in self._tokens:
            login = {"name": endpoint.username, "password": endpoint.password}
            try:
                request = self._request(endpoint, "auth/authenticate", login, "")
                self._tokens[endpoint.url] = (await _post(transport, request, _LoggedIn)).token
            except EtcdRefused as error:
                if _NO_AUTHENTICATION not in str(error):
                    raise EtcdRefused(
                        error.code, f"etcd at {endpoint} refuses user {endpoint.username}: {error}"
                    ) from error
                self._tokens[endpoint.url] = ""
        return self._tokens[endpoint.url]

    def _request(
        self, endpoint: Endpoint, path: str, body: object, token: str, **timeouts: float | None
    ) -> httpx.Request:
        connect_s, answer_s = self._attempt_timeout_s * CONNECT_SHARE, self._attempt_timeout_s
        return httpx.Request(
            "POST",
            f"{endpoint.url}/v3/{path}",
            headers={"Authorization": token} if token else {},
            content=msgspec.json.encode(body),
            extensions={"timeout": {"connect": connect_s, "write": answer_s, "read": answer_s, **timeouts}},
        )


class _Connections:
    """Connections that several requests share; once something went wrong, until the last of them is done.

    Attributes:
        transport: what makes, keeps and uses them.
        is_retired: no other request is to begin here.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        # No limit: a connection that was given up while it was made would count for ever. And without a
        # context there is no https endpoint, so there is nothing to verify.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.transport = httpx.AsyncHTTPTransport(verify=tls or False, limits=limits, trust_env=False)
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
        """Close them now, or when they are no longer used: what is closed while it connects is not closed at all."""
        self.is_retired = True
        if not self._users:
            # A peer that hangs does not keep us.
            with suppress(httpx.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self.transport.aclose()


async def _post(transport: httpx.AsyncHTTPTransport, request: httpx.Request, kind: type[Answer]) -> Answer:
    """One request and its answer.

    Raises:
        EtcdRefused: as etcd says.
        _Failed: this endpoint can not answer now, or is no etcd.
    """
    response = await transport.handle_async_request(request)
    async with aclosing(response):
        return _decoded(response, await response.aread(), kind)


def _decoded(response: httpx.Response, octets: bytes, kind: type[Answer]) -> Answer:
    """An answer, or a piece of one, as `_post` describes it."""
    try:
        if response.status_code == HTTPStatus.OK:
            with suppress(msgspec.ValidationError):
                return msgspec.json.decode(octets, type=kind, strict=False)
        problem = msgspec.json.decode(octets, type=_Problem, strict=False)
    except msgspec.DecodeError:
        raise _Failed(f"HTTP status {response.status_code}, not the words of etcd 3.4 or later") from None
    inner = problem.error if isinstance(problem.error, _Trouble) else _Trouble(problem.error)
    code = problem.code or inner.code or inner.grpc_code or _UNKNOWN
    text = problem.message or inner.message or f"HTTP status {response.status_code} without a reason"
    if code in _AGAIN_ELSEWHERE:
        raise _Failed(text)
    raise EtcdRefused(code, text)


def _range(prefix: str) -> dict[str, bytes]:
    """All keys with this prefix: those from it to before the next text of its length."""
    octets = prefix.encode()
    return {"key": octets, "range_end": octets[:-1] + bytes((octets[-1] + 1,))}


def _compare(condition: Unchanged | Holds) -> dict[str, str | bytes | int]:
    match condition:
        case Unchanged(key, modified):
            return {"key": key.encode(), "result": "EQUAL", "target": "MOD", "mod_revision": modified}
        case Holds(key, value):
            return {"key": key.encode(), "result": "EQUAL", "target": "VALUE", "value": value}


def _words(error: BaseException) -> str:
    """An error in words; some of those of time have none."""
    is_late = isinstance(error, TimeoutError | httpx.TimeoutException)
    return str(error) or ("no answer in time" if is_late else type(error).__name__)
