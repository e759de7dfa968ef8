"""A client that sees and sends single frames: for what a well-behaved client library hides.

Frames are encoded by pamqp; octets can also be sent as they are, right or wrong. A `Peer` keeps
no state of the protocol: a test says what it sends and what it expects, in order.

    with Peer(port) as peer:
        peer.login()
        peer.open_channel(1)
        peer.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import Any, Final, Self, TypeVar

from pamqp import base, body, commands, frame, header, heartbeat

from leveret.testing.network.ports import AMQP_HEADER, LOOPBACK

PATIENCE_S: Final = 10.0
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
HEADER_BYTES: Final = 7
CLIENT_CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "exchange_exchange_bindings": True,
    "publisher_confirms": True,
}

Received = base.Frame | header.ContentHeader | body.ContentBody | heartbeat.Heartbeat
Wanted = TypeVar("Wanted", bound=Received)


class Closed(Exception):
    """The broker ended the TCP connection."""


def raw_frame(kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> bytes:
    """One frame as octets; nothing is checked."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def plain(username: str, password: str) -> str:
    """The response of SASL PLAIN."""
    return f"\0{username}\0{password}"


HEARTBEAT: Final = raw_frame(FRAME_HEARTBEAT, 0, b"")


class Peer:
    """One TCP connection to a broker, frame by frame."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
            except BaseException:
                self._socket.close()
                raise
        self._buffer = b""
        self.server_properties: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()

    def abort(self) -> None:
        """End the TCP connection without a word, as a client that died does."""
        self._socket.close()

    # Sending

    def send_octets(self, data: bytes) -> None:
        """Send octets as they are."""
        self._socket.sendall(data)

    def send(self, channel: int, *frames: frame.FrameTypes) -> None:
        """Send frames in one write."""
        self._socket.sendall(b"".join(frame.marshal(one, channel) for one in frames))

    def publish(
        self,
        channel: int,
        payload: bytes = b"",
        *,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        properties: commands.Basic.Properties | None = None,
    ) -> None:
        """Send one message whose body fits in a frame."""
        publish = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        content = [body.ContentBody(payload)] if payload else []
        properties = properties or commands.Basic.Properties()
        self.send(
            channel, publish, header.ContentHeader(body_size=len(payload), properties=properties), *content
        )

    # Receiving

    def receive_frame(self, timeout_s: float = PATIENCE_S) -> tuple[int, int, bytes]:
        """Return (type, channel, whole frame in octets) of the next frame, heartbeats too.

        Raises:
            Closed: the broker ended the connection first.
            TimeoutError: no whole frame within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        self._fill(HEADER_BYTES, deadline)
        kind, channel, size = struct.unpack_from(">BHI", self._buffer)
        whole = HEADER_BYTES + size + 1
        self._fill(whole, deadline)
        octets, self._buffer = self._buffer[:whole], self._buffer[whole:]
        assert octets[-1] == FRAME_END, octets
        return kind, channel, octets

    def receive(self, timeout_s: float = PATIENCE_S) -> tuple[int, Received]:
        """Return (channel, frame) of the next frame that is no heartbeat."""
        deadline = time.monotonic() + timeout_s
        while True:
            kind, channel, octets = self.receive_frame(max(0.0, deadline - time.monotonic()))
            if kind != FRAME_HEARTBEAT:
                break
        if kind == FRAME_BODY:
            return channel, body.ContentBody(octets[HEADER_BYTES:-1])
        decoded = frame.unmarshal(octets)[2]
        assert not isinstance(decoded, header.ProtocolHeader)
        return channel, decoded

    def expect(self, channel: int, kind: type[Wanted], timeout_s: float = PATIENCE_S) -> Wanted:
        """Return the next frame, which must be of this kind and on this channel."""
        actual_channel, received = self.receive(timeout_s)
        assert isinstance(received, kind), f"expected {kind.__name__}, got {described(received)}"
        assert actual_channel == channel, f"expected channel {channel}, got {actual_channel}"
        return received

    def expect_content(self, channel: int) -> bytes:
        """Return the body that follows a deliver, get-ok or return."""
        announced = self.expect(channel, header.ContentHeader).body_size
        content = b""
        while len(content) < announced:
            content += self.expect(channel, body.ContentBody).value
        assert len(content) == announced
        return content

    def expect_silence(self, channel: int) -> None:
        """Check that nothing arrived: the answer to a synchronous method comes next.

        The broker handles a channel's methods in order, so anything that an earlier method caused
        would stand before this answer.
        """
        self.call(channel, commands.Basic.Qos(), commands.Basic.QosOk)

    def expect_end(self, timeout_s: float = PATIENCE_S) -> None:
        """Check that the broker ends the TCP connection, sending nothing but heartbeats before."""
        try:
            received = self.receive(timeout_s)
        except (Closed, ConnectionError):
            return
        raise AssertionError(f"expected the end, got {described(received[1])}")

    def read_octets(self, count: int) -> bytes:
        """Return exactly `count` octets."""
        self._fill(count, time.monotonic() + PATIENCE_S)
        octets, self._buffer = self._buffer[:count], self._buffer[count:]
        return octets

    def _fill(self, count: int, deadline: float) -> None:
        while len(self._buffer) < count:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            piece = self._socket.recv(65536)
            if not piece:
                raise Closed(f"the broker ended the connection; {len(self._buffer)} octets were left")
            self._buffer += piece
            if time.monotonic() > deadline and len(self._buffer) < count:
                raise TimeoutError("the frame did not arrive whole in time")

    # Conversations

    def call(self, channel: int, method: base.Frame, answer: type[Wanted]) -> Wanted:
        """Send a method and return its answer, which must come next."""
        self.send(channel, method)
        return self.expect(channel, answer)

    def start(self) -> commands.Connection.Start:
        """Send the protocol header, return the broker's start."""
        self.send_octets(AMQP_HEADER)
        start = self.expect(0, commands.Connection.Start)
        self.server_properties = dict(start.server_properties or {})
        return start

    def authenticate(
        self,
        username: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: str | None = None,
        capabilities: dict[str, bool] | None = None,
    ) -> None:
        """Start and send the credentials (or `response`); what the broker says to that is still to be read."""
        self.start()
        announced = CLIENT_CAPABILITIES if capabilities is None else capabilities
        self.send(
            0,
            commands.Connection.StartOk(
                client_properties={"product": "conformance", "capabilities": dict(announced)},
                mechanism=mechanism,
                response=plain(username, password) if response is None else response,
                locale="en_US",
            ),
        )

    def tune(
        self, *, channel_max: int = 2047, frame_max: int = 131072, heartbeat_s: int = 0
    ) -> commands.Connection.Tune:
        """Answer the broker's tune with these values; return what it had proposed."""
        proposed = self.expect(0, commands.Connection.Tune)
        self.send(0, commands.Connection.TuneOk(channel_max, frame_max, heartbeat_s))
        return proposed

    def login(
        self,
        username: str = "guest",
        password: str = "guest",
        *,
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat_s: int = 0,
        capabilities: dict[str, bool] | None = None,
    ) -> None:
        """Go all the way to an open connection."""
        self.authenticate(username, password, capabilities=capabilities)
        self.tune(channel_max=channel_max, frame_max=frame_max, heartbeat_s=heartbeat_s)
        self.call(0, commands.Connection.Open(virtual_host=vhost), commands.Connection.OpenOk)

    def open_channel(self, channel: int) -> None:
        """Open a channel."""
        self.call(channel, commands.Channel.Open(), commands.Channel.OpenOk)

    def expect_channel_close(self, channel: int) -> tuple[int, str]:
        """Return code and text of the channel.close that must come next, and confirm it."""
        closed = self.expect(channel, commands.Channel.Close)
        self.send(channel, commands.Channel.CloseOk())
        return closed.reply_code or 0, closed.reply_text

    def expect_connection_close(self) -> tuple[int, str]:
        """Return code and text of the connection.close that must come next, confirm it, see the end."""
        closed = self.expect(0, commands.Connection.Close)
        self.send(0, commands.Connection.CloseOk())
        self.expect_end()
        return closed.reply_code or 0, closed.reply_text


def described(received: Received) -> str:
    """A frame for a failure message."""
    fields = dict(received) if isinstance(received, base.Frame) else ""
    return f"{type(received).__name__} {fields}"
