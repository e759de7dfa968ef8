"""Messages that are alike but for their bodies, one behind the other in octets: their bodies, many at a time."""

from __future__ import annotations

import struct
from typing import Final

BULK_MIN: Final = 4
"""So many messages that are alike are worth taking apart all at once."""
_FIRST: Final = 16
_GROWTH: Final = 8
"""How many are, at first, and how many times as many when those were alike."""


class Strides:
    """The octets that stand before and behind each body, and the size of all bodies.

    Attributes:
        before: the octets before each body.
        stride: octets from one message to the next.
    """

    __slots__ = ("_after", "_unpack", "before", "stride")

    def __init__(self, before: bytes, body_bytes: int, after: bytes = b"") -> None:
        """See the class."""
        self.before = before
        self.stride = len(before) + body_bytes + len(after)
        self._after = after
        self._unpack = struct.Struct(f"{len(before)}s{body_bytes}s{len(after)}s").iter_unpack

    def bodies(self, data: bytes, position: int, end: int) -> list[bytes]:
        """The bodies of whole messages between two positions, up to about the first that is not alike.

        Three times as fast as one by one. Where messages are not alike, little is looked at in vain: never more than
        some times the messages found before. So the end of what is found says nothing about what follows.
        """
        octets, mark, stride = self.before, self._after, self.stride
        bodies: list[bytes] = []
        step = _FIRST
        while (count := min(step, (end - position) // stride)) >= BULK_MIN:
            stop = position + count * stride
            if not data.startswith(octets, stop - stride):
                break
            messages = self._unpack(memoryview(data)[position:stop])
            found = [body for before, body, after in messages if before == octets and after == mark]
            if len(found) < count:
                break
            bodies += found
            position = stop
            step *= _GROWTH
        return bodies
