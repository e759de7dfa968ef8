"""A stream listener on a loop of its own in a thread, and a peer that does only what it is told."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.runtime.clients.stream_listener import StreamListener
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.sites.stream_host import FakeServedLog, FakeStreamHost
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import StreamCommand
from leveret.wire.stream.frames import FrameDecoder

T = TypeVar("T")
TIMEOUT_S = 60.0
QUEUE = RECOVERY_STREAM_PREFIX + "orders"


@dataclass
class Served:
    """A listener on a loop in a thread of its own; its host may be touched on that loop only."""

    loop: asyncio.AbstractEventLoop
    host: FakeStreamHost = field(default_factory=FakeStreamHost)

    async def start(self, heartbeat_s: int) -> None:
        self.listener = StreamListener(self.host, heartbeat_s=heartbeat_s)
        await self.listener.start(LOOPBACK, 0)
        (self.port,) = self.listener.ports
        self.host.advertised_port = self.port

    @property
    def log(self) -> FakeServedLog:
        return self.host.logs["/"]

    def run(self, work: Awaitable[T]) -> T:
        async def await_it() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(await_it(), self.loop).result(TIMEOUT_S)

    def on_loop(self, work: Callable[[], T]) -> T:
        async def do() -> T:
            return work()

        return self.run(do())

    def client(self, vhost: str = "/", username: str = "guest", timeout_s: float = TIMEOUT_S) -> StreamClient:
        password = self.host.passwords[username]
        return connect(
            [(LOOPBACK, self.port)], vhost=vhost, username=username, password=password, timeout_s=timeout_s
        )

    def fill(self, chunks: int, records: int = 2, body: bytes = b"x" * 100) -> None:
        self.on_loop(lambda: [self.log.append([body] * records, timestamp_ms=i) for i in range(chunks)])

    def peers(self) -> int:
        return self.on_loop(lambda: len(self.listener.connections))


@contextmanager
def serving(new_loop: Callable[[], asyncio.AbstractEventLoop], heartbeat_s: int = 60) -> Iterator[Served]:
    loop = new_loop()
    loop.set_debug(True)
    thread = threading.Thread(target=loop.run_forever, name="stream listener")
    thread.start()
    served = Served(loop)
    try:
        served.run(served.start(heartbeat_s))
        yield served
        served.run(served.listener.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


class RawPeer:
    """A socket through the handshake that does only what it is told."""

    def __init__(self, port: int, *, heartbeat_s: int = 0, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((LOOPBACK, port))
        self._decoder = FrameDecoder(1 << 30)
        self._frames: list[bytes] = []
        # One by one: RabbitMQ does not take a handshake in one go.
        for command in (
            wire.PeerProperties(1, {}),
            wire.SaslHandshake(2),
            wire.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"),
        ):
            self.send(command)
            self.next()
        assert isinstance(self.next(), wire.Tune)
        self.send(wire.Tune(1_048_576, heartbeat_s), wire.Open(4, "/"))
        assert isinstance(self.next(), wire.OpenResponse)

    def send(self, *commands: StreamCommand) -> None:
        self.socket.sendall(b"".join(command.encode() for command in commands))

    def next(self) -> StreamCommand | None:
        """The next command, None at the end of the connection."""
        frame = self.next_frame()
        return None if frame is None else wire.decode(frame)

    def next_frame(self) -> bytes | None:
        """The octets of the next command, without their size."""
        while not self._frames:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._frames = list(self._decoder.feed(data))
        return self._frames.pop(0)
