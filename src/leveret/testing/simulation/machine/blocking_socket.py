"""A socket of blocking code, over the simulated network: the calls that the pipeline's connections make."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final

from leveret.testing.simulation.machine.blocking import blocking_process, step, wait
from leveret.testing.simulation.machine.loop import virtual_loop
from leveret.testing.simulation.machine.network import SimulatedTransport
from leveret.testing.simulation.machine.waiting import wake_all

_HIGH_WATER_BYTES: Final = 256 * 1024
_TIMEVAL: Final = struct.Struct("@ll")


class BlockingSocket(asyncio.Protocol):
    """A connected socket, and the protocol at its end of the connection."""

    def __init__(self) -> None:
        """Begin unconnected."""
        self._transport: SimulatedTransport | None = None
        self._arrived = bytearray()
        self._is_ended = False
        self._error: Exception | None = None
        self._is_full = False
        self._is_closed = False
        self._timeout_s: float | None = None
        self._wakes: list[asyncio.Future[None]] = []

    # -- the protocol -----------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._arrived += data
        if len(self._arrived) > _HIGH_WATER_BYTES and self._transport is not None:
            self._transport.pause_reading()
        wake_all(self._wakes)

    def eof_received(self) -> bool:
        """See asyncio; the socket stays open until the process closes it."""
        self._is_ended = True
        wake_all(self._wakes)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self._is_ended, self._error = True, error
        wake_all(self._wakes)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._is_full = True

    def resume_writing(self) -> None:
        """See asyncio."""
        self._is_full = False
        wake_all(self._wakes)

    def _wait(self) -> None:
        self._wakes.append(virtual_loop().create_future())
        if not wait(self._wakes[-1], self._timeout_s):
            raise BlockingIOError(11, "the socket's timeout has passed")

    # -- the socket -------------------------------------------------------------------------------

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """See socket; only the timeouts have an effect."""
        if option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO) and isinstance(value, bytes):
            whole, micros = _TIMEVAL.unpack(value)
            self._timeout_s = whole + micros / 1_000_000

    def setblocking(self, flag: bool) -> None:
        """See socket; it always blocks."""

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """See socket."""
        step()
        wanted = len(buffer) if flags & socket.MSG_WAITALL else 1
        while len(self._arrived) < wanted and not self._is_ended:
            self._wait()
        if not self._arrived and self._error is not None:
            raise self._error
        count = min(len(buffer), len(self._arrived))
        buffer[:count] = self._arrived[:count]
        del self._arrived[:count]
        if self._transport is not None and not self._transport.is_reading() and not self._is_ended:
            self._transport.resume_reading()
        return count

    def sendall(self, octets: bytes | memoryview) -> None:
        """See socket."""
        step()
        while self._is_full and not self._is_ended:
            self._wait()
        if self._is_closed or self._is_ended or self._transport is None:
            raise self._error or BrokenPipeError(32, "Broken pipe")
        self._transport.write(octets)

    def fileno(self) -> int:
        """Return -1 for a closed socket, else a number that is no descriptor."""
        return -1 if self._is_closed else 1_000_000

    def close(self) -> None:
        """See socket."""
        if not self._is_closed:
            self._is_closed = True
            if self._transport is not None and blocking_process().is_alive:
                self._transport.close()


def connected(address: tuple[str, int], timeout_s: float | None = None) -> BlockingSocket:
    """Replace socket.create_connection in blocking code.

    Raises:
        OSError: nobody listens, or nobody answers in time.
    """
    step()
    made = BlockingSocket()
    connecting = blocking_process().spawn(virtual_loop().network.connect(lambda: made, address[1]))
    if not wait(connecting, timeout_s):
        connecting.cancel()
        raise TimeoutError("timed out")
    connecting.result()
    return made
