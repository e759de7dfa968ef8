"""A client of etcd, for elections and for clusters: read, transact, lease, watch.

etcd (3.4 and later) answers JSON over HTTP at the port of its own protocol; this client uses httpx's transport. A
request goes to the endpoint that answered last, then to each of the others, and no attempt takes longer than
`attempt_timeout_s`. A connection with an error is not used again. Only a linearizable read shows the present keys; a
watch reports later changes, possibly late.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

import httpx
import msgspec

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.sections.tls import TlsOptions
from leveret.config.uris import EtcdEndpoint
from leveret.core.replication.election import StoredValue, StoreTransaction
from leveret.runtime.coordination.etcd_wire import (
    CLOSE_TIMEOUT_S,
    FAILURES,
    ConnectionPool,
    EtcdCompacted,
    EtcdError,
    EtcdRefused,
    EtcdUnreachable,
    Granted,
    GrantedLease,
    HistoryCompacted,
    LoggedIn,
    Ranged,
    Renewed,
    Revoked,
    Snapshot,
    Transacted,
    WatchEvents,
    WatchMessage,
    decoded,
    post,
    prefix_range,
    sent,
    transaction_body,
    words,
)
from leveret.runtime.process.outcomes import outcome_of
from leveret.runtime.sockets.tls import client_context
from leveret.wire.tls import be_forward_secret

__all__ = [
    "Etcd",
    "EtcdCompacted",
    "EtcdError",
    "EtcdRefused",
    "EtcdUnreachable",
    "GrantedLease",
    "Snapshot",
    "WatchEvents",
    "etcd_context",
]

CONNECT_SHARE: Final = 0.45
"""The share of an attempt's time for TCP, and the same for TLS."""
PAGE: Final = 1000
"""The keys of one read: a few hundred kilobytes of them."""
READS_MAX: Final = 3
"""Attempts to read all pages before etcd compacts their revision."""
_NOT_FOUND: Final = 5
_OUT_OF_RANGE: Final = 11
_UNAUTHENTICATED: Final = 16
_TOKEN_IS_OLD: Final = ("invalid auth token", "auth: revision in header is old")
_NO_AUTHENTICATION: Final = "authentication is not enabled"

Answer = TypeVar("Answer")


def etcd_context(options: EtcdOptions) -> ssl.SSLContext | None:
    """Return the TLS context for the configured authorities of etcd; None for the system's.

    Raises:
        ConfigError: the file is missing, or has no certificates.
    """
    if options.cacertfile is None:
        return None
    trust = TlsOptions(verify="verify_peer", cacertfile=options.cacertfile)
    return client_context(trust, "cluster.etcd.ssl_options")


class Etcd:
    """The client; close it after use.

    Attributes:
        endpoint: the next request goes to this one first.
    """

    def __init__(
        self,
        endpoints: Sequence[EtcdEndpoint],
        attempt_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to nothing yet; reads the system's certificates if an endpoint is `https`.

        Args:
            endpoints: members of one etcd, at least one.
            attempt_timeout_s: the time in which one endpoint must answer.
            tls: trusted authorities other than the system's, and the client certificate.
        """
        self._endpoints = list(endpoints)
        self._attempt_timeout_s = attempt_timeout_s
        self.endpoint = self._endpoints[0]
        if tls is None and any(one.url.startswith("https:") for one in endpoints):
            tls = be_forward_secret(ssl.create_default_context())
        self._tls = tls
        self._shared: ConnectionPool | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        self._tokens: dict[str, str] = {}

    async def close(self) -> None:
        """End the connections; requests under way get CLOSE_TIMEOUT_S to end."""
        if self._shared is not None:
            await self._shared.retire()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_TIMEOUT_S)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def read(self, prefix: str, page: int = PAGE) -> Snapshot:
        """Return all keys that begin with `prefix`, as a majority of etcd has them, read `page` at a time.

        Raises:
            EtcdError: etcd does not answer, or refuses.
        """
        for _ in range(READS_MAX):
            with suppress(EtcdCompacted):
                return await self._read(prefix, page)
        raise EtcdCompacted(f"etcd forgets revisions faster than all keys below {prefix} can be read")

    async def _read(self, prefix: str, page: int) -> Snapshot:
        question: dict[str, object] = {**prefix_range(prefix), "limit": page}
        entries: dict[str, StoredValue] = {}
        while True:
            try:
                answer = await self._call("kv/range", question, Ranged)
            except EtcdRefused as error:
                if error.code == _OUT_OF_RANGE:
                    raise EtcdCompacted(
                        f"etcd has forgotten a revision that was being read: {error}"
                    ) from error
                raise
            for pair in answer.kvs:
                entries[pair.name] = StoredValue(
                    pair.value, pair.mod_revision, pair.lease, pair.create_revision
                )
            # All further pages are read at the revision of the first.
            revision = int(str(question.setdefault("revision", answer.header.revision)))
            if not answer.more:
                return Snapshot(revision, entries)
            question["key"] = answer.kvs[-1].key + b"\0"

    async def transact(self, transaction: StoreTransaction, lease_id: int = 0) -> int | None:
        """Do the writes if the conditions hold; return their revision, or None if a condition did not hold.

        None may also mean that an attempt at another endpoint did them and its answer was lost: the caller must read
        the keys. Deletes of missing keys make no revision: then the result is an earlier one.

        Raises:
            EtcdUnreachable: whether the writes were done is unknown; they may be as long as the conditions hold.
            EtcdRefused: an endpoint did not do the writes, one before it may have; code 5 if the lease is over.
        """
        answer = await self._call("kv/txn", transaction_body(transaction, lease_id), Transacted)
        return answer.header.revision if answer.succeeded else None

    async def grant(self, ttl_s: int) -> GrantedLease:
        """Return a new lease.

        Raises:
            EtcdError: etcd does not answer, or refuses.
        """
        answer = await self._call("lease/grant", {"TTL": ttl_s}, Granted)
        return GrantedLease(answer.id, answer.ttl_s)

    async def keep_alive(self, lease_id: int) -> int:
        """Renew a lease; return its remaining time in seconds, 0 if it is over.

        Raises:
            EtcdError: the lease may or may not have been renewed.
        """
        return (await self._call("lease/keepalive", {"ID": lease_id}, Renewed)).result.ttl_s

    async def revoke(self, lease_id: int) -> None:
        """End a lease, and with it the keys that are bound to it; does nothing if the lease is over.

        Raises:
            EtcdError: the lease may last until it ends by itself.
        """
        try:
            await self._call("lease/revoke", {"ID": lease_id}, Revoked)
        except EtcdRefused as error:
            if error.code != _NOT_FOUND:
                raise

    async def compact(self, revision: int) -> None:
        """Have etcd forget the revisions before one; does nothing if it has forgotten them.

        Raises:
            EtcdError: etcd may keep them.
        """
        try:
            await self._call("kv/compaction", {"revision": revision}, HistoryCompacted)
        except EtcdRefused as error:
            if error.code != _OUT_OF_RANGE:
                raise

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[WatchEvents, None]:
        """Yield the changes of keys under `prefix` after `revision`, in order and without gaps; never ends by itself.

        The watch begins at the known `revision` itself. If it began behind that, at a revision to which etcd has been
        compacted, older etcds would silently omit the deletions of that revision (etcd's issue 18089). Begun at
        `revision`, such a watch is refused.

        The watch has its own connection. A peer that is gone is noticed in seconds. A peer that hangs, or a member that
        is cut off from the rest of etcd, is not: send other requests to the same endpoint from time to time.

        Raises:
            EtcdCompacted: changes after `revision` may be lost: read all keys, and watch from there.
            EtcdError: this endpoint has ended the watch.
        """
        endpoint, own = self.endpoint, ConnectionPool(self._tls)
        try:
            token = await self._in_time(self._connect(own, endpoint, prefix))
            body = {"create_request": {**prefix_range(prefix), "start_revision": max(1, revision)}}
            request = self._request(endpoint, "watch", body, token, read=None)
            async with asyncio.timeout(self._attempt_timeout_s):
                response = await sent(own.transport, request)
            async with aclosing(response):
                async for line in response.aiter_lines():
                    result = decoded(response, line.encode(), WatchMessage).result
                    if result.compact_revision:
                        raise EtcdCompacted(
                            f"etcd at {endpoint} has compacted the revisions before {result.compact_revision}"
                        )
                    if result.canceled:
                        raise EtcdUnreachable(
                            f"etcd at {endpoint} cancels the watch of {prefix}: {result.cancel_reason}"
                        )
                    for batch in result.batches():
                        if batch.revision > revision:
                            yield batch
            raise EtcdUnreachable(f"etcd at {endpoint} ended the watch of {prefix}")
        except FAILURES as error:
            raise EtcdUnreachable(f"etcd at {endpoint}: {words(error)}") from error
        finally:
            await own.retire()

    async def _connect(self, connections: ConnectionPool, endpoint: EtcdEndpoint, prefix: str) -> str:
        """Leave a connection for the next request to find; return the request's token."""
        async with connections as transport:
            token = await self._token(transport, endpoint)
            question = {**prefix_range(prefix), "serializable": True, "count_only": True}
            await post(transport, self._request(endpoint, "kv/range", question, token), Ranged)
            return token

    async def _call(self, path: str, body: object, kind: type[Answer]) -> Answer:
        """Send a request to one endpoint after the other; the first answer counts."""
        failures: list[str] = []
        begin = self._endpoints.index(self.endpoint)
        for endpoint in self._endpoints[begin:] + self._endpoints[:begin]:
            self.endpoint = endpoint
            if self._shared is None or self._shared.is_retired:
                self._shared = ConnectionPool(self._tls)
            connections = self._shared
            try:
                return await self._in_time(self._ask(connections, endpoint, path, body, kind))
            except FAILURES as error:
                failures.append(f"{endpoint} ({words(error)})")
                await connections.retire()
        raise EtcdUnreachable(
            f"no endpoint of etcd answers: {', '.join(failures)}; "
            "check that etcd runs and that cluster.etcd.endpoints has its addresses"
        )

    async def _in_time(self, attempt: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for an attempt until its timeout.

        A cancelled caller does not cancel the attempt, which would leak a socket that was about to connect: the
        attempt ends by its own timeouts.
        """
        task = asyncio.get_running_loop().create_task(attempt)
        self._under_way.add(task)
        task.add_done_callback(self._over)
        async with asyncio.timeout(self._attempt_timeout_s):
            return await outcome_of(task)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Retrieved, because possibly no caller waits any more.

    async def _ask(
        self,
        connections: ConnectionPool,
        endpoint: EtcdEndpoint,
        path: str,
        body: object,
        kind: type[Answer],
    ) -> Answer:
        """Send a request to one endpoint; log in if necessary, and again if the endpoint has forgotten the token."""
        async with connections as transport:
            token = await self._token(transport, endpoint)
            try:
                return await post(transport, self._request(endpoint, path, body, token), kind)
            except EtcdRefused as error:
                is_old = error.code == _UNAUTHENTICATED or any(text in str(error) for text in _TOKEN_IS_OLD)
                if not (endpoint.username and is_old):
                    raise
            self._tokens.pop(endpoint.url, None)
            token = await self._token(transport, endpoint)
            return await post(transport, self._request(endpoint, path, body, token), kind)

    async def _token(self, transport: httpx.AsyncHTTPTransport, endpoint: EtcdEndpoint) -> str:
        """Return the token for an endpoint; empty if etcd does not authenticate."""
        if not endpoint.username:
            return ""
        if endpoint.url not in self._tokens:
            login = {"name": endpoint.username, "password": endpoint.password}
            try:
                request = self._request(endpoint, "auth/authenticate", login, "")
                self._tokens[endpoint.url] = (await post(transport, request, LoggedIn)).token
            except EtcdRefused as error:
                if _NO_AUTHENTICATION not in str(error):
                    raise EtcdRefused(
                        error.code, f"etcd at {endpoint} refuses user {endpoint.username}: {error}"
                    ) from error
                self._tokens[endpoint.url] = ""
        return self._tokens[endpoint.url]

    def _request(
        self, endpoint: EtcdEndpoint, path: str, body: object, token: str, **timeouts: float | None
    ) -> httpx.Request:
        connect_s, answer_s = self._attempt_timeout_s * CONNECT_SHARE, self._attempt_timeout_s
        return httpx.Request(
            "POST",
            f"{endpoint.url}/v3/{path}",
            headers={"Authorization": token} if token else {},
            content=msgspec.json.encode(body),
            extensions={"timeout": {"connect": connect_s, "write": answer_s, "read": answer_s, **timeouts}},
        )
