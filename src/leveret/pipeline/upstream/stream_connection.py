"""One blocking connection of the stream protocol: socket, handshake, requests and their answers.

`stream_client` uses it for its requests. One thread uses a connection; there is no background thread. So it asks for
no heartbeats, which a worker that writes Parquet between two chunks could not send: each read and write has a timeout
instead, and TCP keep-alive shows the other side that a worker is gone.

The socket is in blocking mode with `SO_RCVTIMEO`, not Python's timeout, which would make it
non-blocking underneath and `MSG_WAITALL` useless. With TLS neither works, so TLS uses Python's timeout.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, TypeVar

import numpy as np

from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LeveretError,
    NotFound,
    PeerError,
    PreconditionFailed,
    Refusal,
)
from leveret.model.whole_number import whole_number
from leveret.wire.stream.codec import Code, CommandKey, Response, StreamCommand, StreamRequest
from leveret.wire.stream.commands import (
    Close,
    CloseResponse,
    Heartbeat,
    Open,
    OpenResponse,
    PeerProperties,
    PeerPropertiesResponse,
    SaslAuthenticate,
    SaslAuthenticateResponse,
    SaslHandshake,
    SaslHandshakeResponse,
    Tune,
    decode,
)

FRAME_BYTES_MAX: Final = 2**30
"""A peer that announces more is no server; chunks are not bound by the agreed frame size, and hold a message of 2**29
octets and others."""
LOOK_AHEAD_BYTES: Final = 65536
"""The size of a read while a frame's size is unknown; larger frames bypass this buffer."""
BLOCK_BYTES: Final = 16_000_000
"""The size of the blocks of memory for adjacent frames; a larger frame has one of its own."""
CLOSE_TIMEOUT_S: Final = 2.0
_VERSION_MAX: Final = 999_999
_SIZE: Final = struct.Struct(">I")
_OTHERS: Final = {b"AMQP": "an AMQP listener", b"HTTP": "an HTTP listener"}
"""Protocols by the octets with which their answers begin."""
_TIMEVAL: Final = struct.Struct("@ll")
_DELIVER: Final = CommandKey.DELIVER.to_bytes(2, "big")

T = TypeVar("T", bound=StreamCommand)

REFUSALS: Final[dict[int, type[Refusal]]] = {
    Code.STREAM_DOES_NOT_EXIST: NotFound,
    Code.STREAM_NOT_AVAILABLE: NotFound,
    Code.SASL_MECHANISM_UNSUPPORTED: AuthenticationFailed,
    Code.AUTHENTICATION_FAILURE: AuthenticationFailed,
    Code.SASL_ERROR: AuthenticationFailed,
    Code.AUTHENTICATION_FAILURE_LOOPBACK: AuthenticationFailed,
    Code.VHOST_ACCESS_FAILURE: AccessRefused,
    Code.ACCESS_REFUSED: AccessRefused,
    Code.PRECONDITION_FAILED: PreconditionFailed,
    Code.PUBLISHER_UNKNOWN: PreconditionFailed,
}
"""The exceptions for response codes; any other code is an `InvalidCommand`."""


class ConnectionLost(LeveretError):
    """The connection ended, by either side, the network or a timeout; it is closed for good."""


class StreamConnection:
    """An open connection in one vhost.

    Attributes:
        peer: `host:port`, for messages.
        server_properties: the server's properties (`product`, `version`, ...).
        frame_max_bytes: the server's limit for a frame sent to it.
        on_command: called with every unexpected command, before `await_command` continues.

    Raises:
        OSError: there is no listener.
        ConnectionLost: the listener speaks another protocol. AuthenticationFailed, AccessRefused: wrong credentials; no
            such vhost or no access to it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        vhost: str,
        username: str,
        password: str,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.peer = f"{host}:{port}"
        self.server_properties: dict[str, str] = {}
        self.frame_max_bytes = 0
        self.on_command: Callable[[StreamCommand], None] = _nobody
        self._timeout_s = timeout_s
        self._correlations = itertools.count(1)
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if tls is not None:
            self._socket = _encrypted(self._socket, tls, host)
        else:
            self._socket.setblocking(True)
        self._reader = _FrameReader(self._socket)
        self.set_timeout(timeout_s)
        try:
            self._handshake(vhost, username, password)
        except PeerError as error:
            self.lose(str(error))
        except BaseException:
            self._socket.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed or lost."""
        return self._socket.fileno() == -1

    @property
    def is_leveret(self) -> bool:
        """Whether the server is Leveret, which checks and reports more than RabbitMQ."""
        return self.server_properties.get("product") == "Leveret"

    @property
    def server_version(self) -> tuple[int, ...]:
        """Major and minor number of the server's version; (0, 0) if it has no numbers."""
        texts = self.server_properties.get("version", "").split(".")[:2]
        numbers = [whole_number(each, most=_VERSION_MAX) for each in texts]
        return (0, 0) if None in numbers else tuple(each for each in numbers if each is not None)

    def next_id(self) -> int:
        """A correlation id for a request."""
        return next(self._correlations) & 0x7FFF_FFFF

    def request(self, request: StreamRequest, answer: type[T]) -> T:
        """Send a request, wait for the answer, and raise a refusal in it."""
        response = self.exchange(request, answer)
        self.check(response)
        return response

    def exchange(self, request: StreamRequest, answer: type[T]) -> T:
        """Send a request and wait for the answer, with any code."""
        self.send(request.encode())
        while True:
            response = self.await_command(answer)
            if getattr(response, "correlation", None) == request.correlation:
                return response

    def check(self, response: StreamCommand) -> None:
        """Raise the refusal for a response's code, unless it is OK."""
        if isinstance(response, Response) and response.code != Code.OK:
            raise self.refusal(response.code, type(response).__name__.removesuffix("Response"))

    def refusal(self, code: int, what: str) -> Refusal:
        """The error for a code in answer to `what`."""
        return REFUSALS.get(code, InvalidCommand)(f"{self.peer} declines {what}: {name_of(code)}")

    def await_command(self, wanted: type[T]) -> T:
        """Read until a command of that type comes, dropping unwanted chunks."""
        while True:
            frame = self.next_frame()
            if is_deliver(frame):
                continue
            command = self.receive(frame)
            if isinstance(command, wanted):
                return command

    def receive(self, frame: memoryview) -> StreamCommand:
        """Decode a frame, and handle commands that may come at any time."""
        command = decode(bytes(frame))
        match command:
            case Heartbeat():
                self.send(command.encode())
            case Close():
                with contextlib.suppress(OSError):
                    # The server may not wait for this answer, and its reason is more useful.
                    self._socket.sendall(CloseResponse(command.correlation, Code.OK).encode())
                self.lose(f"closed by the server: {name_of(command.code)}, {command.reason}")
        self.on_command(command)
        return command

    @contextlib.contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Put frames one behind the other in blocks of memory meanwhile, so that kept frames need not be joined."""
        self._reader.block = _NO_BLOCK
        try:
            yield
        finally:
            self._reader.block = None

    def next_frame(self) -> memoryview:
        """The next frame without its size, in memory of its own.

        Raises:
            ConnectionLost: the connection ended, or no frame came in time.
        """
        try:
            return self._reader.read()
        except (BlockingIOError, TimeoutError):
            self.lose("no frame came before the timeout")
        except (OSError, PeerError) as error:
            self.lose(str(error))

    def comes_within(self, seconds: float) -> bool:
        """Wait for octets of a frame, or the end of the connection; return False if nothing came in time."""
        return self.closed or self._reader.comes_within(seconds)

    def send(self, *octets: bytes | memoryview) -> None:
        """Send whole frames, which may be in pieces.

        Raises:
            ConnectionLost: the connection ended, or the server took no octets for too long.
        """
        try:
            for piece in octets:
                self._socket.sendall(piece)
        except (BlockingIOError, TimeoutError):
            self.lose("nothing could be sent before the timeout")
        except OSError as error:
            self._last_words(str(error))

    def set_timeout(self, seconds: float | None = None) -> None:
        """Limit every single read and write from now on; without a value, as at the beginning."""
        whole, fraction = divmod(max(self._timeout_s if seconds is None else seconds, 0.001), 1)
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(whole + fraction)
            return
        value = _TIMEVAL.pack(int(whole), int(fraction * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def lose(self, reason: str) -> NoReturn:
        """Drop the connection, and raise with the reason."""
        self._socket.close()
        raise ConnectionLost(f"connection to {self.peer} lost: {reason}")

    def close(self) -> None:
        """Send a close, wait shortly for the answer, drop the connection; a second call does nothing."""
        if self.closed:
            return
        try:
            self.set_timeout(min(self._timeout_s, CLOSE_TIMEOUT_S))
            self.request(Close(self.next_id(), Code.OK, "bye"), CloseResponse)
        except (LeveretError, OSError):
            pass  # The connection ends anyway, and all requests were answered before.
        finally:
            self._socket.close()

    def _last_words(self, reason: str) -> NoReturn:
        """Handle a failed send: the server may have sent a reason before it closed."""
        try:
            while True:
                command = decode(bytes(self._reader.read()))
                if isinstance(command, Close):
                    reason = f"closed by the server: {name_of(command.code)}, {command.reason}"
        except (OSError, PeerError):
            self.lose(reason)

    def _handshake(self, vhost: str, username: str, password: str) -> None:
        ours = {"product": "Leveret", "platform": "Python", "connection_name": "leveret pipeline"}
        self.server_properties = self.request(
            PeerProperties(self.next_id(), ours), PeerPropertiesResponse
        ).properties
        offer = self.request(SaslHandshake(self.next_id()), SaslHandshakeResponse)
        if "PLAIN" not in offer.mechanisms:
            raise AuthenticationFailed(f"{self.peer} offers {offer.mechanisms}, not PLAIN")
        proof = b"\0" + username.encode() + b"\0" + password.encode()
        self.request(SaslAuthenticate(self.next_id(), "PLAIN", proof), SaslAuthenticateResponse)
        tune = self.await_command(Tune)
        self.frame_max_bytes = tune.frame_max_bytes or FRAME_BYTES_MAX
        self.send(Tune(tune.frame_max_bytes, 0).encode())
        self.request(Open(self.next_id(), vhost), OpenResponse)


_NO_BLOCK: Final = memoryview(b"")


class _FrameReader:
    """Reads frames from a blocking socket: many small ones at once, large ones straight into their memory.

    Attributes:
        block: the rest of the memory for the next frames; None: each gets its own.
    """

    def __init__(self, source: socket.socket) -> None:
        self.block: memoryview | None = None
        self._socket = source
        self._flags = 0 if isinstance(source, ssl.SSLSocket) else socket.MSG_WAITALL
        self._buffer = memoryview(bytearray(LOOK_AHEAD_BYTES))
        self._start = 0
        self._end = 0

    def read(self) -> memoryview:
        """The next frame without its size."""
        while self._end - self._start < 4:
            self._fill()
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        if not 4 <= size <= FRAME_BYTES_MAX:
            other = _OTHERS.get(bytes(self._buffer[self._start : self._start + 4]))
            if other is not None:
                raise PeerError(f"{other} answers there: name a stream listener (port 5552, with TLS 5551)")
            raise PeerError(f"a frame of {size} octets was announced")
        self._start += 4
        frame = self._room(size)
        there = min(size, self._end - self._start)
        frame[:there] = self._buffer[self._start : self._start + there]
        self._start += there
        while there < size:
            there += self._received(self._socket.recv_into(frame[there:], 0, self._flags))
        return frame.toreadonly()

    def comes_within(self, seconds: float) -> bool:
        """Whether something is here to read, at the latest after this time."""
        decrypted = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
        if self._end > self._start or decrypted:
            return True
        looking = select.poll()
        looking.register(self._socket, select.POLLIN)
        return bool(looking.poll(seconds * 1000))

    def _room(self, size: int) -> memoryview:
        if self.block is None:
            return memoryview(bytearray(size))
        if size > len(self.block):
            # Not cleared, because only octets filled by frames are read.
            self.block = np.empty(max(size, BLOCK_BYTES), np.uint8).data
        room, self.block = self.block[:size], self.block[size:]
        return room

    def _fill(self) -> None:
        left = self._end - self._start
        self._buffer[:left] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, left
        self._end += self._received(self._socket.recv_into(self._buffer[left:]))

    def _received(self, count: int) -> int:
        if count == 0:
            raise PeerError("the server closed it without a reason")
        return count


def _encrypted(plain: socket.socket, tls: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """Wrap a connection in TLS; it keeps its timeout.

    Raises:
        OSError: the handshake failed; the connection is closed.
    """
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def is_deliver(frame: memoryview) -> bool:
    """Whether a frame holds a chunk (of subscription `frame[4]`, from octet 5 on)."""
    return len(frame) > 4 and frame[:2] == _DELIVER


def name_of(code: int) -> str:
    """A response code in words."""
    try:
        return f"{Code(code).name.lower().replace('_', ' ')} (code {code})"
    except ValueError:
        return f"code {code}"


def _nobody(command: StreamCommand) -> None:
    """Do nothing with unexpected commands."""
