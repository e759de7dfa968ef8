"""Octets to send, in pieces: what is small is joined, and a large body goes to the socket without a copy."""

from __future__ import annotations

from itertools import groupby
from typing import Final

LARGE_PIECE_BYTES: Final = 16 * 1024
"""The size from which a piece is not joined with others: its copy costs more than to send it by itself."""


def in_few_pieces(pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The same octets in order, with neighbours joined that are not large."""
    found: list[bytes | memoryview] = []
    for is_large, group in groupby(pieces, key=_is_large):
        if is_large:
            found += group
        else:
            found.append(b"".join(group))
    return found


def _is_large(piece: bytes | memoryview) -> bool:
    return len(piece) >= LARGE_PIECE_BYTES
