"""The archive's documents: JSON behind its checksum, so that octets that the disk altered are noticed.

    +---------------+-------+------+----+
    | CRC-32 of the | space | JSON | LF |
    | JSON, 8 hex   |       |      |    |
    +---------------+-------+------+----+

The manifest consists of such lines. A document of the first archives has no checksum, and is read without a check.
"""

from __future__ import annotations

import zlib
from typing import Final, TypeVar

import msgspec

from leveret.pipeline.files.files import Place, write_durably

T = TypeVar("T")

_CRC_CHARS: Final = 8


def line_of(value: object) -> bytes:
    """A value as a line, with its end."""
    body = msgspec.json.encode(value)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def value_of(line: bytes, type: type[T]) -> T:
    """The value in a line, with or without the line's end.

    Raises:
        msgspec.DecodeError: the line is damaged, or its value has another type.
    """
    body = line[_CRC_CHARS + 1 :].removesuffix(b"\n")
    if line[: _CRC_CHARS + 1] != b"%08x " % zlib.crc32(body):
        raise msgspec.DecodeError("it was altered: its checksum differs")
    return msgspec.json.decode(body, type=type)


def write_document(place: Place, value: object) -> None:
    """Put a value at `place`, durably: readers find the old document or the new one.

    Raises:
        StorageError: the disk, or the store, refuses.
    """
    write_durably(place, line_of(value))


def read_document(place: Place, type: type[T]) -> T:
    """The value at `place`.

    Raises:
        OSError, msgspec.DecodeError: it is missing, or damaged.
    """
    octets = place.read_bytes()
    if octets.startswith(b"{"):
        return msgspec.json.decode(octets, type=type)
    return value_of(octets, type)
