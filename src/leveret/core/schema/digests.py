"""Digests of a schema: with them two nodes find differences without transferring equal parts.

    state    everything                              12 octets
    kind     all entities of a kind                  12
    bucket   the entities whose keys hash alike       5     2^n buckets a kind, with about 64 entities each
    entity   one                                      6

Equal digests mean the same entities, on any node and in any order of insertion. Entities that do not travel
(`core.schema.delta.travels`) are left out.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from leveret.core.schema.delta import Key, at_once, canonical, finding_transient, transient_queues, travels
from leveret.model.definitions import KINDS, AnyEntity, Definitions

STATE_BYTES: Final = 12
BUCKET_BYTES: Final = 5
ENTITY_BYTES: Final = 6
BUCKETS_MAX: Final = 2**16
_BUCKET_ENTITIES: Final = 64
_PLACE_BYTES: Final = 4


class DigestEntry(NamedTuple):
    """One entity that travels: `place` names its bucket, `size_bytes` is the length of its JSON."""

    entity: AnyEntity
    digest: bytes
    place: int
    size_bytes: int


class Digests:
    """The digests of one schema. Call `update` first, then ask. Unchanged entities are not digested again."""

    def __init__(self) -> None:
        """Start with an empty schema."""
        self._seen: tuple[Definitions, int] | None = None
        self._transient: set[Key] = set()
        self._kinds = {kind: _Kind() for kind in KINDS}
        self._state: bytes | None = None

    def update(self, definitions: Definitions) -> None:
        """Take the schema as it is now."""
        for _ in self.updating(definitions):
            pass

    def preparing(self, definitions: Definitions) -> Iterator[None]:
        """As `updating`, and make the digests of kinds and buckets as well: each answer after it is a short step."""
        yield from self.updating(definitions)
        for existing in self._kinds.values():
            yield from existing.grouping(existing.bucket_count)

    def updating(self, definitions: Definitions) -> Iterator[None]:
        """As `update`, but yield to other work; the next `update` takes changes that happen meanwhile."""
        # A look that fails half-way does not count: with digests of half a schema a downstream deletes the rest.
        seen, self._seen = self._seen, None
        version = definitions.version
        is_known = seen is not None and seen[0] is definitions
        changed = definitions.changed_since(seen[1]) if seen is not None and is_known else None
        if changed is None:
            yield from self._look_at_all(definitions)
        else:
            yield from self._look_at(definitions, changed)
        if changed != set():
            self._state = None
        self._seen = definitions, version

    def due_count(self, definitions: Definitions) -> int:
        """The number of entities that the next `update` digests, or at least looks at."""
        seen = self._seen
        changed = definitions.changed_since(seen[1]) if seen is not None and seen[0] is definitions else None
        return sum(map(len, definitions.by_kind.values())) if changed is None else len(changed)

    def _look_at_all(self, definitions: Definitions) -> Iterator[None]:
        transient = yield from finding_transient(list(definitions.by_kind["queues"].values()))
        # Whether a binding travels depends on its queue.
        anew = {"bindings"} if transient != self._transient else set()
        kinds = {kind: _Kind() for kind in KINDS}
        for kind, existing in kinds.items():
            known = self._kinds[kind].entries if kind not in anew else {}
            yield from existing.update(definitions.by_kind[kind], transient, known)
        self._kinds, self._transient = kinds, transient

    def _look_at(self, definitions: Definitions, changed: set[tuple[str, Key]]) -> Iterator[None]:
        """Take the changes, and the bindings of queues that became transient, or are not any more."""
        changed_queues = {key for kind, key in changed if kind == "queues"}
        queues = definitions.by_kind["queues"]
        transient_now = transient_queues(queues[key] for key in changed_queues if key in queues)
        turned = transient_now ^ (self._transient & changed_queues)
        transient = self._transient ^ turned
        # All bindings digested again took 60 ms for 10,000, each time a client declared a transient queue.
        for key in list(definitions.by_kind["bindings"]) if turned else ():
            vhost, _, end, name = key[:4]
            if end == "queue" and (vhost, name) in turned:
                changed.add(("bindings", key))
            yield
        for kind, key in changed:
            self._kinds[kind].put(key, definitions.by_kind[kind].get(key), transient)
            yield
        self._transient = transient

    def state(self) -> bytes:
        """Return the digest of everything."""
        if self._state is None:
            self._state = _hash([self._kinds[kind].digest() for kind in KINDS], STATE_BYTES)
        return self._state

    def kinds(self) -> dict[str, bytes]:
        """Return the digest of each kind."""
        return {kind: existing.digest() for kind, existing in self._kinds.items()}

    def buckets(self, kind: str) -> bytes:
        """Return the digests of a kind's buckets, joined; the number of buckets depends on the number of entities."""
        existing = self._kinds[kind]
        count = existing.bucket_count
        return b"".join(existing.bucket_digest(count, index) for index in range(count))

    def grouping(self, kind: str, count: int) -> Iterator[None]:
        """Make the digests of a kind's `count` buckets, and yield to other work; `differing` is short then."""
        return self._kinds[kind].grouping(count)

    def differing(self, kind: str, theirs: bytes) -> list[int]:
        """Return the buckets of a kind that differ from another schema's buckets, given their digests."""
        existing = self._kinds[kind]
        count = len(theirs) // BUCKET_BYTES
        return [
            index
            for index in range(count)
            if existing.bucket_digest(count, index)
            != theirs[index * BUCKET_BYTES : (index + 1) * BUCKET_BYTES]
        ]

    def bucket(self, kind: str, count: int, index: int) -> Mapping[bytes, DigestEntry]:
        """Return the digests of the entities in one of `count` buckets."""
        return self._kinds[kind].group(count, index)


class _Kind:
    """The entities of one kind."""

    def __init__(self) -> None:
        self.entries: dict[Key, DigestEntry] = {}
        self._digest: bytes | None = None
        self._in_order: list[bytes] | None = None
        """The digests of all entities, in their order; None before the first digest of the kind."""
        self._groups: list[dict[bytes, DigestEntry]] = []
        self._bucket_digests: list[bytes] = []
        """Of each group; empty where the group has changed since."""
        self._puts = 0

    @property
    def bucket_count(self) -> int:
        """The number of buckets into which another node is to divide the kind."""
        count = 1
        while count * _BUCKET_ENTITIES < len(self.entries) and count < BUCKETS_MAX:
            count *= 2
        return count

    def update(
        self, entities: Mapping[Key, AnyEntity], transient: set[Key], known: Mapping[Key, DigestEntry]
    ) -> Iterator[None]:
        """Take all entities; those that are `known` are not digested again."""
        # Entities are frozen, so the same object has the same digest. Equality is too weak: 1 == True, but as arguments
        # they differ.
        for key, entity in list(entities.items()):
            entry = known.get(key)
            if entry is not None and entry.entity is entity:
                self.entries[key] = entry
            elif travels(entity, transient):
                self.entries[key] = _entry(key, entity)
            yield

    def put(self, key: Key, entity: AnyEntity | None, transient: set[Key]) -> None:
        """Take a changed entity; None means that it is deleted."""
        self._puts += 1
        before = self.entries.pop(key, None)
        if before is not None:
            if self._in_order is not None:
                del self._in_order[bisect_left(self._in_order, before.digest)]
            if self._groups:
                self._changed_group(before.place).pop(before.digest, None)
        if entity is not None and travels(entity, transient):
            entry = self.entries[key] = _entry(key, entity)
            if self._in_order is not None:
                insort(self._in_order, entry.digest)
            if self._groups:
                self._changed_group(entry.place)[entry.digest] = entry
        self._digest = None

    def _changed_group(self, place: int) -> dict[bytes, DigestEntry]:
        index = place & (len(self._groups) - 1)
        self._bucket_digests[index] = b""
        return self._groups[index]

    def digest(self) -> bytes:
        if self._digest is None:
            if self._in_order is None:
                self._in_order = sorted(entry.digest for entry in self.entries.values())
            self._digest = _hash(self._in_order, STATE_BYTES)
        return self._digest

    def grouping(self, count: int) -> Iterator[None]:
        """Sort the entities into `count` groups, and digest these, unless that is done; yield to other work."""
        self.digest()
        yield
        yield from self._sorting(count)
        for index in range(count):
            if len(self._groups) != count:
                return
            self.bucket_digest(count, index)
            yield

    def _sorting(self, count: int) -> Generator[None, None, None]:
        """Sort the entities into `count` groups, unless that is done, or one of them changes meanwhile."""
        if len(self._groups) == count:
            return
        groups: list[dict[bytes, DigestEntry]] = [{} for _ in range(count)]
        puts = self._puts
        for entry in list(self.entries.values()):
            groups[entry.place & (count - 1)][entry.digest] = entry
            yield
        if puts == self._puts:
            self._groups, self._bucket_digests = groups, [b""] * count

    def group(self, count: int, index: int) -> dict[bytes, DigestEntry]:
        at_once(self._sorting(count))
        return self._groups[index]

    def bucket_digest(self, count: int, index: int) -> bytes:
        group = self.group(count, index)
        if not self._bucket_digests[index]:
            self._bucket_digests[index] = _hash(sorted(group), BUCKET_BYTES)
        return self._bucket_digests[index]


def _entry(key: Key, entity: AnyEntity) -> DigestEntry:
    octets = canonical(entity)
    place = hashlib.blake2b(msgspec.json.encode(key), digest_size=_PLACE_BYTES).digest()
    digest = hashlib.blake2b(octets, digest_size=ENTITY_BYTES).digest()
    return DigestEntry(entity, digest, int.from_bytes(place), len(octets))


def _hash(digests: Sequence[bytes], size_bytes: int) -> bytes:
    return hashlib.blake2b(b"".join(digests), digest_size=size_bytes).digest()
