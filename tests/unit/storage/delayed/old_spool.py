"""Writes a spool as an older Leveret did."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from leveret.storage.log import Log
from leveret.wire.chunk import ChunkType


class OldEntry(NamedTuple):
    """One change; see storage.delayed.spool."""

    kind: int
    name: str
    offset: int = 0
    octets: bytes = b""

    def encoded(self) -> bytes:
        name = self.name.encode()
        head = struct.pack(">BHQq", self.kind, len(name), self.offset, -1) + name
        return struct.pack(">I", len(head) + len(self.octets)) + head + self.octets


class OldSpool:
    def __init__(self, data_dir: Path) -> None:
        self.log = Log(data_dir / "delayed", epoch=1, segment_bytes_max=1000).open()

    def append(self, entries: Sequence[OldEntry], at_ms: int) -> None:
        data = b"".join(entry.encoded() for entry in entries)
        self.log.append(ChunkType.USER, len(entries), len(entries), data, at_ms)

    def close(self) -> None:
        self.log.sync()
        self.log.close()
