"""A client of the stream protocol for applications under test: one connection, over sockets or simulated ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast
from zlib import crc32

from leveret.wire.chunk import HEADER_BYTES, ChunkType, Header, decode_header
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, Response, StreamCommand
from leveret.wire.stream.fields import NO_LEADER, StreamMetadata
from leveret.wire.stream.frames import FrameDecoder

Answer = TypeVar("Answer", bound=StreamCommand)
Connect = Callable[
    [Callable[[], asyncio.BaseProtocol], int], Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]
]
"""Connects a protocol to a port."""
_FRAME_MAX_BYTES: Final = 1 << 20
_LOGIN: Final = b"\0guest\0guest"
_ANSWER_TIMEOUT_S: Final = 10.0


class StreamAppClosed(Exception):
    """The connection has ended, or the node refused a request; the text has the reason."""


class StreamAppClient(asyncio.Protocol):
    """See the module.

    Attributes:
        on_confirm: called with the publishing ids of each confirm.
        on_chunk: called with the header and the data of each chunk of a subscription.
        is_closed: whether the connection has ended.
        reason: the reason of the end.
    """

    def __init__(self) -> None:
        """Prepare a client; it is not connected yet."""
        self.on_confirm: Callable[[list[int]], None] = lambda ids: None
        self.on_chunk: Callable[[Header, bytes], None] = lambda header, data: None
        self.is_closed = False
        self.reason = ""
        self._transport: asyncio.Transport
        self._frames = FrameDecoder(1 << 30)
        self._correlation = 0
        self._answers: deque[tuple[type[StreamCommand], asyncio.Future[Any]]] = deque()

    @classmethod
    async def open(cls, connect: Connect, port: int) -> StreamAppClient:
        """Connect as guest to the vhost `/`.

        Raises:
            OSError: no listener accepts the connection.
            StreamAppClosed: the node refuses the login or the vhost.
        """
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            _, made = await connect(cls, port)
        client = cast("StreamAppClient", made)
        await client.ask(wire.PeerPropertiesResponse, wire.PeerProperties, {})
        await client.ask(wire.SaslHandshakeResponse, wire.SaslHandshake)
        tuned = client._expect(wire.Tune)
        await client.ask(wire.SaslAuthenticateResponse, wire.SaslAuthenticate, "PLAIN", _LOGIN)
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await tuned
        client.send(wire.Tune(_FRAME_MAX_BYTES, 0))
        await client.ask(wire.OpenResponse, wire.Open, "/")
        return client

    async def ports_of(self, stream: str) -> tuple[int, list[int]]:
        """Return the ports of the leader and of the replicas of a stream. Raises StreamAppClosed."""
        answer = await self.ask(wire.MetadataResponse, wire.Metadata, [stream])
        ports = {each.reference: each.port for each in answer.brokers}
        found: StreamMetadata = answer.streams[0]
        if found.code != Code.OK or found.leader == NO_LEADER or found.leader not in ports:
            raise StreamAppClosed(f"stream '{stream}' has no leader: code {found.code}")
        return ports[found.leader], [ports[each] for each in found.replicas if each in ports]

    async def ask(self, answer: type[Answer], request: Callable[..., StreamCommand], *fields: Any) -> Answer:
        """Send a request and return its answer.

        Raises:
            StreamAppClosed: the connection ended, the answer is late, or its code is an error.
        """
        self._correlation += 1
        self.send(request(self._correlation, *fields))
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                found: Answer = await self._expect(answer)
        except TimeoutError:
            self.close(f"no {answer.__name__} within {_ANSWER_TIMEOUT_S:g} s")
            raise StreamAppClosed(self.reason) from None
        if isinstance(found, Response) and found.code not in (Code.OK, Code.NO_OFFSET):
            raise StreamAppClosed(f"{answer.__name__} has code {found.code}")
        return found

    def send(self, *commands: StreamCommand) -> None:
        """Send commands. Raises StreamAppClosed."""
        if self.is_closed:
            raise StreamAppClosed(self.reason)
        self._transport.write(b"".join([each.encode() for each in commands]))

    def close(self, reason: str = "closed") -> None:
        """Close the connection without the protocol's Close."""
        self._ended(reason)
        self._transport.abort()

    def _expect(self, answer: type[StreamCommand]) -> asyncio.Future[Any]:
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            _fail(found, self.reason)
        else:
            self._answers.append((answer, found))
        return found

    def _ended(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed, self.reason = True, reason
        answers, self._answers = self._answers, deque()
        for _, answer in answers:
            if not answer.done():
                _fail(answer, reason)

    # -- receiving ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._ended(str(exc or "closed by the node"))

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        for frame in self._frames.feed(data):
            if not self.is_closed:
                self._take(wire.decode(frame))

    def _take(self, command: StreamCommand) -> None:
        match command:
            case wire.PublishConfirm():
                self.on_confirm(command.publishing_ids)
            case wire.Deliver():
                self._take_chunk(command.chunk)
            case wire.MetadataUpdate() | wire.PublishError() | wire.Close():
                # The application looks up the leader and the replicas again, and connects to them.
                self.close(repr(command))
            case _:
                for pending in self._answers:
                    if isinstance(command, pending[0]):
                        self._answers.remove(pending)
                        if not pending[1].done():
                            pending[1].set_result(command)
                        return

    def _take_chunk(self, octets: bytes) -> None:
        header, data = decode_header(octets), octets[HEADER_BYTES:]
        assert header.type == ChunkType.USER, header
        assert crc32(data) == header.crc, f"the data of the chunk at offset {header.chunk_id} are damaged"
        self.on_chunk(header, data)


def _fail(answer: asyncio.Future[Any], reason: str) -> None:
    """Fail an answer that the closed connection does not bring."""
    answer.set_exception(StreamAppClosed(reason))
    # Mark the exception as seen: the caller may have stopped waiting.
    answer.exception()
