"""The link between a leader and a follower: messages in both directions, and the frames that carry changes.

After the greeting, the octets `LEVERET` and a version, both sides send messages, big endian:

    u32 length of what follows | u8 type | payload

The handshake's messages are JSON, with proofs. Every other message but a frame is one of the structs below in
MessagePack, and ends in a u32 check, the CRC-32 of the struct with its type: without it, one flipped bit could make a
peer skip or ack records that it does not have. **Frames** go from the leader to the follower and hold changes of its
tree (storage.tree) in the order in which they were made; all changes of one group commit are one frame, so a follower
that has applied whole frames is at a prefix of the whole node.

    u64 number of the cut | u64 records so far | i64 time of the cut in ms | u8 flags | u32 check | changes

    kind      then
    0 NAME    u32 number | u16 length | name      from now on the log of this name goes by the number, until it is gone
    1 APPEND  u32 number | u64 segment | chunk    the chunk is the next of the log, in the segment of this offset
    2 DROP    u32 number | u64 offset             the log begins here now
    3 DELETE  u32 number                          the log is gone
    4 BEGIN   u32 number | u64 offset             the log begins here; what the follower has of it is superfluous
    5 TRUNCATE  u32 number | u64 offset           what the follower has from here on is divergent: quarantined
    6 FILE    u16 length | name | u32 length | octets      a state file holds this now
    7 REMOVE  u16 length | name                   a state file is gone
    8 QUARANTINE  u32 number                      the whole log is divergent: quarantined
    9 CURSOR  u32 number | u64 offset             messages before it may have been handed to consumers
    10 HEAD   u32 number | u64 segment | chunk    the next chunk of the segment in front of what the copy has

CURSOR is for mirrors only, which follow single logs: a link carries those that one node mirrors of another.

The number of a cut counts octets of changes since the leader began (core.replication.replica_set). Frames that are read
from disk for a mirror have numbers of their own, between the cuts, and are acked, too. Frames that are read from disk
for a follower have the number 0, and the octets that the follower still lacks stand in the place of records. With
flag 1 the changes are compressed (zstd).
`check` is the CRC-32 of the octets before it and of all changes without their chunks. Chunks have checks of their
own, which the follower verifies before it writes them. So every bit of a frame is covered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import zstandard
from isal.isal_zlib import crc32

from leveret.model.errors import PeerError
from leveret.model.foreign_json import decoded
from leveret.wire.chunk import Chunk, ChunkError, decode_chunk

GREETING: Final = b"LEVERET\x01"
LENGTH: Final = struct.Struct(">I")
FRAME_HEAD: Final = struct.Struct(">QQqBI")
_CHECK_BYTES: Final = 4
_CHECK_AT: Final = FRAME_HEAD.size - _CHECK_BYTES
PROBE_CHUNKS_MAX: Final = 4096
"""The most headers that a probe asks for."""
MESSAGE_BYTES_MAX: Final = 1 << 30
FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 64
"""The most octets of changes in a frame: its message has a head as well."""
LOGS_MAX: Final = 1_000_000
"""The most logs that a peer may name: no node has as many, and each takes memory here."""
NAME_BYTES_MAX: Final = 1024
SMALL_BYTES_MAX: Final = 8192
"""The most octets at once from a peer that has not proven the secret."""
_COMPRESSED: Final = 1
_NAME: Final = struct.Struct(">BIH")
_CHANGE: Final = struct.Struct(">BIQ")
_WHOLE: Final = struct.Struct(">BI")
_FILE: Final = struct.Struct(">BH")

Octets: TypeAlias = bytes | memoryview
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_NonNegativeI64: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""An offset, the number of a cut, an epoch, or a count of octets."""


class LinkError(PeerError):
    """A peer of the replication link breaks the protocol."""


class Type(IntEnum):
    """The type of a message; 1 to 4 belong to the handshake, see session.link_handshake."""

    HELLO = 1
    PROOF = 2
    WELCOME = 3
    REFUSED = 4
    INVENTORY = 10
    """To the leader: the follower's logs and state files. Struct `Inventory`."""
    PROBE = 11
    """To the follower: send headers of earlier chunks. Struct `ProbeHeaders`."""
    HEADERS = 12
    """To the leader: the answer to a probe. Struct `Headers`."""
    COPIES = 13
    """To the leader: the copies of the logs that a mirror wants to mirror. Struct `MirrorInventory`."""
    MIRRORING = 14
    """To the mirror: the changes of this log that follow answer the mirror's report of its copy. Struct `Mirroring`."""
    RELEASED = 15
    """To the leader: these logs are not mirrored any more. Struct `LogNames`."""
    REPORT_AGAIN = 16
    """To the mirror: report these logs anew, as far as they are mirrored. Struct `LogNames`."""
    FAILED = 17
    """To the leader: the mirror cannot have this log for now. Struct `CopyFailed`."""
    FRAME = 20
    """To the follower: changes."""
    ACK = 21
    """To the leader: see the struct `Acked`."""
    STREAMING = 22
    """To the follower: it has all up to this cut, and from now on gets frames as they are cut. Struct `Number`."""
    TAKE_OVER = 23
    """To the leader: the epoch in which the follower is going to lead. Struct `Number`."""
    HANDED_OVER = 24
    """To the follower: the cut of the leader's last change. Struct `Number`."""
    AMQP = 28
    """Either way: whole frames of AMQP 0-9-1, see wire.forwarding."""
    BEAT = 29
    """Either way: a sign of life; in a cluster."""
    QUESTION = 30
    """Either way: struct `Question`."""
    ANSWER = 31
    """Either way: struct `Answer`."""


class LogExtent(msgspec.Struct, frozen=True, array_like=True):
    """A follower's copy of a log; `last` is the header of its last chunk, empty for none."""

    path: str
    first_offset: _NonNegativeI64
    next_offset: _NonNegativeI64
    last: bytes


class Inventory(msgspec.Struct, frozen=True, array_like=True):
    """A follower's logs and the names of its state files; may come in parts, the last one with `is_last`.

    If `apply_delay_ms` is not 0, the sender is a delayed follower: no promise waits for it.
    """

    logs: list[LogExtent]
    files: list[str]
    is_last: bool
    apply_delay_ms: int = 0


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """A mirror's copy of a log; `head` is a part of the segment that will stand in front of the copy one day.

    `serial` distinguishes this report on the log from earlier ones.
    """

    serial: int
    log: LogExtent
    head: LogExtent | None


class MirrorInventory(msgspec.Struct, frozen=True, array_like=True):
    """Some of the logs that a mirror wants to mirror; other logs stay as they are."""

    copies: list[Copy]


class Mirroring(msgspec.Struct, frozen=True, array_like=True):
    """Begins the answer to the `Copy` of that serial; `epoch` is the one in which the leader leads the log.

    A copy whose last chunk is of an epoch below `lost_epoch` may have messages that no other node has: those before
    `lost_before`, and those at its end.
    """

    path: str
    serial: int
    epoch: int
    lost_before: int = 0
    lost_epoch: int = 0


class Acked(msgspec.Struct, frozen=True, array_like=True):
    """Everything of the link's scope is on the peer's disk, up to this cut; and the octets that the peer received."""

    position: _NonNegativeI64
    octets: _NonNegativeI64


class Number(msgspec.Struct, frozen=True, array_like=True):
    """A cut, or an epoch."""

    number: _NonNegativeI64


class LogNames(msgspec.Struct, frozen=True, array_like=True):
    """Names of logs."""

    paths: list[str]


class CopyFailed(msgspec.Struct, frozen=True, array_like=True):
    """A mirror could not write a part of a log; nothing that was sent of the log since then counts.

    `error` says why.
    """

    path: str
    error: str


class ProbeHeaders(msgspec.Struct, frozen=True, array_like=True):
    """Asks for the headers of at most `count` chunks of a log that begin before offset `before`, newest first."""

    path: str
    before: _NonNegativeI64
    count: Annotated[int, msgspec.Meta(ge=1, le=PROBE_CHUNKS_MAX)]


class Headers(msgspec.Struct, frozen=True, array_like=True):
    """The headers a probe asked for, 48 octets each, newest first."""

    path: str
    headers: list[bytes]


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A question; `what` is its name, such as "digest" or "chunk", `about` its parameters."""

    number: int
    what: str
    about: dict[str, Any]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the question of that number; `error` is empty on success.

    The question defines the fields of `found`.
    """

    number: int
    error: str
    found: dict[str, Any]


def message(kind: Type, payload: bytes = b"") -> bytes:
    """One message, ready to be sent."""
    return LENGTH.pack(len(payload) + 1) + bytes((kind,)) + payload


def pack(kind: Type, struct_: msgspec.Struct) -> bytes:
    """One message of a struct, ready to be sent."""
    octets = msgspec.msgpack.encode(struct_)
    return message(kind, octets + crc32(octets, kind).to_bytes(_CHECK_BYTES, "big"))


def decode(kind: Type, payload: memoryview, struct_: type[_Struct]) -> _Struct:
    """The struct in a message.

    Raises:
        LinkError: the payload is damaged, or no such struct.
    """
    octets = payload[:-_CHECK_BYTES]
    if crc32(octets, kind) != int.from_bytes(payload[-_CHECK_BYTES:], "big"):
        raise LinkError(f"the check of a message {kind.name} differs")
    try:
        return decoded(msgspec.msgpack.decode, octets, struct_)
    except msgspec.DecodeError as error:
        raise LinkError(f"{struct_.__name__} is malformed: {error}") from None


# -- changes --------------------------------------------------------------------------------------


class ChangeKind(IntEnum):
    """Kinds of changes; see the module."""

    NAME = 0
    APPEND = 1
    DROP = 2
    DELETE = 3
    BEGIN = 4
    TRUNCATE = 5
    FILE = 6
    REMOVE = 7
    QUARANTINE = 8
    CURSOR = 9
    HEAD = 10


class LogChange(NamedTuple):
    """A decoded change of the log or file `name`, with a chunk or a file's octets.

    `offset` is the change's; for APPEND and HEAD it is the segment's.
    """

    kind: ChangeKind
    name: str
    offset: int = 0
    chunk: Chunk | None = None
    octets: Octets = b""


class FrameHead(NamedTuple):
    """The octets of a frame before its changes."""

    position: int
    records: int
    cut_at_ms: int
    flags: int
    check: int


class Frame:
    """Gathers the changes of one frame, as pieces that are sent without being joined.

    Attributes:
        octets: the size of the changes, not compressed.
        records: the number of records in their chunks.
    """

    __slots__ = ("_check", "_pieces", "octets", "records")

    def __init__(self) -> None:
        """Nothing changed."""
        self.octets = 0
        self.records = 0
        self._check = 0
        self._pieces: list[Octets] = []

    def add(self, head: bytes, chunk: list[Octets] | None = None, records: int = 0) -> None:
        """Add one change, made by a function below; an APPEND or HEAD comes with the octets of its chunk, in pieces."""
        self._check = crc32(head, self._check)
        self._pieces.append(head)
        self.octets += len(head)
        if chunk is not None:
            self._pieces += chunk
            self.octets += sum(map(len, chunk))
            self.records += records

    def message(
        self, position_: int, records: int, cut_at_ms: int, *, compress: bool = False
    ) -> list[Octets]:
        """The message that carries the frame, in pieces; `position_` and `records` are those behind the frame.

        Raises:
            LinkError: the frame is larger than any peer takes. A copy gets its changes from disk then, by a new link.
        """
        pieces = self._pieces
        size = self.octets
        if size > FRAME_BYTES_MAX:
            raise LinkError(f"one flush has {size} octets, and a frame has {FRAME_BYTES_MAX} at most")
        if compress and size:
            pieces = [zstandard.ZstdCompressor(level=1).compress(b"".join(pieces))]
            size = len(pieces[0])
        flags = _COMPRESSED if compress and size else 0
        head = FRAME_HEAD.pack(position_, records, cut_at_ms, flags, 0)
        head = head[:_CHECK_AT] + crc32(head[:_CHECK_AT], self._check).to_bytes(4, "big")
        length = LENGTH.pack(1 + len(head) + size)
        return [length + bytes((Type.FRAME,)) + head, *pieces]


def name_change(number: int, name: str) -> bytes:
    """NAME."""
    octets = name.encode()
    return _NAME.pack(ChangeKind.NAME, number, len(octets)) + octets


def log_change(kind: ChangeKind, number: int, offset: int) -> bytes:
    """APPEND and HEAD (before their chunk), DROP, BEGIN, TRUNCATE, CURSOR."""
    return _CHANGE.pack(kind, number, offset)


def whole_change(kind: ChangeKind, number: int) -> bytes:
    """DELETE, QUARANTINE."""
    return _WHOLE.pack(kind, number)


def file_change(name: str, octets: bytes | None) -> bytes:
    """FILE, or REMOVE for None."""
    path = name.encode()
    if octets is None:
        return _FILE.pack(ChangeKind.REMOVE, len(path)) + path
    return _FILE.pack(ChangeKind.FILE, len(path)) + path + LENGTH.pack(len(octets)) + octets


def decode_frame(
    payload: memoryview, names: dict[int, str]
) -> tuple[FrameHead, Callable[[], Iterator[LogChange]]]:
    """The head of a frame, and an iterator over its changes; `names` is kept from frame to frame.

    Chunks share the payload's octets, and each is verified as it is yielded.

    Raises:
        LinkError: there is no whole head, or the changes cannot be decompressed.
    """
    if len(payload) < FRAME_HEAD.size:
        raise LinkError(f"a frame of {len(payload)} octets has no head")
    head = FrameHead(*FRAME_HEAD.unpack_from(payload))
    rest = payload[FRAME_HEAD.size :]
    if head.flags & _COMPRESSED:
        try:
            # A claim of the peer, which the decompressor would make room for, whatever the limit.
            if zstandard.frame_content_size(rest) > MESSAGE_BYTES_MAX:
                raise LinkError(f"a frame of more than {MESSAGE_BYTES_MAX} octets")
            rest = memoryview(
                zstandard.ZstdDecompressor().decompress(rest, max_output_size=MESSAGE_BYTES_MAX)
            )
        except zstandard.ZstdError as error:
            raise LinkError(f"a frame cannot be decompressed: {error}") from None
    return head, lambda: _changes(rest, names, payload[:_CHECK_AT], head.check)


def _changes(
    octets: memoryview, names: dict[int, str], before: memoryview, check: int
) -> Iterator[LogChange]:
    """Yield the changes, after verifying the check of all of them.

    Raises:
        LinkError: octets are no change, a chunk is damaged, or the check differs.
    """
    found: list[LogChange] = []
    seen = at = 0
    try:
        while at < len(octets):
            change, head_end, end = _change(octets, at, names)
            seen = crc32(octets[at:head_end], seen)
            at = end
            if change is not None:
                found.append(change)
    except (struct.error, ValueError, KeyError, ChunkError) as error:
        raise LinkError(f"change at octet {at} of a frame: {error!r}") from None
    seen = crc32(before, seen)
    if seen != check:
        raise LinkError(f"a frame's check is {check:#010x}, its changes have {seen:#010x}")
    yield from found


def _change(octets: memoryview, at: int, names: dict[int, str]) -> tuple[LogChange | None, int, int]:
    """The change at a position, the end of its part that the frame's check covers, and its end."""
    kind = ChangeKind(octets[at])
    if kind is ChangeKind.NAME:
        _, number, size = _NAME.unpack_from(octets, at)
        end = at + _NAME.size + size
        if size > NAME_BYTES_MAX:
            raise ValueError(f"the name of a log has {size} octets")
        names[number] = _text(octets, end - size, end)
        # While a copy catches up, a log has two numbers.
        if len(names) > 2 * LOGS_MAX:
            raise ValueError(f"more than {LOGS_MAX} logs are named")
        return None, end, end
    if kind in (ChangeKind.FILE, ChangeKind.REMOVE):
        _, size = _FILE.unpack_from(octets, at)
        end = at + _FILE.size + size
        name = _text(octets, end - size, end)
        if kind is ChangeKind.REMOVE:
            return LogChange(kind, name), end, end
        (size,) = LENGTH.unpack_from(octets, end)
        start, end = end + LENGTH.size, end + LENGTH.size + size
        if end > len(octets):
            raise ValueError("a file is cut short")
        return LogChange(kind, name, octets=octets[start:end]), end, end
    if kind in (ChangeKind.DELETE, ChangeKind.QUARANTINE):
        _, number = _WHOLE.unpack_from(octets, at)
        end = at + _WHOLE.size
        # Queues come and go by the million, and their logs' names never come back.
        return LogChange(kind, names.pop(number)), end, end
    _, number, offset = _CHANGE.unpack_from(octets, at)
    end = at + _CHANGE.size
    if kind not in (ChangeKind.APPEND, ChangeKind.HEAD):
        return LogChange(kind, names[number], offset), end, end
    chunk = decode_chunk(octets, end)
    return (
        LogChange(kind, names[number], offset, chunk, octets[end : end + chunk.header.chunk_bytes]),
        end,
        end + (chunk.header.chunk_bytes),
    )


def _text(octets: memoryview, start: int, end: int) -> str:
    if end > len(octets):
        raise ValueError("a name is cut short")
    return bytes(octets[start:end]).decode()
