"""A client of the stream protocol that sends what it is told, right or wrong."""

from __future__ import annotations

import socket
from typing import Final, TypeVar

from leveret.model.stream import OffsetSpec, OffsetType
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import StreamCommand
from leveret.wire.stream.frames import FrameDecoder

Answer = TypeVar("Answer", bound=StreamCommand)
FRAME_MAX_BYTES: Final = 64 * 1024
TIMEOUT_S: Final = 20.0
RIGHT: Final = b"\0guest\0guest"


class StreamTalker:
    """A connection; nothing is said on it unasked."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._frames = FrameDecoder(1 << 30)
        self._received: list[StreamCommand] = []

    def send(self, *commands: StreamCommand) -> None:
        """Send all in one go."""
        self.socket.sendall(b"".join(command.encode() for command in commands))

    def ask(self, command: StreamCommand, answer: type[Answer]) -> Answer:
        """Send, and wait for such an answer."""
        self.send(command)
        return self.await_one(answer)

    def await_one(self, answer: type[Answer]) -> Answer:
        """Wait for a command of this type; those of other types stay for later."""
        while True:
            for number, command in enumerate(self._received):
                if isinstance(command, answer):
                    del self._received[number]
                    return command
            assert self._receive(), f"the connection ended before {answer.__name__}"

    def next(self) -> StreamCommand | None:
        """The next command; None at the end of the connection."""
        while not self._received:
            if not self._receive():
                return None
        return self._received.pop(0)

    def _receive(self) -> bool:
        octets = self.socket.recv(1 << 16)
        self._received += [wire.decode(frame) for frame in self._frames.feed(octets)]
        return bool(octets)

    def greet(self, proof: bytes = RIGHT, mechanism: str = "PLAIN") -> None:
        """Up to the answer to the password."""
        self.ask(wire.PeerProperties(1, {}), wire.PeerPropertiesResponse)
        self.ask(wire.SaslHandshake(2), wire.SaslHandshakeResponse)
        self.ask(wire.SaslAuthenticate(3, mechanism, proof), wire.SaslAuthenticateResponse)

    def enter(self, vhost: str = "/", username: str = "guest") -> int:
        """Up to the answer to the name of the vhost, whose code is returned; the password is `guest`."""
        self.greet(f"\0{username}\0guest".encode())
        self.await_one(wire.Tune)
        self.send(wire.Tune(FRAME_MAX_BYTES, 0))
        return self.ask(wire.Open(4, vhost), wire.OpenResponse).code

    def subscribe(self, stream: str) -> None:
        """Read a stream from its beginning, under number 1, with credit for one chunk."""
        request = wire.Subscribe(5, 1, stream, OffsetSpec(OffsetType.FIRST, 0), 1, {})
        self.ask(request, wire.SubscribeResponse)

    def declare_publisher(self, number: int, stream: str, reference: str = "") -> None:
        """Be about to publish."""
        self.ask(wire.DeclarePublisher(6, number, reference, stream), wire.DeclarePublisherResponse)

    def publish(self, number: int, *ids: int) -> None:
        """Publish a message for each of these ids."""
        messages = b"".join(each.to_bytes(8, "big") + (1).to_bytes(4, "big") + b"x" for each in ids)
        body = bytes([number]) + len(ids).to_bytes(4, "big") + messages
        self.socket.sendall((4 + len(body)).to_bytes(4, "big") + b"\0\x02\0\x01" + body)
