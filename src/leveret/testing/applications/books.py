"""The books: facts that publishers and consumers know themselves, written as soon as they know them.

A book is a file of fixed-size entries (message number u32, time u64 in ms). An entry is complete as soon as `write`
returns, so a reader can rely on a book while its process runs, or after it was killed. A folder holds the books of
one group of applications:

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
    """Entries of (message number, time in ms), in the order in which the application learnt them."""

    def __init__(self, path: Path) -> None:
        """Open for appending; several books may append to one file."""
        self._file = path.open("ab", buffering=0)

    def write(self, numbers: Iterable[int], time_ms: int) -> None:
        """Write these messages with this time."""
        self._file.write(b"".join([_ENTRY.pack(number, time_ms) for number in numbers]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Books:
    """The books of one group of applications, in one folder."""

    def __init__(self, folder: Path) -> None:
        """Create the folder; write nothing yet."""
        folder.mkdir(parents=True, exist_ok=True)
        self.confirmed = folder / "confirmed"
        self.delivered = folder / "delivered"
        self.tried = folder / "tried"
        self.acked = folder / "acked"


def read_book(path: Path) -> list[tuple[int, int]]:
    """Return all complete entries of a book; none if the book does not exist."""
    if not path.exists():
        return []
    data = path.read_bytes()
    return list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))


def count_entries(path: Path) -> int:
    """Return the present number of entries of a book."""
    return path.stat().st_size // _ENTRY.size if path.exists() else 0
