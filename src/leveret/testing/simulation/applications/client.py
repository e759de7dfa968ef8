"""An AMQP 0-9-1 client for simulated applications: one connection with one channel, without threads or a clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from pamqp import base, commands, header

from leveret.testing.applications.contents import PERSISTENT, for_pamqp, from_pamqp
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.wire import amqp091 as wire

_CHANNEL: Final = 1
_CONTENT: Final = (commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return)


class ClientClosed(Exception):
    """The connection or its channel is gone; the text has the reason, if the node gave one."""


class ClientDelivery(NamedTuple):
    """A message that the node delivered."""

    tag: int
    message_id: str
    body: bytes
    redelivered: bool
    properties: dict[str, Any]
    """Those that are set, as `leveret.testing.applications.contents` has them."""

    @property
    def headers(self) -> dict[str, Any]:
        """The message's headers."""
        return self.properties.get("headers") or {}


class SimulatedClient(asyncio.Protocol):
    """See the module.

    Attributes:
        on_confirm: called with (tag, multiple, ok) for each confirm.
        on_delivery: called for each delivery to a consumer.
        on_return: called with the message id of each mandatory message that comes back.
        is_closed: whether the connection is gone.
        is_refused: whether the node has closed the channel, because of its last method.
        published: the number of published messages, which is the delivery tag of the last expected confirm.
        reason: the reason of the end.
        heard: the number of times that octets came from the node.
    """

    def __init__(self) -> None:
        """Begin without a connection."""
        self.on_confirm: Callable[[int, bool, bool], None] = lambda tag, multiple, ok: None
        self.on_delivery: Callable[[ClientDelivery], None] = lambda delivery: None
        self.on_return: Callable[[str], None] = lambda message_id: None
        self.is_closed = self.is_refused = False
        self.published = 0
        self.reason = ""
        self.heard = 0
        self._transport: asyncio.Transport
        self._octets = b""
        self._answers: deque[asyncio.Future[Any]] = deque()
        self._method: Any = None
        self._header: Any = None
        self._body = b""

    @classmethod
    async def connect(
        cls, network: SimulatedNetwork, port: int, *, heartbeat_s: int = 0, vhost: str = "/"
    ) -> SimulatedClient:
        """Connect as guest and open the channel; with `heartbeat_s`, the caller sends heartbeats with `beat`.

        Raises:
            OSError: no process listens at the port.
            ClientClosed: the node refuses the connection.
        """
        _, made = await network.connect(cls, port)
        client = cast("SimulatedClient", made)
        client._transport.write(wire.PROTOCOL_HEADER)
        await client._expect()
        capabilities: Any = {"capabilities": {"consumer_cancel_notify": True, "basic.nack": True}}
        await client.call(
            commands.Connection.StartOk(capabilities, "PLAIN", "\0guest\0guest", "en_US"), channel=0
        )
        client.send(commands.Connection.TuneOk(100, 131_072, heartbeat_s), channel=0)
        await client.call(commands.Connection.Open(vhost), channel=0)
        await client.call(commands.Channel.Open())
        return client

    # -- sending --------------------------------------------------------------------------------

    def send(self, method: base.Frame, *, channel: int = _CHANNEL) -> None:
        """Send a method that has no answer.

        Raises:
            ClientClosed: the connection is gone.
        """
        if self.is_closed:
            raise ClientClosed(self.reason)
        self._transport.write(wire.marshal(method, channel))

    def beat(self) -> None:
        """Send a heartbeat, unless the connection is gone."""
        if not self.is_closed:
            self._transport.write(wire.HEARTBEAT)

    async def call(self, method: base.Frame, *, channel: int = _CHANNEL) -> Any:
        """Send a method and return its answer.

        Raises:
            ClientClosed: the connection or the channel is gone, or ends before the answer.
        """
        self.send(method, channel=channel)
        return await self._expect()

    def publish(
        self,
        routing_key: str,
        message_id: str,
        body: bytes,
        *,
        exchange: str = "",
        properties: Mapping[str, Any] | None = None,
        mandatory: bool = False,
    ) -> None:
        """Publish a persistent message; without an exchange the routing key is a queue. Raises ClientClosed."""
        fields = {**(properties or {}), "delivery_mode": PERSISTENT, "message_id": message_id}
        self.send(commands.Basic.Publish(0, exchange, routing_key, mandatory))
        self.published += 1
        head = header.ContentHeader(0, len(body), for_pamqp(fields))
        self._transport.write(
            wire.frame(wire.FRAME_HEADER, _CHANNEL, head.marshal())
            + wire.body_frames(_CHANNEL, body, 131_072)
        )

    def close(self) -> None:
        """Close the transport without a handshake."""
        self._ended("closed")
        self._transport.abort()

    def _expect(self) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            answer.set_exception(ClientClosed(self.reason))
        else:
            self._answers.append(answer)
        return answer

    # -- receiving ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._ended(str(exc or "closed by the node"))

    def _ended(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed, self.reason = True, reason
        answers, self._answers = self._answers, deque()
        for answer in answers:
            if not answer.done():
                answer.set_exception(ClientClosed(reason))

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self.heard += 1
        octets = self._octets + data
        at = 0
        while len(octets) - at >= wire.FRAME_HEAD_BYTES:
            kind, _, size = wire.FRAME_HEAD.unpack_from(octets, at)
            end = at + wire.FRAME_OVERHEAD + size
            if len(octets) < end:
                break
            self._frame(kind, octets[at + wire.FRAME_HEAD_BYTES : end - 1])
            at = end
        self._octets = octets[at:]

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == wire.FRAME_METHOD:
            self._take(wire.decode_method(payload))
        elif kind == wire.FRAME_HEADER:
            self._header = header.ContentHeader()
            self._header.unmarshal(payload)
            self._body = b""
            self._take_content()
        elif kind == wire.FRAME_BODY:
            self._body += payload
            self._take_content()

    def _take(self, method: base.Frame) -> None:
        match method:
            case commands.Basic.Ack() | commands.Basic.Nack():
                self.on_confirm(method.delivery_tag, method.multiple, isinstance(method, commands.Basic.Ack))
            case commands.Basic.Cancel() | commands.Channel.Close() | commands.Connection.Close():
                # After a channel error, an application closes its connection and opens another one.
                self.is_refused = isinstance(method, commands.Channel.Close)
                self._ended(getattr(method, "reply_text", "consumer cancelled"))
                self._transport.abort()
            case _ if isinstance(method, _CONTENT):
                self._method = method
            case _:
                self._answer(method)

    def _answer(self, method: Any) -> None:
        if self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(method)

    def _take_content(self) -> None:
        if len(self._body) < self._header.body_size:
            return
        method, properties = self._method, self._header.properties
        delivery = ClientDelivery(
            getattr(method, "delivery_tag", 0),
            properties.message_id or "",
            self._body,
            bool(getattr(method, "redelivered", False)),
            from_pamqp(properties),
        )
        if isinstance(method, commands.Basic.Deliver):
            self.on_delivery(delivery)
        elif isinstance(method, commands.Basic.Return):
            self.on_return(delivery.message_id)
        elif isinstance(method, commands.Basic.GetOk):
            self._answer(delivery)
