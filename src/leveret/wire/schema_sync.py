"""Bodies of the schema sync's messages: a request with digests, a reply with whole kinds.

    0       3         4      5
    +-------+---------+------+---------------------+
    | "LSS" | version | type | zstd frame of JSON  |
    +-------+---------+------+---------------------+
                 1     'Q'/'A'

    request  {"cluster": "eu.2", "digests": {"users": "9f86...", ...}}
    reply    {"cluster": "eu.1", "digests": {"users": "2c26...", ...}, "entities": {"users": [{...}, ...]}}

Entities have the JSON form of the definitions (`model.definitions`). A reply holds each kind that the
request named and whose digest differs, whole; an empty `entities` says that nothing changed. `digests`
are those of the upstream's schema from which the reply was made.

A receiver ignores fields it does not know, so either side may be the newer one; what it must not
ignore raises the version.
"""

from __future__ import annotations

from typing import Final

import msgspec
import zstandard

from leveret.model.definitions import KINDS, AnyEntity
from leveret.model.errors import PeerError

MAGIC: Final = b"LSS"
VERSION: Final = 1
REQUEST_BYTES_MAX: Final = 64 * 1024
REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Compressed; what it holds may be `JSON_BYTES_MAX` long."""
JSON_BYTES_MAX: Final = 512 * 1024 * 1024
_HEAD_BYTES: Final = 5
_REQUEST: Final = ord("Q")
_REPLY: Final = ord("A")
_LEVEL: Final = 3
_PIECE_BYTES: Final = 1024 * 1024


class SchemaSyncError(PeerError):
    """These octets are not a message of the schema sync, or one of a version not known here."""


class SyncRequest(msgspec.Struct, frozen=True):
    """What a downstream has: its cluster's name and a digest for each kind it knows."""

    cluster: str
    digests: dict[str, str]


class SyncReply(msgspec.Struct, frozen=True):
    """What its upstream has: digests, and the entities of each kind that differs."""

    cluster: str
    digests: dict[str, str]
    entities: dict[str, list[AnyEntity]]


class _Reply(msgspec.Struct):
    """A reply before its entities are read: their type depends on their kind."""

    cluster: str
    digests: dict[str, str]
    entities: dict[str, msgspec.Raw]


_LISTS: Final = {kind: msgspec.json.Decoder(list[entity]) for kind, entity in KINDS.items()}  # type: ignore[valid-type]  # a type made at run time


def encode_request(request: SyncRequest) -> bytes:
    """The body of a request."""
    return _pack(_REQUEST, msgspec.json.encode(request))


def decode_request(body: bytes) -> SyncRequest:
    """Read what `encode_request` wrote.

    Raises:
        SchemaSyncError: not a request, damaged, too large, or of an unknown version.
    """
    try:
        return msgspec.json.decode(_unpack(_REQUEST, body, REQUEST_BYTES_MAX), type=SyncRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchemaSyncError(f"schema sync request: {error}") from None


def encode_reply(reply: SyncReply) -> bytes:
    """The body of a reply."""
    return _pack(_REPLY, msgspec.json.encode(reply))


def decode_reply(body: bytes) -> SyncReply:
    """Read what `encode_reply` wrote.

    Raises:
        SchemaSyncError: not a reply, damaged, too large, of an unknown version or with an unknown kind.
    """
    try:
        reply = msgspec.json.decode(_unpack(_REPLY, body, JSON_BYTES_MAX), type=_Reply)
        entities = {kind: _entities(kind, octets) for kind, octets in reply.entities.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchemaSyncError(f"schema sync reply: {error}") from None
    return SyncReply(reply.cluster, reply.digests, entities)


def _entities(kind: str, octets: msgspec.Raw) -> list[AnyEntity]:
    if kind not in _LISTS:
        raise SchemaSyncError(f"schema sync reply: unknown kind of entity {kind!r}")
    try:
        entities: list[AnyEntity] = _LISTS[kind].decode(octets)
    except msgspec.ValidationError as error:
        raise SchemaSyncError(f"schema sync reply: {kind}: {error}") from None
    return entities


def _pack(kind: int, json: bytes) -> bytes:
    return MAGIC + bytes((VERSION, kind)) + zstandard.ZstdCompressor(level=_LEVEL).compress(json)


def _unpack(kind: int, body: bytes, json_bytes_max: int) -> bytearray:
    if len(body) < _HEAD_BYTES or not body.startswith(MAGIC):
        raise SchemaSyncError("not a message of the schema sync")
    if body[3] != VERSION:
        raise SchemaSyncError(
            f"schema sync format {body[3]} is not known here ({VERSION} is): upgrade the older node"
        )
    if body[4] != kind:
        raise SchemaSyncError(f"schema sync message of type {chr(body[4])!r} where {chr(kind)!r} was due")
    try:
        # Piece by piece, because what a frame says about its own length is the peer's word.
        with zstandard.ZstdDecompressor().stream_reader(body[_HEAD_BYTES:]) as reader:
            json = bytearray()
            while len(json) <= json_bytes_max and (piece := reader.read(_PIECE_BYTES)):
                json += piece
    except zstandard.ZstdError as error:
        raise SchemaSyncError(f"schema sync message is damaged: {error}") from None
    if len(json) > json_bytes_max:
        raise SchemaSyncError(f"schema sync message of more than {json_bytes_max} octets")
    return json
