"""The decoders of `wire`: each may say no in the way it declares, and what it takes it can write again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pamqp.frame
from isal.isal_zlib import crc32
from pamqp import commands, header

from leveret.core.schema.delta import LocalEntities, delta
from leveret.core.schema.digests import Digests
from leveret.model.definitions import Definitions, User
from leveret.model.errors import PeerError
from leveret.pipeline.archive.decode import Decoder
from leveret.session.schema_exchange import SchemaFollower, answer
from leveret.testing.sites.stream_host import make_chunk
from leveret.wire import amqp091, amqp10, chunk, message10, properties, proxy_protocol, record, schema_sync
from leveret.wire import tables as field_tables
from leveret.wire.amqp10_values import ValueFault, from_field, to_field
from leveret.wire.chunk import ChunkError
from leveret.wire.properties import SyntaxFault
from leveret.wire.stream import commands as stream
from leveret.wire.stream.fields import MalformedCommand, OffsetSpec, OffsetType
from leveret.wire.stream.frames import FrameDecoder, FrameTooLarge, StreamFrameError
from leveret.wire.stream.publish import decode_published
from tests.fuzz.target import Target, declared, expect

HEADERS: Final[dict[str, Any]] = {
    "text": "value",
    "number": 7,
    "large": 1 << 40,
    "yes": True,
    "nothing": None,
    "ratio": 0.5,
    "octets": bytearray(b"\x00\xff"),
    "time": datetime(2026, 1, 1, tzinfo=UTC),
    "list": [1, "two", {"three": 3}],
    "table": {"inner": {"deep": [None, False]}},
}
PROPERTIES: Final = commands.Basic.Properties(
    content_type="text/plain",
    headers=HEADERS,
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    message_type="t",
    user_id="guest",
    app_id="a",
)
CONTENT_HEADER: Final = header.ContentHeader(0, 5, PROPERTIES).marshal()
TABLE: Final = properties.split(CONTENT_HEADER)[properties.HEADERS]


# --- AMQP 0-9-1 ---------------------------------------------------------------------------------


def methods(octets: bytes) -> None:
    with declared(SyntaxFault, amqp091.UnknownMethod):
        amqp091.decode_method(octets)
    with declared(SyntaxFault):
        amqp091.split_publish(octets)


def method_seeds() -> Iterator[bytes]:
    for factory in commands.INDEX_MAPPING.values():
        try:
            octets = bytes(pamqp.frame.marshal(factory(), 1))
        except (TypeError, ValueError):  # it has no default for a field
            continue
        yield octets[7:-1]
    for method in (
        commands.Queue.Declare(queue="q", durable=True, arguments=HEADERS),
        commands.Connection.StartOk({"capabilities": {"a": True}}, "PLAIN", "\0guest\0guest", "en_US"),
    ):
        yield bytes(pamqp.frame.marshal(method, 1))[7:-1]


def content_headers(octets: bytes) -> None:
    with declared(SyntaxFault):
        properties.body_bytes_of(octets)
        properties.is_persistent(octets)
        found = properties.split(octets)
        expect(properties.split(properties.join(found, 5)) == found, "properties are not what they were")
    with declared(SyntaxFault):
        properties.decode(properties.split(octets))


def tables(octets: bytes) -> None:
    with declared(SyntaxFault):
        entries = field_tables.split(octets)
        expect(field_tables.split(field_tables.join(entries)) == entries, "a table is not what it was")
        for value in entries.values():
            field_tables.text_of(value), field_tables.table_of(value), field_tables.integer_of(value)
            field_tables.split_array(value)


# --- AMQP 1.0 -----------------------------------------------------------------------------------


def sasl(octets: bytes) -> None:
    with declared(amqp10.SaslError):
        size = amqp10.sasl_frame_bytes(octets)
        if 0 < size <= len(octets):
            amqp10.decode_plain(amqp10.decode_init(octets[:size]).initial_response)


def sasl_seeds() -> list[bytes]:
    fields = b"\xa3\x05PLAIN" + b"\xa0\x0c\x00guest\x00guest" + b"\xa1\x04host"
    inits = [b"\xc0" + bytes((len(fields) + 1, 3)) + fields, b"\xd0" + b"\0\0\0\x30\0\0\0\x03" + fields]
    return [_sasl_frame(b"\x00\x53\x41" + init) for init in inits]


def _sasl_frame(body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


def values(octets: bytes) -> None:
    with declared(ValueFault):
        value, _ = to_field(octets, 0)
        from_field(value)


def value_seeds() -> list[bytes]:
    array = b"\xf0\x00\x00\x00\x0a\x00\x00\x00\x02\xa3\x01a\x01b"
    return [from_field(value) for value in field_tables.split(TABLE).values()] + [
        array,
        b"\x00\x53\x75\xa0\x01x",
    ]


def messages10(octets: bytes) -> None:
    reader = message10.MessageReader()
    message = reader.read(octets)
    assert reader.read(octets) == message
    content = record.content_header(message.properties, len(message.body))
    properties.decode(properties.split(content))
    message10.encode_before_body(message.exchange or b"", message.routing_key or b"", content, 0)


def message10_seeds() -> list[bytes]:
    before = message10.encode_before_body(b"orders", b"a.b", CONTENT_HEADER, 5)
    return [before + b"hello", b"\x00\x53\x77\xa1\x05hello", b"\x00\x53\x76\xc0\x03\x01\x40\x40"]


def messages091(octets: bytes) -> None:
    """A publisher's content header on its way into a stream."""
    with declared(PeerError):
        message10.encode_before_body(b"orders", b"a.b", octets, 300)


# --- stream protocol ----------------------------------------------------------------------------


def stream_frames(octets: bytes) -> None:
    decoder = FrameDecoder(65_536)
    with declared(StreamFrameError, FrameTooLarge):
        for frame in decoder.feed(octets):
            stream_command(frame)


def stream_command(frame: bytes) -> None:
    with declared(MalformedCommand):
        if frame[:2] == b"\0\x02" and len(frame) >= 4:
            published = decode_published(frame)
            expect(len(published.ids) == len(published.entries), "entries without an id")
    with declared(MalformedCommand, stream.UnknownCommand):
        command = stream.decode(frame)
        if not isinstance(command, stream.Publish):  # its sub-batches are not written
            again = stream.decode(command.encode()[4:])
            expect(again == command, f"{command} is {again} after a second reading")


STREAM_COMMANDS: Final = (
    stream.PeerProperties(1, {"product": "fuzz"}),
    stream.SaslHandshake(2),
    stream.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"),
    stream.Tune(65_536, 60),
    stream.Open(4, "/"),
    stream.Create(5, "s", {"max-length-bytes": "1000"}),
    stream.DeclarePublisher(6, 1, "me", "s"),
    stream.Publish(1, [(1, b"one"), (2, b"two"), (3, b"three")], []),
    stream.Publish(1, [(4, b"same"), (5, b"size")], []),
    stream.Subscribe(7, 1, "s", OffsetSpec(OffsetType.OFFSET, 1), 10, {"name": "group"}),
    stream.Credit(1, 5),
    stream.StoreOffset("me", "s", 3),
    stream.QueryOffset(8, "me", "s"),
    stream.QueryPublisherSequence(9, "me", "s"),
    stream.Metadata(10, ["s", "t"]),
    stream.StreamStats(11, "s"),
    stream.CreateSuperStream(12, "super", ["a", "b"], ["0", "1"], {"max-age": "1h"}),
    stream.Route(13, "key", "super"),
    stream.Partitions(14, "super"),
    stream.ConsumerUpdateResponse(1, 1, OffsetSpec(OffsetType.NEXT)),
    stream.Unsubscribe(15, 1),
    stream.DeletePublisher(16, 1),
    stream.DeleteSuperStream(17, "super"),
    stream.DeleteStream(18, "s"),
    stream.ExchangeCommandVersions(19, []),
    stream.Heartbeat(),
    stream.PublishConfirm(1, [1, 2]),
    stream.Close(20, 1, "done"),
)


# --- chunks -------------------------------------------------------------------------------------


def chunks(octets: bytes) -> None:
    """As they are, and with checks that fit, so that what lies behind a check is reached as well."""
    for candidate in (octets, checked(octets)):
        with declared(ChunkError):
            whole = chunk.decode_chunk(memoryview(candidate))
            list(chunk.decode_trailer(whole.trailer))
            entries = chunk.split_entries(whole.data)
            expect(b"".join(map(chunk.encode_entry, entries)) == whole.data, "entries are not what they were")
        with declared(ChunkError):
            Decoder("/").decode([candidate])


def checked(octets: bytes) -> bytes:
    """A chunk whose lengths and checks are right, of whatever is in it."""
    if len(octets) < chunk.HEADER_BYTES:
        return octets
    _, kind, entries, records, stamp, epoch, first, _, _, trailer_bytes, *_ = chunk.HEADER.unpack_from(octets)
    rest = octets[chunk.HEADER_BYTES :]
    kept = min(trailer_bytes, len(rest))
    data, trailer = rest[: len(rest) - kept], rest[len(rest) - kept :]
    if len(trailer) >= 10:
        trailer = chunk.encode_trailer(trailer[:-10])
    return (
        chunk.encode_header(kind, entries, records, stamp, epoch, first, crc32(data), len(data), len(trailer))
        + data
        + trailer
    )


def chunk_seeds() -> list[bytes]:
    message = record.message_head(b"e", b"k", CONTENT_HEADER) + b"hello"
    settled = record.encode_settlements([record.Settlement(1, 0, 1)])
    return [
        make_chunk(0, [message, message]),
        make_chunk(5, [settled], kind=chunk.ChunkType.TRACKING),
        make_chunk(9, []),
    ]


def records(octets: bytes) -> None:
    with declared(ChunkError):
        message = record.decode_message(octets)
        head = record.message_head(message.exchange, message.routing_key, message.header)
        expect(head + message.body == octets, "a stored message is not what it was")
    with declared(ChunkError):
        list(record.decode_settlements(octets))


def record_seeds() -> list[bytes]:
    return [
        record.message_head(b"exchange", b"key", CONTENT_HEADER) + b"hello",
        record.encode_settlements([record.Settlement(1, 0, 1), record.Settlement(2, 7, 5)]),
    ]


# --- schema sync, PROXY -------------------------------------------------------------------------


def sync_messages(octets: bytes) -> None:
    """As they are, and as JSON in a whole envelope; what can be read is answered, and followed."""
    for body in (octets, schema_sync._pack(schema_sync._REQUEST, octets)):
        with declared(schema_sync.SchemaSyncError):
            request = schema_sync.decode_request(body)
            expect(schema_sync.decode_request(schema_sync.encode_request(request)) == request, "a request")
            answer(Digests(), Definitions(), request, "eu.1")
    for body in (octets, schema_sync._pack(schema_sync._REPLY, octets)):
        with declared(schema_sync.SchemaSyncError):
            reply = schema_sync.decode_reply(body)
            expect(schema_sync.decode_reply(schema_sync.encode_reply(reply)) == reply, "a reply changed")
            following = SchemaFollower(Definitions(), "eu.2")
            following.begin()
            if following.take(reply) is not None:
                following.take(reply)
            delta(Definitions(), following.theirs.by_kind, LocalEntities())


def sync_seeds() -> list[bytes]:
    asks = {"queues": schema_sync.Ask(4, {3: b"a held digest"})}
    request = schema_sync.SyncRequest("eu.2", {"users": b"9f86"}, asks)
    user = User(name="u", password_hash="")
    answers = {"users": {0: schema_sync.BucketDelta(b"gone", [user])}}
    reply = schema_sync.SyncReply("eu.1", b"state", {"users": b"2c"}, answers)
    whole = [schema_sync.encode_request(request), schema_sync.encode_reply(reply)]
    json = [
        b'{"cluster":"a","digests":{"users":"YmI="},"asks":{"queues":{"count":2,"held":{"1":null}}}}',
        b'{"cluster":"a","state":"YQ==","buckets":{"queues":"YmJiYmI="},'
        b'"answers":{"queues":{"0":{"gone":"","entities":[{"name":"q","vhost":"/"}]}}}}',
    ]
    return whole + json


def proxy_headers(octets: bytes) -> None:
    with declared(proxy_protocol.ProxyError):
        taken = 0
        while (more := proxy_protocol.missing(octets[:taken])) > 0:
            if taken + more > len(octets):
                return
            taken += more
        expect(proxy_protocol.missing(octets[:taken]) == 0, "a header was read past its end")
        proxy_protocol.parse(octets[:taken])


def proxy_seeds() -> list[bytes]:
    addresses = bytes((192, 0, 2, 7, 192, 0, 2, 1)) + b"\xdc\x04\x16\x28"
    return [
        b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 5672\r\n",
        b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n",
        b"PROXY UNKNOWN\r\n",
        proxy_protocol.SIGNATURE + b"\x21\x11\x00\x0c" + addresses,
        proxy_protocol.SIGNATURE + b"\x21\x21\x00\x24" + bytes(36),
        proxy_protocol.SIGNATURE + b"\x20\x00\x00\x00",
    ]


def _constant(*seeds: bytes) -> Callable[[], tuple[bytes, ...]]:
    return lambda: seeds


CODECS: Final = (
    Target("amqp091-methods", methods, method_seeds),
    Target("amqp091-content-headers", content_headers, _constant(CONTENT_HEADER)),
    Target("amqp091-tables", tables, _constant(TABLE)),
    Target("amqp10-sasl", sasl, sasl_seeds),
    Target("amqp10-values", values, value_seeds),
    Target("amqp10-messages", messages10, message10_seeds),
    Target("amqp10-from-091", messages091, _constant(CONTENT_HEADER)),
    Target("stream-frames", stream_frames, lambda: [each.encode() for each in STREAM_COMMANDS]),
    Target("chunks", chunks, chunk_seeds),
    Target("records", records, record_seeds),
    Target("schema-sync", sync_messages, sync_seeds),
    Target("proxy-protocol", proxy_headers, proxy_seeds),
)
