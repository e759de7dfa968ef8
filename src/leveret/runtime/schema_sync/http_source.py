"""An upstream's schema from its management API: `GET /api/definitions` of RabbitMQ, LavinMQ or another Leveret.

That API has no digests to compare: the document comes as a whole, compressed with gzip; if the upstream gives it an
ETag, it comes only after a change. A document with the same octets as before is not parsed again. RabbitMQ 3.10 leaves
descriptions and tags of vhosts out of its definitions, so a further request fetches them. The user needs the tag
`administrator`, as every user who fetches all definitions.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import httpx
import msgspec

from leveret.core.schema.delta import Key, canonical
from leveret.model.definitions import KINDS, AnyEntity, Definitions, Delete, Put, Vhost
from leveret.model.errors import AccessRefused, AuthenticationFailed, InvalidCommand, LeveretError
from leveret.model.foreign_json import decode_json, split_json
from leveret.runtime.definitions.importing import each_entity, without_loose_bindings
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.schema_sync.endpoints import SchemaUpstreamParameter, UpstreamEndpoint
from leveret.session.amqp10.client import SchemaLinkError

ENTITIES_PER_SLICE: Final = 250
"""The number of parsed entities after which the event loop serves others."""
DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
FETCH_TIMEOUTS: Final = 5
"""The limit of a document's duration, in timeouts of one read, however slowly it arrives."""
_GZIP: Final = zlib.MAX_WBITS | 16
_PIECE_BYTES: Final = 1024 * 1024
_ALWAYS_THERE: Final = ("users", "vhosts", "permissions", "queues", "exchanges", "bindings")
"""A document without one of these is refused: entities that it does not name would be deleted here."""
_IS_IT: Final = "check that the endpoint is the management API of a broker that has started"
_CLUSTER_NAME: Final = "cluster_name"
_DEFINITIONS: Final = "definitions?include_secrets=true"
"""Another Leveret masks secrets in parameters unless asked for them; other brokers ignore the word."""
_VHOSTS: Final = "vhosts?columns=name,description,tags,metadata,default_queue_type"


class _Vhost(msgspec.Struct):
    name: str
    description: Any = None
    tags: Any = None
    metadata: Any = None


class _Vhosts(msgspec.Struct):
    """The vhosts of a definitions document."""

    vhosts: list[_Vhost] = []


class HttpSource:
    """See the module; `open` first.

    Attributes:
        sent_bytes: of the requests' bodies, which are empty.
        received_bytes: of the replies' bodies, as received.
        failure: always None: each request is independent.
        unreadable: entities of the last document that this node cannot have, with the reasons.
        is_behind: always False: a document shows one moment.
    """

    is_behind = False

    def __init__(
        self,
        endpoint: UpstreamEndpoint,
        upstream: SchemaUpstreamParameter,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        """Prepare; send no request yet.

        Raises:
            SchemaLinkError: the address is invalid.
        """
        self.sent_bytes = self.received_bytes = 0
        self.failure: LeveretError | None = None
        self.unreadable: list[str] = []
        self._username = upstream.username
        self._fetch_timeout_s = FETCH_TIMEOUTS * timeout_s
        try:
            self._client = httpx.AsyncClient(
                base_url=f"{endpoint.scheme}://{endpoint.address}{endpoint.path}/api/",
                auth=(upstream.username, upstream.password),
                headers={"accept-encoding": "gzip"},
                verify=tls if tls is not None else False,
                timeout=timeout_s,
                trust_env=False,
            )
        except httpx.InvalidURL as error:
            raise SchemaLinkError(f"the address is not valid: {error}") from None
        self._closing: asyncio.Future[None] | None = None
        self._etag: str | None = None
        self._digest = b""
        self._cluster = str(endpoint)

    async def open(self) -> None:
        """Check that the endpoint is a management API, and that it accepts the user.

        Raises:
            Refusal: it refuses the user.
            SchemaLinkError: it is no management API.
        """
        try:
            async with self._get("whoami") as reply:
                self.received_bytes += reply.num_bytes_downloaded
        except BaseException:
            self.close()
            raise

    async def fetch(self, theirs: Definitions) -> str:
        """See Source."""
        try:
            async with asyncio.timeout(self._fetch_timeout_s):
                return await self._fetch(theirs)
        except TimeoutError:
            text = f"its definitions did not come within {self._fetch_timeout_s:g} s"
            raise SchemaLinkError(text) from None

    async def _fetch(self, theirs: Definitions) -> str:
        known = {"if-none-match": self._etag} if self._etag else {}
        async with self._get(_DEFINITIONS, known) as reply:
            if reply.status_code == httpx.codes.NOT_MODIFIED:
                return self._cluster
            octets = await self._octets(reply)
            etag = reply.headers.get("etag")
        vhosts = b"[]"
        if _lacks_details(octets):
            etag = None
            async with self._get(_VHOSTS) as reply:
                vhosts = await self._octets(reply)
        digest = hashlib.blake2b(octets + vhosts).digest()
        if digest != self._digest:
            await _replace(theirs, await self._entities(octets, vhosts, theirs))
        self._digest, self._etag = digest, etag
        return self._cluster

    def close(self) -> None:
        """See Source."""
        # No caller waits until sockets are closed. The task is stored, or it may be collected.
        self._closing = asyncio.ensure_future(self._client.aclose())

    @asynccontextmanager
    async def _get(self, path: str, headers: dict[str, str] | None = None) -> AsyncIterator[httpx.Response]:
        try:
            async with self._client.stream("GET", path, headers=headers or {}) as reply:
                self._check(reply, path)
                yield reply
        except httpx.HTTPError as error:
            raise SchemaLinkError(str(error) or type(error).__name__) from None

    def _check(self, reply: httpx.Response, path: str) -> None:
        match reply.status_code:
            case httpx.codes.OK | httpx.codes.NOT_MODIFIED:
                return
            case httpx.codes.UNAUTHORIZED:
                raise AuthenticationFailed(
                    f"the upstream refuses user '{self._username}' or its password, or the user lacks the tag "
                    "administrator"
                )
            case httpx.codes.FORBIDDEN:
                raise AccessRefused(
                    f"the upstream refuses user '{self._username}': it needs the tag administrator"
                )
            case status:
                raise SchemaLinkError(f"GET /api/{path} is answered with status {status}")

    async def _octets(self, reply: httpx.Response) -> bytes:
        octets = bytearray()
        async for piece in _plain(reply):
            octets += piece
            if len(octets) > DOCUMENT_BYTES_MAX:
                raise SchemaLinkError(f"definitions of more than {DOCUMENT_BYTES_MAX} octets")
        self.received_bytes += reply.num_bytes_downloaded
        return bytes(octets)

    async def _entities(self, octets: bytes, vhosts: bytes, theirs: Definitions) -> Sequence[AnyEntity]:
        """Return all readable entities. The others go to `unreadable`, and keep their state in `theirs`."""
        try:
            document = split_json(octets, dict[str, msgspec.Raw])
            listed = decode_json(vhosts, list[dict[str, Any]])
            # A name may be any value here; invalid ones are reported below, by the entity.
            details = {str(vhost["name"]): vhost for vhost in listed}
        except (msgspec.DecodeError, KeyError) as error:
            raise SchemaLinkError(f"its definitions cannot be read: {error}") from None
        entities: list[AnyEntity] = []
        unreadable: list[str] = []
        for number, (kind, entry, fault) in enumerate(self._entries(document)):
            if kind == "vhosts":
                entry = details.get(str(entry.get("name")), entry)
            try:
                if fault:
                    raise InvalidCommand(fault)
                entities += each_entity({kind: [entry]}, None)
            except InvalidCommand as error:
                unreadable.append(f"{kind} '{entry.get('name', '')}': cannot be read: {error}")
                existing = theirs.by_kind[kind].get(_key(kind, entry))
                entities += [existing] if existing is not None else []
            if number % ENTITIES_PER_SLICE == ENTITIES_PER_SLICE - 1:
                await asyncio.sleep(0)
        if not any(isinstance(entity, Vhost) for entity in entities):
            raise SchemaLinkError(f"its definitions are of no use: they name no vhost; {_IS_IT}")
        self.unreadable = unreadable
        for entity in entities:
            if entity.kind == "global_parameters" and entity.key == (_CLUSTER_NAME,):
                self._cluster = str(getattr(entity, "value", ""))
        return [each async for each in in_slices(without_loose_bindings(entities, Definitions()))]

    def _entries(self, document: dict[str, msgspec.Raw]) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Decode entity by entity: all 20,000 of a document at once took 36 ms.

        Yields:
            The kind, the fields, and why some fields are left out, such as one that is nested too deep; else empty.
        """
        missing = [kind for kind in _ALWAYS_THERE if kind not in document]
        if missing:
            raise SchemaLinkError(f"its definitions are of no use: they lack {', '.join(missing)}; {_IS_IT}")
        for kind in KINDS:
            try:
                for entry in split_json(document.get(kind, b"[]"), list[msgspec.Raw]):
                    yield kind, *_fields(entry)
            except msgspec.DecodeError as error:
                text = f"its definitions cannot be read: {kind} is no list of objects: {error}"
                raise SchemaLinkError(text) from None


async def _plain(reply: httpx.Response) -> AsyncIterator[bytes]:
    """Yield a reply's decompressed body in pieces: a few compressed octets can expand to very many.

    Raises:
        SchemaLinkError: the body is damaged, or has a compression that was not requested.
    """
    encoding = reply.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        async for octets in reply.aiter_raw():
            yield octets
        return
    if encoding != "gzip":
        raise SchemaLinkError(f"its reply has content-encoding '{encoding}', and gzip was asked for")
    inflater = zlib.decompressobj(_GZIP)
    try:
        async for octets in reply.aiter_raw():
            while octets and not inflater.eof:
                yield inflater.decompress(octets, _PIECE_BYTES)
                octets = inflater.unconsumed_tail
        yield inflater.flush()
    except zlib.error as error:
        raise SchemaLinkError(f"its reply is no gzip: {error}") from None
    if not inflater.eof:
        raise SchemaLinkError("its reply ends before its gzip does")


def _lacks_details(octets: bytes) -> bool:
    """Return whether a definitions document names a vhost without its other fields."""
    try:
        vhosts = split_json(octets, _Vhosts).vhosts
    except msgspec.DecodeError:
        return False  # the parser of the whole document reports its faults
    return any(vhost.description is vhost.tags is vhost.metadata is None for vhost in vhosts)


def _fields(entry: msgspec.Raw) -> tuple[dict[str, Any], str]:
    """Return the readable fields of an entity, and why the others are not.

    Raises:
        msgspec.DecodeError: it is no object.
    """
    try:
        return decode_json(entry, dict[str, Any]), ""
    except msgspec.DecodeError as error:
        fault = str(error)
    fields: dict[str, Any] = {}
    for name, value in split_json(entry, dict[str, msgspec.Raw]).items():
        with suppress(msgspec.DecodeError):
            fields[name] = decode_json(value, Any)
    return fields, fault


def _key(kind: str, entry: dict[str, Any]) -> Key:
    """Return the key of an unreadable entity; the key of a binding is unknown."""
    return tuple(str(entry.get(field)) for field in getattr(KINDS[kind], "key_fields", ()))


async def _replace(theirs: Definitions, entities: Sequence[AnyEntity]) -> None:
    """Make `theirs` have exactly these entities; an equal entity keeps its object."""
    gone = {kind: set(theirs.by_kind[kind]) for kind in KINDS}
    for number, entity in enumerate(entities):
        existing = theirs.by_kind[entity.kind].get(entity.key)
        if existing is None or canonical(existing) != canonical(entity):
            theirs.apply(Put(entity))
        gone[entity.kind].discard(entity.key)
        if number % ENTITIES_PER_SLICE == ENTITIES_PER_SLICE - 1:
            await asyncio.sleep(0)
    async for kind, key in in_slices([(kind, key) for kind, keys in gone.items() for key in keys]):
        theirs.apply(Delete(kind, key))
