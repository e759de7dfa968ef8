"""Bodies of the schema sync's messages: requests of a downstream, and replies of its upstream.

    0       3         4      5
    +-------+---------+------+---------------------+
    | "LSS" | version | type | zstd frame of JSON  |
    +-------+---------+------+---------------------+
                 2     'Q'/'A'

One sync is a few requests, each with its reply (`session.schema_exchange`):

    compare  {"cluster": "eu.2", "digests": {"users": "n4Fl...", ...}}
             {"cluster": "eu.1", "state": "w2k9...", "buckets": {"queues": "8sP0..."}}
    ask      {"cluster": "eu.2", "asks": {"queues": {"count": 256, "held": {"17": "Jq3A..."}}}}
             {"cluster": "eu.1", "state": "w2k9...",
              "answers": {"queues": {"17": {"gone": "Jq3A...", "entities": [{...}]}}}}

A request to compare has the downstream's digest of each kind of its upstream's definitions; the reply has the digests
of the buckets of each kind that differs, and is empty if nothing changed. A request to ask has the digests of the
entities that the downstream knows in some of these buckets; the reply has the digests of the entities that are gone,
and the entities that are new or changed. A bucket asked for with null is answered whole. A reply need not answer
every bucket that was asked for: a large schema comes in parts. `state` is the digest of all definitions at that
moment. Digests are octets, base64 in JSON; see `core.schema.digests`. Entities have the JSON form of the definitions
(`model.definitions`).

A receiver ignores unknown fields, so either side may be the newer one; a change that must not be ignored raises the
version.
"""

from __future__ import annotations

from typing import Final

import msgspec
import zstandard

from leveret.model.definitions import KINDS, AnyEntity
from leveret.model.errors import PeerError
from leveret.model.foreign_json import decode_json, split_json

MAGIC: Final = b"LSS"
VERSION: Final = 2
REQUEST_BYTES_MAX: Final = 256 * 1024
REPLY_BYTES_MAX: Final = 24 * 1024 * 1024
"""The most octets of a reply, compressed and uncompressed: a part of a schema is 1 MiB and at most one more bucket.

That bucket may hold definitions from the HTTP API, of which `management.http.max_body_size` allows 20 MB at once."""
_HEAD_BYTES: Final = 5
_REQUEST: Final = ord("Q")
_REPLY: Final = ord("A")
_LEVEL: Final = 3
_PIECE_BYTES: Final = 1024 * 1024


class SchemaSyncError(PeerError):
    """The octets are no message of the schema sync, or one of an unknown version."""


class Ask(msgspec.Struct, frozen=True):
    """Buckets of one kind, of `count` in all: the digests of the known entities of each, None to get a bucket whole."""

    count: int
    held: dict[int, bytes | None]


class SyncRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of a downstream; `digests` has a digest for each kind."""

    cluster: str
    digests: dict[str, bytes] = {}
    asks: dict[str, Ask] = {}


class BucketDelta(msgspec.Struct, frozen=True):
    """The difference in one bucket: the digests of the entities that are gone, and the new or changed entities."""

    gone: bytes
    entities: list[AnyEntity]


class SyncReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply of the upstream; `buckets` are the digests of the buckets of each kind that differs."""

    cluster: str
    state: bytes
    buckets: dict[str, bytes] = {}
    answers: dict[str, dict[int, BucketDelta]] = {}


class _Answer(msgspec.Struct):
    """An answer before its entities are read: their type depends on their kind."""

    gone: bytes
    entities: msgspec.Raw


class _Reply(msgspec.Struct):
    cluster: str
    state: bytes
    buckets: dict[str, bytes] = {}
    answers: dict[str, dict[int, _Answer]] = {}


def encode_request(request: SyncRequest) -> bytes:
    """The body of a request."""
    return _pack(_REQUEST, msgspec.json.encode(request))


def decode_request(body: bytes) -> SyncRequest:
    """Read what `encode_request` wrote.

    Raises:
        SchemaSyncError: not a request, damaged, too large, or of an unknown version.
    """
    try:
        return decode_json(_unpack(_REQUEST, body, REQUEST_BYTES_MAX), SyncRequest)
    except msgspec.DecodeError as error:
        raise SchemaSyncError(f"schema sync request: {error}") from None


def encode_reply(reply: SyncReply) -> bytes:
    """The body of a reply.

    Raises:
        SchemaSyncError: the reply is too large.
    """
    json = msgspec.json.encode(reply)
    if len(json) > REPLY_BYTES_MAX:
        raise SchemaSyncError(
            f"schema sync reply: {len(json)} octets of entities for one reply, more than {REPLY_BYTES_MAX}"
        )
    return _pack(_REPLY, json)


def decode_reply(body: bytes) -> SyncReply:
    """Read what `encode_reply` wrote.

    Raises:
        SchemaSyncError: not a reply, damaged, too large, of an unknown version or with an unknown kind.
    """
    try:
        reply = split_json(_unpack(_REPLY, body, REPLY_BYTES_MAX), _Reply)
        answers = {kind: _answers(kind, buckets) for kind, buckets in reply.answers.items()}
    except msgspec.DecodeError as error:
        raise SchemaSyncError(f"schema sync reply: {error}") from None
    return SyncReply(reply.cluster, reply.state, reply.buckets, answers)


def _answers(kind: str, buckets: dict[int, _Answer]) -> dict[int, BucketDelta]:
    if kind not in KINDS:
        raise SchemaSyncError(f"schema sync reply: unknown kind of entity {kind!r}")
    try:
        return {index: BucketDelta(each.gone, _entities(kind, each)) for index, each in buckets.items()}
    except msgspec.DecodeError as error:
        raise SchemaSyncError(f"schema sync reply: {kind}: {error}") from None


def _entities(kind: str, answer: _Answer) -> list[AnyEntity]:
    return [decode_json(each, KINDS[kind]) for each in split_json(answer.entities, list[msgspec.Raw])]


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
        # Piece by piece, because the length in the frame is a claim of the peer.
        with zstandard.ZstdDecompressor().stream_reader(body[_HEAD_BYTES:]) as reader:
            json = bytearray()
            while len(json) <= json_bytes_max and (piece := reader.read(_PIECE_BYTES)):
                json += piece
    except zstandard.ZstdError as error:
        raise SchemaSyncError(f"schema sync message is damaged: {error}") from None
    if len(json) > json_bytes_max:
        raise SchemaSyncError(f"schema sync message of more than {json_bytes_max} octets")
    return json
