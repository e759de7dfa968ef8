"""What the nodes of a cluster know of each other, as the store they share (etcd) holds it: pure.

The keys, below one prefix; parts of them that are names are percent-encoded:

    PREFIX/cluster                    id of the cluster
    PREFIX/proof                      of the id, under the secret that all nodes share
    PREFIX/members/NODE               `MemberRecord`
    PREFIX/alive/NODE                 `Presence`; goes with its lease
    PREFIX/pen                        name of the node that may change definitions; goes with its lease
    PREFIX/pen_wanted/NODE            the node's name: it would like to; goes with its lease
    PREFIX/epoch                      the highest epoch of a queue, ever
    PREFIX/schema_sync                the operator's decision on schema replication, `decisions.SchemaDecided`
    PREFIX/standby                    the site's decisions on message replication, `standby_site.SiteDecisions`
    PREFIX/standby_owners/VHOST       the owner of a vhost in a downstream cluster, `vhost_owners.VhostOwner`
    PREFIX/definitions/KIND/KEY...    an entity, as the definitions log has it
    PREFIX/placements/VHOST/QUEUE     `Placement`
    PREFIX/collected/EPOCH            `CollectedQueue`, by the queue's epoch
    PREFIX/turns/LEASE                which transaction of a node's was the last; goes with its lease

All but definitions, which are `model.definitions.encode_change`'s, are JSON. Keys of others below the prefix do not
matter. `ClusterState` is all of it but the definitions, which the broker has; what happens to those it hands on, in an
order in which it can be done. docs/adr/0008-cluster.md says what it is for.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from leveret.core.replication.election import DeleteKey, PutKey, StoredValue, Unchanged, UnreadableState
from leveret.core.replication.standby_site import SiteDecisions
from leveret.core.replication.vhost_owners import VhostOwner
from leveret.core.schema.decisions import SchemaDecided
from leveret.model import definitions
from leveret.model.definitions import KINDS, Change

_ORDER: Final = {kind: place for place, kind in enumerate(KINDS)}


class MemberRecord(msgspec.Struct, frozen=True):
    """A node that belongs to the cluster, whether it runs or not; `node_id` is that of its data."""

    name: str
    node_id: str
    joined_at_ms: int


class Presence(msgspec.Struct, frozen=True):
    """A node that runs.

    Attributes:
        incarnation: drawn at each start.
        uri: where other nodes connect, see runtime/cluster/listener.
        http_uri: of its management API; empty without one.
        draining: whether it is in maintenance: new queues are not led there.
        streams, streams_tls: host and port for clients of the stream protocol; None without such a listener.
        standby_mode: its setting for message replication.
    """

    incarnation: str
    uri: str
    http_uri: str
    started_at_ms: int
    version: str
    draining: bool = False
    streams: tuple[str, int] | None = None
    streams_tls: tuple[str, int] | None = None
    standby_mode: str = ""


class Lost(msgspec.Struct, frozen=True):
    """A mirror led that lacked messages: what copies from before have of them is all there is.

    Attributes:
        term: the one that began so.
        before: what it had began there. It lacks all that was not settled before, and perhaps the last before the term.
        by: the node that led until then, as long as it has not come back with them; then empty.
    """

    term: int
    before: int
    by: str


class Placement(msgspec.Struct, frozen=True):
    """The placement record of a queue.

    Attributes:
        epoch: the queue's, which tells one incarnation of its name from the next.
        leader: the node that leads it.
        incarnation: the leader's when it wrote this.
        term: higher with each leader.
        mirrors: nodes that mirror it, the oldest first.
        synchronised: those of them that have all that was confirmed.
        stopped: nodes that led or mirrored it and went away, the last one last.
        exclusive: whether it is one connection's own, of a client of its leader.
        closed: whether its leader has stopped in order and taken the queue with it, as nobody else had all of it.
        majority: whether what was confirmed may be with no more than a majority of `synchronised` and the leader.
        lost: what was lost the last time that any was; None for never.
        members: of a stream: the nodes that are to have it, its leader among them, whether they run or not.
        copies: of a stream: as many members are wanted; nodes that join the cluster become members until then.
    """

    epoch: int
    leader: str
    incarnation: str
    term: int
    mirrors: tuple[str, ...] = ()
    synchronised: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    exclusive: bool = False
    closed: bool = False
    majority: bool = False
    lost: Lost | None = None
    members: tuple[str, ...] = ()
    copies: int = 0


class CollectedQueue(msgspec.Struct, frozen=True):
    """A queue that was collected for a standby, and whose collection ended, or that was led without all its messages.

    Attributes:
        counts: of its incarnations (wire.incarnation), the present one last.
        lost: the last term that the numbering of the present one takes into account.
    """

    counts: tuple[int, ...]
    lost: int = 0


class StoredPlacement(NamedTuple):
    """A placement, and the store's revision that wrote it."""

    placement: Placement
    modified: int


class ClusterKey(NamedTuple):
    """A key, taken apart: the first part behind the prefix, and the names that follow, decoded."""

    family: str
    names: tuple[str, ...]


class ClusterKeys(NamedTuple):
    """The names of the keys; those that end with `s` or a slash are what several begin with."""

    prefix: str
    cluster: str
    proof: str
    definitions_lock: str
    epoch: str
    schema_sync: str
    standby: str

    @classmethod
    def under(cls, prefix: str) -> ClusterKeys:
        """The keys of the cluster whose settings say `prefix`."""
        begin = prefix.rstrip("/") + "/"
        single = ("cluster", "proof", "pen", "epoch", "schema_sync", "standby")
        return cls(begin, *(f"{begin}{name}" for name in single))

    def member(self, name: str) -> str:
        """Of a `MemberRecord`."""
        return self._joined("members", name)

    def alive(self, name: str) -> str:
        """Of a `Presence`."""
        return self._joined("alive", name)

    def definitions_lock_wanted(self, name: str) -> str:
        """Of a node that would like to have the definitions lock."""
        return self._joined("pen_wanted", name)

    def definition(self, kind: str, key: tuple[str, ...]) -> str:
        """Of an entity, see model.definitions."""
        return self._joined("definitions", kind, *key)

    def placement(self, vhost: str, name: str) -> str:
        """Of a queue's `Placement`."""
        return self._joined("placements", vhost, name)

    def standby_owner(self, vhost: str) -> str:
        """Of a vhost's `VhostOwner`."""
        return self._joined("standby_owners", vhost)

    def collected(self, epoch: int) -> str:
        """Of a `CollectedQueue`."""
        return self._joined("collected", str(epoch))

    def turn(self, lease_id: int) -> str:
        """Of the holder of a lease: see runtime/cluster/store, which nobody else has to know it of."""
        return self._joined("turns", str(lease_id))

    def parse(self, key: str) -> ClusterKey | None:
        """Take a key apart; None for one that says nothing of the cluster."""
        if not key.startswith(self.prefix):
            return None
        family, *parts = key[len(self.prefix) :].split("/")
        counts = _NAMES.get(family)
        if counts is None or not counts[0] <= len(parts) <= counts[1]:
            return None
        return ClusterKey(family, tuple(map(unquote, parts)))

    def _joined(self, family: str, *names: str) -> str:
        return self.prefix + "/".join((family, *(quote(name, safe="") for name in names)))


_NAMES: Final = {
    "cluster": (0, 0),
    "proof": (0, 0),
    "members": (1, 1),
    "alive": (1, 1),
    "pen": (0, 0),
    "pen_wanted": (1, 1),
    "epoch": (0, 0),
    "schema_sync": (0, 0),
    "standby": (0, 0),
    "standby_owners": (1, 1),
    "definitions": (2, 8),
    "placements": (2, 2),
    "collected": (1, 1),
}
"""How many names the keys of a family have, at least and at most."""
_VALUES: Final[dict[str, Any]] = {
    "cluster": str,
    "proof": str,
    "members": MemberRecord,
    "alive": Presence,
    "pen": str,
    "pen_wanted": str,
    "epoch": int,
    "schema_sync": SchemaDecided,
    "standby": SiteDecisions,
    "standby_owners": VhostOwner,
    "placements": Placement,
    "collected": CollectedQueue,
}


class Event(NamedTuple):
    """A key was written, or is gone (`value` is None), by the store's revision `modified`."""

    key: str
    value: bytes | None
    modified: int


def differences(known: Mapping[str, int], entries: Mapping[str, StoredValue], revision: int) -> list[Event]:
    """The changes between two reads of the store, for a node that missed the events between them.

    Args:
        known: by key, the revision that had written it.
        entries: what there is now.
        revision: the store's, now.
    """
    gone = [Event(key, None, revision) for key in known if key not in entries]
    return gone + [
        Event(key, entry.value, entry.modified)
        for key, entry in entries.items()
        if known.get(key) != entry.modified
    ]


# -- what changed ---------------------------------------------------------------------------------


class MemberChanged(NamedTuple):
    """A node belongs to the cluster, or no longer."""

    name: str
    member: MemberRecord | None


class AliveChanged(NamedTuple):
    """A node runs, as another incarnation perhaps, or no longer."""

    name: str
    presence: Presence | None


class DefinitionsLockChanged(NamedTuple):
    """The holder of the definitions lock, and the nodes that want it."""

    holder: str | None
    wanted: frozenset[str]


class DefinitionChanged(NamedTuple):
    """An entity was put or deleted. A queue that is put with another epoch is another queue."""

    change: Change


class PlacementChanged(NamedTuple):
    """A queue (vhost, name) is led or mirrored elsewhere; None: it is gone."""

    key: tuple[str, str]
    placement: Placement | None


class SchemaSyncDecided(NamedTuple):
    """An operator decided on schema replication; None: nobody has any more."""

    decided: SchemaDecided | None


class StandbyChanged(NamedTuple):
    """The decisions on message replication, or the owner of a vhost, changed."""


class CollectedChanged(NamedTuple):
    """The incarnation under which a queue is collected changed."""

    epoch: int


Changed: TypeAlias = (
    MemberChanged
    | AliveChanged
    | DefinitionsLockChanged
    | SchemaSyncDecided
    | StandbyChanged
    | DefinitionChanged
    | PlacementChanged
    | CollectedChanged
)


class ClusterState:
    """The content of the store at one revision, without the definitions.

    Attributes:
        keys: where it is kept.
        revision: the store's; 0 before the first `apply`.
        cluster_id: empty before there is one.
        proof: what the founder proved with it that it has the secret; empty before there is one.
        members, alive: by the node's name.
        definitions_lock: who may change definitions; None: nobody.
        definitions_lock_wanted: who would like to.
        epoch: the highest that a queue ever had.
        schema_sync: what was decided on schema replication; None: nothing yet.
        standby: what was decided on message replication; None: nothing yet.
        standby_owners: by vhost.
        placements: by vhost and queue.
        collected: by the queue's epoch.
    """

    def __init__(self, keys: ClusterKeys) -> None:
        """Nothing is known yet."""
        self.keys = keys
        self.revision = 0
        self.cluster_id = ""
        self.proof = ""
        self.members: dict[str, MemberRecord] = {}
        self.alive: dict[str, Presence] = {}
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
        """The revision that gave the definitions lock to who has it; 0 if nobody has."""
        return self._modified.get(self.keys.definitions_lock, 0)

    @property
    def names(self) -> list[str]:
        """The members' names, who came first first: the same on all nodes."""
        return sorted(self.members, key=lambda name: (self.members[name].joined_at_ms, name))

    def unchanged(self, key: str) -> Unchanged:
        """The condition that a key, of anything but a definition, is as it is here.

        Raises:
            ValueError: it is of a definition, or not the cluster's.
        """
        parsed = self.keys.parse(key)
        if parsed is None or parsed.family == "definitions":
            raise ValueError(f"what wrote {key} last is not kept")
        if parsed.family == "placements":
            placed = self.placements.get((parsed.names[0], parsed.names[1]))
            return Unchanged(key, placed.modified if placed else 0)
        return Unchanged(key, self._modified.get(key, 0))

    def apply(self, events: Iterable[Event], revision: int) -> list[Changed]:
        """Take what happened up to a revision, all of it; a first look is `differences({}, ...)`.

        Returns:
            What changed: nodes, the definitions lock, definitions (deletes first, in reverse order of `KINDS`, then
            puts in that order), placements. The state has all of it when this returns.

        Raises:
            UnreadableState: a value is not what a node writes; nothing was taken.
            ValueError: the revision is older than what is known.
        """
        if revision < self.revision:
            raise ValueError(f"events of revision {revision} came after those of {self.revision}")
        taken = [(event, key, _value(event, key)) for event in events if (key := self.keys.parse(event.key))]
        nodes: list[Changed] = []
        puts: list[definitions.Put] = []
        deletes: list[definitions.Delete] = []
        placements: list[Changed] = []
        definitions_lock, wanted = (
            (self.definitions_lock, self.definitions_lock_modified),
            self.definitions_lock_wanted,
        )
        for event, key, value in taken:
            match key.family:
                case "definitions":
                    if value is None:
                        deletes.append(definitions.Delete(key.names[0], key.names[1:]))
                    else:
                        puts.append(value)
                case "placements":
                    self._place((key.names[0], key.names[1]), value, event.modified, placements)
                case _:
                    self._note(event)
                    self._take(key, value, nodes)
        if (
            self.definitions_lock,
            self.definitions_lock_modified,
        ) != definitions_lock or self.definitions_lock_wanted != wanted:
            nodes.append(DefinitionsLockChanged(self.definitions_lock, self.definitions_lock_wanted))
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

    def _take(self, key: ClusterKey, value: Any, found: list[Changed]) -> None:
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
    """What an event's value says; None if the key is gone.

    Raises:
        UnreadableState: nothing that a node of a cluster writes.
    """
    try:
        if key.family != "definitions":
            return None if event.value is None else msgspec.json.decode(event.value, type=_VALUES[key.family])
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
            f"etcd's key {event.key} holds what no node of this version of a cluster writes ({error}): upgrade this "
            "node if others are newer; else delete the key, or set cluster.etcd.prefix to one that nothing else uses"
        ) from error
    return change


# -- what is written ------------------------------------------------------------------------------


def cluster_proof(secret: bytes, cluster_id: str) -> str:
    """Proves to those who know the secret that the founder of a cluster had it."""
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
    """A value of a key, of anything but a definition."""
    return msgspec.json.encode(value)


def change_write(keys: ClusterKeys, change: Change) -> PutKey | DeleteKey:
    """The write that stores a change of the definitions."""
    match change:
        case definitions.Put(entity):
            return PutKey(keys.definition(entity.kind, entity.key), definitions.encode_change(change))
        case definitions.Delete(kind, key):
            return DeleteKey(keys.definition(kind, key))


def definition_writes(
    keys: ClusterKeys, change: Change, placed: Placement | None = None
) -> list[PutKey | DeleteKey]:
    """The same with where the queue is, if it is of one; `placed` of one that is put."""
    match change:
        case definitions.Put(definitions.Queue(vhost=vhost, name=name)) if placed is not None:
            return [change_write(keys, change), placement_write(keys, (vhost, name), placed)]
        case definitions.Delete("queues", key):
            return [change_write(keys, change), placement_write(keys, (key[0], key[1]), None)]
    return [change_write(keys, change)]


def placement_write(
    keys: ClusterKeys, queue: tuple[str, str], placement: Placement | None
) -> PutKey | DeleteKey:
    """The write that stores a queue's placement; None: the queue is gone."""
    key = keys.placement(*queue)
    return DeleteKey(key) if placement is None else PutKey(key, encode(placement))
