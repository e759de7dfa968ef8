"""AMQP 0-9-1: the frames and the few methods that Leveret encodes itself.

    0      1         3          7           7+size      8+size
    +------+---------+----------+-----------+-----------+
    | type | channel | size     | payload   | frame-end |
    +------+---------+----------+-----------+-----------+
     octet   short     long       size octets  0xCE            (spec 2.3.5, 4.2.3)

Publish, deliver, get, ack and content frames are here because they are the hot path. All other
methods go through pamqp, but for the replies that carry names: pamqp refuses to encode names that
RabbitMQ allows.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial
from typing import Final

import pamqp.frame
from pamqp import base, commands, decode

from leveret.model.errors import PeerError
from leveret.wire.field_values import limited_table
from leveret.wire.properties import UNREADABLE, SyntaxFault, shortstr

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_OCTET: Final = b"\xce"
FRAME_OVERHEAD: Final = 8
FRAME_MIN_BYTES: Final = 4096
VALUES_MAX: Final = 8192
"""The most values in a table of a method's arguments: a frame of 128 KiB may hold 131,000, which take long."""
QUOTED_BYTES_MAX: Final = 1024
"""The most octets of a faulty frame that an error quotes; the log has the whole text, a reply 255 octets of it."""
SENT_FRAME_BYTES_MAX: Final = 512 * 1024
"""A body is sent in frames of at most so many octets, also to a peer that takes longer ones."""
FRAME_HEAD: Final = struct.Struct(">BHI")
FRAME_HEAD_BYTES: Final = FRAME_HEAD.size
BETWEEN_FRAMES: Final = struct.Struct(">BBHI")
"""The end of a frame, and the head of the next: type, channel, size."""
CONTENT_HEAD: Final = struct.Struct(">BH")
"""A frame's head without its size, which stands before a content header where headers are kept."""
HEADER_BEGIN: Final = struct.Struct(">3sIH2xQH")
"""A header frame's head, of its size apart, and the fixed part of a content header without its weight."""
HEADER_BYTES_MIN: Final = 14
"""The octets of a content header without properties."""
NEXT_BODY: Final = struct.Struct(">4sI")
"""A frame end and the head of a body frame: the octets before its size, and the size."""
CLASS_BASIC: Final = 60
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PROTOCOL_HEADER_09: Final = b"AMQP\x01\x01\x00\x09"
"""AMQP 0-9's, with which Perl's clients begin; RabbitMQ takes it for 0-9-1."""

# The class and the method, with which the payload of a method frame begins.
CONNECTION_OPEN: Final = b"\x00\x0a\x00\x28"
CONNECTION_OPEN_OK: Final = b"\x00\x0a\x00\x29"
CONNECTION_CLOSE: Final = b"\x00\x0a\x00\x32"
CONNECTION_CLOSE_OK: Final = b"\x00\x0a\x00\x33"
CONNECTION_BLOCKED: Final = b"\x00\x0a\x00\x3c"
CONNECTION_UNBLOCKED: Final = b"\x00\x0a\x00\x3d"
CHANNEL_OPEN: Final = b"\x00\x14\x00\x0a"
CHANNEL_OPEN_OK: Final = b"\x00\x14\x00\x0b"
CHANNEL_FLOW_OK: Final = b"\x00\x14\x00\x15"
CHANNEL_CLOSE: Final = b"\x00\x14\x00\x28"
CHANNEL_CLOSE_OK: Final = b"\x00\x14\x00\x29"
QUEUE_DECLARE: Final = b"\x00\x32\x00\x0a"
QUEUE_DECLARE_OK: Final = b"\x00\x32\x00\x0b"
QUEUE_PURGE: Final = b"\x00\x32\x00\x1e"
QUEUE_PURGE_OK: Final = b"\x00\x32\x00\x1f"
QUEUE_DELETE: Final = b"\x00\x32\x00\x28"
QUEUE_DELETE_OK: Final = b"\x00\x32\x00\x29"
BASIC_QOS: Final = b"\x00\x3c\x00\x0a"
BASIC_QOS_OK: Final = b"\x00\x3c\x00\x0b"
BASIC_CONSUME: Final = b"\x00\x3c\x00\x14"
BASIC_CONSUME_OK: Final = b"\x00\x3c\x00\x15"
BASIC_CANCEL: Final = b"\x00\x3c\x00\x1e"
BASIC_CANCEL_OK: Final = b"\x00\x3c\x00\x1f"
BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28"
BASIC_DELIVER: Final = b"\x00\x3c\x00\x3c"
BASIC_GET: Final = b"\x00\x3c\x00\x46"
BASIC_GET_OK: Final = b"\x00\x3c\x00\x47"
BASIC_GET_EMPTY: Final = b"\x00\x3c\x00\x48"
BASIC_ACK: Final = b"\x00\x3c\x00\x50"
BASIC_REJECT: Final = b"\x00\x3c\x00\x5a"
BASIC_NACK: Final = b"\x00\x3c\x00\x78"
SETTLING: Final = frozenset({BASIC_ACK, BASIC_REJECT, BASIC_NACK})
"""Methods whose arguments are a delivery tag and one octet of bits."""

_TAG: Final = struct.Struct(">Q")
_METHOD: Final = struct.Struct(">HH")
_ACK_FRAME: Final = struct.Struct(">BHIHHQBB")
_GET_OK: Final = struct.Struct(">BHI4sQ?")
"""A basic.get-ok frame up to its exchange: frame head, method, tag and bit."""
_COUNT_AND_END: Final = struct.Struct(">IB")
_DECLARE_COUNTS: Final = struct.Struct(">II")
_PUBLISH_HEAD: Final = 6
"""Class, method and the reserved short before a publish's exchange."""


class FrameError(PeerError):
    """The octets are not a frame (reply code 501)."""


class UnknownMethod(PeerError):
    """A class and method that the specification does not have (reply code 540)."""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame around `payload`."""
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END_OCTET


def marshal(method: base.Frame, channel: int) -> bytes:
    """A method frame, encoded by pamqp."""
    return pamqp.frame.marshal(method, channel)


def decode_method(payload: bytes) -> base.Frame:
    """A method from a method frame's payload, decoded by pamqp. Equal gets, as polling clients send, share one object.

    Raises:
        UnknownMethod: no such class and method.
        SyntaxFault: its arguments do not parse.
    """
    return _decode_repeated(payload) if payload.startswith(BASIC_GET) else _decode(payload)


@lru_cache(maxsize=256)
def _decode_repeated(payload: bytes) -> base.Frame:
    return _decode(payload)


def _decode(payload: bytes) -> base.Frame:
    if len(payload) < 4:
        raise SyntaxFault("method frame shorter than its class and method")
    try:
        factory: type[base.Frame] = commands.INDEX_MAPPING[int.from_bytes(payload[:4], "big")]
    except KeyError:
        raise UnknownMethod("{}.{}".format(*_METHOD.unpack_from(payload))) from None
    try:
        method: base.Frame = factory()
        _read_arguments(method, payload[4:])
    except UNREADABLE as error:
        raise SyntaxFault(
            f"cannot decode <<{','.join(map(str, payload[4 : 4 + QUOTED_BYTES_MAX]))}>>"
        ) from error
    return method


def _read_arguments(method: base.Frame, octets: bytes) -> None:
    """Set the arguments of a method, as pamqp's `Frame.unmarshal` does, but with a limit for tables."""
    bit: int | None = None
    for name in method.__slots__:
        kind = method.amqp_type(name)
        if bit is not None and (kind != "bit" or bit == 8):
            octets, bit = octets[1:], None
        if kind == "bit":
            bit = bit or 0
            setattr(method, name, decode.bit(octets, bit)[1])
            bit += 1
            continue
        read = partial(limited_table, values_max=VALUES_MAX) if kind == "table" else decode.METHODS[kind]
        size, value = read(octets)
        setattr(method, name, value)
        octets = octets[size:]


def split_publish(payload: bytes) -> tuple[bytes, bytes, int]:
    """Exchange, routing key and flags (1 mandatory, 2 immediate) of a basic.publish payload.

    Raises:
        SyntaxFault: the payload is cut short.
    """
    try:
        end = _PUBLISH_HEAD + 1 + payload[_PUBLISH_HEAD]
        exchange = payload[_PUBLISH_HEAD + 1 : end]
        key_end = end + 1 + payload[end]
        return exchange, payload[end + 1 : key_end], payload[key_end]
    except IndexError:
        raise SyntaxFault("cannot decode Basic.Publish: cut short") from None


def body_frames(channel: int, body: bytes, frame_max_bytes: int) -> bytes:
    """Content body frames; none for an empty body (spec 4.2.6.2)."""
    return b"".join(body_pieces(channel, body, frame_max_bytes))


def body_pieces(channel: int, body: bytes, frame_max_bytes: int) -> list[bytes | memoryview]:
    """Content body frames in pieces that share the octets of the body, for one copy of them all."""
    octets, step = memoryview(body), frame_max_bytes - FRAME_OVERHEAD
    pieces: list[bytes | memoryview] = []
    for at in range(0, len(body), step):
        piece = octets[at : at + step]
        pieces += (FRAME_HEAD.pack(FRAME_BODY, channel, len(piece)), piece, FRAME_END_OCTET)
    return pieces


def deliver_head(channel: int, consumer_tag: bytes, route_bytes: int) -> bytes:
    """A basic.deliver frame up to its delivery tag; `route_bytes`: exchange and key as short strings."""
    size = 4 + 1 + len(consumer_tag) + 8 + 1 + route_bytes
    return FRAME_HEAD.pack(FRAME_METHOD, channel, size) + BASIC_DELIVER + shortstr(consumer_tag)


def content_head(
    channel: int, redelivered: bool, route: bytes, header_payload: bytes, body_bytes: int
) -> bytes:
    """The octets between a delivery tag and the body, for a body of one frame, or of none when it is empty."""
    start = bytes((redelivered,)) + route + FRAME_END_OCTET + frame(FRAME_HEADER, channel, header_payload)
    return start + FRAME_HEAD.pack(FRAME_BODY, channel, body_bytes) if body_bytes else start[:-1]


def get_ok(channel: int, tag: int, redelivered: bool, route: bytes, message_count: int) -> bytes:
    """A basic.get-ok frame."""
    size = _GET_OK.size - FRAME_HEAD_BYTES + len(route) + _COUNT_AND_END.size - 1
    start = _GET_OK.pack(FRAME_METHOD, channel, size, BASIC_GET_OK, tag, redelivered)
    return start + route + _COUNT_AND_END.pack(message_count, FRAME_END)


def basic_return(channel: int, code: int, text: bytes, route: bytes) -> bytes:
    """A basic.return frame."""
    return frame(
        FRAME_METHOD, channel, _METHOD.pack(60, 50) + code.to_bytes(2, "big") + shortstr(text) + route
    )


def ack(channel: int, tag: int, multiple: bool) -> bytes:
    """A basic.ack frame, from the broker a confirm."""
    return _ACK_FRAME.pack(FRAME_METHOD, channel, 13, 60, 80, tag, multiple, FRAME_END)


def nack(channel: int, tag: int, multiple: bool) -> bytes:
    """A basic.nack frame, from the broker a confirm that failed."""
    return _ACK_FRAME.pack(FRAME_METHOD, channel, 13, 60, 120, tag, multiple, FRAME_END)


def named_reply(channel: int, class_id: int, method_id: int, name: bytes, rest: bytes = b"") -> bytes:
    """A method frame whose arguments are one short string and `rest` (consume-ok, cancel, ...)."""
    return frame(FRAME_METHOD, channel, _METHOD.pack(class_id, method_id) + shortstr(name) + rest)


def declare_ok(channel: int, queue: bytes, message_count: int, consumer_count: int) -> bytes:
    """A queue.declare-ok frame."""
    return named_reply(channel, 50, 11, queue, _DECLARE_COUNTS.pack(message_count, consumer_count))


def close_method(channel: int, code: int, text: str, class_id: int, method_id: int) -> bytes:
    """A connection.close (channel 0) or channel.close frame; the text is cut to a short string."""
    ids = (10, 50) if channel == 0 else (20, 40)
    # One step that never cuts a character in two: a text may quote a whole frame.
    octets = text.encode()[:255].decode(errors="ignore").encode()
    payload = (
        _METHOD.pack(*ids) + code.to_bytes(2, "big") + shortstr(octets) + _METHOD.pack(class_id, method_id)
    )
    return frame(FRAME_METHOD, channel, payload)
