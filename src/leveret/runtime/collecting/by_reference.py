"""Chunks copied by reference: an outgoing log has references to them, and their data stay in their queue's log.

A large chunk would be written twice. So the outgoing log stores its header and trailer, and in place of the data an
entry with the attribute `BY_REFERENCE`: the length and the CRC of the data. A reader of the outgoing log gets the
whole chunk, with the data from the queue's log. Three rules keep the data there:

- a chunk is copied by reference after the fdatasync that made it durable in its queue's log;
- a queue's log drops no segment from its first referenced chunk on (`ByReference.first_of`), and survives the deletion
  of its queue; only the retention of the outgoing log releases both;
- if no fdatasync covers the queue's log (durability = os), every chunk is copied whole.

Data may still be missing, in two cases in which no downstream needs them. A follower that lost its power may have
the reference and not the data: its queue lost the data as well, and a settlement ends the incarnation. The log of a
vhost without its tag for a time has references to messages that its queues have settled and dropped since; if they have
stored some of them again instead, the collector copies the queue anew (`OutgoingLog.names_moved`). A
settlement of the same length replaces such a chunk, so that offsets continue. An unreadable log of a queue is
different: an operator may restore it, or give it up by deleting the queue; until then no later chunk is served.

A node of a cluster copies every chunk whole. References from the time when it was a single node may have lost their
data since another node leads the queue; that node has collected what the queue holds. So such a chunk says nothing: it
stands in an incarnation of the queue that has no messages.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from isal.isal_zlib import crc32

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.model.errors import StorageError
from leveret.model.reasons import Reason
from leveret.runtime.collecting.lowest_offsets import LowestOffsets
from leveret.runtime.logs.queue_store import QueueStore
from leveret.storage.log import Log
from leveret.wire.chunk import (
    HEADER_BYTES,
    Attribute,
    Chunk,
    ChunkType,
    Header,
    decode_trailer,
    encode_attribute,
    encode_entry,
    encode_header,
    encode_trailer,
    verify,
)
from leveret.wire.incarnation import epoch_of, without_messages
from leveret.wire.record import Settlement, encode_settlements

logger = logging.getLogger(__name__)

BY_REFERENCE_BYTES_MIN: Final = 16 * 1024
"""Shorter data are copied: reading them from another file would cost more than their copy."""
_CRC_SHIFT: Final = 32


class ByReference:
    """An outgoing log's references: the first offset in each queue, and the octets in each of the log's segments.

    Attributes:
        bytes_of: by the first offset of a segment of the outgoing log, the octets of all data that it references.
    """

    def __init__(self) -> None:
        """Begin with an empty log."""
        self._lowest_offsets: LowestOffsets[int] = LowestOffsets()
        self._of_incarnations: LowestOffsets[int] = LowestOffsets()
        self._ends: dict[int, int] = {}
        self.bytes_of: dict[int, int] = {}
        self._bytes_of_queues: dict[int, Counter[int]] = {}

    @property
    def bytes(self) -> int:
        """The octets of all referenced data."""
        return sum(self.bytes_of.values())

    @property
    def epochs(self) -> set[int]:
        """The epochs of the queues with referenced data."""
        return self._lowest_offsets.keys

    def note(self, incarnation: int, offset: int, size: int, *, segment: int, end: int) -> None:
        """Note a reference, in the newest segment, to the chunk at that offset.

        `end` is the outgoing log's end after it.
        """
        self._lowest_offsets.note(epoch_of(incarnation), segment, offset)
        self._of_incarnations.note(incarnation, segment, offset)
        self._ends[epoch_of(incarnation)] = end
        self.bytes_of[segment] = self.bytes_of.get(segment, 0) + size
        self._bytes_of_queues.setdefault(segment, Counter())[epoch_of(incarnation)] += size

    def forget_before(self, segment: int) -> None:
        """Note that the outgoing log begins with this segment now."""
        self._lowest_offsets.forget_before(segment)
        self._of_incarnations.forget_before(segment)
        self._ends = {epoch: end for epoch, end in self._ends.items() if end > segment}
        for first in [first for first in self.bytes_of if first < segment]:
            del self.bytes_of[first], self._bytes_of_queues[first]

    def first_of(self, epoch: int) -> int | None:
        """The first referenced offset of a queue; None without references."""
        return self._lowest_offsets.begin_of(epoch)

    def first_of_incarnation(self, incarnation: int) -> int | None:
        """The first referenced offset of one incarnation of a queue; None without references."""
        return self._of_incarnations.begin_of(incarnation)

    def bytes_of_queue(self, epoch: int) -> int:
        """The octets of a queue's referenced data."""
        return sum(sizes[epoch] for sizes in self._bytes_of_queues.values())

    def end_of(self, epoch: int) -> int:
        """The outgoing log's offset after its last reference to a queue; 0 without any."""
        return self._ends.get(epoch, 0)


def may_be_by_reference(queue: Queue, header: Header) -> bool:
    """Whether a chunk needs no copy of its data, if its log is fdatasynced before it is collected.

    Streams' chunks need one: their logs have a retention of their own, and their entries are packed as messages.
    """
    return (
        header.type == ChunkType.USER
        and header.data_bytes >= BY_REFERENCE_BYTES_MIN
        and queue.definition.durable
        and not isinstance(queue, Stream)
    )


def reference_of(header: Header) -> bytes:
    """The attribute that replaces the data of a queue's chunk."""
    return encode_attribute(Attribute.BY_REFERENCE, b"", _reference(header))


def _reference(header: Header) -> int:
    return header.crc << _CRC_SHIFT | header.data_bytes


def by_reference_bytes(value: int) -> int:
    """The size of the data that such an attribute replaces."""
    return value & (1 << _CRC_SHIFT) - 1


def is_naming(header: Header) -> bool:
    """Whether a chunk of the outgoing log is a reference to messages."""
    return header.type == ChunkType.USER and not header.data_bytes


def whole(header: Header, octets: bytes, logs: QueueStore, *, may_have_moved: bool = False) -> memoryview:
    """The whole chunk for a reference: with the reference's offset, and its trailer's attributes of the queue.

    Raises:
        ChunkError: the reference is damaged.
        StorageError: the queue's log is damaged there, or cannot be read.
    """
    verify(Chunk(header, b"", octets[HEADER_BYTES:]))
    said = {kind: (name, value) for kind, name, value in decode_trailer(octets[HEADER_BYTES:])}
    (queue, incarnation), (_, offset) = said[Attribute.QUEUE_EPOCH], said[Attribute.QUEUE_OFFSET]
    _, by_reference = said.pop(Attribute.BY_REFERENCE)
    trailer = encode_trailer(*(encode_attribute(kind, *each) for kind, each in said.items()))
    try:
        found = _found(header, offset, by_reference, trailer, logs.log_of(epoch_of(incarnation)))
    except StorageError:
        if not (may_have_moved or logs.is_ended(epoch_of(incarnation))):
            raise
        found = None
    if found is not None:
        return found
    if may_have_moved:
        said[Attribute.QUEUE_EPOCH] = queue, without_messages(incarnation)
        trailer = encode_trailer(*(encode_attribute(kind, *each) for kind, each in said.items()))
    return _stand_in(header, queue, offset, trailer)


def _found(
    header: Header, offset: int, by_reference: int, trailer: bytes, log: Log | None
) -> memoryview | None:
    """The chunk with its data from the queue's log, None if other data are there; raises StorageError."""
    place = log.place_of(offset) if log is not None else None
    if log is None or place is None:
        return None
    # The offset was lost with the power and given to other messages.
    if (header.records, by_reference) != (place.header.records, _reference(place.header)):
        return None
    size = place.header.data_bytes
    chunk = memoryview(_chunk(header, header.type, place.header.crc, size, trailer))
    log.read_data(place, chunk[HEADER_BYTES : HEADER_BYTES + size])
    return chunk


def _chunk(header: Header, kind: int, crc: int, data_bytes: int, trailer: bytes) -> bytearray:
    """A chunk without its data, which the caller fills in."""
    head = encode_header(
        kind,
        header.entries,
        header.records,
        header.timestamp_ms,
        header.epoch,
        header.chunk_id,
        crc,
        data_bytes,
        len(trailer),
    )
    chunk = bytearray(HEADER_BYTES + data_bytes + len(trailer))
    chunk[:HEADER_BYTES] = head
    chunk[HEADER_BYTES + data_bytes :] = trailer
    return chunk


def _stand_in(header: Header, queue: bytes, offset: int, trailer: bytes) -> memoryview:
    """A settlement of messages that are gone, with as many entries."""
    logger.warning(
        "referenced_messages_missing queue=%r offset=%d messages=%d replaced_by=settlement",
        queue.decode(errors="replace"),
        offset,
        header.records,
    )
    settled = encode_settlements([Settlement(Reason.DROPPED, offset, header.records)])
    data = encode_entry(settled) + encode_entry(b"") * (header.records - 1)
    chunk = _chunk(header, ChunkType.TRACKING, crc32(data), len(data), trailer)
    chunk[HEADER_BYTES : HEADER_BYTES + len(data)] = data
    return memoryview(chunk)
