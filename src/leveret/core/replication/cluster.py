"""The shared state of a cluster, as its nodes store it in etcd: pure.

The keys below one prefix; names in keys are percent-encoded:

    PREFIX/cluster                    id of the cluster
    PREFIX/proof                      HMAC of the id, under the secret that all nodes share
    PREFIX/members/NODE               `MemberRecord`
    PREFIX/alive/NODE                 `Presence`; ends with its lease
    PREFIX/pen                        name of the node that has the definitions lock; ends with its lease
    PREFIX/pen_wanted/NODE            name of a node that requests the definitions lock; ends with its lease
    PREFIX/epoch                      the highest epoch that any queue ever had
    PREFIX/schema_sync                the operator's decision on schema replication, `decisions.SchemaDecided`
    PREFIX/standby                    the site's decisions on message replication, `standby_site.SiteDecisions`
    PREFIX/standby_owners/VHOST       the owner of a vhost in a downstream cluster, `vhost_owners.VhostOwner`
    PREFIX/definitions/KIND/KEY...    an entity, encoded as in the definitions log
    PREFIX/placements/VHOST/QUEUE     `Placement`
    PREFIX/collected/EPOCH            `CollectedQueue`, by the queue's epoch
    PREFIX/turns/LEASE                number of a node's last transaction; ends with its lease

`model.definitions.encode_change` encodes definitions; all other values are JSON. Unknown keys below the prefix are
ignored. `ClusterState` has all of this state except the definitions, which the broker has. It passes on changes of
definitions in an order in which they can be applied. docs/adr/0008-cluster.md explains the design.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from leveret.core.replication.election import DeleteKey, PutKey, StoredValue, Unchanged, UnreadableState
from leveret.core.replication.standby_site import SiteDecisions
from leveret.core.replication.vhost_owners import VhostOwner
from leveret.core.schema.decisions import SchemaDecided
from leveret.model import definitions
from leveret.model.definitions import KINDS, Change

WITH_CONNECTIONS: Final = frozenset({"users", "vhosts"})
"""Kinds of entities whose deletion closes connections, at every node, also if an entity of that name follows."""
_TERM_SHIFT: Final = 32
_ORDER: Final = {kind: place for place, kind in enumerate(KINDS)}

_STORED_NAMES: Final = {"run_id": "incarnation"}
"""The name that records in etcd have for the run id of a node."""


class MemberRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that belongs to the cluster, whether it runs or not; `node_id` identifies its data.

    Attributes:
        runs: how often the node has entered the cluster; 0 if builds without this count wrote the record.
    """

    name: str
    node_id: str
    joined_at_ms: int
    runs: int = 0


class Presence(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """A running node.

    Attributes:
        run_id: a random id of the process, new at each start.
        uri: the address for other nodes, see runtime/cluster/membership/listener.
        http_uri: the address of its management API; empty without one.
        draining: whether the node is in maintenance: it leads no new queues.
        streams, streams_tls: host and port for clients of the stream protocol; None without such a listener.
        standby_mode: the node's setting for message replication.
        standby_archive: the place of the archive that it would share with the other nodes; empty for one of its own.
    """

    run_id: str
    uri: str
    http_uri: str
    started_at_ms: int
    version: str
    draining: bool = False
    streams: tuple[str, int] | None = None
    streams_tls: tuple[str, int] | None = None
    standby_mode: str = ""
    standby_archive: str = ""


class LossyPromotion(msgspec.Struct, frozen=True):
    """The promotion of a mirror that lacked messages: only earlier copies may still have them.

    Attributes:
        term: the term that the promotion began.
        before: the first offset of the mirror's copy. It lacks all unsettled messages before that offset, and perhaps
            the last ones before the term.
        by: the previous leader, until it has come back with the messages; then empty.
    """

    term: int
    before: int
    by: str


class HandOver(msgspec.Struct, frozen=True):
    """A hand-over by a leader that stopped serving the queue before it wrote the record.

    Attributes:
        term: the term that it began; the record of a later term says nothing of deliveries.
        delivered_before: the offset before which clients may have had any message, at all leaders so far.
    """

    term: int
    delivered_before: int


class Placement(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """The placement record of a queue.

    Attributes:
        epoch: the queue's epoch, which tells it from earlier queues of its name.
        leader: the node that leads the queue.
        run_id: the leader's when it wrote the record.
        term: the term; each leader has a higher one.
        mirrors: the nodes that mirror the queue, oldest first.
        synchronised: the mirrors that have every confirmed message.
        stopped: the nodes that led or mirrored the queue and left, in the order in which they left.
        exclusive: whether the queue belongs to one connection of a client of its leader.
        closed: whether the leader stopped in order and no other node had the whole queue: it is down meanwhile.
        majority: whether a confirmed message may be on no more than a majority of the leader and `synchronised`.
        lost: the last loss of messages; None if there was none.
        hand_over: the last hand-over without a loss; None if there was none.
        members: of a stream: the nodes that are to have a copy, with the leader, whether they run or not.
        copies: of a stream: the wanted number of members; nodes that join the cluster become members up to it.
        leader_wrote: the store's revision of the leader's last record, if mirrors have withdrawn since; otherwise 0.
    """

    epoch: int
    leader: str
    run_id: str
    term: int
    mirrors: tuple[str, ...] = ()
    synchronised: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    exclusive: bool = False
    closed: bool = False
    majority: bool = False
    lost: LossyPromotion | None = None
    hand_over: HandOver | None = None
    members: tuple[str, ...] = ()
    copies: int = 0
    leader_wrote: int = 0


def first_epoch(term: int) -> int:
    """Return the lowest epoch of chunks that a leader of that term appends: the term is in the upper bits."""
    return term << _TERM_SHIFT


def term_of(epoch: int) -> int:
    """Return the term of the leader that appended a chunk of that epoch."""
    return epoch >> _TERM_SHIFT


class CollectedQueue(msgspec.Struct, frozen=True):
    """A queue collected for a standby, whose collection ended or whose leader once lacked messages.

    Attributes:
        counts: the numbers of its incarnations (wire.incarnation), the present one last.
        lost: the last term with a loss that the present incarnation's numbering takes into account.
    """

    counts: tuple[int, ...]
    lost: int = 0


class StoredPlacement(NamedTuple):
    """A placement, and the store's revision that wrote it."""

    placement: Placement
    modified: int

    @property
    def leader_wrote(self) -> int:
        """The revision of the last record that a leader wrote: the mirrors that ran then had a leader."""
        return self.placement.leader_wrote or self.modified


class ClusterKey(NamedTuple):
    """A parsed key: the first part behind the prefix, and the decoded names that follow."""

    family: str
    names: tuple[str, ...]


class ClusterKeys(NamedTuple):
    """The names of the single keys, and the prefix of all keys."""

    prefix: str
    cluster: str
    proof: str
    definitions_lock: str
    epoch: str
    schema_sync: str
    standby: str

    @classmethod
    def under(cls, prefix: str) -> ClusterKeys:
        """Return the keys of the cluster whose setting is `prefix`."""
        begin = prefix.rstrip("/") + "/"
        single = ("cluster", "proof", "pen", "epoch", "schema_sync", "standby")
        return cls(begin, *(f"{begin}{name}" for name in single))

    def member(self, name: str) -> str:
        """Return the key of a `MemberRecord`."""
        return self._joined("members", name)

    def alive(self, name: str) -> str:
        """Return the key of a `Presence`."""
        return self._joined("alive", name)

    def definitions_lock_wanted(self, name: str) -> str:
        """Return the key of a node's request for the definitions lock."""
        return self._joined("pen_wanted", name)

    def definition(self, kind: str, key: tuple[str, ...]) -> str:
        """Return the key of an entity, see model.definitions."""
        return self._joined("definitions", kind, *key)

    def placement(self, vhost: str, name: str) -> str:
        """Return the key of a queue's `Placement`."""
        return self._joined("placements", vhost, name)

    def standby_owner(self, vhost: str) -> str:
        """Return the key of a vhost's `VhostOwner`."""
        return self._joined("standby_owners", vhost)

    def collected(self, epoch: int) -> str:
        """Return the key of a `CollectedQueue`."""
        return self._joined("collected", str(epoch))

    def turn(self, lease_id: int) -> str:
        """Return the key for the transactions of a lease's holder; only runtime/cluster/membership/store uses it."""
        return self._joined("turns", str(lease_id))

    def parse(self, key: str) -> ClusterKey | None:
        """Parse a key; return None for an unknown key."""
        if not key.startswith(self.prefix):
            return None
        family, *parts = key[len(self.prefix) :].split("/")
        known = _FAMILIES.get(family)
        if known is None or len(parts) not in known.counts:
            return None
        return ClusterKey(family, tuple(map(unquote, parts)))

    def _joined(self, family: str, *names: str) -> str:
        return self.prefix + "/".join((family, *map(_quoted, names)))


@lru_cache(maxsize=4096)
def _quoted(name: str) -> str:
    """Quote a part of a key; keys of the same vhosts, queues and nodes are made all the time."""
    return quote(name, safe="")


class _Family(NamedTuple):
    """The keys that begin with the same part: the numbers of names behind it that are possible, and their values."""

    counts: range
    value: Any


_ONE: Final = range(1, 2)
_NONE: Final = range(1)
_FAMILIES: Final = {
    "cluster": _Family(_NONE, str),
    "proof": _Family(_NONE, str),
    "members": _Family(_ONE, MemberRecord),
    "alive": _Family(_ONE, Presence),
    "pen": _Family(_NONE, str),
    "pen_wanted": _Family(_ONE, str),
    "epoch": _Family(_NONE, int),
    "schema_sync": _Family(_NONE, SchemaDecided),
    "standby": _Family(_NONE, SiteDecisions),
    "standby_owners": _Family(_ONE, VhostOwner),
    "definitions": _Family(range(2, 9), Change),
    "placements": _Family(range(2, 3), Placement),
    "collected": _Family(_ONE, CollectedQueue),
}


class Event(NamedTuple):
    """The store's revision `modified` wrote a key, or deleted it (`value` is None).

    `is_anew`: the key was deleted before it was written, in an event that this node missed.
    `created`: the revision that made the key; 0 if that is not known.
    """

    key: str
    value: bytes | None
    modified: int
    is_anew: bool = False
    created: int = 0


def differences(known: Mapping[str, int], entries: Mapping[str, StoredValue], revision: int) -> list[Event]:
    """Return the changes between two reads of the store, for a node that missed the events between them.

    Args:
        known: for each key of the earlier read, the revision that wrote it.
        entries: the present content.
        revision: the store's present revision.
    """
    gone = [Event(key, None, revision) for key in known if key not in entries]
    return gone + [
        Event(key, entry.value, entry.modified, entry.created > known.get(key, entry.created), entry.created)
        for key, entry in entries.items()
        if known.get(key) != entry.modified
    ]


# -- changes --------------------------------------------------------------------------------------


class MemberChanged(NamedTuple):
    """A node's membership changed; None: it left the cluster."""

    name: str
    member: MemberRecord | None


class AliveChanged(NamedTuple):
    """A node's presence changed, perhaps to another run; None: the node no longer runs."""

    name: str
    presence: Presence | None


class DefinitionChanged(NamedTuple):
    """An entity was put or deleted. A queue that was put with another epoch is another queue."""

    change: Change


class PlacementChanged(NamedTuple):
    """The placement of a queue (vhost, name) changed; None: the queue is gone."""

    key: tuple[str, str]
    placement: Placement | None


class SchemaSyncDecided(NamedTuple):
    """An operator decided on schema replication; None: the decision was withdrawn."""

    decided: SchemaDecided | None


class StandbyChanged(NamedTuple):
    """The decisions on message replication, or the owner of a vhost, changed."""


class CollectedChanged(NamedTuple):
    """The incarnation under which a queue is collected changed."""

    epoch: int


Changed: TypeAlias = (
    MemberChanged
    | AliveChanged
    | SchemaSyncDecided
    | StandbyChanged
    | DefinitionChanged
    | PlacementChanged
    | CollectedChanged
)


class ClusterState:
    """The content of the store at one revision, without the definitions.

    Attributes:
        keys: the keys of the cluster.
        revision: the store's revision; 0 before the first `apply`.
        cluster_id: the cluster's id; empty before the cluster is founded.
        proof: the founder's proof that it has the secret; empty before the cluster is founded.
        members, alive: records by the node's name.
        begun: by the node's name, the revision in which its present run entered the cluster.
        definitions_lock: the node that may change definitions; None for none.
        definitions_lock_wanted: the nodes that request the definitions lock.
        epoch: the highest epoch that any queue ever had.
        schema_sync: the decision on schema replication; None if there is none.
        standby: the decisions on message replication; None if there are none.
        standby_owners: owners by vhost.
        placements: placements by vhost and queue.
        collected: records by the queue's epoch.
    """

    def __init__(self, keys: ClusterKeys) -> None:
        """Start empty, at revision 0."""
        self.keys = keys
        self.revision = 0
        self.cluster_id = ""
        self.proof = ""
        self.members: dict[str, MemberRecord] = {}
        self.alive: dict[str, Presence] = {}
        self.begun: dict[str, int] = {}
        self.definitions_lock: str | None = None
        self.definitions_lock_wanted: frozenset[str] = frozenset()
        self.epoch = 0
        self.schema_sync: SchemaDecided | None = None
        self.standby: SiteDecisions | None = None
        self.standby_owners: dict[str, VhostOwner] = {}
        self.placements: dict[tuple[str, str], StoredPlacement] = {}
        self.collected: dict[int, CollectedQueue] = {}
        self._modified: dict[str, int] = {}

    @property
    def definitions_lock_modified(self) -> int:
        """The revision that gave the definitions lock to its holder; 0 without a holder."""
        return self._modified.get(self.keys.definitions_lock, 0)

    @property
    def names(self) -> list[str]:
        """The members' names, in the order of joining: the same on all nodes."""
        return sorted(self.members, key=lambda name: (self.members[name].joined_at_ms, name))

    def begun_since(self, revision: int) -> set[str]:
        """Return the running nodes whose present run entered the cluster after this revision."""
        return {name for name, begun in self.begun.items() if begun > revision}

    def unchanged(self, key: str) -> Unchanged:
        """Return the condition that the store's key is unchanged since the present revision.

        Raises:
            ValueError: the key is an entity's, or unknown.
        """
        parsed = self.keys.parse(key)
        if parsed is None or parsed.family == "definitions":
            raise ValueError(f"the revision of the last write to {key} is not known")
        if parsed.family == "placements":
            placed = self.placements.get((parsed.names[0], parsed.names[1]))
            return Unchanged(key, placed.modified if placed else 0)
        return Unchanged(key, self._modified.get(key, 0))

    def apply(self, events: Iterable[Event], revision: int) -> list[Changed]:
        """Apply all events up to a revision; the first call takes `differences({}, ...)`.

        Returns:
            The changes: nodes, definitions (deletes first, in reverse order of `KINDS`, then puts in that order),
            placements. The state already includes all of them, and the definitions lock.

        Raises:
            UnreadableState: no node writes such a value; the state is unchanged.
            ValueError: the revision is older than the present one.
        """
        if revision < self.revision:
            raise ValueError(f"events of revision {revision} came after those of {self.revision}")
        taken = [(event, key, _value(event, key)) for event in events if (key := self.keys.parse(event.key))]
        nodes: list[Changed] = []
        puts: list[definitions.Put] = []
        deletes: list[definitions.Delete] = []
        placements: list[Changed] = []
        for event, key, value in taken:
            match key.family:
                case "definitions":
                    if value is None:
                        deletes.append(definitions.Delete(key.names[0], key.names[1:]))
                        continue
                    puts.append(value)
                    if event.is_anew and key.names[0] in WITH_CONNECTIONS:
                        deletes.append(definitions.Delete(key.names[0], key.names[1:]))
                case "placements":
                    self._place((key.names[0], key.names[1]), value, event.modified, placements)
                case _:
                    self._note(event)
                    self._take(key, value, event, nodes)
        deletes.sort(key=lambda change: -_ORDER[change.kind])
        puts.sort(key=lambda change: _ORDER[change.entity.kind])
        self.revision = revision
        return [*nodes, *map(DefinitionChanged, deletes), *map(DefinitionChanged, puts), *placements]

    def _place(
        self, queue: tuple[str, str], value: Placement | None, modified: int, found: list[Changed]
    ) -> None:
        if value is not None:
            self.placements[queue] = StoredPlacement(value, modified)
        elif self.placements.pop(queue, None) is None:
            return
        found.append(PlacementChanged(queue, value))

    def _note(self, event: Event) -> None:
        if event.value is None:
            self._modified.pop(event.key, None)
        else:
            self._modified[event.key] = event.modified

    def _take(self, key: ClusterKey, value: Any, event: Event, found: list[Changed]) -> None:
        match key.family:
            case "cluster":
                self.cluster_id = value or ""
            case "proof":
                self.proof = value or ""
            case "epoch":
                self.epoch = value or 0
            case "schema_sync":
                self.schema_sync = value
                found.append(SchemaSyncDecided(value))
            case "standby":
                self.standby = value
                found.append(StandbyChanged())
            case "standby_owners":
                _keep(self.standby_owners, key.names[0], value)
                found.append(StandbyChanged())
            case "pen":
                self.definitions_lock = value
            case "pen_wanted":
                self.definitions_lock_wanted = self.definitions_lock_wanted - {key.names[0]} | (
                    {key.names[0]} if value else set()
                )
            case "members":
                _keep(self.members, key.names[0], value)
                found.append(MemberChanged(key.names[0], value))
            case "alive":
                known = self.begun.get(key.names[0], event.modified)
                _keep(self.begun, key.names[0], None if value is None else event.created or known)
                _keep(self.alive, key.names[0], value)
                found.append(AliveChanged(key.names[0], value))
            case "collected" if key.names[0].isdecimal():
                _keep(self.collected, int(key.names[0]), value)
                found.append(CollectedChanged(int(key.names[0])))


def _keep(where: dict[Any, Any], name: Any, value: Any) -> None:
    if value is None:
        where.pop(name, None)
    else:
        where[name] = value


def _value(event: Event, key: ClusterKey) -> Any:
    """Decode an event's value; return None if the key is gone.

    Raises:
        UnreadableState: no node of a cluster writes such a value.
    """
    try:
        if key.family != "definitions":
            kind = _FAMILIES[key.family].value
            return None if event.value is None else msgspec.json.decode(event.value, type=kind)
        if key.names[0] not in KINDS:
            raise msgspec.ValidationError(f"unknown kind of entity {key.names[0]!r}")
        if event.value is None:
            return None
        change = definitions.decode_change(event.value)
        if not isinstance(change, definitions.Put):
            raise msgspec.ValidationError("it deletes something")
        if (change.entity.kind, *change.entity.key) != key.names:
            raise msgspec.ValidationError(f"it is of {change.entity.kind} {change.entity.key}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableState(
            f"etcd's key {event.key} has a value that no node of this version writes ({error}): upgrade this node if "
            "others are newer; else delete the key, or set cluster.etcd.prefix to a prefix of this cluster's own"
        ) from error
    return change


# -- writes ---------------------------------------------------------------------------------------


def cluster_proof(secret: bytes, cluster_id: str) -> str:
    """Return the proof, for nodes with the secret, that the founder of a cluster had it too."""
    return hmac.digest(secret, f"leveret cluster {cluster_id}".encode(), hashlib.sha256).hex()


def encode(
    value: MemberRecord
    | Presence
    | Placement
    | CollectedQueue
    | SchemaDecided
    | SiteDecisions
    | VhostOwner
    | str
    | int,
) -> bytes:
    """Encode the value of a key, except a definition's."""
    return msgspec.json.encode(value)


def change_write(keys: ClusterKeys, change: Change) -> PutKey | DeleteKey:
    """Return the write that stores a change of the definitions."""
    match change:
        case definitions.Put(entity):
            return PutKey(keys.definition(entity.kind, entity.key), definitions.encode_change(change))
        case definitions.Delete(kind, key):
            return DeleteKey(keys.definition(kind, key))


def definition_writes(
    keys: ClusterKeys, change: Change, placed: Placement | None = None
) -> list[PutKey | DeleteKey]:
    """Return the writes of a change of the definitions; for a queue with its placement, `placed` if it is put.

    These two belong together: a node that knew the definition alone would take the queue for a new one, and lead it.
    """
    match change:
        case definitions.Put(definitions.Queue(vhost=vhost, name=name)) if placed is not None:
            return [change_write(keys, change), placement_write(keys, (vhost, name), placed)]
        case definitions.Delete("queues", key):
            return [change_write(keys, change), placement_write(keys, (key[0], key[1]), None)]
    return [change_write(keys, change)]


def are_of_one_queue(keys: ClusterKeys, write: PutKey | DeleteKey, following: PutKey | DeleteKey) -> bool:
    """Return whether these are the writes of a queue's definition and of its placement (`definition_writes`)."""
    match keys.parse(write.key):
        case ClusterKey("definitions", ("queues", *queue)):
            return keys.parse(following.key) == ClusterKey("placements", tuple(queue))
    return False


def placement_write(
    keys: ClusterKeys, queue: tuple[str, str], placement: Placement | None
) -> PutKey | DeleteKey:
    """Return the write that stores a queue's placement, or deletes it if `placement` is None."""
    key = keys.placement(*queue)
    return DeleteKey(key) if placement is None else PutKey(key, encode(placement))
