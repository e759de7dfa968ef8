"""The sources of an upstream's schema: another node's AMQP listener, or a management API.

A `SchemaSource` updates the known schema of the upstream; each source has its own way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, NamedTuple, Protocol

from leveret.config.sections.tls import TlsOptions
from leveret.core.schema.delta import transient_queues, travels
from leveret.model.definitions import Definitions, Put
from leveret.model.errors import LeveretError, PeerError, Refusal
from leveret.runtime.process.work_slices import in_slices, result_of
from leveret.runtime.schema_sync.endpoints import SchemaUpstreamParameter, UpstreamEndpoint
from leveret.runtime.schema_sync.link import SchemaLink, open_link
from leveret.runtime.sockets.tls import client_context
from leveret.session.amqp10.client import SchemaLinkClient, SchemaLinkError
from leveret.session.schema_exchange import SchemaFollower
from leveret.wire.schema_sync import SyncRequest, decode_reply, encode_request

TLS_SETTINGS: Final = "schema_definition_sync.downstream.ssl_options"


class SchemaSource(Protocol):
    """One connection to an upstream, or its equivalent.

    Attributes:
        sent_bytes: octets sent to the upstream so far.
        received_bytes: octets received from it.
    """

    @property
    def sent_bytes(self) -> int:
        """See the class."""

    @property
    def received_bytes(self) -> int:
        """See the class."""

    @property
    def failure(self) -> LeveretError | None:
        """The reason for which nothing can be fetched any more."""

    @property
    def unreadable(self) -> Sequence[str]:
        """Entities of the upstream that this node cannot have, with the reasons."""

    @property
    def is_behind(self) -> bool:
        """Whether the upstream changed during the last `fetch`, and no notice will follow."""

    async def fetch(self, theirs: Definitions) -> str:
        """Update `theirs`; return the name of the upstream's cluster.

        Raises:
            Refusal: the upstream declines; it may be asked again.
            LeveretError: it cannot be asked any more.
        """

    def close(self) -> None:
        """Close the connection in order."""


class UpstreamRequest(NamedTuple):
    """The request with which a downstream connects to its upstream's listeners.

    Attributes:
        container_id: the downstream's name for itself.
        cluster: the name of its cluster.
        tls: `ssl_options` of the downstream.
    """

    container_id: str
    cluster: str
    tls: TlsOptions
    connect_timeout_s: float
    reply_timeout_s: float


async def likely_theirs(own: Definitions) -> Definitions:
    """Return the probable schema of an upstream before its first answer: the downstream's own."""
    theirs = Definitions()
    transient = transient_queues(own.by_kind["queues"].values())
    async for entity in in_slices(own.entities()):
        if travels(entity, transient):
            theirs.apply(Put(entity))
    return theirs


class AmqpSource:
    """Digests and differences, over AMQP 1.0."""

    unreadable: Sequence[str] = ()

    def __init__(self, link: SchemaLink, cluster: str, reply_timeout_s: float) -> None:
        """Use an open link."""
        self._link = link
        self._cluster = cluster
        self._reply_timeout_s = reply_timeout_s
        self._following: SchemaFollower | None = None

    @property
    def sent_bytes(self) -> int:
        """See Source."""
        return self._link.sent_bytes

    @property
    def received_bytes(self) -> int:
        """See Source."""
        return self._link.received_bytes

    @property
    def failure(self) -> LeveretError | None:
        """See Source."""
        return self._link.failure

    @property
    def is_behind(self) -> bool:
        """See Source."""
        return self._following is not None and self._following.has_moved

    async def fetch(self, theirs: Definitions) -> str:
        """See Source."""
        # The digests are stored: an entity is digested once as long as the link is open.
        if self._following is None or self._following.theirs is not theirs:
            self._following = SchemaFollower(theirs, self._cluster)
        following = self._following
        # Those that the last sync brought are due as well, and may be all.
        async for _ in in_slices(following.digesting()):
            pass
        request: SyncRequest | None = following.begin()
        while request is not None:
            body = await self._link.request(encode_request(request), self._reply_timeout_s)
            request = await result_of(following.taking(decode_reply(body)))
        return following.upstream_cluster

    def close(self) -> None:
        """See Source."""
        self._link.close()


async def fetch_from(endpoint: UpstreamEndpoint, source: SchemaSource, theirs: Definitions) -> str:
    """As `fetch` of a source; errors name the endpoint.

    Raises:
        Refusal: the upstream declines.
        PeerError: it cannot be asked any more.
    """
    try:
        return await source.fetch(theirs)
    except (Refusal, PeerError) as error:
        raise at(endpoint, error) from error


def at(endpoint: UpstreamEndpoint, error: LeveretError) -> LeveretError:
    """Return the same error with the name of its endpoint."""
    return type(error)(f"{endpoint}: {error}")


async def connect_first(
    upstream: SchemaUpstreamParameter,
    asked: UpstreamRequest,
    on_lost: Callable[[], None],
    on_notice: Callable[[], None],
    behind: UpstreamEndpoint | None = None,
) -> tuple[UpstreamEndpoint, SchemaSource]:
    """Connect to the first endpoint that accepts the user; each has the timeout of `asked`.

    `on_lost` is called once when an open source fails, `on_notice` when an upstream reports a change. The endpoint
    after `behind` is tried first, and `behind` last.

    Raises:
        Refusal: no endpoint accepts; this is the refusal of the first one that refused.
        SchemaLinkError: no endpoint answers; names each endpoint with its reason.
        ConfigError: TLS is wanted, and a certificate cannot be used.
    """
    refusal: Refusal | None = None
    reasons: list[str] = []
    for endpoint in _from_behind(upstream.endpoints, behind):
        tls = _tls(endpoint, asked.tls)
        try:
            async with asyncio.timeout(asked.connect_timeout_s):
                return endpoint, await _connect(endpoint, upstream, asked, tls, on_lost, on_notice)
        except Refusal as error:
            refusal = refusal or type(error)(f"{endpoint}: {error}")
        except TimeoutError:
            reasons.append(f"{endpoint} does not answer within {asked.connect_timeout_s:g} s")
        # ValueError: a host name that is invalid under the rules of IDNA.
        except (OSError, ValueError, SchemaLinkError) as error:
            reasons.append(f"{endpoint}: {error}")
    raise refusal or SchemaLinkError("; ".join(reasons))


async def fetch_first(
    upstream: SchemaUpstreamParameter, asked: UpstreamRequest, theirs: Definitions
) -> Sequence[str]:
    """Update `theirs` once, from the first endpoint that answers, in the order in which a downstream tries them.

    Returns:
        Entities of the upstream that this node cannot have, with the reasons.

    Raises:
        Refusal: no endpoint answers; this is the refusal of the first one that declined.
        SchemaLinkError: no endpoint answers, and none declined; names each endpoint with its reason.
        ConfigError: TLS is wanted, and a certificate cannot be used.
    """
    refusal: Refusal | None = None
    reasons: list[str] = []
    for each in upstream.endpoints:
        alone = upstream._replace(endpoints=[each])
        try:
            endpoint, source = await connect_first(alone, asked, lambda: None, lambda: None)
            try:
                await fetch_from(endpoint, source, theirs)
            finally:
                source.close()
            return source.unreadable
        except Refusal as error:
            refusal = refusal or error
        except PeerError as error:
            reasons.append(str(error))
    raise refusal or SchemaLinkError("; ".join(reasons))


def _from_behind(
    endpoints: Sequence[UpstreamEndpoint], last: UpstreamEndpoint | None
) -> Sequence[UpstreamEndpoint]:
    """Return the endpoints in their order, beginning after `last` if that is one of them."""
    begin = endpoints.index(last) + 1 if last in endpoints else 0
    return [*endpoints[begin:], *endpoints[:begin]]


async def _connect(
    endpoint: UpstreamEndpoint,
    upstream: SchemaUpstreamParameter,
    asked: UpstreamRequest,
    tls: ssl.SSLContext | None,
    on_lost: Callable[[], None],
    on_notice: Callable[[], None],
) -> SchemaSource:
    if endpoint.is_http:
        # Importing an HTTP client takes a tenth of a second: a start without such an upstream saves it, and the loop
        # does not wait for it.
        module = await asyncio.to_thread(import_module, "leveret.runtime.schema_sync.http_source")
        source = module.HttpSource(endpoint, upstream, tls, asked.reply_timeout_s)
        await source.open()
        opened: SchemaSource = source
        return opened
    client = SchemaLinkClient(
        container_id=asked.container_id, username=upstream.username, password=upstream.password
    )
    link = await open_link(endpoint, client, tls, on_lost, on_notice)
    return AmqpSource(link, asked.cluster, asked.reply_timeout_s)


def _tls(endpoint: UpstreamEndpoint, options: TlsOptions) -> ssl.SSLContext | None:
    """Renewed certificates hold for the next connection, so each connection gets a new context."""
    is_configured = not endpoint.scheme and options != TlsOptions()
    if endpoint.scheme in ("amqps", "https") or is_configured:
        return client_context(options, TLS_SETTINGS)
    return None
