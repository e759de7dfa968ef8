"""The requests and replies of a schema sync: `answer` at the upstream, `SchemaFollower` at its downstream. No octets.

    downstream                                            upstream
    digests of all kinds            -> compare ->
                                    <-            digests of the buckets of the kinds that differ
    digests of the entities in the  ->  ask    ->
    buckets that differ             <-            what is gone from them, new or otherwise; some buckets at a time

The upstream stores no state of its downstreams: any number of them may be behind by any amount. A downstream compares
its knowledge of its *upstream*, not its own definitions; so entities that are its own by configuration, and those
that it had to keep, are not sent again and again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from leveret.core.schema.delta import at_once
from leveret.core.schema.digests import BUCKET_BYTES, BUCKETS_MAX, ENTITY_BYTES, Digests
from leveret.model.definitions import KINDS, Definitions, Delete, Put
from leveret.wire.schema_sync import Ask, BucketDelta, SchemaSyncError, SyncReply, SyncRequest

PART_BYTES: Final = 128 * 1024
"""A reply is complete when its entities have this many octets as JSON; it is decoded in one step, of 3 ms."""
BUCKETS_ASKED_MAX: Final = 1024
ENTITIES_ASKED_MAX: Final = 8192
"""The most entities in one request: its digests take 48 KiB, and 64 KiB as JSON."""
BUCKET_ENTRIES_MAX: Final = 1024
"""A bucket with more known entities is asked for as a whole."""
COMPARED_MAX: Final = 5
"""The most comparisons of one sync, with an upstream whose schema changes meanwhile."""


def answer(digests: Digests, definitions: Definitions, request: SyncRequest, cluster: str) -> SyncReply:
    """The reply of an upstream with these definitions to a request.

    Raises:
        SchemaSyncError: the request asks for an impossible bucket.
    """
    digests.update(definitions)
    own = digests.kinds()
    differing = [kind for kind, theirs in request.digests.items() if kind in own and own[kind] != theirs]
    buckets = {kind: digests.buckets(kind) for kind in differing}
    answers: dict[str, dict[int, BucketDelta]] = {}
    room_bytes = PART_BYTES
    for kind, ask in request.asks.items():
        if kind not in own or not _is_count(ask.count):
            raise SchemaSyncError(f"schema sync request: no {ask.count} buckets of {kind!r}")
        for index, held in ask.held.items():
            if room_bytes <= 0:
                break
            if not 0 <= index < ask.count:
                raise SchemaSyncError(f"schema sync request: no bucket {index} of {ask.count}")
            bucket = digests.bucket(kind, ask.count, index)
            theirs = set(_split(held or b""))
            new = [entry for digest, entry in bucket.items() if digest not in theirs]
            room_bytes -= sum(entry.size_bytes for entry in new) + len(held or b"")
            gone = b"".join(sorted(theirs.difference(bucket)))
            answers.setdefault(kind, {})[index] = BucketDelta(gone, [entry.entity for entry in new])
    return SyncReply(cluster, digests.state(), buckets, answers)


class SchemaFollower:
    """A downstream's knowledge of its upstream's schema, updated by each sync.

    Attributes:
        theirs: the known part of the upstream's schema.
        upstream_cluster: the name of the upstream's cluster, empty before its first reply.
    """

    def __init__(self, theirs: Definitions, cluster: str) -> None:
        """Begin with the upstream's likely schema; `cluster` is the downstream's own name."""
        self.theirs = theirs
        self.upstream_cluster = ""
        self._cluster = cluster
        self._digests = Digests()
        # Kind and index of each bucket to ask for, and the number of buckets of the kind.
        self._due: dict[tuple[str, int], int] = {}
        self._whole: set[tuple[str, int]] = set()
        self._state = b""
        self._has_moved = False
        self._compared = 0

    @property
    def has_moved(self) -> bool:
        """Whether the upstream changed during the sync, without a notice: it noted its newest state as sent."""
        return self._has_moved

    def digesting(self) -> Iterator[None]:
        """Digest the entities that the upstream is likely to have, in steps between other work, before a `begin`."""
        return self._digests.updating(self.theirs)

    def begin(self) -> SyncRequest:
        """The first request of a sync."""
        self._due.clear()
        self._compared = 0
        return self._compare()

    def take(self, reply: SyncReply) -> SyncRequest | None:
        """Take the reply to the last request; the next request, or None at the end of the sync.

        Raises:
            SchemaSyncError: the reply does not answer the request.
        """
        return at_once(self.taking(reply))

    def taking(self, reply: SyncReply) -> Generator[None, None, SyncRequest | None]:
        """As `take`, but yield to other work; without its end, the next sync finds the rest."""
        self.upstream_cluster = reply.cluster
        if self._due:
            self._has_moved = self._has_moved or reply.state != self._state
            yield from self._take_answers(reply)
        else:
            self._state, self._has_moved = reply.state, False
            yield from self._take_buckets(reply)
        yield from self._digests.updating(self.theirs)
        if self._due:
            return self._ask()
        # Entities that changed during the sync may not fit together; the number of comparisons is limited.
        return self._compare() if self._has_moved and self._compared < COMPARED_MAX else None

    def _compare(self) -> SyncRequest:
        self._compared += 1
        self._digests.update(self.theirs)
        return SyncRequest(self._cluster, self._digests.kinds())

    def _take_buckets(self, reply: SyncReply) -> Iterator[None]:
        if sum(map(len, reply.buckets.values())) > BUCKETS_MAX * BUCKET_BYTES:
            raise SchemaSyncError(f"schema sync reply: digests of more than {BUCKETS_MAX} buckets")
        for kind, octets in reply.buckets.items():
            count = len(octets) // BUCKET_BYTES
            if kind not in KINDS or not _is_count(count) or len(octets) % BUCKET_BYTES:
                raise SchemaSyncError(f"schema sync reply: {len(octets)} octets of digests of {kind!r}")
            yield from self._digests.grouping(kind, count)
            self._due |= {(kind, index): count for index in self._digests.differing(kind, octets)}

    def _ask(self) -> SyncRequest:
        self._digests.update(self.theirs)
        asks: dict[str, Ask] = {}
        entities = 0
        self._whole.clear()
        for number, ((kind, index), count) in enumerate(self._due.items()):
            held: bytes | None = b"".join(self._digests.bucket(kind, count, index))
            if len(held or b"") > BUCKET_ENTRIES_MAX * ENTITY_BYTES:
                held = None
                self._whole.add((kind, index))
            entities += len(held or b"") // ENTITY_BYTES
            if number and (number >= BUCKETS_ASKED_MAX or entities > ENTITIES_ASKED_MAX):
                break
            asks.setdefault(kind, Ask(count, {})).held[index] = held
        return SyncRequest(self._cluster, asks=asks)

    def _take_answers(self, reply: SyncReply) -> Iterator[None]:
        # The digests are those of the request until they are computed again.
        answered = [(kind, index) for kind, buckets in reply.answers.items() for index in buckets]
        asked = [place for place in answered if place in self._due]
        if not asked:
            raise SchemaSyncError("schema sync reply: it answers nothing that was asked")
        for kind, index in asked:
            count = self._due.pop((kind, index))
            found = reply.answers[kind][index]
            bucket = self._digests.bucket(kind, count, index)
            gone = list(bucket) if (kind, index) in self._whole else _split(found.gone)
            for digest in gone:
                if digest in bucket:
                    self.theirs.apply(Delete(kind, bucket[digest].entity.key))
                    yield
            for entity in found.entities:
                self.theirs.apply(Put(entity))
                yield


def _split(digests: bytes) -> list[bytes]:
    return [digests[start : start + ENTITY_BYTES] for start in range(0, len(digests), ENTITY_BYTES)]


def _is_count(count: int) -> bool:
    return 0 < count <= BUCKETS_MAX and count & (count - 1) == 0
