"""A blocking AMQP 0-9-1 connection to any broker, with the methods that a recovery and a comparison need.

Content is sent as it was stored: properties stay opaque octets. One thread uses a connection; the broker's messages
between two calls are read by the next call.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from pamqp import base, commands, encode

from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LeveretError,
    NotFound,
    PeerError,
    PreconditionFailed,
    Refusal,
    ResourceLocked,
)
from leveret.pipeline.jobs.job import AmqpTarget
from leveret.wire.amqp091 import (
    BASIC_DELIVER,
    BASIC_GET,
    BASIC_GET_OK,
    BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    ack,
    body_frames,
    decode_method,
    frame,
    marshal,
)
from leveret.wire.properties import body_bytes_of, shortstr
from leveret.wire.tls import be_forward_secret

T = TypeVar("T", bound=base.Frame)

CLOSE_TIMEOUT_S: Final = 2.0
FRAME_BYTES_MAX: Final = 131_072
CHANNELS_MAX: Final = 65_535
LOOK_S: Final = 1.0
"""A connection that waits for octets, or for room, looks so often whether the broker blocks its publishers."""
KEEPALIVE_S: Final = 30
"""A broker that blocks its publishers may send nothing for hours: the kernel asks so often whether it is there."""
_RECEIVE_BYTES: Final = 262_144
_AHEAD_BYTES_MAX: Final = 4 * _RECEIVE_BYTES
_METHOD: Final = struct.Struct(">HH")
_REFUSALS: Final[dict[int, type[Refusal]]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
    530: AccessRefused,
}
_EXCHANGE_DECLARE, _EXCHANGE_DELETE = (40, 10), (40, 20)
_QUEUE_DECLARE, _QUEUE_BIND, _QUEUE_DELETE = (50, 10), (50, 20), (50, 40)
_BASIC_CONSUME: Final = (60, 20)
_PASSIVE, _DURABLE, _EXCLUSIVE, _AUTO_DELETE = 1, 2, 4, 8
_EXCHANGE_AUTO_DELETE: Final = 4
_IF_UNUSED, _IF_EMPTY = 1, 2
_OF_ANOTHER_USER: Final = (
    "; to publish messages that others put their user-id on, the user needs the tag `impersonator` at that broker "
    "(set_user_tags)"
)
PREFETCH: Final = 1000
"""The most deliveries of a queue that wait here."""


class AmqpConnectionLost(LeveretError):
    """The connection to the target ended; unconfirmed messages may or may not be there."""


class Delivery(NamedTuple):
    """A received message; `properties` are flags and list, as octets."""

    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes


@dataclass
class ClientChannel:
    """The broker's methods on one channel.

    Attributes:
        on_settled: called with (delivery tag, multiple, whether it was taken) for every confirm.
        deliveries: the received messages that were not taken yet.
        route: exchange and routing key of the delivery whose content comes next; the reason for a return.
        taken: the number of taken deliveries.
    """

    number: int
    on_settled: Callable[[int, bool, bool], None]
    deliveries: deque[Delivery]
    parts: list[bytes]
    route: tuple[bytes, bytes] | str = ""
    missing: int = 0
    header: bytes = b""
    taken: int = 0


class AmqpConnection:
    """An open connection in one vhost.

    Raises:
        OSError: there is no listener, or its certificate is not trusted.
        AmqpConnectionLost: the listener is no AMQP 0-9-1 broker. AuthenticationFailed, AccessRefused: wrong
            credentials; no such vhost or no access to it.
    """

    def __init__(
        self,
        target: AmqpTarget,
        vhost: str,
        timeout_s: float,
        on_blocked: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`timeout_s` is the longest wait for the broker, unless an alarm of its own makes it block publishers.

        It blocks them for as long as the alarm lasts, and so long this connection waits. `on_blocked` is called with
        the broker's reason, and with an empty text at the end.
        """
        self.peer = f"{target.host}:{target.port}"
        self._timeout_s = timeout_s
        self._on_blocked = on_blocked
        self._waits_for_alarms = True
        self.channels: dict[int, ClientChannel] = {}
        self._buffer = bytearray()
        self._answers: deque[base.Frame] = deque()
        self._frame_max_bytes = FRAME_BYTES_MAX
        self._channels_max = CHANNELS_MAX
        self._blocked_by = ""
        self._socket = _connected(target, timeout_s)
        self._socket.settimeout(min(timeout_s, LOOK_S))
        try:
            self._handshake(target, vhost)
        except PeerError as error:
            self._lose(str(error))
        except BaseException:
            self._socket.close()
            raise

    # -- what a recovery asks for -----------------------------------------------------------------

    def open_channel(self, on_settled: Callable[[int, bool, bool], None] | None = None) -> ClientChannel:
        """Open a channel; with `on_settled` in confirm mode."""
        number = next(number for number in count(1) if number not in self.channels)
        channel = ClientChannel(number, on_settled or _nobody, deque(), [])
        self.channels[number] = channel
        self.request(number, marshal(commands.Channel.Open(), number), commands.Channel.OpenOk)
        if on_settled is not None:
            self.request(number, marshal(commands.Confirm.Select(), number), commands.Confirm.SelectOk)
        return channel

    def has_room(self, channels: int) -> bool:
        """Whether the broker takes so many further channels on this connection."""
        return len(self.channels) + channels <= self._channels_max

    def close_channel(self, channel: ClientChannel) -> None:
        """Close a channel, which frees its number."""
        close = commands.Channel.Close(200, "", 0, 0)
        self.request(channel.number, marshal(close, channel.number), commands.Channel.CloseOk)
        del self.channels[channel.number]

    def declare_queue(
        self,
        channel: ClientChannel,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        exclusive: bool = False,
        auto_delete: bool = False,
    ) -> tuple[int, int]:
        """Declare a durable queue or an exclusive one; without arguments, check that it exists.

        Returns:
            (ready messages, consumers).

        Raises:
            NotFound: there is no such queue.
            ResourceLocked: it is another connection's exclusive queue.
        """
        flags = _PASSIVE if arguments is None and not exclusive else _EXCLUSIVE if exclusive else _DURABLE
        flags |= _AUTO_DELETE if auto_delete else 0
        body = b"\0\0" + shortstr(name.encode()) + bytes((flags,)) + encode.field_table(arguments or {})
        answer = self._ask(channel, _QUEUE_DECLARE, body, commands.Queue.DeclareOk)
        return answer.message_count or 0, answer.consumer_count or 0

    def declare_fanout(self, channel: ClientChannel, name: str) -> None:
        """Declare a durable fanout exchange that goes with its last binding."""
        body = (
            b"\0\0"
            + shortstr(name.encode())
            + shortstr(b"fanout")
            + bytes((_DURABLE | _EXCHANGE_AUTO_DELETE,))
        )
        self._ask(channel, _EXCHANGE_DECLARE, body + encode.field_table({}), commands.Exchange.DeclareOk)

    def delete_exchange(self, channel: ClientChannel, name: str) -> None:
        """Delete an exchange; a missing one is no error."""
        body = b"\0\0" + shortstr(name.encode()) + b"\0"
        self._ask(channel, _EXCHANGE_DELETE, body, commands.Exchange.DeleteOk)

    def bind(self, channel: ClientChannel, queue: str, exchange: str) -> None:
        """Bind a queue to a fanout exchange."""
        names = shortstr(queue.encode()) + shortstr(exchange.encode()) + shortstr(b"")
        body = b"\0\0" + names + b"\0" + encode.field_table({})
        self._ask(channel, _QUEUE_BIND, body, commands.Queue.BindOk)

    def publish(
        self, channel: ClientChannel, exchange: bytes, routing_key: bytes, header: bytes, body: bytes
    ) -> None:
        """Send a message, mandatory; `header` is its content header payload."""
        route = BASIC_PUBLISH + b"\0\0" + shortstr(exchange) + shortstr(routing_key) + b"\1"
        self.send(
            frame(FRAME_METHOD, channel.number, route)
            + frame(FRAME_HEADER, channel.number, header)
            + body_frames(channel.number, body, self._frame_max_bytes)
        )

    def delete_queue(self, channel: ClientChannel, name: str) -> None:
        """Delete a queue that is unused and empty."""
        body = b"\0\0" + shortstr(name.encode()) + bytes((_IF_UNUSED | _IF_EMPTY,))
        self._ask(channel, _QUEUE_DELETE, body, commands.Queue.DeleteOk)

    def consume(self, channel: ClientChannel, queue: str, arguments: dict[str, Any] | None = None) -> None:
        """Start deliveries of the queue's messages, a bounded number at a time."""
        qos = commands.Basic.Qos(0, PREFETCH, False)
        self.request(channel.number, marshal(qos, channel.number), commands.Basic.QosOk)
        names = shortstr(queue.encode()) + shortstr(b"")
        body = b"\0\0" + names + b"\0" + encode.field_table(arguments or {})
        self._ask(channel, _BASIC_CONSUME, body, commands.Basic.ConsumeOk)

    def get(self, channel: ClientChannel, queue: str, count: int) -> list[Delivery]:
        """The next messages of a queue, at most `count`; they return to their places when the channel is closed."""
        method = BASIC_GET + b"\0\0" + shortstr(queue.encode()) + b"\0"
        self.send(frame(FRAME_METHOD, channel.number, method) * count)
        answered = 0
        while answered + len(channel.deliveries) < count:
            self.receive()
            answered += sum(isinstance(each, commands.Basic.GetEmpty) for each in self._answers)
            self._answers.clear()
        found = list(channel.deliveries)
        channel.deliveries.clear()
        return found

    def next_delivery(self, channel: ClientChannel) -> Delivery:
        """Wait for the next message, which is acknowledged later.

        Raises:
            AmqpConnectionLost: none came before the timeout.
        """
        while not channel.deliveries:
            self.receive()
        channel.taken += 1
        if channel.taken % (PREFETCH // 2) == 0:
            self.send(ack(channel.number, channel.taken, True))
        return channel.deliveries.popleft()

    # -- frames -----------------------------------------------------------------------------------

    def _ask(self, channel: ClientChannel, method: tuple[int, int], body: bytes, answer: type[T]) -> T:
        octets = frame(FRAME_METHOD, channel.number, _METHOD.pack(*method) + body)
        return self.request(channel.number, octets, answer)

    def request(self, channel: int, octets: bytes, answer: type[T]) -> T:
        """Send a method and wait for its answer."""
        self.send(octets)
        while True:
            while self._answers:
                found = self._answers.popleft()
                if isinstance(found, answer):
                    return found
            self.receive()

    def send(self, octets: bytes) -> None:
        """Send whole frames.

        Raises:
            AmqpConnectionLost: the connection ended, or the broker took no octets for too long.
        """
        left = memoryview(octets)
        deadline_s = 0.0
        while left:
            try:
                left = left[self._socket.send(left) :]
                deadline_s = 0.0
            except TimeoutError:
                deadline_s = deadline_s or time.monotonic() + self._timeout_s - LOOK_S
                self._read_ahead()
                if self._is_held_by_alarm:
                    deadline_s = 0.0
                elif time.monotonic() > deadline_s:
                    self._lose("the broker took no octets before the timeout")
            except OSError as error:
                self._lose(str(error))

    def receive(self) -> None:
        """Wait for the broker's next frames, and handle them.

        Raises:
            Refusal: the broker refuses a request.
            AmqpConnectionLost: the connection ended, or no frame came before the timeout.
        """
        if self._take_frames():
            return  # They came while octets were sent, or with a refusal.
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._receive_octets()
                break
            except TimeoutError:
                if self._is_held_by_alarm:
                    deadline_s = time.monotonic() + self._timeout_s
                elif time.monotonic() >= deadline_s:
                    self._lose("no frame came before the timeout")
        self._take_frames()

    def _receive_octets(self) -> None:
        try:
            octets = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            self._lose(str(error))
        if not octets:
            self._lose("the broker closed it without a reason")
        self._buffer += octets

    def _take_frames(self) -> bool:
        """Handle the whole frames that arrived; return whether there was one."""
        any_came = False
        while (found := self._next_frame()) is not None:
            any_came = True
            self._take(*found)
        return any_came

    @property
    def _is_held_by_alarm(self) -> bool:
        return bool(self._blocked_by) and self._waits_for_alarms

    def wait_for_no_alarm(self) -> None:
        """From now on, a broker that blocks its publishers counts as one that does not answer."""
        self._waits_for_alarms = False

    def _read_ahead(self) -> None:
        """Read frames that may say why the broker takes nothing; handle no other, because one of ours is half sent."""
        # Of TLS, a part of a record may be there alone.
        with contextlib.suppress(TimeoutError):
            while self._has_octets(0) and len(self._buffer) < _AHEAD_BYTES_MAX:
                self._receive_octets()
        at = 0
        while at + FRAME_HEAD.size < len(self._buffer):
            kind, channel, size = FRAME_HEAD.unpack_from(self._buffer, at)
            payload = bytes(self._buffer[at + FRAME_HEAD.size : at + FRAME_HEAD.size + size])
            if (kind, channel) == (FRAME_METHOD, 0) and len(payload) == size:
                self._note_alarm(decode_method(payload))
            at += FRAME_HEAD.size + size + 1

    def _note_alarm(self, method: base.Frame) -> None:
        before = self._blocked_by
        if isinstance(method, commands.Connection.Blocked):
            self._blocked_by = method.reason or "it gives no reason"
        elif isinstance(method, commands.Connection.Unblocked):
            self._blocked_by = ""
        if self._blocked_by != before:
            self._on_blocked(self._blocked_by)

    def _has_octets(self, timeout_s: float) -> bool:
        return _is_pending(self._socket) or bool(select.select([self._socket], [], [], timeout_s)[0])

    def receive_within(self, timeout_s: float) -> None:
        """As `receive`, but silence for so long is no error."""
        if not self._take_frames() and self._has_octets(timeout_s):
            self.receive()

    def _next_frame(self) -> tuple[int, int, bytes] | None:
        if self._buffer[:4] == b"AMQP":
            self._lose(f"the broker wants another protocol: {bytes(self._buffer[:8])!r}")
        if len(self._buffer) < FRAME_HEAD.size:
            return None
        kind, channel, size = FRAME_HEAD.unpack_from(self._buffer)
        end = FRAME_HEAD.size + size
        if size > FRAME_BYTES_MAX or (len(self._buffer) > end and self._buffer[end] != FRAME_END):
            self._lose("the peer does not speak AMQP 0-9-1")
        if len(self._buffer) <= end:
            return None
        payload = bytes(self._buffer[FRAME_HEAD.size : end])
        del self._buffer[: end + 1]
        return kind, channel, payload

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        channel = self.channels.get(number)
        if kind == FRAME_METHOD and payload[:4] in (BASIC_DELIVER, BASIC_GET_OK):
            if channel is not None:
                channel.route = _route_of(payload)
        elif kind == FRAME_METHOD:
            self._take_method(channel, decode_method(payload))
        elif channel is not None and kind == FRAME_HEADER:
            channel.header, channel.missing, channel.parts = payload, body_bytes_of(payload), []
            self._delivered(channel)
        elif channel is not None and kind == FRAME_BODY:
            channel.parts.append(payload)
            channel.missing -= len(payload)
            self._delivered(channel)

    def _delivered(self, channel: ClientChannel) -> None:
        if channel.missing > 0:
            return
        if isinstance(channel.route, str):
            raise NotFound(f"{self.peer} returned a message: {channel.route}")
        channel.deliveries.append(Delivery(*channel.route, channel.header[12:], b"".join(channel.parts)))

    def _take_method(self, channel: ClientChannel | None, method: base.Frame) -> None:
        match method:
            case commands.Basic.Ack() | commands.Basic.Nack() if channel is not None:
                taken = isinstance(method, commands.Basic.Ack)
                channel.on_settled(method.delivery_tag or 0, bool(method.multiple), taken)
            case commands.Connection.Blocked() | commands.Connection.Unblocked():
                self._note_alarm(method)
            case commands.Basic.Return() if channel is not None:
                channel.route = method.reply_text or ""
            case commands.Channel.Close():
                assert channel is not None
                del self.channels[channel.number]
                self.send(marshal(commands.Channel.CloseOk(), channel.number))
                raise self._refusal(method.reply_code, method.reply_text)
            case commands.Connection.Close():
                with contextlib.suppress(OSError):
                    self._socket.sendall(marshal(commands.Connection.CloseOk(), 0))
                self._socket.close()
                if method.reply_code in _REFUSALS:
                    raise self._refusal(method.reply_code, method.reply_text)
                raise AmqpConnectionLost(f"{self.peer} closed the connection: {method.reply_text}")
            case _:
                self._answers.append(method)

    def _refusal(self, code: int | None, text: str | None) -> Refusal:
        hint = _OF_ANOTHER_USER if text is not None and "user_id property" in text else ""
        return _REFUSALS.get(code or 0, InvalidCommand)(f"{self.peer} declines: {text}{hint}")

    def _lose(self, reason: str) -> NoReturn:
        self._socket.close()
        hint = (
            f"; it blocks its publishers until an alarm ends: {self._blocked_by}" if self._blocked_by else ""
        )
        raise AmqpConnectionLost(f"connection to {self.peer} lost: {reason}{hint}")

    def close(self) -> None:
        """Send a close, wait shortly for the answer, drop the connection; a second call does nothing."""
        if self._socket.fileno() == -1:
            return
        try:
            self.wait_for_no_alarm()
            self._timeout_s = CLOSE_TIMEOUT_S
            goodbye = marshal(commands.Connection.Close(200, "bye", 0, 0), 0)
            self.request(0, goodbye, commands.Connection.CloseOk)
        except (LeveretError, OSError):
            pass  # The connection ends anyway, and all requests were answered before.
        finally:
            self._socket.close()

    def _handshake(self, target: AmqpTarget, vhost: str) -> None:
        start = self.request(0, PROTOCOL_HEADER, commands.Connection.Start)
        if "PLAIN" not in (start.mechanisms or "").split():
            raise AuthenticationFailed(f"{self.peer} offers {start.mechanisms}, not PLAIN")
        who = target.credentials
        ours: dict[str, Any] = {
            "product": "Leveret",
            "platform": "Python",
            "connection_name": "leveret recovery",
            "capabilities": {
                "authentication_failure_close": True,
                "publisher_confirms": True,
                "basic.nack": True,
                "connection.blocked": True,
            },
        }
        proof = f"\0{who.username}\0{who.password}"
        self.send(marshal(commands.Connection.StartOk(ours, "PLAIN", proof, "en_US"), 0))
        try:
            tune = self.request(0, b"", commands.Connection.Tune)
        except AccessRefused as error:
            raise AuthenticationFailed(f"user '{who.username}': {error}") from None
        self._frame_max_bytes = min(tune.frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        self._channels_max = tune.channel_max or CHANNELS_MAX
        self.send(marshal(commands.Connection.TuneOk(tune.channel_max or 0, self._frame_max_bytes, 0), 0))
        opening = struct.pack(">HH", 10, 40) + shortstr(vhost.encode()) + b"\0\0"
        self.request(0, frame(FRAME_METHOD, 0, opening), commands.Connection.OpenOk)


def _connected(target: AmqpTarget, timeout_s: float) -> socket.socket:
    plain = socket.create_connection((target.host, target.port), timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 3)
    if not target.tls:
        return plain
    try:
        context = be_forward_secret(ssl.create_default_context(cafile=target.cacertfile or None))
        if not target.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(plain, server_hostname=target.host)
    except BaseException:
        plain.close()
        raise


def _is_pending(connected: socket.socket) -> bool:
    """Whether TLS holds received octets."""
    return isinstance(connected, ssl.SSLSocket) and connected.pending() > 0


def _route_of(payload: bytes) -> tuple[bytes, bytes]:
    """Exchange and routing key of a basic.deliver or basic.get-ok."""
    # Class and method; for a delivery, the consumer tag; delivery tag, and the redelivered bit.
    start = 4 + (1 + payload[4] if payload[:4] == BASIC_DELIVER else 0) + 9
    end = start + 1 + payload[start]
    return payload[start + 1 : end], payload[end + 1 : end + 1 + payload[end]]


def _nobody(tag: int, multiple: bool, taken: bool) -> None:
    """Do nothing: the channel has no confirms."""
