"""Frames of the stream protocol: the octets on the socket, and nothing above them.

    0        4      6         8
    +--------+------+---------+------------------+
    | size   | key  | version | content          |
    | u32    | u16  | u16     | size - 4 octets  |
    +--------+------+---------+------------------+

`size` does not count itself. In this package a frame is the octets behind the size: key, version, content.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from leveret.model.errors import PeerError

SIZE: Final = struct.Struct(">I")
FRAME_BYTES_MIN: Final = 4
"""Key and version."""


class StreamFrameError(PeerError):
    """A size that no frame can have."""


class FrameTooLarge(PeerError):
    """A frame announces more octets than the peers agreed on."""


@dataclass(slots=True)
class FrameDecoder:
    """Octets in, whole frames out; waits for nothing and owns no socket.

    `frame_max_bytes` may change between two frames, as Tune and Open do: `feed` reads it before each frame, so the
    limit does not depend on how a peer's octets were cut into reads.
    """

    frame_max_bytes: int
    _buffer: bytearray = field(default_factory=bytearray)
    _wanted: int = 0
    """The size of the first frame in `_buffer`, 0 while it is unknown."""

    def feed(self, data: bytes) -> Generator[bytes, None, None]:
        """Yield, in arrival order, every frame that `data` completes; to be iterated, or closed, before the next call.

        What was not yielded by then is yielded by the next call.

        Raises:
            FrameTooLarge: a size beyond `frame_max_bytes`.
            StreamFrameError: a size below 4.
        """
        octets: bytes | memoryview = data
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return
            # The frames are cut out of it in place.
            octets, self._buffer = memoryview(self._buffer), bytearray()
            self._wanted = 0
        position = 0
        try:
            while (start := position + 4) <= len(octets):
                end = start + self._size(octets, position)
                if end > len(octets):
                    self._wanted = end - position
                    break
                position = end
                yield bytes(octets[start:end])
        finally:
            self._buffer += octets[position:]

    def _size(self, octets: bytes | memoryview, position: int) -> int:
        (size,) = SIZE.unpack_from(octets, position)
        if size > self.frame_max_bytes:
            raise FrameTooLarge(f"frame of {size} octets, {self.frame_max_bytes} were agreed")
        if size < FRAME_BYTES_MIN:
            raise StreamFrameError(f"frame of {size} octets has no room for key and version")
        return int(size)
