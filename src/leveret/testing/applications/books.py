"""The books: what publishers and consumers themselves know, written as they learn it.

A book is a file of fixed-size entries (message number u32, time u64 in ms). An entry is there, whole,
as soon as `write` returned, so whoever reads a book while its process runs, or after it was cut off,
can rely on what is in it. A folder holds the books of one group of applications:

| book | a number is in it |
|---|---|
| confirmed | when its confirm came |
| delivered | each time it was delivered |
| tried | before its ack was sent |
| acked | when a later answer showed that the broker took the ack |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

_ENTRY: Final = struct.Struct(">IQ")


class Book:
    """Entries of (message number, time in ms), in the order in which they were learnt."""

    def __init__(self, path: Path) -> None:
        """Open for appending; several books may append to one file."""
        self._file = path.open("ab", buffering=0)

    def write(self, numbers: Iterable[int], time_ms: int) -> None:
        """Note these messages, learnt at this time."""
        self._file.write(b"".join([_ENTRY.pack(number, time_ms) for number in numbers]))

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Books:
    """The books of one group of applications, by their place."""

    def __init__(self, folder: Path) -> None:
        """Make the folder; nothing is written yet."""
        folder.mkdir(parents=True, exist_ok=True)
        self.confirmed = folder / "confirmed"
        self.delivered = folder / "delivered"
        self.tried = folder / "tried"
        self.acked = folder / "acked"


def read_book(path: Path) -> list[tuple[int, int]]:
    """All whole entries of a book; none if it was never begun."""
    if not path.exists():
        return []
    data = path.read_bytes()
    return list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))


def count_entries(path: Path) -> int:
    """How many entries a book has by now."""
    return path.stat().st_size // _ENTRY.size if path.exists() else 0
