"""Staged segments: files that a recovery writes for a queue's log, and that the node takes in as they are.

The writer is told the end of the log (`LogEnd`), so the file can be a segment behind it: with its offsets and epoch,
the log's name, the seal of the chunk before, and what the first chunk of any segment carries (publishers' last ids and
the ends of epochs). `first_trailer` gives those octets; the node calls it, too, and compares.

A segment is announced to the node by a message to the stream `STAGED_STREAM_PREFIX` + queue, whose publishing id is
that of the segment's last message (`StagedSegment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from leveret.model.errors import PeerError
from leveret.wire.chunk import Attribute, encode_attribute, encode_trailer, with_log

STAGED_STREAM_PREFIX: Final = "leveret.staged/"
"""Prefix + a queue's name: a publisher declared on it sends names of staged segments."""
_SEQUENCE: Final = "sequence:"
_EPOCH_END: Final = "epoch_end:"
_U64: Final = 1 << 64
_I64_MAX: Final = (1 << 63) - 1


class StagedSegment(msgspec.Struct, frozen=True, array_like=True):
    """The announcement of a file.

    Attributes:
        directory: the name of its directory, in the directory of the node's staged segments.
        base: its first offset, which names the file.
        first, last: the publishing ids of its messages.
        body_bytes: the octets of their bodies.
    """

    directory: str
    base: int
    first: int
    last: int
    body_bytes: int

    def encode(self) -> bytes:
        """The body of the message."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, octets: bytes | memoryview) -> StagedSegment:
        """Read the body of a message.

        Raises:
            PeerError: it announces no segment.
        """
        try:
            found = msgspec.msgpack.decode(octets, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PeerError(f"announcement of a staged segment: {error}") from None
        if not found.directory.isalnum() or found.base < 0 or not 0 < found.first <= found.last:
            raise PeerError(f"announcement of a staged segment: {found} names none")
        return found


class LogEnd(NamedTuple):
    """The end of a queue's log, and what its next segment begins with.

    Attributes:
        queue_epoch: the epoch of the queue, which names the log.
        epoch: the epoch of its next chunk.
        next_offset: the offset of its next record.
        seal: the seal of its last chunk; 0 without any.
        sequences: the last id of each publisher.
        epoch_ends: the ends of other epochs' chunks.
        segment_bytes_max: the size from which on a segment gets no more chunks.
        takes_segments: whether the node would take in a segment now.
        staging: the inode of the node's directory of staged segments, which tells a writer that sees the same one.
    """

    queue_epoch: int
    epoch: int
    next_offset: int
    seal: int
    sequences: dict[bytes, int]
    epoch_ends: tuple[tuple[int, int], ...]
    segment_bytes_max: int
    takes_segments: bool = False
    staging: int = 0

    @property
    def log(self) -> str:
        """The name of the log on every node."""
        return f"queues/{self.queue_epoch:016x}"

    def statistics(self) -> dict[str, int]:
        """The fields as statistics of a stream."""
        found = {
            "queue_epoch": self.queue_epoch,
            "epoch": self.epoch,
            "next_offset": self.next_offset,
            "seal": self.seal,
            "segment_bytes_max": self.segment_bytes_max,
            "takes_segments": int(self.takes_segments),
            "staging": self.staging,
        }
        found |= {_SEQUENCE + name.decode(): value for name, value in self.sequences.items()}
        found |= {f"{_EPOCH_END}{epoch}": end for epoch, end in self.epoch_ends}
        return {name: value - _U64 if value > _I64_MAX else value for name, value in found.items()}

    @classmethod
    def of(cls, statistics: Mapping[str, int]) -> LogEnd:
        """Read `statistics`.

        Raises:
            PeerError: some are missing.
        """
        found = {name: value % _U64 for name, value in statistics.items()}
        try:
            return cls(
                found["queue_epoch"],
                found["epoch"],
                found["next_offset"],
                found["seal"],
                {
                    name.removeprefix(_SEQUENCE).encode(): value
                    for name, value in found.items()
                    if name.startswith(_SEQUENCE)
                },
                tuple(
                    (int(name.removeprefix(_EPOCH_END)), value)
                    for name, value in found.items()
                    if name.startswith(_EPOCH_END)
                ),
                found["segment_bytes_max"],
                bool(found["takes_segments"]),
                found["staging"],
            )
        except (KeyError, ValueError) as error:
            raise PeerError(f"the end of a queue's log: {error} is missing") from None

    def first_trailer(self, sequences: Mapping[bytes, int], *, expires: bool) -> bytes:
        """The trailer of the first chunk of a segment behind this end, with the new last ids in `sequences`."""
        attributes = [
            encode_attribute(Attribute.SEQUENCE, name, value)
            for name, value in (self.sequences | dict(sequences)).items()
        ]
        attributes += [
            encode_attribute(Attribute.EPOCH_END, epoch.to_bytes(8), end) for epoch, end in self.epoch_ends
        ]
        if expires:
            attributes.append(encode_attribute(Attribute.EXPIRES, b"", 1))
        return with_log(encode_trailer(*attributes), self.log, self.seal)

    def behind(self, next_offset: int, seal: int, sequences: Mapping[bytes, int]) -> LogEnd:
        """The end once a segment up to `next_offset` stands behind this one."""
        return self._replace(next_offset=next_offset, seal=seal, sequences=self.sequences | dict(sequences))


def next_trailer(sequences: Mapping[bytes, int], *, expires: bool) -> bytes:
    """The trailer of a later chunk of a segment."""
    attributes = [encode_attribute(Attribute.SEQUENCE, name, value) for name, value in sequences.items()]
    if expires:
        attributes.append(encode_attribute(Attribute.EXPIRES, b"", 1))
    return encode_trailer(*attributes)
