"""The books: what the publisher and the consumers themselves know, written as they learn it.

A book is a file of fixed-size entries (flight number u32, time u64 in ms), appended to and flushed after
each batch, so that whoever reads it while its process runs, or after it was cut off, sees whole
entries and can tell progress from the file's size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_ENTRY: Final = struct.Struct(">IQ")


class Book:
    """Entries of (flight number, time in ms)."""

    def __init__(self, path: Path) -> None:
        """Open for appending."""
        self._file = path.open("ab")

    def write(self, numbers: Iterable[int], time_ms: int) -> None:
        """Note these flights, learnt at this time."""
        self._file.write(b"".join([_ENTRY.pack(number, time_ms) for number in numbers]))
        self._file.flush()


def read_book(path: Path) -> list[tuple[int, int]]:
    """All whole entries of a book; none if it was never begun."""
    if not path.exists():
        return []
    data = path.read_bytes()
    return list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))


def count_entries(path: Path) -> int:
    """How many entries a book has by now."""
    return path.stat().st_size // _ENTRY.size if path.exists() else 0
