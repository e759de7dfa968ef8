"""A stream session in memory, and what came out of it."""

from __future__ import annotations

from typing import TypeVar

from leveret.session.certificate import TlsPeer
from leveret.session.stream.connection import StreamClientConnection
from leveret.session.stream.types import Effect, StreamConnectionState
from leveret.testing.sites.stream_host import FakeStreamHost
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import StreamCommand
from leveret.wire.stream.frames import FrameDecoder

GUEST = b"\0guest\0guest"
C = TypeVar("C", bound=StreamCommand)

HANDSHAKE: list[StreamCommand] = [
    wire.PeerProperties(1, {"product": "test"}),
    wire.SaslHandshake(2),
    wire.SaslAuthenticate(3, "PLAIN", GUEST),
    wire.Tune(1_048_576, 60),
    wire.Open(4, "/"),
]


class Peer:
    """A session and what came out of it."""

    def __init__(
        self, host: FakeStreamHost | None = None, *, from_loopback: bool = True, tls: TlsPeer | None = None
    ) -> None:
        self.host = host or FakeStreamHost()
        self.session = StreamClientConnection(self.host, from_loopback, 1_048_576, 60, 0, tls)
        self.effects: list[Effect] = []
        self.now_ms = 0
        self._decoder = FrameDecoder(1 << 30)

    def send(self, *commands: StreamCommand) -> list[StreamCommand]:
        return self.send_octets(b"".join(command.encode() for command in commands))

    def send_octets(self, octets: bytes) -> list[StreamCommand]:
        self.effects = self.session.receive(octets, self.now_ms)
        return self.output()

    def output(self) -> list[StreamCommand]:
        octets = b"".join(self.session.take_output(self.now_ms))
        return [wire.decode(frame) for frame in self._decoder.feed(octets)]

    def ask(self, command: StreamCommand, answer: type[C]) -> C:
        (got,) = self.send(command)
        assert isinstance(got, answer)
        return got

    def state(self) -> StreamConnectionState:
        return self.session.state

    def tick(self, now_ms: int) -> list[StreamCommand]:
        self.now_ms = now_ms
        self.session.tick(now_ms)
        return self.output()

    def opened(self) -> Peer:
        self.send(*HANDSHAKE)
        assert self.session.state is StreamConnectionState.OPEN
        return self
