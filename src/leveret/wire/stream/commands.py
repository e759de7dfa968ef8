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
    CommandKey,
    Response,
    StreamCommand,
    StreamRequest,
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
    """A key, or a version of a command, that is not served."""


def decode(frame: bytes) -> StreamCommand:
    """The command that a frame (without its size) holds.

    Raises:
        UnknownCommand: its key or version is not served.
        MalformedCommand: the octets are not the command's fields, or go on after them.
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


@command(CommandKey.PEER_PROPERTIES)
class PeerProperties(StreamRequest):
    """Describes the client."""

    properties: Properties


@command(RESPONSE | CommandKey.PEER_PROPERTIES)
class PeerPropertiesResponse(Response):
    """Describes the server; clients read the commands that they may use from `version`."""

    properties: Properties


@command(CommandKey.SASL_HANDSHAKE)
class SaslHandshake(StreamRequest):
    """Asks for the mechanisms."""


@command(RESPONSE | CommandKey.SASL_HANDSHAKE)
class SaslHandshakeResponse(Response):
    """The mechanisms on offer."""

    mechanisms: Strings


@command(CommandKey.SASL_AUTHENTICATE)
class SaslAuthenticate(StreamRequest):
    """One step of a mechanism; PLAIN needs one: NUL, user name, NUL, password."""

    mechanism: String
    data: Octets


@command(RESPONSE | CommandKey.SASL_AUTHENTICATE)
class SaslAuthenticateResponse(Response):
    """The outcome of a login. PLAIN has no challenge, so there never is one here."""


@command(CommandKey.TUNE)
class Tune(StreamCommand):
    """The server's limits, then the client's choice; 0 is no limit, and no heartbeats."""

    frame_max_bytes: U32
    heartbeat_s: U32


@command(CommandKey.OPEN)
class Open(StreamRequest):
    """Enters a vhost."""

    vhost: String


@command(RESPONSE | CommandKey.OPEN)
class OpenResponse(Response):
    """`advertised_host` and `advertised_port` of the node."""

    properties: Properties


@command(CommandKey.CLOSE)
class Close(StreamRequest):
    """Either side ends the connection; the other answers."""

    code: U16
    reason: String


@command(RESPONSE | CommandKey.CLOSE)
class CloseResponse(Response):
    """The connection may now be dropped."""


@command(CommandKey.HEARTBEAT)
class Heartbeat(StreamCommand):
    """A sign of life."""


@command(CommandKey.EXCHANGE_COMMAND_VERSIONS)
class ExchangeCommandVersions(StreamRequest):
    """The commands that the client can speak."""

    commands: Versions


@command(RESPONSE | CommandKey.EXCHANGE_COMMAND_VERSIONS)
class ExchangeCommandVersionsResponse(Response):
    """The commands that the server serves, in the order of the keys (clients index it so)."""

    commands: Versions


# --- Streams ------------------------------------------------------------------------------------


@command(CommandKey.CREATE)
class Create(StreamRequest):
    """Makes a stream."""

    stream: String
    arguments: Properties


@command(RESPONSE | CommandKey.CREATE)
class CreateResponse(Response):
    """Whether it was made."""


@command(CommandKey.DELETE)
class DeleteStream(StreamRequest):
    """Deletes a stream."""

    stream: String


@command(RESPONSE | CommandKey.DELETE)
class DeleteResponse(Response):
    """Whether it was deleted."""


@command(CommandKey.METADATA)
class Metadata(StreamRequest):
    """Asks where streams are."""

    streams: Strings


@command(RESPONSE | CommandKey.METADATA)
class MetadataResponse(StreamCommand):
    """Nodes, and for each stream its leader and replicas among them; its codes are per stream."""

    correlation: U32
    brokers: Brokers
    streams: Streams


@command(CommandKey.METADATA_UPDATE)
class MetadataUpdate(StreamCommand):
    """A stream went away; subscriptions and publishers on it are gone with it."""

    code: U16
    stream: String


@command(CommandKey.STREAM_STATS)
class StreamStats(StreamRequest):
    """Asks for the bounds of a stream."""

    stream: String


@command(RESPONSE | CommandKey.STREAM_STATS)
class StreamStatsResponse(Response):
    """Named numbers."""

    statistics: Statistics


@command(CommandKey.ROUTE)
class Route(StreamRequest):
    """Asks which partition of a super stream a routing key leads to."""

    routing_key: String
    super_stream: String


@command(RESPONSE | CommandKey.ROUTE)
class RouteResponse(Response):
    """Streams."""

    streams: Strings


@command(CommandKey.PARTITIONS)
class Partitions(StreamRequest):
    """Asks for the streams of a super stream."""

    super_stream: String


@command(RESPONSE | CommandKey.PARTITIONS)
class PartitionsResponse(Response):
    """Streams."""

    streams: Strings


@command(CommandKey.CREATE_SUPER_STREAM)
class CreateSuperStream(StreamRequest):
    """Makes a direct exchange and its partitions, each bound with the binding key in its place."""

    super_stream: String
    partitions: Strings
    binding_keys: Strings
    arguments: Properties


@command(RESPONSE | CommandKey.CREATE_SUPER_STREAM)
class CreateSuperStreamResponse(Response):
    """Whether all of it was made."""


@command(CommandKey.DELETE_SUPER_STREAM)
class DeleteSuperStream(StreamRequest):
    """Deletes a super stream with its partitions."""

    super_stream: String


@command(RESPONSE | CommandKey.DELETE_SUPER_STREAM)
class DeleteSuperStreamResponse(Response):
    """Whether it was deleted."""


# --- Consuming ----------------------------------------------------------------------------------


@command(CommandKey.SUBSCRIBE)
class Subscribe(StreamRequest):
    """Asks for chunks from `offset` on; `credit` is how many may be under way."""

    subscription: U8
    stream: String
    offset: Offset
    credit: U16
    properties: OptionalProperties


@command(RESPONSE | CommandKey.SUBSCRIBE)
class SubscribeResponse(Response):
    """Comes before the first Deliver."""


@command(CommandKey.DELIVER)
class Deliver(StreamCommand):
    """One chunk; its octets are not parsed here."""

    subscription: U8
    chunk: bytes

    def encode(self) -> bytes:
        """The whole frame."""
        return deliver_head(self.subscription, len(self.chunk)) + self.chunk

    @classmethod
    def decode(cls, cursor: Cursor) -> Deliver:
        """Take all octets after the subscription as the chunk."""
        (subscription,) = cursor.take(1)
        return cls(subscription, cursor.take(cursor.left))


@command(CommandKey.CREDIT)
class Credit(StreamCommand):
    """Permits so many more chunks."""

    subscription: U8
    credit: U16


@command(RESPONSE | CommandKey.CREDIT)
class CreditResponse(StreamCommand):
    """Sent only for a wrong Credit."""

    code: U16
    subscription: U8


@command(CommandKey.UNSUBSCRIBE)
class Unsubscribe(StreamRequest):
    """Ends a subscription."""

    subscription: U8


@command(RESPONSE | CommandKey.UNSUBSCRIBE)
class UnsubscribeResponse(Response):
    """No Deliver comes after it."""


@command(CommandKey.CONSUMER_UPDATE)
class ConsumerUpdate(StreamRequest):
    """From the server: this single active consumer reads from now on, or stops."""

    subscription: U8
    active: U8


@command(RESPONSE | CommandKey.CONSUMER_UPDATE)
class ConsumerUpdateResponse(Response):
    """The offset at which the consumer begins; one that stops omits `offset`."""

    offset: OptionalOffset


@command(CommandKey.STORE_OFFSET)
class StoreOffset(StreamCommand):
    """Stores the offset that the reader `reference` has reached; it has no response."""

    reference: String
    stream: String
    offset: U64


@command(CommandKey.QUERY_OFFSET)
class QueryOffset(StreamRequest):
    """Asks for the offset stored last."""

    reference: String
    stream: String


@command(RESPONSE | CommandKey.QUERY_OFFSET)
class QueryOffsetResponse(Response):
    """The offset, or code `NO_OFFSET`."""

    offset: U64


# --- Publishing ---------------------------------------------------------------------------------


@command(CommandKey.DECLARE_PUBLISHER)
class DeclarePublisher(StreamRequest):
    """Begins publishing; under a `reference`, ids seen before are dropped."""

    publisher: U8
    reference: String
    stream: String


@command(RESPONSE | CommandKey.DECLARE_PUBLISHER)
class DeclarePublisherResponse(Response):
    """The outcome of a DeclarePublisher."""


@command(CommandKey.PUBLISH)
class Publish(StreamCommand):
    """Messages with their publishing ids; `sub_batches` are the ids of the entries that are batches themselves."""

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


@command(CommandKey.PUBLISH_CONFIRM)
class PublishConfirm(StreamCommand):
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


@command(CommandKey.PUBLISH_ERROR)
class PublishError(StreamCommand):
    """These messages were not stored."""

    publisher: U8
    failures: Failures


@command(CommandKey.QUERY_PUBLISHER_SEQUENCE)
class QueryPublisherSequence(StreamRequest):
    """Asks for the last publishing id stored for a reference."""

    reference: String
    stream: String


@command(RESPONSE | CommandKey.QUERY_PUBLISHER_SEQUENCE)
class QueryPublisherSequenceResponse(Response):
    """The id; 0 when there is none."""

    sequence: U64


@command(CommandKey.DELETE_PUBLISHER)
class DeletePublisher(StreamRequest):
    """Ends publishing."""

    publisher: U8


@command(RESPONSE | CommandKey.DELETE_PUBLISHER)
class DeletePublisherResponse(Response):
    """Whether there was such a publisher."""
