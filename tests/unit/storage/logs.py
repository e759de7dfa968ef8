"""Small logs for the tests of storage: made, filled, opened again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from leveret.model.errors import Corrupt
from leveret.storage.log import Log
from leveret.wire.chunk import Chunk, ChunkType, Header
from tests.unit import memory

SEGMENT_BYTES = 200
SIZES = st.lists(st.integers(0, 150), min_size=1, max_size=12)
Written = tuple[int, bytes]


def make(directory: Path, segment_bytes_max: int = SEGMENT_BYTES, **more: Any) -> Log:
    return Log(directory, epoch=4, segment_bytes_max=segment_bytes_max, **more)


def append(log: Log, size: int, records: int = 1, trailer: bytes = b"") -> Header:
    """Append a chunk of `size` octets, none of them zero, that differ from chunk to chunk."""
    data = bytes((log.next_offset + i) % 251 + 1 for i in range(size))
    return log.append(ChunkType.USER, 1, records, data, 1000 + log.next_offset, trailer)


def append_often(log: Log, times: int, size: int) -> None:
    for _ in range(times):
        append(log, size)


def contents(log: Log) -> list[Written]:
    return [(chunk.header.chunk_id, bytes(chunk.data)) for chunk in log.read(0, 1 << 30, check=True)]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def recovered(directory: Path) -> tuple[Log, list[Written]]:
    """A log opened again, and what its scan found."""
    found: list[Written] = []

    def on_chunk(chunk: Chunk) -> None:
        found.append((chunk.header.chunk_id, bytes(chunk.data)))

    return make(directory).open(on_chunk), found


def attempt(directory: Path) -> tuple[Corrupt | None, Log, list[Written]]:
    """As `recovered`, with the damage found if there is any."""
    try:
        return None, *recovered(directory)
    except Corrupt as error:
        return error, make(directory), []


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory of a log for one example of Hypothesis, not yet made."""
    with memory.scratch() as directory:
        yield directory / "log"


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
