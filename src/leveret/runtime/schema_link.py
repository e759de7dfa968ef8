"""A downstream's socket to its upstream: endpoints, the first that answers, one request at a time.

`session.amqp10_client` decides what is said; this sends it, keeps time and turns the end of the
connection into an error. Nothing here retries: `runtime.schema_downstream` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from leveret.model.errors import InvalidCommand, LeveretError, Refusal
from leveret.session.amqp10_client import SchemaLinkClient, SchemaLinkError

logger = logging.getLogger(__name__)


class Endpoint(NamedTuple):
    """Where an upstream listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Upstream(NamedTuple):
    """The value of the global parameter: endpoints in the order to try them, and the user to log in as."""

    endpoints: list[Endpoint]
    username: str
    password: str


class _Value(msgspec.Struct):
    endpoints: list[str]
    username: str
    password: str


def parse_upstream(value: object) -> Upstream:
    """Read `{"endpoints": ["host:port", ...], "username": ..., "password": ...}`.

    Raises:
        InvalidCommand: names the field that is missing or malformed; never shows the password.
    """
    try:
        read = msgspec.convert(value, type=_Value)
    except msgspec.ValidationError as error:
        raise InvalidCommand(f"upstream endpoints: {error}") from None
    for field in ("endpoints", "username", "password"):
        if not getattr(read, field):
            raise InvalidCommand(f"upstream endpoints: field `{field}` is empty")
    endpoints = [_endpoint(index, text) for index, text in enumerate(read.endpoints)]
    return Upstream(endpoints, read.username, read.password)


def _endpoint(index: int, text: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or "/" in bare or not _is_port(port):
        raise InvalidCommand(f"upstream endpoints: field `endpoints[{index}]`: '{text}' is not host:port")
    return Endpoint(bare, int(port))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


class SchemaLink(asyncio.Protocol):
    """One connection to an upstream.

    Attributes:
        opened: done when the first request may be sent, or failed with what prevents it.
        failure: why there is no link any more; None while there is.
    """

    def __init__(self, client: SchemaLinkClient, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called once, when the link fails after it was open."""
        self.failure: LeveretError | None = None
        self._client = client
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._reply: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def request(self, body: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its reply.

        Raises:
            Refusal: the upstream rejected the request; the link stays.
            SchemaLinkError: the link failed, the reply is none, or there was none in time.
        """
        if self.failure is not None:
            raise self.failure
        self._reply = self._loop.create_future()
        self._write(self._client.request(body, self._now_ms()))
        self._react()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reply
        except TimeoutError:
            raise SchemaLinkError(f"the upstream did not reply within {timeout_s:g} s") from None
        finally:
            self._reply = None

    def close(self) -> None:
        """Say good-bye and close."""
        if self._transport is not None and self.failure is None:
            self._write(self._client.close(self._now_ms()))
        self._fail(SchemaLinkError("the link was closed"))

    # -- the transport's calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected: log in."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._write(self._client.start(self._now_ms()))
        self._react()

    def data_received(self, data: bytes) -> None:
        """The upstream said something."""
        self._write(self._client.receive(data, self._now_ms()))
        self._react()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._transport = None
        self._fail(SchemaLinkError(f"the connection was lost: {exc or 'the upstream closed it'}"))

    def _tick(self) -> None:
        self._write(self._client.tick(self._now_ms()))
        self._react()

    def _react(self) -> None:
        client = self._client
        if client.failure is not None:
            self._fail(client.failure)
            return
        if client.ready and not self.opened.done():
            self.opened.set_result(None)
        outcome = client.outcome
        if outcome is not None and self._reply is not None and not self._reply.done():
            if isinstance(outcome, bytes):
                self._reply.set_result(outcome)
            else:
                self._reply.set_exception(outcome)
        if self._timer is not None:
            self._timer.cancel()
        deadline_ms = client.next_deadline_ms()
        self._timer = self._loop.call_at(deadline_ms / 1000, self._tick) if deadline_ms is not None else None

    def _fail(self, failure: LeveretError) -> None:
        if self.failure is None:
            self.failure = failure
            if not self.opened.done():
                self.opened.set_exception(failure)
                self.opened.exception()  # whoever gave up waiting for it does not want it logged
            elif self._reply is not None and not self._reply.done():
                self._reply.set_exception(failure)
            else:
                self._on_lost()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def _write(self, octets: bytes) -> None:
        if octets and self._transport is not None:
            self._transport.write(octets)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


async def connect_first(
    upstream: Upstream, container_id: str, timeout_s: float, on_lost: Callable[[], None]
) -> tuple[Endpoint, SchemaLink]:
    """Connect to the first endpoint at which a link opens, each given `timeout_s`.

    Raises:
        Refusal: none opened, and this is what the first that refused us says.
        SchemaLinkError: none opened, and none refused us; names each endpoint and its reason.
    """
    refusal: Refusal | None = None
    reasons: list[str] = []
    for endpoint in upstream.endpoints:
        try:
            return endpoint, await _connect(endpoint, upstream, container_id, timeout_s, on_lost)
        except Refusal as error:
            refusal = refusal or type(error)(f"{endpoint}: {error}")
        except TimeoutError:
            reasons.append(f"{endpoint} does not answer within {timeout_s:g} s")
        except (OSError, SchemaLinkError) as error:
            reasons.append(f"{endpoint}: {error}")
    raise refusal or SchemaLinkError("; ".join(reasons))


async def _connect(
    endpoint: Endpoint, upstream: Upstream, container_id: str, timeout_s: float, on_lost: Callable[[], None]
) -> SchemaLink:
    client = SchemaLinkClient(
        container_id=container_id, username=upstream.username, password=upstream.password
    )
    link = SchemaLink(client, on_lost)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(lambda: link, endpoint.host, endpoint.port)
            await asyncio.shield(link.opened)
    except BaseException:
        link.close()
        raise
    return link
