"""Reads the archive's Arrow and Parquet files, so that every octet that the disk altered is noticed.

Messages are Parquet. Its pages carry checksums that are checked only on demand. Small tables are Arrow files, which
have no checksum; so one of ours follows each.

    Arrow file | u32 CRC-32 of it | "LVRT"

An Arrow file of the first archives has no checksum, and is read without a check.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.pipeline.files.files import Place, keep, loaded, written_beside

_SMALL_BYTES_MAX: Final = 1024 * 1024
_TRAILER: Final = struct.Struct("<I4s")
_MAGIC: Final = b"LVRT"
_ARROW: Final = b"ARROW1"
RESTORE: Final = (
    "restore the file from a copy and promote again, or add --all-available to recover all that can be read"
)
"""The remedy for a damaged file of messages."""


def messages_in(source: pa.NativeFile, *, dictionaries: Iterable[str], checks: bool = True) -> pq.ParquetFile:
    """A file of messages; these columns are read as dictionaries. Reading raises OSError at damage.

    Without `checks` the caller checks the pages (`pages`).
    """
    return pq.ParquetFile(source, read_dictionary=[*dictionaries], page_checksum_verification=checks)


def write_table(place: Place, table: pa.Table, *, compressed: bool = True) -> int:
    """Write a small table to `place` as a whole; return its octets. Durable when its directory is synced.

    Raises:
        StorageError: the disk, or the store, refuses.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None)
    with pa.ipc.new_file(sink, table.schema, options=options) as out:
        out.write_table(table)
    octets = sink.getvalue()
    with written_beside(place.parent) as beside:
        with beside.open("wb") as file:
            file.write(octets)
            file.write(_TRAILER.pack(zlib.crc32(octets), _MAGIC))
        return keep(beside, place)


def read_table(place: Place) -> pa.Table:
    """The table at `place`.

    Raises:
        OSError, pa.ArrowInvalid: it is missing, or damaged.
    """
    with loaded(place) as source:
        octets = _checked(source.read_buffer())
        # For a small table the threads take twice as long as the reading.
        options = pa.ipc.IpcReadOptions(use_threads=octets.size > _SMALL_BYTES_MAX)
        with pa.ipc.open_file(pa.BufferReader(octets), options=options) as reader:
            return reader.read_all()


def dictionary(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column of a dictionary's type as one array."""
    return whole(column.unify_dictionaries())


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _checked(file: pa.Buffer) -> pa.Buffer:
    end = max(0, file.size - _TRAILER.size)
    octets, trailer = file.slice(0, end), file.slice(end).to_pybytes()
    if trailer.endswith(_ARROW):
        return file
    if len(trailer) < _TRAILER.size or not trailer.endswith(_MAGIC):
        raise pa.ArrowInvalid("it is cut off, or no table of this archive")
    if zlib.crc32(octets) != _TRAILER.unpack(trailer)[0]:
        raise pa.ArrowInvalid("it was altered: its checksum differs")
    return octets
