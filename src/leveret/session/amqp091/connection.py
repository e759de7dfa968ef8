"""One AMQP 0-9-1 connection, pure: octets in, calls of the broker and octets out.

`receive` takes a read of any size. Publishes take the fast path (`publishing`), acks a short one; pamqp decodes all
other methods. Octets to send are gathered in `out`; the runtime takes them after each flush. Time is an argument,
`now_ms`, by a clock that nobody sets: a time of day that is set forward would end all connections, for want of
heartbeats. `tick`, called twice a second, sends and checks heartbeats. `host.clock_ms` is the time of day: messages
expire by it, and operators are shown it.

States: HEADER (eight octets) -> START (start-ok) -> TUNE (tune-ok) -> OPEN_WAIT (open) -> OPEN ->
CLOSING (we sent close, all but close-ok is dropped) -> CLOSED. A client that sent close may close the socket itself.

A blocked connection takes no frames until an alarm is over, its output is written, another node has answered, and so
on (`blocked`). Meanwhile the runtime does not read from its socket, and calls `go_on` when the reason may be over.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct
from typing import ClassVar, Final

from pamqp import base, commands

from leveret.core.broker.alarms import reason as alarm_reason
from leveret.core.broker.limits import check_channel_limit
from leveret.core.rules.erlang_terms import binary
from leveret.model.errors import AuthenticationFailed, LeveretError, NotAllowed
from leveret.session.amqp091 import handshake
from leveret.session.amqp091.blocked import BlockedReason, Postponed
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.connection_base import OUT_BYTES_MAX, ConnectionBase
from leveret.session.amqp091.publishing import Publisher
from leveret.session.amqp091.remote_queues import ConnectionHost
from leveret.session.amqp091.replies import Fault, broken_frame, code_of, reply_text
from leveret.session.amqp091.settling import leave
from leveret.session.certificate import TlsPeer
from leveret.wire import amqp091 as wire
from leveret.wire.amqp091 import FRAME_HEAD_BYTES
from leveret.wire.properties import SyntaxFault

CLOSING_TIMEOUT_MS: Final = 30_000
"""The wait for a client's answer to our close, as in RabbitMQ."""
REFUSED_TIMEOUT_MS: Final = 3_000
"""The same after a refused login, as in RabbitMQ."""
DROPPED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most octets dropped during a close: many times more than can be in flight."""
UNDER_WAY_BYTES_MAX: Final = 1024 * 1024
"""The octets of begun messages that a connection may send on while an alarm is in effect, so that small ones end.

For all its channels together: each may have begun a message of `max_message_size`."""
UNFINISHED_TIMEOUT_MS: Final = 60_000
"""The longest time of a memory alarm for a connection that has more than that in unfinished messages."""
CHANNEL_ECHO_MS: Final = 1_000
"""The time in which frames of a channel may follow its close."""
FLOW_SHOWN_MS: Final = 5_000
"""The time for which a connection that waited for the disk is shown in flow, as in RabbitMQ."""
_BASIC: Final = b"\0\x3c"
"""The class id of the methods that carry messages."""
_FRAMES_OF_A_METHOD: Final = 4
_FRAMES_OF_A_REFUSAL: Final = 150
"""To refuse a method may take long, and is logged. It counts once it is done: otherwise its turn might never come."""
FRAME_BYTES: Final = 128
"""A method that is longer than this counts for more, because its tables may have a value in each octet."""
_ACK_BYTES: Final = 13
_ACK_FRAME_BYTES: Final = _ACK_BYTES + wire.FRAME_OVERHEAD
_ACK_HEAD_BYTES: Final = FRAME_HEAD_BYTES + len(wire.BASIC_ACK)
_ACK_REST: Final = Struct(">QH")
"""Tag, bits and frame end of a basic.ack; for a single delivery the bits are 0, so the last two are the frame end."""
_LARGE_BYTES: Final = 2048
"""The size from which a body frame is not copied before it is added to its message: a view costs less than the copy."""


class AmqpState(Enum):
    """The states of a connection; see the module."""

    HEADER = auto()
    START = auto()
    TUNE = auto()
    OPEN_WAIT = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class ClientConnection(ConnectionBase):
    """A client's connection; see the module.

    Attributes:
        churn: counts its opened and closed channels.
        connected_at_ms: the time of day of its begin.
        is_reading: whether the socket is read from; otherwise the peer's heartbeats are not timed.
        turn_frames: the most frames taken in one turn, without those of regular publishes; None for no limit.
        waits_for_alarms: whether publishes wait while an alarm is in effect.
        client_closes: whether the client closes the socket, after our answer to its close.
        end_reason: the reason of its end, for the log; empty if the socket was lost.
        proxied_by: the node that passes the connection on to this one; empty for none.
    """

    host: ConnectionHost
    waits_for_alarms: ClassVar[bool] = True

    def __init__(
        self, host: ConnectionHost, *, peer: str, from_loopback: bool, now_ms: int, tls: TlsPeer | None = None
    ) -> None:
        """Wait for a protocol header."""
        super().__init__(host, peer=peer, from_loopback=from_loopback, now_ms=now_ms, tls=tls)
        self.connected_at_ms = host.clock_ms()
        self.state = AmqpState.HEADER
        self.channels: dict[int, Channel] = {}
        self.is_reading = True
        self.received_bytes = 0
        self.publisher = self.make_publisher()
        self.mechanism = ""
        self.client_closes = False
        self.end_reason = ""
        self.proxied_by = ""
        self.churn = host.broker.churn
        self.turn_frames: int | None = None
        self._asked: bytes | None = None
        self._is_blocked_notified = False
        self._rest: list[bytes] = []
        self._missing_bytes = 0
        self._began_ms = self._received_at_ms = now_ms
        self._sent_at_ms = now_ms
        self._close_by_ms = 0
        self._dropped_bytes = 0
        self._channels_closed_at_ms: dict[int, int] = {}
        self._in_flow_at_ms: int | None = None
        self._under_way_bytes = UNDER_WAY_BYTES_MAX
        self._alarm_since_ms: int | None = None
        self._idle_mark = -1

    # -- octets in ----------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> bool:
        """Take a read from the socket; never raises for a peer's octets.

        Returns:
            Whether anything but octets may have changed; not so if the read ends within its first frame or publish.
        """
        self.now_ms = self._received_at_ms = now_ms
        self.received_bytes += len(data)
        if self.state is AmqpState.CLOSING:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self.state = AmqpState.CLOSED
                return True
        position = 0
        if self._rest:
            if self._missing_bytes > len(data) or self.blocked_reason is not None:
                self._rest.append(data)
                self._missing_bytes -= len(data)
                return False
            if self._missing_bytes > 0 and self._rest[0][0] == wire.FRAME_BODY:
                # Of a large message. Joined with all of the read, each of its octets would be copied once more.
                position = self._missing_bytes
                self._take(b"".join((*self._rest, data[:position])))
                if self._rest:
                    self._rest.append(data[position:])
                    return True
            else:
                data = b"".join((*self._rest, data))
        return self._take(data, position) or position > 0

    def _take(self, data: bytes, position: int = 0) -> bool:
        """Take the frames in `data` from a position on; keep those that are incomplete, or may not be taken yet.

        Return False if all are kept for want of octets.
        """
        begin, end = position, len(data)
        self.frames_left = self.turn_frames
        self._missing_bytes = 0
        try:
            position = self._take_frames(data, position, end)
        except LeveretError as error:
            self.fail(error, 0, 0)
            position = end
        self._rest = []
        if position < end and self.state is not AmqpState.CLOSED:
            self._rest.append(data[position:])
            is_known = self._missing_bytes or self.state is AmqpState.HEADER
            if end - position >= FRAME_HEAD_BYTES and not is_known:
                _, _, size = wire.FRAME_HEAD.unpack_from(data, position)
                self._missing_bytes = size + wire.FRAME_OVERHEAD - (end - position)
        return position > begin or self.blocked_reason is not None or self.state is AmqpState.CLOSED

    def go_on(self, now_ms: int) -> None:
        """Continue after a block, if its reason is over, and tell the client."""
        self.now_ms = now_ms
        if self._is_blocked_notified and not self.alarms:
            self._is_blocked_notified = False
            self.reply(commands.Connection.Unblocked())
        if self.blocked_reason is not None and self._asked is None:
            self.blocked_reason = None
            self._take(b"".join(self._rest))

    @property
    def awaits_answer(self) -> bool:
        """Whether the connection waits for an answer."""
        return self._asked is not None

    def ask(self) -> None:
        """Block until `answered` or `repeat`, because another node or later steps carry out the current method."""
        self._asked = b""
        self.blocked_reason = BlockedReason.REMOTE

    def answered(self) -> None:
        """End the wait: the answer is here."""
        if self._asked is not None:
            self._asked = None
            self.wake()

    def repeat(self) -> None:
        """Process the current method again, as if it had just arrived: its answer comes from itself, or never."""
        if self._asked is not None:
            self._rest.insert(0, self._asked)
            self.answered()

    def _must_block(self, data: bytes, position: int) -> bool:
        """Whether the frame at `position` has to wait."""
        if self._asked is not None:
            self.blocked_reason = BlockedReason.REMOTE
            return True
        if self.out_bytes >= OUT_BYTES_MAX:
            self.blocked_reason = BlockedReason.OUTPUT
            return True
        if not self.host.alarms.active or not self.waits_for_alarms:
            self._under_way_bytes = UNDER_WAY_BYTES_MAX
            return False
        # As in RabbitMQ, a message whose method came before the alarm is taken.
        if self.publisher.missing_bytes or not self._waits_for_end_of_alarm(data, position):
            return False
        self.blocked_reason = BlockedReason.ALARM
        self.notify_blocked()
        return True

    def _waits_for_end_of_alarm(self, data: bytes, position: int) -> bool:
        """Whether the frame begins a message, or goes on with one beyond what a connection may send in an alarm."""
        kind, _, size = wire.FRAME_HEAD.unpack_from(data, position)
        if kind == wire.FRAME_METHOD:
            return data.startswith(wire.BASIC_PUBLISH, position + FRAME_HEAD_BYTES)
        return kind in (wire.FRAME_HEADER, wire.FRAME_BODY) and size > self._under_way_bytes

    def notify_blocked(self) -> None:
        """Tell the client once that alarms block its publishes, if it can understand that."""
        if self.alarms and not self._is_blocked_notified and self.client_can("connection.blocked"):
            self._is_blocked_notified = True
            self.reply(commands.Connection.Blocked(alarm_reason(self.alarms)))

    @property
    def alarms(self) -> tuple[str, ...]:
        """The alarms that the client is notified of."""
        return self.host.alarms.active

    def _take_frames(self, data: bytes, position: int, end: int) -> int:
        if self.state is AmqpState.HEADER:
            if end < len(wire.PROTOCOL_HEADER):
                return position
            self._protocol_header(data[:8])
            position = 8
        while end - position >= FRAME_HEAD_BYTES and self.state is not AmqpState.CLOSED:
            if self.state is AmqpState.OPEN:
                if self._must_block(data, position):
                    break
                position = self.publisher.fast(data, position, end)
                if end - position < FRAME_HEAD_BYTES or self.publisher.missing_bytes:
                    self._missing_bytes = self.publisher.missing_bytes
                    break
                if self._asked is not None:
                    # A publish goes on in steps: nothing may overtake it.
                    continue
            kind, number, size = wire.FRAME_HEAD.unpack_from(data, position)
            if self.is_turn_over:
                self.blocked_reason = BlockedReason.TURN
                break
            # Opening or declaring something takes longer than a part of a message, or an ack.
            of_messages = kind != wire.FRAME_METHOD or data.startswith(_BASIC, position + FRAME_HEAD_BYTES)
            self.take_turn(1 if of_messages else _FRAMES_OF_A_METHOD)
            if kind == wire.FRAME_METHOD:
                self.take_turn(size // FRAME_BYTES)
            # RabbitMQ's FRAME_SIZE_FUDGE: accept clients that take frame-max for the payload's size.
            if size > self.frame_max_bytes:
                limit = self.frame_max_bytes - wire.FRAME_OVERHEAD
                raise broken_frame(kind, b"", f"{{frame_too_large,{size},{limit}}}")
            stop = position + FRAME_HEAD_BYTES + size
            if stop >= end:
                break
            if data[stop] != wire.FRAME_END:
                octets = data[position + FRAME_HEAD_BYTES : stop]
                raise self._broken_frame(kind, octets, f"{{invalid_frame_end_marker,{data[stop]}}}")
            if (
                size == _ACK_BYTES
                and kind == wire.FRAME_METHOD
                and data.startswith(wire.BASIC_ACK, position + FRAME_HEAD_BYTES)
            ):
                behind = self._take_acks(data, position, number)
                if behind != position:
                    position = behind
                    continue
            self._under_way_bytes -= size
            try:
                begin = position + FRAME_HEAD_BYTES
                is_large = kind == wire.FRAME_BODY and size >= _LARGE_BYTES
                if not (is_large and self._take_large_body(number, memoryview(data)[begin:stop])):
                    self._frame(kind, number, data[begin:stop])
            except Postponed as postponed:
                self.blocked_reason = postponed.blocked_reason
                break
            if self._asked is not None:
                self._asked = data[position : stop + 1]
            position = stop + 1
        return position

    def _take_acks(self, data: bytes, position: int, number: int) -> int:
        """Take basic.acks of single deliveries with consecutive tags; return the position of the frame behind them.

        Consumers with a small prefetch send many, often one in a read. A multiple ack is left.
        """
        head = data[position : position + _ACK_HEAD_BYTES]
        channel = self.channels.get(number)
        if (
            channel is None
            or channel.is_closing
            or channel.incoming is not None
            or self.state is not AmqpState.OPEN
        ):
            return position
        begin = position
        first, end = _ACK_REST.unpack_from(data, position + _ACK_HEAD_BYTES)
        last, end_of_single = first - 1, wire.FRAME_END
        while end == end_of_single and data.startswith(head, position):
            last += 1
            position += _ACK_FRAME_BYTES
            if len(data) - position < _ACK_FRAME_BYTES:
                break
            tag, end = _ACK_REST.unpack_from(data, position + _ACK_HEAD_BYTES)
            if tag != last + 1:
                break
        if last >= first:
            self.take_turn(last - first)
            try:
                behind = channel.ack_each(first, last)
                if behind <= last:
                    position = begin + (behind - first) * _ACK_FRAME_BYTES
            except LeveretError as error:
                self.fail(error, number, _method_of(wire.FRAME_METHOD, wire.BASIC_ACK))
        return position

    def _take_large_body(self, number: int, octets: memoryview) -> bool:
        """Take a large body frame, if a channel waits for it; return whether one does."""
        channel = self.channels.get(number)
        if channel is None or not channel.awaits_body or self.state is not AmqpState.OPEN:
            return False
        try:
            channel.take_body(octets)
        except LeveretError as error:
            self.fail(error, number, _method_of(wire.FRAME_BODY, b""))
        return True

    def _protocol_header(self, octets: bytes) -> None:
        if octets not in (wire.PROTOCOL_HEADER, wire.PROTOCOL_HEADER_09):
            self.send(wire.PROTOCOL_HEADER)
            self.state = AmqpState.CLOSED
            return
        self.state = AmqpState.START
        self.reply(handshake.start(self))

    # -- frames -------------------------------------------------------------------------------

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == wire.FRAME_HEARTBEAT:
            if number:
                raise Fault(505, f"type 8, all octets = {binary(payload[: wire.QUOTED_BYTES_MAX])}")
            return
        if self.state is AmqpState.CLOSING:
            if payload[:4] == wire.CONNECTION_CLOSE_OK:
                self.state = AmqpState.CLOSED
            elif payload[:4] == wire.CONNECTION_CLOSE:
                self.reply(commands.Connection.CloseOk())
            return
        if kind not in (wire.FRAME_METHOD, wire.FRAME_HEADER, wire.FRAME_BODY):
            raise self._broken_frame(kind, payload, "unknown_frame")
        if kind == wire.FRAME_METHOD and len(payload) < 4:
            raise self._broken_frame(kind, payload, "unknown_frame")
        if number == 0:
            if kind != wire.FRAME_METHOD:
                raise Fault(503, "content on channel 0")
            self._connection_frame(payload)
        else:
            self._channel_frame(kind, number, payload)

    def _broken_frame(self, kind: int, octets: bytes, why: str) -> Fault:
        """The error for an impossible frame; without its octets if they may hold a password, because it is logged."""
        return broken_frame(kind, b"" if self.state is AmqpState.START else octets, why)

    def _connection_frame(self, payload: bytes) -> None:
        try:
            self._connection_method(wire.decode_method(payload))
        except LeveretError as error:
            if isinstance(error, SyntaxFault) and self.state is AmqpState.START:
                error = SyntaxFault("cannot decode connection.start-ok")
            self.fail(error, 0, _method_of(wire.FRAME_METHOD, payload))

    def _channel_frame(self, kind: int, number: int, payload: bytes) -> None:
        if self.state is not AmqpState.OPEN:
            raise Fault(503, "channel frame before connection.open")
        channel = self.channels.get(number)
        try:
            if channel is None and self._is_echo(kind, number, payload):
                return
            if channel is None:
                self._open_channel(kind, number, payload)
            else:
                channel.frame(kind, payload)
        except LeveretError as error:
            self.fail(error, number, _method_of(kind, payload))
        if channel is not None and channel.is_closed and number in self.channels:
            del self.channels[number]
            self.churn.channel_closed += 1
            self.publisher.forget()

    def channel_closes(self, number: int) -> None:
        """Note that the client closes a channel."""
        closed = self._channels_closed_at_ms
        closed.pop(number, None)
        closed[number] = self.now_ms
        # The first is the oldest. Another node never uses the number of a channel again.
        while self.now_ms - closed[first := next(iter(closed))] > CHANNEL_ECHO_MS:
            del closed[first]

    def _is_echo(self, kind: int, number: int, payload: bytes) -> bool:
        """Whether a frame was in flight when the client closed its channel, such as another thread's publish."""
        closed_at_ms = self._channels_closed_at_ms.get(number)
        if closed_at_ms is None:
            return False
        is_open = kind == wire.FRAME_METHOD and payload[:4] == wire.CHANNEL_OPEN
        if not is_open and self.now_ms - closed_at_ms <= CHANNEL_ECHO_MS:
            return True
        del self._channels_closed_at_ms[number]
        return False

    def _open_channel(self, kind: int, number: int, payload: bytes) -> None:
        if kind != wire.FRAME_METHOD or payload[:4] != wire.CHANNEL_OPEN:
            raise Fault(504, "expected 'channel.open'")
        self.check_channel_limits()
        self.channels[number] = self.make_channel(number)
        self.churn.channel_created += 1
        self.send(wire.frame(wire.FRAME_METHOD, number, wire.CHANNEL_OPEN_OK + b"\0\0\0\0"))

    def make_publisher(self) -> Publisher:
        """Make the object for the connection's publishes."""
        return Publisher(self, self.channels)

    def make_channel(self, number: int) -> Channel:
        """Make the object for an opened channel."""
        return Channel(self, number, self.publisher, self.host.leaders)

    def check_channel_limits(self) -> None:
        """Check the limits before one more channel is opened.

        Raises:
            NotAllowed: in RabbitMQ's words.
        """
        count = len(self.channels)
        if count >= self.channel_max:
            raise NotAllowed(
                f"number of channels opened ({count}) has reached the negotiated "
                f"channel_max ({self.channel_max})"
            )
        check_channel_limit(self.broker.definitions, self.broker.connections, self.user or "", count)
        limit = self.host.limits.channel_max_per_node
        if limit is not None and sum(len(each.channels) for each in self.broker.connections) >= limit:
            raise NotAllowed(
                f"number of channels opened on node '{self.host.node_name}' has reached the maximum allowed "
                f"limit of ({limit})"
            )

    def _connection_method(self, method: base.Frame) -> None:
        match method, self.state:
            case commands.Connection.StartOk(), AmqpState.START:
                self._start_ok(method)
            case commands.Connection.TuneOk(), AmqpState.TUNE:
                handshake.tune(self, method)
                self.state = AmqpState.OPEN_WAIT
            case commands.Connection.Open(), AmqpState.OPEN_WAIT:
                self.open(method.virtual_host)
            case commands.Connection.Close(), _:
                self.reply(commands.Connection.CloseOk())
                self.end_reason = "client_closed"
                self.client_closes = True
                self._end()
            case commands.Connection.UpdateSecret(), AmqpState.OPEN:
                self.reply(commands.Connection.UpdateSecretOk())
            case _:
                raise Fault(504, f"unexpected method in connection state {_SHOWN[self.state]}")

    def _start_ok(self, method: commands.Connection.StartOk) -> None:
        self.client_properties = dict(method.client_properties or {})
        self.mechanism = method.mechanism
        try:
            self.user = handshake.log_in(self, method)
        except AuthenticationFailed as error:
            self.end_reason = f"{method.mechanism} login refused: {error}"
            self.state = AmqpState.CLOSED
            # A client with this capability gets the reason; for others the socket just closes (RabbitMQ's rule). The
            # end of the stream follows its answer: php-amqplib looks for the end before it reads the reason.
            if self.client_can("authentication_failure_close"):
                self.send(handshake.refusal(method.mechanism))
                self.state = AmqpState.CLOSING
                self._close_by_ms = self.now_ms + REFUSED_TIMEOUT_MS
            return
        self.state = AmqpState.TUNE
        limits = self.host.limits
        self.reply(commands.Connection.Tune(limits.channel_max, limits.frame_max_bytes, limits.heartbeat_s))

    def open(self, vhost: str) -> None:
        """Enter a vhost.

        Raises:
            LeveretError: the client may not.
        """
        handshake.enter(self, vhost)
        self.state = AmqpState.OPEN
        self.broker.connections.add(self)
        self.broker.churn.connection_created += 1
        self.reply(commands.Connection.OpenOk())

    # -- what others ask ----------------------------------------------------------------------

    @property
    def shown_state(self) -> str:
        """The state by RabbitMQ's name: `running`, `blocking`, `blocked`, `flow`, ..."""
        if self.state is not AmqpState.OPEN:
            return _SHOWN[self.state]
        if self.blocked_reason is BlockedReason.ALARM:
            return "blocked"
        if self.host.alarms.active:
            return "blocking"
        flow = self._in_flow_at_ms
        return "flow" if flow is not None and self.now_ms - flow < FLOW_SHOWN_MS else "running"

    def note_flow(self) -> None:
        """Note that the connection waits for others or for the disk; shown for a while."""
        self._in_flow_at_ms = self.now_ms

    def set_reading(self, reading: bool, now_ms: int, *, for_disk: bool = False) -> None:
        """Note whether the socket is read from; while it is not, the peer's heartbeats are not timed."""
        self.is_reading = reading
        self._received_at_ms = now_ms
        if for_disk:
            self._in_flow_at_ms = now_ms

    def resume(self) -> None:
        """Serve its consumers at the next flush, because the socket takes octets again."""
        self.is_paused = self.is_throttled = self.drops_replies = False
        self.unread_replies_bytes = 0
        for channel in self.channels.values():
            channel.wake_consumers()

    # -- ends ---------------------------------------------------------------------------------

    def fail(self, error: LeveretError, number: int, method: int) -> None:
        """Close the channel or the connection, as the code demands."""
        code = code_of(error)
        text = reply_text(code, str(error))
        ids = (method >> 16, method & 0xFFFF)
        channel = self.channels.get(number)
        if channel is not None and (
            (isinstance(error, Fault) and error.code == 406) or code in (311, 403, 404, 405, 406)
        ):
            self.take_turn(_FRAMES_OF_A_REFUSAL)
            self.send(wire.close_method(number, code, text, *ids))
            channel.abandon()
            self.publisher.forget()
            self.host.channel_failed(self.peer, self.user or "", number, _OPERATIONS.get(method, ""), text)
            return
        if self.state in (AmqpState.CLOSING, AmqpState.CLOSED):
            return
        self.end_reason = text
        if self.state in (AmqpState.HEADER, AmqpState.START):
            self.state = AmqpState.CLOSED
            return
        self._release()
        self.send(wire.close_method(0, code, text, *ids))
        self.state = AmqpState.CLOSING
        self.blocked_reason = None
        self._close_by_ms = self.now_ms + CLOSING_TIMEOUT_MS

    def force_close(self, reason: str) -> None:
        """Close for a reason of the operator or the node (320)."""
        if self.state not in (AmqpState.CLOSING, AmqpState.CLOSED):
            self.fail(Fault(320, reason), 0, 0)

    def lost(self) -> None:
        """End without a socket: unacked messages return, exclusive queues go."""
        self._end()

    def _end(self) -> None:
        self._release()
        self.state = AmqpState.CLOSED

    def _release(self) -> None:
        for channel in self.channels.values():
            channel.end()
        leave(self.broker, list(self.channels.values()))
        self.churn.channel_closed += len(self.channels)
        self._asked = None
        self.publisher.forget()
        self.channels.clear()
        if self in self.broker.connections:
            self.broker.connections.discard(self)
            self.broker.churn.connection_closed += 1
        self.broker.deletions.delete_when_writable(self.broker.owned_by(self))
        self.confirming.clear()

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat after half the interval; end the connection if the peer was silent for two."""
        self.now_ms = now_ms
        if self.state is AmqpState.CLOSED:
            return
        if self.state is not AmqpState.OPEN:
            self._tick_before_or_after(now_ms)
            return
        for number, channel in list(self.channels.items()):
            try:
                channel.tick(now_ms)
            except LeveretError as error:
                self.fail(error, number, 0)
        self._give_up_unfinished(now_ms)
        if not self.heartbeat_ms or self.state is not AmqpState.OPEN:
            return
        if self.is_reading and now_ms - self._received_at_ms > 2 * self.heartbeat_ms:
            self.end_reason = f"missed heartbeats from client, timeout: {self.heartbeat_ms // 1000}s"
            self._end()
            return
        if self.sent_bytes != self._idle_mark:
            self._idle_mark, self._sent_at_ms = self.sent_bytes, now_ms
        elif now_ms - self._sent_at_ms >= self.heartbeat_ms // 2:
            self.send(wire.HEARTBEAT)
            self._idle_mark, self._sent_at_ms = self.sent_bytes, now_ms

    def _give_up_unfinished(self, now_ms: int) -> None:
        """End the connection if a lasting memory alarm may be due to its own unfinished messages.

        These end in an alarm only if they are small, so it could last for as long as the client stays. Nor is its end
        known while its socket is not read. The client publishes them again, because they are not confirmed.
        """
        if not self.host.alarms.mem_alarm:
            self._alarm_since_ms = None
        elif self._alarm_since_ms is None:
            self._alarm_since_ms = now_ms
        elif now_ms - self._alarm_since_ms >= UNFINISHED_TIMEOUT_MS:
            self._alarm_since_ms = now_ms
            unfinished_bytes = sum(channel.unfinished_bytes for channel in self.channels.values())
            if unfinished_bytes > UNDER_WAY_BYTES_MAX:
                self.force_close(
                    f"memory alarm: {unfinished_bytes} bytes of unfinished messages and transactions wait for its end"
                )

    def _tick_before_or_after(self, now_ms: int) -> None:
        """End a handshake, or a close, that takes too long."""
        if self.state is AmqpState.CLOSING:
            if now_ms > self._close_by_ms:
                self.state = AmqpState.CLOSED
        elif now_ms - self._began_ms > self.host.limits.handshake_timeout_ms:
            self.end_reason = f"handshake timeout in state {_SHOWN[self.state]}"
            self.state = AmqpState.CLOSED


_OPERATIONS: Final = {index: method.__qualname__.lower() for index, method in commands.INDEX_MAPPING.items()}
"""Methods by class and id, as the log shows them: `queue.declare`."""

_SHOWN: Final = {
    AmqpState.HEADER: "starting",
    AmqpState.START: "starting",
    AmqpState.TUNE: "tuning",
    AmqpState.OPEN_WAIT: "opening",
    AmqpState.OPEN: "running",
    AmqpState.CLOSING: "closed",
    AmqpState.CLOSED: "closed",
}
"""RabbitMQ's names of the states."""


def _method_of(kind: int, payload: bytes) -> int:
    """Class and method of the frame that failed; content belongs to basic.publish."""
    return int.from_bytes(payload[:4] if kind == wire.FRAME_METHOD else wire.BASIC_PUBLISH, "big")
