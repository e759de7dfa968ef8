"""Records of a queue's log: a stored message, and a settlement.

A message keeps the content header as it came, so that it is delivered without being encoded again:

    +----------+--------------+----------------+----------------+------+
    | exchange | routing key  | header length  | content header | body |
    | shortstr | shortstr     | u32            | payload        |      |
    +----------+--------------+----------------+----------------+------+

The content header payload is AMQP 0-9-1's (class 60, weight 0, body size u64, property flags, properties; spec
4.2.6.1). A settlement names offsets of the same log that will never be delivered again: one or more of (reason u8,
first offset u64, count u32). A range may cover offsets of settlement records, without effect on them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from leveret.wire.chunk import ChunkError

_U32: Final = struct.Struct(">I")
_SETTLED: Final = struct.Struct(">BQI")
_CONTENT: Final = struct.Struct(">HHQ")
COUNT_MAX: Final = 0xFFFF_FFFF
OUTGOING_STREAM: Final = "rabbitmq.internal.osr.messages"
"""Name under which the stream protocol serves a vhost's outgoing log (facts: RabbitMQ's own)."""
TRANSFERRED_PREFIX: Final = "leveret.transferred."
"""Prefix + another log's id: the stored offset up to which that log was transferred here."""
TRANSFERRED_FINGERPRINT_PREFIX: Final = "leveret.transferred-mark."
"""Prefix + another log's id: the fingerprint of that log's last transferred chunk (`chunk.fingerprint_of`)."""
BEGINNING_PREFIX: Final = "leveret.beginning."
"""Prefix + a downstream's reference: the stored offset at which it begins, if it has nothing of the log yet."""
FINGERPRINT_PREFIX: Final = "leveret.mark."
"""Prefix + an offset of the outgoing stream: the fingerprint of the chunk that ends there."""
EPOCH_PREFIX: Final = "leveret.epoch."
"""Prefix + an offset of the outgoing stream: the epoch of the record before that offset."""
RECOVERY_REFERENCE_PREFIX: Final = "recovery."
"""The begin of the publisher references of recoveries."""
RECOVERY_STREAM_PREFIX: Final = "leveret.recovery/"
"""Prefix + a queue's name: a publisher declared on it sends stored messages instead of bodies."""
_RECOVERY: Final = RECOVERY_REFERENCE_PREFIX.encode()
_ID_MARK: Final = "#"
_DOWNSTREAM_NAME_BYTES_MAX: Final = 200
"""The stream protocol's references have up to 255 octets."""
_TAKES_OVER: Final = " (taking over)"


def downstream_reference(name: str, downstream_id: str) -> str:
    """The reference under which an upstream keeps the position of a downstream.

    The cluster's name alone is not enough: two sites of the same name would overwrite each other's position.
    """
    return f"{_begin_of(name, _DOWNSTREAM_NAME_BYTES_MAX)}{_ID_MARK}{downstream_id}"


def taking_over(reference: str) -> str:
    """The reference of a downstream from whose archive no promotion recovers yet: it is taking a vhost over.

    The upstream keeps its records for it, and no confirm rests on it.
    """
    name, downstream_id = named_downstream(reference)
    begin = _begin_of(name, _DOWNSTREAM_NAME_BYTES_MAX - len(_TAKES_OVER))
    return f"{begin}{_TAKES_OVER}{_ID_MARK}{downstream_id}"


def _begin_of(name: str, bytes_max: int) -> str:
    return name.encode()[:bytes_max].decode(errors="ignore")


def is_taking_over(reference: str) -> bool:
    """Whether `taking_over` made a reference."""
    return named_downstream(reference)[0].endswith(_TAKES_OVER)


def named_downstream(reference: str) -> tuple[str, str]:
    """The cluster's name and the id in a reference; a reference of an earlier version has no id."""
    name, mark, downstream_id = reference.rpartition(_ID_MARK)
    return (name, downstream_id) if mark else (reference, "")


def is_recovery(reference: bytes) -> bool:
    """Whether a publisher is a recovery, whose publishing ids are the numbers of a plan."""
    return reference.startswith(_RECOVERY)


class Settlement(NamedTuple):
    """`count` offsets from `first` on are settled."""

    reason: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here


class StoredMessage(NamedTuple):
    """A message as the log stores it; `header` is the content header payload, `body` the octets."""

    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes

    @property
    def properties(self) -> bytes:
        """Property flags and list: the header without class, weight and body size."""
        return self.header[12:]


def message_head(exchange: bytes, routing_key: bytes, header: bytes) -> bytes:
    """The octets before the body in a message's entry; the same for every message of one shape."""
    return (
        bytes((len(exchange),))
        + exchange
        + bytes((len(routing_key),))
        + routing_key
        + _U32.pack(len(header))
        + header
    )


def content_header(properties: bytes, body_bytes: int) -> bytes:
    """A content header payload from `properties` (flags and list) and the size of the body."""
    return _CONTENT.pack(60, 0, body_bytes) + properties


def body_start(entry: bytes | memoryview) -> int:
    """The position of the body in a stored message.

    Raises:
        ChunkError: the entry ends before its body begins.
    """
    try:
        position = 1 + entry[0]
        position += 1 + entry[position]
        (size,) = _U32.unpack_from(entry, position)
    except (IndexError, struct.error):
        raise ChunkError("stored message ends inside its exchange, routing key or header") from None
    position += 4 + int(size)
    if position > len(entry):
        raise ChunkError(f"stored message: its header of {size} octets does not fit")
    return position


def decode_message(entry: bytes) -> StoredMessage:
    """Read a stored message.

    Raises:
        ChunkError: the entry is cut short.
    """
    start = body_start(entry)
    exchange_end = 1 + entry[0]
    key_end = exchange_end + 1 + entry[exchange_end]
    return StoredMessage(
        entry[1:exchange_end], entry[exchange_end + 1 : key_end], entry[key_end + 4 : start], entry[start:]
    )


def encode_settlements(settlements: Iterable[Settlement]) -> bytes:
    """The body of one settlement record."""
    return b"".join([_SETTLED.pack(*settlement) for settlement in settlements])


def decode_settlements(body: bytes | memoryview) -> Iterator[Settlement]:
    """Read a settlement record.

    Raises:
        ChunkError: its length is no multiple of 13.
    """
    if len(body) % _SETTLED.size:
        raise ChunkError(f"settlement record of {len(body)} octets is no whole number of ranges")
    return map(Settlement._make, _SETTLED.iter_unpack(body))
