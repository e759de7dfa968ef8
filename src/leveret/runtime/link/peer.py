"""The socket of a link between nodes: whole messages in, pieces out.

Messages are passed on in the buffer that received them, without a copy: a frame's chunks go from there to disk. A
message that is too long for the link's buffer gets a buffer of its own. A link has a small buffer unless much comes: a
node has a link to each leader of queues of each virtual host, and most of them are idle. A peer that has not proven the
secret has the small one in any case, and cannot fill more memory. A read may hold thousands of messages, each of which
makes a log, so a link has turns: after `SLICE_S` the loop serves others, and the socket is not read until the other
messages are taken.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from leveret.model.errors import LeveretError
from leveret.runtime.process.work_slices import time_slice
from leveret.runtime.sockets.connection_budget import ConnectionSlot
from leveret.session.link_handshake import HandshakeMessage
from leveret.wire.link import (
    GREETING,
    LENGTH,
    MESSAGE_BYTES_MAX,
    SMALL_BYTES_MAX,
    LinkError,
    Octets,
    Type,
    message,
)

logger = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 1024 * 1024
"""Measured on loopback: half the cost of 256 KiB; a larger buffer is no faster."""
_SMALL_BUFFER_BYTES: Final = LENGTH.size + SMALL_BYTES_MAX
_SHORT_READS: Final = 256
"""So many reads one after the other that the small buffer could have taken end the use of the large one."""
WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""If more octets wait for the socket, `drain` waits."""
CLOSE_TIMEOUT_S: Final = 3.0
"""The time for a closing link's last writes; then the socket, and the octets that wait for it, are dropped."""


class Receiver(Protocol):
    """The user of a link."""

    def received(self, kind: Type, payload: memoryview) -> None:
        """Take a message; its octets are valid only until this returns. A raised error ends the link."""

    def ended(self, error: Exception | None) -> None:
        """Take the end of the link, called once; None if the other side closed it."""


class LinkPeer(asyncio.BufferedProtocol):
    """One end of a link.

    Attributes:
        address: the address of the other end.
        sent_bytes, received_bytes: octets of messages so far.
        received_messages: whole, valid messages so far, with heartbeats.
        is_closed: whether the link has ended: no more messages are sent or received.
        is_trusted: whether the other side has proven the secret, and may send long messages.
        slot: the slot in the connection budget, if the other side connected.
    """

    def __init__(
        self, on_connected: Callable[[LinkPeer], None] | None = None, slot: ConnectionSlot | None = None
    ) -> None:
        """Start without a connection; the caller sets `receiver` before octets can come, or in `on_connected`.

        `on_connected` is called for a finished connection, with TLS after its handshake: not for failed attempts.
        """
        self._receiver: Receiver
        self._is_paused = False
        self._turn_is_over = False
        self.address = ""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.received_messages = 0
        self.is_closed = False
        self.is_trusted = False
        self.slot = slot
        self._transport: asyncio.Transport
        self._on_connected = on_connected
        self._closing: asyncio.TimerHandle | None = None
        self._buffer = memoryview(bytearray(_SMALL_BUFFER_BYTES))
        self._filled = 0
        self._short_reads = 0
        self._long: memoryview | None = None
        self._long_filled = 0
        self._greeted = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._error: Exception | None = None

    @property
    def receiver(self) -> Receiver:
        """The receiver of the messages; another one may replace it."""
        return self._receiver

    @receiver.setter
    def receiver(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.go_on()

    def hold(self) -> None:
        """Hold messages after the present one until `go_on`, or until another receiver is set."""
        self._is_paused = True
        self._transport.pause_reading()

    @property
    def is_held(self) -> bool:
        """Whether messages are held: then none comes, whatever the other side sends."""
        return self._is_paused

    def go_on(self) -> None:
        """Pass on held messages, soon."""
        if self._is_paused:
            self._is_paused = False
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        if not self.is_closed and not self._turn_is_over:
            self._transport.resume_reading()
            self.buffer_updated(0)

    def _end_turn(self) -> None:
        """Let the loop serve others before the next message."""
        self._turn_is_over = True
        self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn_is_over = False
        if self._may_take():
            self.buffer_updated(0)
        if self._may_take():
            self._transport.resume_reading()

    def _may_take(self) -> bool:
        return not (self.is_closed or self._is_paused or self._turn_is_over)

    # -- calls of asyncio ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else ""
        if self._on_connected is not None:
            self._on_connected(self)
        self._transport.write(GREETING)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next octets."""
        if self._long is not None:
            return self._long[self._long_filled :]
        if self.is_trusted and self._filled == len(self._buffer):
            # TLS brings what it has read when reading pauses.
            self._replace(2 * self._filled)
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take so many octets in the buffer."""
        self.received_bytes += nbytes
        try:
            if self._turn_is_over:
                self._filled += nbytes
            elif self._long is None:
                self._filled += nbytes
                is_full = self._filled == len(self._buffer)
                wanted_bytes = self._take()
                self._fit(nbytes, is_full=is_full, wanted_bytes=wanted_bytes)
            else:
                self._long_filled += nbytes
                if self._long_filled == len(self._long):
                    whole, self._long = self._long, None
                    self._hand_out(whole)
        except Exception as error:
            # An error of this node, caused by a peer's octets, ends only the peer's link.
            if not isinstance(error, LeveretError):
                logger.exception("replication_link_failed peer=%s", self.address)
            # The frames of the traceback would keep the link and its buffer until the collector finds them.
            self.close(error.with_traceback(None))

    def eof_received(self) -> bool:
        """Close the connection, because the other side sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the link to the receiver."""
        self.is_closed = True
        # The collector may find an ended link late.
        self._buffer, self._long = memoryview(b""), None
        self._writable.set()
        if self._closing is not None:
            self._closing.cancel()
        self._receiver.ended(self._error or exc)

    def pause_writing(self) -> None:
        """Have `drain` wait, because the socket takes no more for now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """End the wait of `drain`."""
        self._writable.set()

    # -- messages -----------------------------------------------------------------------------

    def _take(self) -> int:
        """Pass on every whole message in the buffer; begin a long one.

        Returns:
            The octets that the buffer has to have for the next message, as far as that is known; else 0.
        """
        at = wanted_bytes = 0
        if not self._greeted:
            if self._filled < len(GREETING):
                return 0
            if bytes(self._buffer[: len(GREETING)]) != GREETING:
                raise LinkError(
                    f"{self.address} is no replication link of this version: it began with "
                    f"{bytes(self._buffer[: len(GREETING)])!r}; is it the replication port of a Leveret?"
                )
            self._greeted, at = True, len(GREETING)
        buffer, is_over = self._buffer, time_slice()
        is_first = True
        while self._filled - at >= LENGTH.size and not self.is_closed and not self._is_paused:
            (size,) = LENGTH.unpack_from(buffer, at)
            if not 0 < size <= (MESSAGE_BYTES_MAX if self.is_trusted else SMALL_BYTES_MAX):
                raise LinkError(f"a message of {size} octets")
            start = at + LENGTH.size
            if self._filled - start < size:
                if size <= _BUFFER_BYTES - LENGTH.size:
                    wanted_bytes = LENGTH.size + size
                else:
                    # Not a bytearray, which is filled with zeros in one step: the kernel gives pages as they are read.
                    self._long, self._long_filled = memoryview(mmap.mmap(-1, size)), self._filled - start
                    self._long[: self._long_filled] = buffer[start : self._filled]
                    self._filled = at
                break
            if not is_first and is_over():
                self._end_turn()
                break
            is_first = False
            at = start + size
            self._hand_out(buffer[start:at])
        rest = self._filled - at
        if at and rest:
            buffer[:rest] = bytes(buffer[at : self._filled])
        self._filled = rest
        return wanted_bytes

    def _fit(self, nbytes: int, *, is_full: bool, wanted_bytes: int) -> None:
        """Change the buffer after a read of so many octets, if they tell that another size is wanted."""
        if is_full or max(nbytes, wanted_bytes, self._filled) > _SMALL_BUFFER_BYTES:
            self._short_reads = 0
            if self.is_trusted and len(self._buffer) < _BUFFER_BYTES:
                self._replace(_BUFFER_BYTES)
        elif len(self._buffer) > _SMALL_BUFFER_BYTES:
            self._short_reads += 1
            if self._short_reads == _SHORT_READS:
                self._short_reads = 0
                self._replace(_SMALL_BUFFER_BYTES)

    def _replace(self, size: int) -> None:
        replaced = memoryview(bytearray(size))
        replaced[: self._filled] = self._buffer[: self._filled]
        self._buffer = replaced

    def _hand_out(self, octets: memoryview) -> None:
        try:
            kind = Type(octets[0])
        except ValueError:
            raise LinkError(f"message of unknown type {octets[0]}") from None
        if kind is not Type.BEAT:
            self._receiver.received(kind, octets[1:])
        elif len(octets) > 1:
            raise LinkError(f"a heartbeat with {len(octets) - 1} octets in it")
        self.received_messages += 1

    def write(self, *pieces: Octets) -> None:
        """Send octets; those that the socket does not take at once wait, see `waiting_bytes`."""
        if self.is_closed:
            return
        self.sent_bytes += sum(map(len, pieces))
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(cast("Sequence[bytes]", pieces))

    def say(self, said: HandshakeMessage) -> None:
        """Send a message of a handshake."""
        self.write(message(Type(said.type), said.payload))

    @property
    def channel(self) -> bytes:
        """A value unique to this TLS connection and equal on both sides; empty without TLS.

        The value is the client's Finished message, which RFC 5929 calls `tls-unique`.
        """
        tls = self._transport.get_extra_info("ssl_object")
        return (tls.get_channel_binding("tls-unique") or b"") if tls is not None else b""

    @property
    def waiting_bytes(self) -> int:
        """The octets that the socket has not taken yet."""
        return 0 if self.is_closed else self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the socket takes more, or the link is gone."""
        await self._writable.wait()

    def part(self) -> asyncio.Transport:
        """End the link, without a call of its receiver, and return its connection for another protocol."""
        self.is_closed = True
        self._writable.set()
        return self._transport

    def close(self, error: Exception | None = None) -> None:
        """End the link, for a reason; octets written before are still sent within CLOSE_TIMEOUT_S."""
        if not self.is_closed:
            self.is_closed = True
            self._error = error
            self._writable.set()
            self._transport.close()
            self._closing = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def abort(self, error: Exception | None = None) -> None:
        """End the link at once."""
        if self._error is None:
            self._error = error
        self.is_closed = True
        self._transport.abort()
