"""The socket of a downstream to its upstream's AMQP listener: one request at a time, and the upstream's notices.

`session.amqp10.client` decides the messages; this module sends them, keeps time and turns the end of the connection
into an error. It does not retry: `runtime.schema_sync.downstream` does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from leveret.model.errors import LeveretError
from leveret.runtime.process.outcomes import outcome_of
from leveret.runtime.schema_sync.endpoints import UpstreamEndpoint
from leveret.runtime.sockets.tls import handshake_failure
from leveret.session.amqp10.client import SchemaLinkClient, SchemaLinkError


class SchemaLink(asyncio.Protocol):
    """One connection to an upstream.

    Attributes:
        opened: done when the first request may be sent; failed if the log-in failed.
        failure: the reason of the link's end; None while it is open.
        sent_bytes: octets written to the socket, without TLS.
        received_bytes: octets read from it.
    """

    def __init__(
        self, client: SchemaLinkClient, on_lost: Callable[[], None], on_notice: Callable[[], None]
    ) -> None:
        """`on_lost` is called once if an open link fails by itself; `on_notice` is called at each notice."""
        self.sent_bytes = self.received_bytes = 0
        self._on_notice = on_notice
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
            SchemaLinkError: the link failed, the reply is invalid, or none came in time.
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
        """Close the connection in order."""
        if self._transport is not None and self.failure is None:
            self._write(self._client.close(self._now_ms()))
        # The caller of `close` knows of it, and `on_lost` would reconnect at once.
        self._fail(SchemaLinkError("the link was closed"), is_lost=False)

    # -- calls of the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Log in on the new connection."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._write(self._client.start(self._now_ms()))
        self._react()

    def data_received(self, data: bytes) -> None:
        """Take octets of the upstream."""
        self.received_bytes += len(data)
        self._write(self._client.receive(data, self._now_ms()))
        self._react()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._transport = None
        reason = "the upstream closed it"
        if not self.received_bytes:
            reason += " without a word; if it speaks TLS there, the endpoint begins with amqps://"
        self._fail(SchemaLinkError(f"the connection was lost: {exc or reason}"))

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
        if client.has_notice:
            client.has_notice = False
            self._on_notice()
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

    def _fail(self, failure: LeveretError, *, is_lost: bool = True) -> None:
        if self.failure is None:
            self.failure = failure
            if not self.opened.done():
                self.opened.set_exception(failure)
                self.opened.exception()  # a caller that stopped waiting does not want the error in the log
            elif self._reply is not None and not self._reply.done():
                self._reply.set_exception(failure)
            elif is_lost:
                self._on_lost()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def _write(self, octets: bytes) -> None:
        if octets and self._transport is not None:
            self.sent_bytes += len(octets)
            self._transport.write(octets)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


async def open_link(
    endpoint: UpstreamEndpoint,
    client: SchemaLinkClient,
    tls: ssl.SSLContext | None,
    on_lost: Callable[[], None],
    on_notice: Callable[[], None],
) -> SchemaLink:
    """Connect and log in.

    Raises:
        LeveretError: the upstream refuses the user, or does not speak the protocol.
        OSError: the upstream is unreachable, or TLS fails.
    """
    link = SchemaLink(client, on_lost, on_notice)
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: link,
            endpoint.host,
            endpoint.port,
            ssl=tls,
            server_hostname=endpoint.host if tls is not None else None,
        )
        await outcome_of(link.opened)
    except ssl.SSLError as error:
        link.close()
        raise SchemaLinkError(f"TLS: {handshake_failure(error)}") from None
    except BaseException:
        link.close()
        raise
    return link
