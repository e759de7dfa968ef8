"""The methods of forwarding connections beside AMQP 0-9-1: a client's node sends them to the leader of a queue.

A forwarding connection carries AMQP's frames in messages of a link (wire.link). It has one vhost, begins with
connection.open, and takes frames of any length. A long body is several frames, so that no node takes
all of it in one step (`SENT_FRAME_BYTES_MAX`). The methods of class 200:

    200,10  target      short queue | u64 epoch | short reference     this channel publishes into that queue
    200,11  target-ok   u64 number                                    the last it has of that reference
    200,20  numbers     u64 number | u64 again                        the next publish has it, those after it follow;
                                                                      those up to `again` were sent to a leader before
    200,30  credit      short consumer tag | u32 count                so many more deliveries, beside all prefetch
    200,40  settle      -                                             answer when all before it is on disk
    200,41  settle-ok   -
    200,50  moved       short consumer tag                            its queue is led elsewhere now: register it there
    200,60  active      short consumer tag                            from now on it is served, no other of its queue
    200,61  begins      short consumer tag | u64 offset               a stream's consumer begins there
    200,70  store       a batch, see `store`                          publish it into the target, which is a stream
    200,71  stored      u64 number | u16 code | octets of a text      the stream has it, or refuses it (code not 1)
    200,80  refused     u32 method | u16 code | octets of a text      in place of the answer to this method

A target's publishes are confirmed by basic.ack and basic.nack, whose tags count them from 1; a nack with `requeue` is
for good (core.queues.confirms). On its other channels,
remote channels of clients' channels, a consumer begins with `CREDIT_FIRST`, and its arguments may have a table
`CLIENT`.

A publish on a channel without a target is a direct reply, whose routing key names a client of the other node.

A method that is refused, or a channel that is closed, with `NOT_LED` asked for a queue that this node does not lead, or
does not lead yet. A refused method leaves the rest of a remote channel as it is: a client's channel may have deliveries
of many queues, which would all come again if it were closed.

The other functions encode what AMQP has too: names that RabbitMQ allows, and pamqp refuses, are among the arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from leveret.wire import tables
from leveret.wire.amqp091 import (
    BASIC_CANCEL,
    BASIC_CONSUME,
    BASIC_GET,
    BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_QOS,
    BETWEEN_FRAMES,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_PURGE,
    SENT_FRAME_BYTES_MAX,
    body_pieces,
    frame,
)
from leveret.wire.properties import SyntaxFault, shortstr

TARGET: Final = b"\x00\xc8\x00\x0a"
TARGET_OK: Final = b"\x00\xc8\x00\x0b"
NUMBERS: Final = b"\x00\xc8\x00\x14"
CREDIT: Final = b"\x00\xc8\x00\x1e"
SETTLE: Final = b"\x00\xc8\x00\x28"
SETTLE_OK: Final = b"\x00\xc8\x00\x29"
MOVED: Final = b"\x00\xc8\x00\x32"
ACTIVE: Final = b"\x00\xc8\x00\x3c"
BEGINS: Final = b"\x00\xc8\x00\x3d"
STORE: Final = b"\x00\xc8\x00\x46"
STORED: Final = b"\x00\xc8\x00\x47"
REFUSED: Final = b"\x00\xc8\x00\x50"
CLASS: Final = b"\x00\xc8"
"""The octets with which the payloads of all these methods begin."""

CREDIT_FIRST: Final = 64
CLIENT: Final = "x-relay-client"
"""The argument that describes a consumer's client: its tag, connection, channel, user and node."""
NOT_LED: Final = 399
"""Reply code for a queue that this node does not lead; AMQP has no such code."""
FRAME_BYTES_MAX: Final = (1 << 32) - 1
SENT_BODY_BYTES_MAX: Final = SENT_FRAME_BYTES_MAX - FRAME_OVERHEAD
"""A longer body is several frames."""

_PUBLISH: Final = BASIC_PUBLISH + b"\0\0"
_END: Final = bytes((FRAME_END,))
_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")
_BATCH: Final = struct.Struct(">QI")
_REFUSAL: Final = struct.Struct(">IH")
_QOS: Final = struct.Struct(">IHB")


class ForwardingTarget(NamedTuple):
    """The arguments of forwarding.target: the queue's name and epoch, and the publisher's reference."""

    queue: str
    epoch: int
    reference: bytes


class ForwardedBatch(NamedTuple):
    """The arguments of forwarding.store: messages of one publisher of the stream protocol, in order.

    Attributes:
        number: of the batch, on its channel.
        reference: the publisher's, empty without deduplication.
        ids: publishing ids, one an entry.
        entries: as they stand in a chunk.
        records: the number of messages in all entries.
        filters: the filter values of the messages, b"" for messages without one; None if none has one.
    """

    number: int
    reference: bytes
    ids: Sequence[int]
    entries: list[bytes]
    records: int
    filters: set[bytes] | None


def target(channel: int, queue: bytes, epoch: int, reference: bytes) -> bytes:
    """forwarding.target."""
    return _method(channel, TARGET + shortstr(queue) + _U64.pack(epoch) + shortstr(reference))


def target_ok(channel: int, number: int) -> bytes:
    """forwarding.target-ok."""
    return _method(channel, TARGET_OK + _U64.pack(number))


def numbers(channel: int, number: int, again: int) -> bytes:
    """forwarding.numbers."""
    return _method(channel, NUMBERS + _U64.pack(number) + _U64.pack(again))


def credit(channel: int, consumer_tag: bytes, count: int) -> bytes:
    """forwarding.credit."""
    return _method(channel, CREDIT + shortstr(consumer_tag) + _U32.pack(count))


def settle(channel: int) -> bytes:
    """forwarding.settle."""
    return _method(channel, SETTLE)


def settle_ok(channel: int) -> bytes:
    """forwarding.settle-ok."""
    return _method(channel, SETTLE_OK)


def moved(channel: int, consumer_tag: bytes) -> bytes:
    """forwarding.moved."""
    return _method(channel, MOVED + shortstr(consumer_tag))


def active(channel: int, consumer_tag: bytes) -> bytes:
    """forwarding.active."""
    return _method(channel, ACTIVE + shortstr(consumer_tag))


def begins(channel: int, consumer_tag: bytes, offset: int) -> bytes:
    """forwarding.begins."""
    return _method(channel, BEGINS + shortstr(consumer_tag) + _U64.pack(offset))


def store(channel: int, batch: ForwardedBatch) -> bytes:
    """forwarding.store.

    After its ids: u64 number | u32 records | short reference | u32 count | count u64 ids | count u32 sizes | the
    entries | u8 1 and the filter values as short strings, or u8 0 for None.
    """
    count = len(batch.entries)
    filters = batch.filters
    found = () if filters is None else filters
    return _method(
        channel,
        b"".join(
            (
                STORE,
                _BATCH.pack(batch.number, batch.records),
                shortstr(batch.reference),
                struct.pack(f">I{count}Q", count, *batch.ids),
                struct.pack(f">{count}I", *map(len, batch.entries)),
                *batch.entries,
                bytes((filters is not None,)),
                *(shortstr(value[:255]) for value in found),
            )
        ),
    )


def stored(channel: int, number: int, code: int, text: str) -> bytes:
    """forwarding.stored."""
    return _method(channel, STORED + _U64.pack(number) + code.to_bytes(2, "big") + text.encode())


def refused(channel: int, method: int, code: int, text: str) -> bytes:
    """forwarding.refused; `method` are the class and the id of the method that is not carried out."""
    return _method(channel, REFUSED + _REFUSAL.pack(method, code) + text.encode())


def decode_refused(payload: bytes) -> tuple[int, int, str]:
    """The method, the code and the text of forwarding.refused.

    Raises:
        SyntaxFault: the payload is too short.
    """
    if len(payload) < 4 + _REFUSAL.size:
        raise SyntaxFault(f"relay.refused of {len(payload)} octets")
    method, code = _REFUSAL.unpack_from(payload, 4)
    return method, code, payload[4 + _REFUSAL.size :].decode(errors="replace")


def decode_store(payload: bytes) -> ForwardedBatch:
    """The arguments of forwarding.store.

    Raises:
        SyntaxFault: the payload is no batch.
    """
    try:
        number, records = _BATCH.unpack_from(payload, 4)
        reference, position = _short(payload, 4 + _BATCH.size)
        (count,) = _U32.unpack_from(payload, position)
        ids = struct.unpack_from(f">{count}Q", payload, position + 4)
        position += 4 + 8 * count
        sizes = struct.unpack_from(f">{count}I", payload, position)
        entries, position = _cut(payload, position + 4 * count, sizes)
        filters: set[bytes] | None = set() if payload[position] else None
        position += 1
        while filters is not None and position < len(payload):
            value, position = _short(payload, position)
            filters.add(value)
        _check_end(payload, position)
    except (IndexError, struct.error) as error:
        raise SyntaxFault(f"relay.store: {error}") from None
    return ForwardedBatch(number, reference, ids, entries, records, filters)


def _cut(payload: bytes, position: int, sizes: Iterable[int]) -> tuple[list[bytes], int]:
    entries: list[bytes] = []
    for size in sizes:
        entries.append(payload[position : position + size])
        position += size
    return entries, position


def decode_stored(payload: bytes) -> tuple[int, int, str]:
    """The number, the code and the text of forwarding.stored.

    Raises:
        SyntaxFault: the payload is too short.
    """
    if len(payload) < 14:
        raise SyntaxFault(f"relay.stored of {len(payload)} octets")
    number, code = int.from_bytes(payload[4:12], "big"), int.from_bytes(payload[12:14], "big")
    return number, code, payload[14:].decode(errors="replace")


def decode_target(payload: bytes) -> ForwardingTarget:
    """The arguments of forwarding.target.

    Raises:
        SyntaxFault: the payload is too short or too long.
    """
    try:
        queue, position = _short(payload, 4)
        (epoch,) = _U64.unpack_from(payload, position)
        reference, end = _short(payload, position + 8)
        _check_end(payload, end)
        return ForwardingTarget(queue.decode(), epoch, reference)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise SyntaxFault(f"relay.target: {error}") from None


def decode_number(payload: bytes) -> int:
    """The number of forwarding.target-ok.

    Raises:
        SyntaxFault: the payload is not one number.
    """
    if len(payload) != 12:
        raise SyntaxFault(f"relay method of {len(payload)} octets where a number of 8 should follow the ids")
    return int.from_bytes(payload[4:], "big")


def decode_numbers(payload: bytes) -> tuple[int, int]:
    """The arguments of forwarding.numbers.

    Raises:
        SyntaxFault: the payload is too short or too long.
    """
    if len(payload) != 20:
        raise SyntaxFault(
            f"relay.numbers of {len(payload)} octets where two numbers of 8 should follow the ids"
        )
    return int.from_bytes(payload[4:12], "big"), int.from_bytes(payload[12:], "big")


def decode_tag(payload: bytes) -> bytes:
    """The consumer tag of forwarding.moved and forwarding.active.

    Raises:
        SyntaxFault: the payload is too short or too long.
    """
    try:
        tag, end = _short(payload, 4)
    except IndexError as error:
        raise SyntaxFault(f"relay method without a consumer tag: {error}") from None
    _check_end(payload, end)
    return tag


def decode_begins(payload: bytes) -> tuple[bytes, int]:
    """The arguments of forwarding.begins.

    Raises:
        SyntaxFault: the payload is too short or too long.
    """
    return _tag_and_number(payload, _U64, "begins")


def decode_credit(payload: bytes) -> tuple[bytes, int]:
    """Consumer tag and count of forwarding.credit.

    Raises:
        SyntaxFault: the payload is too short or too long.
    """
    return _tag_and_number(payload, _U32, "credit")


def _tag_and_number(payload: bytes, layout: struct.Struct, method: str) -> tuple[bytes, int]:
    try:
        tag, position = _short(payload, 4)
        (number,) = layout.unpack_from(payload, position)
        _check_end(payload, position + layout.size)
    except (IndexError, struct.error) as error:
        raise SyntaxFault(f"relay.{method}: {error}") from None
    return tag, number


def _short(payload: bytes, position: int) -> tuple[bytes, int]:
    end = position + 1 + payload[position]
    if end > len(payload):
        raise IndexError("a short string is cut short")
    return payload[position + 1 : end], end


def _check_end(payload: bytes, end: int) -> None:
    if end != len(payload):
        raise SyntaxFault(f"relay method of {len(payload)} octets, of which {end} are its arguments")


# -- publishes and methods of AMQP's --------------------------------------------------------------


def publish_head(channel: int, route: bytes, header: bytes, body_bytes: int) -> bytes:
    """The octets before the body of a publish; `route` is the exchange and the routing key as short strings.

    A frame end must follow the body; an empty body has no frame.
    """
    method = _method(channel, BASIC_PUBLISH + b"\0\0" + route + b"\0")
    start = method + frame(FRAME_HEADER, channel, header)
    return start + FRAME_HEAD.pack(FRAME_BODY, channel, body_bytes) if body_bytes else start


def large_publish(channel: int, route: bytes, header: bytes, body: bytes) -> list[bytes | memoryview]:
    """A publish of a body that does not fit into one frame, in pieces; `route` and `header` as in `publish_head`."""
    return [publish_head(channel, route, header, 0), *body_pieces(channel, body, SENT_FRAME_BYTES_MAX)]


def publishes(head: bytes, bodies: list[bytes], body_bytes: int) -> bytes:
    """Publishes with the same `publish_head`."""
    if not body_bytes:
        return head * len(bodies)
    end = bytes((FRAME_END,))
    return head + (end + head).join(bodies) + end


def publishes_that_differ(
    channel: int, routes: list[bytes], headers: list[bytes], bodies: list[bytes]
) -> bytes:
    """Publishes by columns: routes as in `publish_head`, content headers preceded by their lengths, bodies."""
    header_head = b"\0" + bytes((FRAME_END, FRAME_HEADER)) + channel.to_bytes(2, "big")
    fixed = len(BASIC_PUBLISH) + 2 + 1
    parts: list[bytes | memoryview] = []
    for route, header, body in zip(routes, headers, bodies, strict=True):
        parts += (
            FRAME_HEAD.pack(FRAME_METHOD, channel, fixed + len(route)),
            _PUBLISH,
            route,
            header_head,
            header,
        )
        if len(body) > SENT_BODY_BYTES_MAX:
            parts += (_END, *body_pieces(channel, body, SENT_FRAME_BYTES_MAX))
        else:
            parts += (
                BETWEEN_FRAMES.pack(FRAME_END, FRAME_BODY, channel, len(body)) if body else b"",
                body,
                _END,
            )
    return b"".join(parts)


def channel_open(channel: int) -> bytes:
    """channel.open."""
    return _method(channel, CHANNEL_OPEN + b"\0")


def channel_close(channel: int) -> bytes:
    """channel.close, of a channel that is no longer needed."""
    return _method(channel, CHANNEL_CLOSE + b"\x00\xc8\x00\x00\x00\x00\x00")


def channel_close_ok(channel: int) -> bytes:
    """channel.close-ok."""
    return _method(channel, CHANNEL_CLOSE_OK)


def qos(channel: int, prefetch: int, *, for_channel: bool) -> bytes:
    """basic.qos: of each later consumer, or of the whole channel."""
    return _method(channel, BASIC_QOS + _QOS.pack(0, prefetch, for_channel))


def consume(
    channel: int, queue: bytes, tag: bytes, *, no_ack: bool, exclusive: bool, arguments: dict[str, Any]
) -> bytes:
    """basic.consume.

    Raises:
        SyntaxFault: the arguments are nested too deeply.
    """
    bits = no_ack << 1 | exclusive << 2
    names = b"\0\0" + shortstr(queue) + shortstr(tag)
    try:
        table = _table(arguments)
    except RecursionError:
        raise SyntaxFault("the arguments of a consumer are nested too deeply") from None
    return _method(channel, BASIC_CONSUME + names + bytes((bits,)) + table[1:])


def cancel(channel: int, tag: bytes) -> bytes:
    """basic.cancel."""
    return _method(channel, BASIC_CANCEL + shortstr(tag) + b"\0")


def get(channel: int, queue: bytes, *, no_ack: bool) -> bytes:
    """basic.get."""
    return _method(channel, BASIC_GET + b"\0\0" + shortstr(queue) + bytes((no_ack,)))


def purge(channel: int, queue: bytes) -> bytes:
    """queue.purge."""
    return _method(channel, QUEUE_PURGE + b"\0\0" + shortstr(queue) + b"\0")


def delete(channel: int, queue: bytes, *, if_unused: bool, if_empty: bool) -> bytes:
    """queue.delete."""
    bits = bytes((if_unused | if_empty << 1,))
    return _method(channel, QUEUE_DELETE + b"\0\0" + shortstr(queue) + bits)


def declare(channel: int, queue: bytes) -> bytes:
    """queue.declare, passive."""
    return _method(channel, QUEUE_DECLARE + b"\0\0" + shortstr(queue) + b"\x01\0\0\0\0")


def nack(channel: int, tag: int, *, multiple: bool, requeue: bool, kept: bool = False) -> bytes:
    """basic.nack, from the receiver of the deliveries; `kept` is a bit of our own, in the answer to publishes."""
    bits = bytes((multiple | requeue << 1 | kept << 2,))
    return _method(channel, BASIC_NACK + _U64.pack(tag) + bits)


def _table(entries: Mapping[Any, Any]) -> bytes:
    """A table as a value; pamqp refuses to encode some of what it has decoded."""
    return tables.table({str(key).encode()[:255]: _value(value) for key, value in entries.items()})


def _value(value: object) -> bytes:
    match value:
        case None:
            return b"V"
        case bool():
            return b"t" + bytes((value,))
        case int() if -(2**63) <= value < 2**63:
            return tables.integer(value)
        case float():
            return b"d" + struct.pack(">d", value)
        case bytes() | bytearray():
            return tables.long_string(bytes(value))
        case datetime():
            return tables.timestamp(int(value.timestamp()))
        case Mapping():
            return _table(value)
        case list():
            return tables.array(map(_value, value))
    return tables.long_string(str(value).encode())


def _method(channel: int, payload: bytes) -> bytes:
    return frame(FRAME_METHOD, channel, payload)
