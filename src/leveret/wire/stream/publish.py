"""Publish frames: the hot path in, and the encoder.

Reading yields entries of a chunk, in the form in which messages are stored.

After the publishing id (and, in version 2, a filter value) a message stands in the frame as it will stand in the
chunk, its length first or a head that makes it a batch of messages. So it is cut out without being parsed. Messages
of one size, the usual case, are cut in one step.

    version 1    u64 id, entry              entry    u32 length (top bit 0), body
    version 2    u64 id, string, entry               1 bit 1, 3 bits compression, 4 bits 0, u16 records,
                                                     u32 uncompressed size, u32 size, octets
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from leveret.wire.chunk import ENTRIES_MAX, ChunkError, encode_entry, split_entries
from leveret.wire.stream.codec import VERSION, CommandKey
from leveret.wire.stream.fields import MalformedCommand

_HEAD: Final = struct.Struct(">HHBi")
_WHOLE_HEAD: Final = struct.Struct(">IHHBi")
_LENGTH: Final = struct.Struct(">I")
_ID_LENGTH: Final = struct.Struct(">QI")
_SUB_BATCH: Final = struct.Struct(">BHII")
_BATCH_BIT: Final = 0x8000_0000
_COMPRESSION: Final = 0x70
_ID: Final = struct.Struct(">Q")
VERSION_MAX: Final = 2
RUN_RECORDS_MAX: Final = ENTRIES_MAX


class Published(NamedTuple):
    """The content of a Publish frame.

    Attributes:
        publisher: its number.
        ids: publishing ids, one an entry.
        entries: as they stand in a chunk.
        records: the number of messages in all entries.
        filters: the filter values, b"" for messages without one; None for version 1.
    """

    publisher: int
    ids: Sequence[int]
    entries: list[bytes]
    records: int
    filters: set[bytes] | None


class MessageRun(NamedTuple):
    """Messages with publishing ids that follow each other, side by side as a chunk holds them.

    So no step on their way has to take them apart: on the wire they are a batch without compression, whose publishing
    id is that of the last message. A message by itself is an ordinary entry.

    Attributes:
        first: the id of the first message.
        records: the number of messages, at most RUN_RECORDS_MAX.
        data: each message with its length in front.
        body_bytes: the octets of the bodies; not sent.
        expires: whether some messages have a time to live of their own; not sent.
    """

    first: int
    records: int
    data: bytes | memoryview
    body_bytes: int = 0
    expires: bool = False

    @classmethod
    def of(cls, first: int, messages: Iterable[bytes]) -> MessageRun:
        """Put messages side by side."""
        entries = [encode_entry(message) for message in messages]
        return cls(first, len(entries), b"".join(entries))

    @property
    def last(self) -> int:
        """The id of the last message."""
        return self.first + self.records - 1

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield each message with its id.

        Raises:
            ChunkError: the number of messages is not `records`, or the last is cut short.
        """
        messages = split_entries(self.data)
        if len(messages) != self.records:
            raise ChunkError(f"{len(messages)} messages stand where there are to be {self.records}")
        return enumerate(messages, self.first)


def decode_published(frame: bytes) -> Published:
    """Read a Publish frame (without its size) of version 1 or 2.

    Raises:
        MalformedCommand: it is cut short, or goes on after its last entry.
    """
    try:
        _, version, publisher, count = _HEAD.unpack_from(frame)
        if version == 1:
            return _of_one_size(frame, publisher, count) or _one_by_one(frame, publisher, count)
        return _filtered(frame, publisher, count)
    except struct.error:
        raise MalformedCommand("a Publish whose last entry is cut short") from None


def _of_one_size(frame: bytes, publisher: int, count: int) -> Published | None:
    """Entries that all have the first one's length; None if they differ in length."""
    start = _HEAD.size
    if count < 2:
        return None
    (size,) = _LENGTH.unpack_from(frame, start + 8)
    step = 12 + size
    if size & _BATCH_BIT or len(frame) - start != count * step:
        return None
    for octet, at in zip(_LENGTH.pack(size), range(start + 8, start + 12), strict=True):
        if frame[at::step] != bytes((octet,)) * count:
            return None
    ids, entries = zip(*struct.iter_unpack(f">Q{4 + size}s", memoryview(frame)[start:]), strict=True)
    return Published(publisher, ids, list(entries), count, None)


def _one_by_one(frame: bytes, publisher: int, count: int) -> Published:
    ids: list[int] = []
    entries: list[bytes] = []
    records = 0
    position = _HEAD.size
    for _ in range(count):
        publishing_id, size = _ID_LENGTH.unpack_from(frame, position)
        end, held = _entry_end(frame, position + 8, size)
        ids.append(publishing_id)
        entries.append(frame[position + 8 : end])
        records += held
        position = end
    _check_end(frame, position)
    return Published(publisher, ids, entries, records, None)


def _filtered(frame: bytes, publisher: int, count: int) -> Published:
    ids: list[int] = []
    entries: list[bytes] = []
    filters: set[bytes] = set()
    records = 0
    position = _HEAD.size
    for _ in range(count):
        publishing_id, filter_bytes = struct.unpack_from(">Qh", frame, position)
        position += 10
        filters.add(frame[position : position + max(filter_bytes, 0)])
        position += max(filter_bytes, 0)
        (size,) = _LENGTH.unpack_from(frame, position)
        end, held = _entry_end(frame, position, size)
        ids.append(publishing_id)
        entries.append(frame[position:end])
        records += held
        position = end
    _check_end(frame, position)
    return Published(publisher, ids, entries, records, filters)


def _entry_end(frame: bytes, position: int, size: int) -> tuple[int, int]:
    """The end of the entry at `position`, and the number of its messages."""
    if not size & _BATCH_BIT:
        return position + 4 + size, 1
    _, records, _, batch_bytes = _SUB_BATCH.unpack_from(frame, position)
    if not records:
        raise MalformedCommand(f"a Publish whose batch at byte {position} has no messages")
    return position + _SUB_BATCH.size + batch_bytes, records


def _check_end(frame: bytes, position: int) -> None:
    if position != len(frame):
        raise MalformedCommand(f"a Publish whose entries end at byte {position} of {len(frame)}")


def is_sub_batch(entry: bytes) -> bool:
    """Whether an entry is a batch of messages itself."""
    return entry[0] >= _BATCH_BIT >> 24


def run_of(last: int, entry: bytes) -> MessageRun | None:
    """The run in an entry of a Publish frame whose id is `last`; None if it is compressed."""
    if not is_sub_batch(entry):
        return MessageRun(last, 1, entry)
    kind, count, _, _ = _SUB_BATCH.unpack_from(entry)
    return None if kind & _COMPRESSION else MessageRun(last - count + 1, count, entry[_SUB_BATCH.size :])


def run_head(publisher: int, run: MessageRun) -> bytes:
    """The octets before a run's data in a Publish frame that holds it alone."""
    size = len(run.data)
    head = _ID.pack(run.last)
    if run.records > 1:
        head += _SUB_BATCH.pack(_BATCH_BIT >> 24, run.records, size, size)
    return _WHOLE_HEAD.pack(9 + len(head) + size, CommandKey.PUBLISH, VERSION, publisher, 1) + head


def encode_publish(publisher: int, entries: Iterable[tuple[int, bytes]]) -> bytes:
    """A whole Publish frame from (publishing id, body)."""
    pack = _ID_LENGTH.pack
    parts = [b""]
    for publishing_id, body in entries:
        parts += (pack(publishing_id, len(body)), body)
    size = sum(map(len, parts))
    parts[0] = _WHOLE_HEAD.pack(9 + size, CommandKey.PUBLISH, VERSION, publisher, len(parts) // 2)
    return b"".join(parts)
