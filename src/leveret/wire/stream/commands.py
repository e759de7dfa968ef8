"""Commands of the stream protocol, each a small class: its fields in order are its octets.

A request has a correlation id that its response repeats; a response, marked by the key's top bit,
has a code too. The other commands (Publish, Deliver, Credit, Heartbeat, ...) go one way and have
neither. Version 1 of every command is all there is here; Publish of version 2 is read by `publish`, Deliver of
version 2 is written by `deliver`.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.model.errors import PeerError
from leveret.wire.stream.codec import (
    COMMANDS,
    FRAME,
    RESPONSE,
    VERSION,
    Command,
    Key,
    Request,
    Response,
    command,
)
from leveret.wire.stream.deliver import deliver_head
from leveret.wire.stream.fields import (
    U8,
    U16,
    U32,
    U64,
    Brokers,
    Cursor,
    Failures,
    MalformedCommand,
    Octets,
    Offset,
    OptionalOffset,
    OptionalProperties,
    Properties,
    Statistics,
    Streams,
    String,
    Strings,
    Versions,
)
from leveret.wire.stream.publish import decode_published, encode_publish, is_sub_batch

_HEAD: Final = struct.Struct(">HH")


class UnknownCommand(PeerError):
    """A key, or a version of it, that is not served."""


def decode(frame: bytes) -> Command:
    """The command that a frame (without its size) holds.

    Raises:
        UnknownCommand: its key or version is not served.
        MalformedCommand: its octets are not the command's fields, or go on after them.
    """
    if len(frame) < _HEAD.size:
        raise MalformedCommand(f"frame of {len(frame)} octets has no key and version")
    key, version = _HEAD.unpack_from(frame)
    kind = COMMANDS.get(key)
    if kind is None or version != VERSION:
        raise UnknownCommand(f"unknown frame: key 0x{key:04x}, version {version}")
    cursor = Cursor(frame, _HEAD.size)
    try:
        value = kind.decode(cursor)
    except MalformedCommand as error:
        raise MalformedCommand(f"{kind.__name__}: {error}") from None
    if cursor.left:
        raise MalformedCommand(f"{kind.__name__}: {cursor.left} octets after its last field")
    return value


# --- Opening and closing a connection ---------------------------------------------------------


@command(Key.PEER_PROPERTIES)
class PeerProperties(Request):
    """Who the client is."""

    properties: Properties


@command(RESPONSE | Key.PEER_PROPERTIES)
class PeerPropertiesResponse(Response):
    """Who the server is; clients read from `version` which commands they may use."""

    properties: Properties


@command(Key.SASL_HANDSHAKE)
class SaslHandshake(Request):
    """Asks for the mechanisms."""


@command(RESPONSE | Key.SASL_HANDSHAKE)
class SaslHandshakeResponse(Response):
    """The mechanisms on offer."""

    mechanisms: Strings


@command(Key.SASL_AUTHENTICATE)
class SaslAuthenticate(Request):
    """One step of a mechanism; PLAIN needs one: NUL, user name, NUL, password."""

    mechanism: String
    data: Octets


@command(RESPONSE | Key.SASL_AUTHENTICATE)
class SaslAuthenticateResponse(Response):
    """OK, or why not. PLAIN has no challenge, so there never is one here."""


@command(Key.TUNE)
class Tune(Command):
    """The server's limits, then the client's choice; 0 is no limit, and no heartbeats."""

    frame_max_bytes: U32
    heartbeat_s: U32


@command(Key.OPEN)
class Open(Request):
    """Enters a vhost."""

    vhost: String


@command(RESPONSE | Key.OPEN)
class OpenResponse(Response):
    """`advertised_host` and `advertised_port` of the node."""

    properties: Properties


@command(Key.CLOSE)
class Close(Request):
    """Either side ends the connection; the other answers."""

    code: U16
    reason: String


@command(RESPONSE | Key.CLOSE)
class CloseResponse(Response):
    """The connection may now be dropped."""


@command(Key.HEARTBEAT)
class Heartbeat(Command):
    """I am still there."""


@command(Key.EXCHANGE_COMMAND_VERSIONS)
class ExchangeCommandVersions(Request):
    """What the client can speak."""

    commands: Versions


@command(RESPONSE | Key.EXCHANGE_COMMAND_VERSIONS)
class ExchangeCommandVersionsResponse(Response):
    """What the server serves, in the order of the keys (clients index it so)."""

    commands: Versions


# --- Streams ------------------------------------------------------------------------------------


@command(Key.CREATE)
class Create(Request):
    """Makes a stream."""

    stream: String
    arguments: Properties


@command(RESPONSE | Key.CREATE)
class CreateResponse(Response):
    """Whether it was made."""


@command(Key.DELETE)
class Delete(Request):
    """Deletes a stream."""

    stream: String


@command(RESPONSE | Key.DELETE)
class DeleteResponse(Response):
    """Whether it was deleted."""


@command(Key.METADATA)
class Metadata(Request):
    """Asks where streams are."""

    streams: Strings


@command(RESPONSE | Key.METADATA)
class MetadataResponse(Command):
    """Nodes, and for each stream its leader and replicas among them; its codes are per stream."""

    correlation: U32
    brokers: Brokers
    streams: Streams


@command(Key.METADATA_UPDATE)
class MetadataUpdate(Command):
    """A stream went away; subscriptions and publishers on it are gone with it."""

    code: U16
    stream: String


@command(Key.STREAM_STATS)
class StreamStats(Request):
    """Asks for the bounds of a stream."""

    stream: String


@command(RESPONSE | Key.STREAM_STATS)
class StreamStatsResponse(Response):
    """Named numbers."""

    statistics: Statistics


@command(Key.ROUTE)
class Route(Request):
    """Asks which partition of a super stream a routing key leads to."""

    routing_key: String
    super_stream: String


@command(RESPONSE | Key.ROUTE)
class RouteResponse(Response):
    """Streams."""

    streams: Strings


@command(Key.PARTITIONS)
class Partitions(Request):
    """Asks for the streams of a super stream."""

    super_stream: String


@command(RESPONSE | Key.PARTITIONS)
class PartitionsResponse(Response):
    """Streams."""

    streams: Strings


@command(Key.CREATE_SUPER_STREAM)
class CreateSuperStream(Request):
    """Makes a direct exchange and its partitions, each bound with the binding key in its place."""

    super_stream: String
    partitions: Strings
    binding_keys: Strings
    arguments: Properties


@command(RESPONSE | Key.CREATE_SUPER_STREAM)
class CreateSuperStreamResponse(Response):
    """Whether all of it was made."""


@command(Key.DELETE_SUPER_STREAM)
class DeleteSuperStream(Request):
    """Deletes a super stream with its partitions."""

    super_stream: String


@command(RESPONSE | Key.DELETE_SUPER_STREAM)
class DeleteSuperStreamResponse(Response):
    """Whether it was deleted."""


# --- Consuming ----------------------------------------------------------------------------------


@command(Key.SUBSCRIBE)
class Subscribe(Request):
    """Asks for chunks from `offset` on; `credit` is how many may be under way."""

    subscription: U8
    stream: String
    offset: Offset
    credit: U16
    properties: OptionalProperties


@command(RESPONSE | Key.SUBSCRIBE)
class SubscribeResponse(Response):
    """Comes before the first Deliver."""


@command(Key.DELIVER)
class Deliver(Command):
    """One chunk, whose octets are not looked into here."""

    subscription: U8
    chunk: bytes

    def encode(self) -> bytes:
        """The whole frame."""
        return deliver_head(self.subscription, len(self.chunk)) + self.chunk

    @classmethod
    def decode(cls, cursor: Cursor) -> Deliver:
        """All that follows the subscription is the chunk."""
        (subscription,) = cursor.take(1)
        return cls(subscription, cursor.take(cursor.left))


@command(Key.CREDIT)
class Credit(Command):
    """So many chunks more may be delivered."""

    subscription: U8
    credit: U16


@command(RESPONSE | Key.CREDIT)
class CreditResponse(Command):
    """Sent only when a Credit was wrong."""

    code: U16
    subscription: U8


@command(Key.UNSUBSCRIBE)
class Unsubscribe(Request):
    """Ends a subscription."""

    subscription: U8


@command(RESPONSE | Key.UNSUBSCRIBE)
class UnsubscribeResponse(Response):
    """No Deliver comes after it."""


@command(Key.CONSUMER_UPDATE)
class ConsumerUpdate(Request):
    """From the server: this single active consumer reads from now on, or stops."""

    subscription: U8
    active: U8


@command(RESPONSE | Key.CONSUMER_UPDATE)
class ConsumerUpdateResponse(Response):
    """Where it wants to begin; `offset` is left out by one that stops."""

    offset: OptionalOffset


@command(Key.STORE_OFFSET)
class StoreOffset(Command):
    """How far the reader `reference` has come; not answered."""

    reference: String
    stream: String
    offset: U64


@command(Key.QUERY_OFFSET)
class QueryOffset(Request):
    """Asks for the offset stored last."""

    reference: String
    stream: String


@command(RESPONSE | Key.QUERY_OFFSET)
class QueryOffsetResponse(Response):
    """The offset, or code `NO_OFFSET`."""

    offset: U64


# --- Publishing ---------------------------------------------------------------------------------


@command(Key.DECLARE_PUBLISHER)
class DeclarePublisher(Request):
    """Begins publishing; under a `reference`, ids seen before are dropped."""

    publisher: U8
    reference: String
    stream: String


@command(RESPONSE | Key.DECLARE_PUBLISHER)
class DeclarePublisherResponse(Response):
    """Whether it may."""


@command(Key.PUBLISH)
class Publish(Command):
    """Messages with their publishing ids; `sub_batches` are ids of entries that are batches themselves."""

    publisher: U8
    entries: list[tuple[int, bytes]]
    sub_batches: list[int]

    def encode(self) -> bytes:
        """The whole frame; it writes no sub-batches."""
        return encode_publish(self.publisher, self.entries)

    @classmethod
    def decode(cls, cursor: Cursor) -> Publish:
        """Read the entries, stepping over sub-batches."""
        published = decode_published(cursor.data)
        publish = cls(published.publisher, [], [])
        for publishing_id, entry in zip(published.ids, published.entries, strict=True):
            if is_sub_batch(entry):
                publish.sub_batches.append(publishing_id)
            else:
                publish.entries.append((publishing_id, entry[4:]))
        cursor.position = len(cursor.data)
        return publish


@command(Key.PUBLISH_CONFIRM)
class PublishConfirm(Command):
    """These messages are durable."""

    publisher: U8
    publishing_ids: list[int]

    def encode(self) -> bytes:
        """The whole frame."""
        ids = self.publishing_ids
        content = struct.pack(f">Bi{len(ids)}Q", self.publisher, len(ids), *ids)
        return FRAME.pack(4 + len(content), self.key, VERSION) + content

    @classmethod
    def decode(cls, cursor: Cursor) -> PublishConfirm:
        """Read all ids at once."""
        publisher, count = struct.unpack(">Bi", cursor.take(5))
        return cls(publisher, list(struct.unpack(f">{max(count, 0)}Q", cursor.take(8 * count))))


@command(Key.PUBLISH_ERROR)
class PublishError(Command):
    """These messages were not stored."""

    publisher: U8
    failures: Failures


@command(Key.QUERY_PUBLISHER_SEQUENCE)
class QueryPublisherSequence(Request):
    """Asks for the last publishing id stored for a reference."""

    reference: String
    stream: String


@command(RESPONSE | Key.QUERY_PUBLISHER_SEQUENCE)
class QueryPublisherSequenceResponse(Response):
    """The id; 0 when there is none."""

    sequence: U64


@command(Key.DELETE_PUBLISHER)
class DeletePublisher(Request):
    """Ends publishing."""

    publisher: U8


@command(RESPONSE | Key.DELETE_PUBLISHER)
class DeletePublisherResponse(Response):
    """Whether there was such a publisher."""
