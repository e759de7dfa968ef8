"""The part of an AMQP 0-9-1 client that a load generator needs: one blocking socket, one channel.

The rare methods (handshake, declare, consume) go through pamqp. Messages are encoded beforehand:

    one message, `stride` octets in all, the same for each message of a run
    +----------------------+----------------------+------------------------+
    | method frame         | header frame         | body frame             |
    | basic.publish        | size and properties  | random, `body` octets  |
    +----------------------+----------------------+------------------------+
                                                    ^ body_at
"""

from __future__ import annotations

import contextlib
import random
import socket
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pamqp import base, body, commands, frame, header

LOOPBACK: Final = "127.0.0.1"
CHANNEL: Final = 1
FRAME_MAX: Final = 131_072
FRAME_END: Final = 0xCE
PERSISTENT: Final = 2
TRANSIENT: Final = 1
RECV_BYTES: Final = 65_536
TIMEOUT_S: Final = 120.0

_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_FRAME_HEAD_BYTES: Final = 7
_CLOSED: Final = "the broker closed the connection"

Reply = TypeVar("Reply", bound=base.Frame)


class LoadError(Exception):
    """The broker's answer is not the expected one; the text has both."""


class Connection:
    """A connection with channel 1 open; heartbeats are off, so only answers ever arrive."""

    def __init__(self, port: int, *, vhost: str = "/", user: str = "guest", password: str = "guest") -> None:
        """Connect to a broker on loopback, log in, open the channel."""
        self.socket = socket.create_connection((LOOPBACK, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = bytearray()  # received, not yet looked at
        try:
            self._open(vhost, f"\0{user}\0{password}")
        except BaseException:
            self.socket.close()
            raise

    def declare_queue(
        self, queue: str, *, durable: bool = True, arguments: dict[str, Any] | None = None
    ) -> None:
        """Declare a queue, of the default type unless the arguments name one."""
        declare = commands.Queue.Declare(queue=queue, durable=durable, arguments=arguments or {})
        self._call(declare, commands.Queue.DeclareOk)

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """Declare a durable exchange."""
        declare = commands.Exchange.Declare(exchange=exchange, exchange_type=kind, durable=True)
        self._call(declare, commands.Exchange.DeclareOk)

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any] | None = None
    ) -> None:
        """Bind a queue."""
        bind = commands.Queue.Bind(
            queue=queue, exchange=exchange, routing_key=routing_key, arguments=arguments or {}
        )
        self._call(bind, commands.Queue.BindOk)

    def delete_exchange(self, exchange: str) -> None:
        """Delete an exchange with its bindings."""
        self._call(commands.Exchange.Delete(exchange=exchange), commands.Exchange.DeleteOk)

    def ready_messages(self, queue: str) -> int:
        """Return the number of ready messages of an existing queue."""
        asked = commands.Queue.Declare(queue=queue, passive=True)
        return self._call(asked, commands.Queue.DeclareOk).message_count or 0

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages if it exists."""
        self._call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)

    def peek(self, queue: str) -> bytes:
        """Return the body, of one frame, of a queue's first message; the message returns with the connection's end."""
        self._call(commands.Basic.Get(queue=queue), commands.Basic.GetOk)
        self._read_frame()
        content = frame.unmarshal(self._read_frame())[2]
        assert isinstance(content, body.ContentBody)
        return content.value

    def get(self, queue: str) -> bytes:
        """Get and acknowledge the first message, of one body frame; return its body."""
        found = self._call(commands.Basic.Get(queue=queue), commands.Basic.GetOk)
        self._read_frame()
        content = self._read_frame()[_FRAME_HEAD_BYTES:-1]
        self._send(commands.Basic.Ack(found.delivery_tag or 0))
        return content

    def confirm_select(self) -> None:
        """Ask for publisher confirms."""
        self._call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def consume(self, queue: str, *, prefetch: int) -> None:
        """Start the consumer `c`; `pending` has the first deliveries."""
        self._call(commands.Basic.Qos(0, prefetch, False), commands.Basic.QosOk)
        self._call(commands.Basic.Consume(queue=queue, consumer_tag="c"), commands.Basic.ConsumeOk)

    def consume_each(self, queues: dict[str, str], *, prefetch: int) -> None:
        """Start a consumer of each queue, by tag; `pending` is as with `consume`. All queues but the last are empty."""
        self._call(commands.Basic.Qos(0, prefetch, False), commands.Basic.QosOk)
        for tag, queue in queues.items():
            self._call(commands.Basic.Consume(queue=queue, consumer_tag=tag), commands.Basic.ConsumeOk)

    def receive(self) -> bytes:
        """Read the next octets.

        Raises:
            LoadError: the broker closed the connection.
        """
        octets = self.socket.recv(RECV_BYTES)
        if not octets:
            raise LoadError(_CLOSED)
        return octets

    def receive_into(self, room: memoryview) -> int:
        """Read the next octets into memory; return their number. Raises LoadError: as `receive`."""
        got = self.socket.recv_into(room)
        if not got:
            raise LoadError(_CLOSED)
        return got

    def skip_frames(self, count: int) -> None:
        """Read and ignore `count` frames."""
        for _ in range(count):
            self._read_frame()

    def close(self) -> None:
        """End the connection in order, and ignore all further answers."""
        self._send(commands.Connection.Close(200, "done", 0, 0), channel=0)
        with self.socket, contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(RECV_BYTES):
                pass

    def _open(self, vhost: str, login: str) -> None:
        """Go through the handshake and open the channel."""
        self.socket.sendall(_HEADER)
        self._expect(commands.Connection.Start)
        start_ok = commands.Connection.StartOk({}, "PLAIN", login, "en_US")
        self._call(start_ok, commands.Connection.Tune, channel=0)
        self._send(commands.Connection.TuneOk(CHANNEL, FRAME_MAX, 0), channel=0)
        self._call(commands.Connection.Open(vhost), commands.Connection.OpenOk, channel=0)
        self._call(commands.Channel.Open(), commands.Channel.OpenOk)

    def _send(self, method: base.Frame, channel: int = CHANNEL) -> None:
        self.socket.sendall(frame.marshal(method, channel))

    def _call(self, method: base.Frame, reply: type[Reply], channel: int = CHANNEL) -> Reply:
        self._send(method, channel)
        return self._expect(reply)

    def _expect(self, kind: type[Reply]) -> Reply:
        """Read a method frame. Raises LoadError: it is of another kind."""
        octets = self._read_frame()
        method = frame.unmarshal(octets)[2]
        if not isinstance(method, kind):
            raise LoadError(f"expected {kind.name}, got {describe(octets)}")
        return method

    def _read_frame(self) -> bytes:
        """Read the next whole frame from the socket."""
        while True:
            if len(self.pending) >= _FRAME_HEAD_BYTES:
                end = _FRAME_HEAD_BYTES + int.from_bytes(self.pending[3:7], "big") + 1
                if len(self.pending) >= end:
                    whole = bytes(self.pending[:end])
                    del self.pending[:end]
                    return whole
            self.pending += self.receive()


def describe(octets: bytes) -> str:
    """Return the name of the first frame in these octets, with its reply text if it has one."""
    try:
        method = frame.unmarshal(octets)[2]
    except Exception as broken:
        return f"octets that are no frame ({broken}): {octets[:40].hex()}"
    text = getattr(method, "reply_text", "")
    return f"{getattr(method, 'name', type(method).__name__)} {text}".strip()


@dataclass(frozen=True)
class Message:
    """The properties of a run's messages; only the bodies' octets differ."""

    exchange: str
    routing_key: str
    body_bytes: int
    persistent: bool

    def encode(self, octets: bytes) -> bytes:
        """Return the three frames of one message with this body."""
        mode = PERSISTENT if self.persistent else TRANSIENT
        properties = commands.Basic.Properties(delivery_mode=mode)
        publish = commands.Basic.Publish(exchange=self.exchange, routing_key=self.routing_key)
        head = header.ContentHeader(body_size=len(octets), properties=properties)
        frames = (publish, head, body.ContentBody(octets))
        return b"".join(frame.marshal(one, CHANNEL) for one in frames)

    @property
    def stride(self) -> int:
        """Octets of one encoded message."""
        return len(self.encode(bytes(self.body_bytes)))

    @property
    def body_at(self) -> int:
        """The place in an encoded message at which its body begins."""
        return self.stride - self.body_bytes - 1


def ring(message: Message, count: int, longest_run: int) -> bytearray:
    """Encode `count` messages with different bodies, one after the other.

    The first `longest_run` of them are repeated at the end, so that a run of that many messages is one slice from any
    place of the ring.
    """
    source = random.Random(1)
    text = message.encode(bytes(message.body_bytes))
    front, back = text[: message.body_at], text[message.body_at + message.body_bytes :]
    encoded = bytearray()
    for _ in range(count):
        encoded += front + source.randbytes(message.body_bytes) + back
    return encoded + encoded[: longest_run * message.stride]
