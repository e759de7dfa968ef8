"""One AMQP 0-9-1 connection, pure: octets in, calls of the broker and octets out.

`receive` takes a read of any size. Publishes take the fast way (`publishing`), acks a short one,
everything else is decoded by pamqp. What must be sent gathers in `out`; the runtime takes it after
each flush. Time comes as `now_ms`; `next_deadline_ms` says when `tick` wants to be called.

States: HEADER (eight octets) -> START (start-ok) -> TUNE (tune-ok) -> OPEN_WAIT (open) -> OPEN ->
CLOSING (we sent close, all but close-ok is dropped) -> CLOSED.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from pamqp import base, commands

from leveret.model.errors import AuthenticationFailed, LeveretError, NotFound
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.publishing import Publisher
from leveret.session.amqp091.replies import Fault, broken_frame, code_of, erlang_binary, reply_text
from leveret.session.host import Access, Host
from leveret.wire import amqp091 as wire

HANDSHAKE_TIMEOUT_MS = 10_000
OUT_BYTES_MAX = 1024 * 1024


class State(Enum):
    """See the module."""

    HEADER = auto()
    START = auto()
    TUNE = auto()
    OPEN_WAIT = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class ClientConnection:
    """A client's connection; see the module.

    Attributes:
        out: octets to send, in order.
        confirming: channels with publishes since the last flush, in order.
        held: whether `out` must wait until the definitions log is durable.
        is_paused: whether the socket takes no more for now.
        is_reading: whether the socket is read from; a peer we do not listen to is not silent.
        is_throttled: whether deliveries stopped because `out` was full; `resume` lets them go on.
    """

    def __init__(self, host: Host, *, peer: str, from_loopback: bool, now_ms: int) -> None:
        """Wait for a protocol header."""
        self.host = host
        self.broker = host.broker
        self.peer = peer
        self.connected_at_ms = now_ms
        self.state = State.HEADER
        self.user: str | None = None
        self.vhost: str | None = None
        self.client_properties: dict[str, Any] = {}
        self.channels: dict[int, Channel] = {}
        self.frame_max_bytes = host.frame_max_bytes
        self.channel_max = host.channel_max
        self.heartbeat_ms = 0
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.confirming: dict[Channel, None] = {}
        self.held = False
        self.is_paused = False
        self.is_throttled = False
        self.is_reading = True
        self.received_bytes = 0
        self.sent_bytes = 0
        self.access = Access(host.broker, "", "")
        self.publisher = Publisher(self)
        self._from_loopback = from_loopback
        self._rest = b""
        self._received_at_ms = now_ms
        self._sent_at_ms = now_ms
        self._idle_mark = -1

    # -- octets in ----------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take what the socket gave; never raises for what a peer may send."""
        self._received_at_ms = now_ms
        self.received_bytes += len(data)
        if self._rest:
            data = self._rest + data
        position, end = 0, len(data)
        try:
            position = self._receive_frames(data, position, end)
        except LeveretError as error:
            self._fail(error, 0, 0)
            position = end
        self._rest = data[position:] if position < end and self.state is not State.CLOSED else b""

    def _receive_frames(self, data: bytes, position: int, end: int) -> int:
        if self.state is State.HEADER:
            if end < 8:
                return position
            self._protocol_header(data[:8])
            position = 8
        while end - position >= 7 and self.state is not State.CLOSED:
            if self.state is State.OPEN:
                position = self.publisher.fast(data, position, end)
                if end - position < 7:
                    break
            kind, number, size = wire.FRAME_HEAD.unpack_from(data, position)
            if size > self.frame_max_bytes - wire.FRAME_OVERHEAD:
                limit = self.frame_max_bytes - wire.FRAME_OVERHEAD
                raise broken_frame(kind, b"", f"{{frame_too_large,{size},{limit}}}")
            stop = position + 7 + size
            if stop >= end:
                break
            if data[stop] != wire.FRAME_END:
                octets = data[position + 7 : stop]
                raise broken_frame(kind, octets, f"{{invalid_frame_end_marker,{data[stop]}}}")
            self._frame(kind, number, data[position + 7 : stop])
            position = stop + 1
        return position

    def _protocol_header(self, octets: bytes) -> None:
        if octets != wire.PROTOCOL_HEADER:
            self.send(wire.PROTOCOL_HEADER)
            self.state = State.CLOSED
            return
        self.state = State.START
        self._reply(
            commands.Connection.Start(
                server_properties=self._server_properties(), mechanisms="PLAIN", locales="en_US"
            )
        )

    def _server_properties(self) -> dict[str, Any]:
        capabilities = (
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "per_consumer_qos",
            "authentication_failure_close",
        )
        return {
            "capabilities": dict.fromkeys(capabilities, True),
            "cluster_name": self.host.cluster_name,
            "copyright": "Copyright the Leveret authors",
            "information": "Licensed under the Apache License 2.0",
            "platform": "Python",
            "product": "Leveret",
            "version": self.host.version,
        }

    # -- frames -------------------------------------------------------------------------------

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == wire.FRAME_HEARTBEAT:
            if number:
                raise Fault(505, f"type 8, all octets = {erlang_binary(payload)}")
            return
        if self.state is State.CLOSING:
            if payload[:4] == b"\x00\x0a\x00\x33":
                self.state = State.CLOSED
            elif payload[:4] == b"\x00\x0a\x00\x32":
                self._reply(commands.Connection.CloseOk())
            return
        if kind not in (wire.FRAME_METHOD, wire.FRAME_HEADER, wire.FRAME_BODY):
            raise broken_frame(kind, payload, "unknown_frame")
        if kind == wire.FRAME_METHOD and len(payload) < 4:
            raise broken_frame(kind, payload, "unknown_frame")
        if number == 0:
            if kind != wire.FRAME_METHOD:
                raise Fault(503, "content on channel 0")
            self._connection_frame(payload)
        else:
            self._channel_frame(kind, number, payload)

    def _connection_frame(self, payload: bytes) -> None:
        try:
            self._connection_method(wire.decode_method(payload))
        except LeveretError as error:
            self._fail(error, 0, _method_of(wire.FRAME_METHOD, payload))

    def _channel_frame(self, kind: int, number: int, payload: bytes) -> None:
        if self.state is not State.OPEN:
            raise Fault(503, "channel frame before connection.open")
        channel = self.channels.get(number)
        try:
            if channel is None:
                self._open_channel(kind, number, payload)
            else:
                channel.frame(kind, payload)
        except LeveretError as error:
            self._fail(error, number, _method_of(kind, payload))
        if channel is not None and channel.is_closed and number in self.channels:
            del self.channels[number]
            self.publisher.forget()

    def _open_channel(self, kind: int, number: int, payload: bytes) -> None:
        if kind != wire.FRAME_METHOD or payload[:4] != b"\x00\x14\x00\x0a":
            raise Fault(504, "expected 'channel.open'")
        if self.channel_max and number > self.channel_max:
            raise Fault(
                530,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated "
                f"channel_max ({self.channel_max})",
            )
        self.channels[number] = Channel(self, number)
        self.send(wire.frame(wire.FRAME_METHOD, number, b"\x00\x14\x00\x0b\x00\x00\x00\x00"))

    def _connection_method(self, method: base.Frame) -> None:
        match method, self.state:
            case commands.Connection.StartOk(), State.START:
                self._start_ok(method)
            case commands.Connection.TuneOk(), State.TUNE:
                self._tune_ok(method)
            case commands.Connection.Open(), State.OPEN_WAIT:
                self._open(method)
            case commands.Connection.Close(), _:
                self._reply(commands.Connection.CloseOk())
                self._end()
            case commands.Connection.UpdateSecret(), State.OPEN:
                self._reply(commands.Connection.UpdateSecretOk())
            case _:
                state = "running" if self.state is State.OPEN else self.state.name.lower()
                raise Fault(504, f"unexpected method in connection state {state}")

    def _start_ok(self, method: commands.Connection.StartOk) -> None:
        self.client_properties = dict(method.client_properties or {})
        parts = str(method.response).split("\0")
        if method.mechanism != "PLAIN":
            raise Fault(504, f"unknown authentication mechanism '{method.mechanism}'")
        if len(parts) != 3:
            raise Fault(501, "response to PLAIN is not authorisation id, user and password")
        try:
            self.user = self.host.authenticate(parts[1], parts[2], self._from_loopback)
        except AuthenticationFailed:
            self._refuse_login(parts[1])
            return
        self.state = State.TUNE
        host = self.host
        self._reply(commands.Connection.Tune(host.channel_max, host.frame_max_bytes, host.heartbeat_s))

    def _refuse_login(self, user: str) -> None:
        """With the capability the client is told why; otherwise the socket just closes (RabbitMQ's rule)."""
        if self.client_can("authentication_failure_close"):
            text = (
                "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
            )
            self.send(wire.close_method(0, 403, reply_text(403, text), 0, 0))
        self.state = State.CLOSED

    def client_can(self, capability: str) -> bool:
        """Whether the client announced a capability."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and bool(capabilities.get(capability))

    def _tune_ok(self, method: commands.Connection.TuneOk) -> None:
        host = self.host
        if not 0 < method.channel_max <= host.channel_max:
            raise Fault(
                530,
                f"negotiated channel_max = {method.channel_max} is not between 1 and the maximum allowed value "
                f"({host.channel_max})",
            )
        if method.frame_max < wire.FRAME_MIN_BYTES:
            raise Fault(
                530,
                f"negotiated frame_max = {method.frame_max} is lower than the minimum allowed value "
                f"({wire.FRAME_MIN_BYTES})",
            )
        if method.frame_max > host.frame_max_bytes:
            raise Fault(
                530,
                f"negotiated frame_max = {method.frame_max} is higher than the maximum allowed value "
                f"({host.frame_max_bytes})",
            )
        self.frame_max_bytes = method.frame_max
        self.channel_max = method.channel_max
        self.heartbeat_ms = method.heartbeat * 1000
        self.state = State.OPEN_WAIT

    def _open(self, method: commands.Connection.Open) -> None:
        vhost = method.virtual_host
        try:
            self.host.open_vhost(self.user or "", vhost)
        except NotFound:
            raise Fault(530, f"vhost {vhost} not found") from None
        except LeveretError:
            raise Fault(530, f"access to vhost '{vhost}' refused for user '{self.user}'") from None
        self.vhost = vhost
        self.access = Access(self.broker, self.user or "", vhost)
        self.state = State.OPEN
        self.broker.connections.add(self)
        self._reply(commands.Connection.OpenOk())

    def set_reading(self, reading: bool, now_ms: int) -> None:
        """The socket is read from again, or is not for a while: then the peer's silence is ours."""
        self.is_reading = reading
        self._received_at_ms = now_ms

    def takes_deliveries(self) -> bool:
        """Whether consumers may be sent more now: the socket takes it and not too much waits for the next write."""
        if self.out_bytes >= OUT_BYTES_MAX:
            self.is_throttled = True
        return not (self.is_paused or self.is_throttled)

    # -- octets out ---------------------------------------------------------------------------

    def send(self, octets: bytes) -> None:
        """Gather octets for the next write."""
        if not self.out:
            self.host.outbox.append(self)
        self.out.append(octets)
        self.out_bytes += len(octets)
        self.sent_bytes += len(octets)

    def take_output(self) -> bytes:
        """All octets that wait, once."""
        octets = b"".join(self.out)
        self.out.clear()
        self.out_bytes = 0
        return octets

    def _reply(self, method: base.Frame) -> None:
        self.send(wire.marshal(method, 0))

    def resume(self) -> None:
        """The socket takes more again: its consumers are served at the next flush."""
        self.is_paused = self.is_throttled = False
        for channel in self.channels.values():
            channel.wake_consumers()

    # -- ends ---------------------------------------------------------------------------------

    def _fail(self, error: LeveretError, number: int, method: int) -> None:
        """Close the channel or the connection, as the code demands."""
        code = code_of(error)
        text = reply_text(code, str(error))
        ids = (method >> 16, method & 0xFFFF)
        channel = self.channels.get(number)
        if channel is not None and (
            (isinstance(error, Fault) and error.code == 406) or code in (311, 403, 404, 405, 406)
        ):
            self.send(wire.close_method(number, code, text, *ids))
            channel.abandon()
            self.publisher.forget()
            return
        if self.state in (State.CLOSING, State.CLOSED):
            return
        if self.state in (State.HEADER, State.START):
            self.state = State.CLOSED
            return
        self._release()
        self.send(wire.close_method(0, code, text, *ids))
        self.state = State.CLOSING

    def force_close(self, reason: str) -> None:
        """Close for the operator's or the node's reasons (320)."""
        if self.state not in (State.CLOSING, State.CLOSED):
            self._fail(Fault(320, reason), 0, 0)

    def lost(self) -> None:
        """The socket is gone: what is unacked returns, exclusive queues go."""
        self._end()

    def _end(self) -> None:
        self._release()
        self.state = State.CLOSED

    def _release(self) -> None:
        for channel in self.channels.values():
            channel.abandon()
        self.channels.clear()
        self.broker.connections.discard(self)
        for queue in (
            [queue for queue in self.broker.queues.values() if queue.owner is self] if self.vhost else []
        ):
            self.broker.delete_queue(queue)
        self.confirming.clear()

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat when half the interval went by; give up on a silent peer."""
        if self.state is State.CLOSED:
            return
        if self.state is not State.OPEN:
            if now_ms - max(self.connected_at_ms, self._received_at_ms) > HANDSHAKE_TIMEOUT_MS:
                self.state = State.CLOSED
            return
        if not self.heartbeat_ms:
            return
        if self.is_reading and now_ms - self._received_at_ms > 2 * self.heartbeat_ms:
            self._end()
            return
        if self.sent_bytes != self._idle_mark:
            self._idle_mark, self._sent_at_ms = self.sent_bytes, now_ms
        elif now_ms - self._sent_at_ms >= self.heartbeat_ms // 2:
            self.send(wire.HEARTBEAT)
            self._idle_mark, self._sent_at_ms = self.sent_bytes, now_ms


def _method_of(kind: int, payload: bytes) -> int:
    """Class and method of the frame that failed; content belongs to basic.publish."""
    return int.from_bytes(payload[:4] if kind == wire.FRAME_METHOD else wire.BASIC_PUBLISH, "big")
