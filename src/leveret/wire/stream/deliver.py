"""The hot path out: the octets before a chunk in a Deliver frame. The chunk goes to the socket as it is."""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.stream.codec import VERSION, CommandKey

_VERSION_1: Final = struct.Struct(">IHHB")
_VERSION_2: Final = struct.Struct(">IHHBQ")


def deliver_head(subscription: int, chunk_bytes: int) -> bytes:
    """The octets before a chunk of that size."""
    return _VERSION_1.pack(5 + chunk_bytes, CommandKey.DELIVER, VERSION, subscription)


def deliver_head_2(subscription: int, chunk_bytes: int, committed_chunk_id: int) -> bytes:
    """As `deliver_head`, in version 2 of Deliver."""
    return _VERSION_2.pack(13 + chunk_bytes, CommandKey.DELIVER, 2, subscription, max(committed_chunk_id, 0))
