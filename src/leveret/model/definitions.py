"""The entities of a broker's schema, and a change to one of them.

One vocabulary serves the definitions log, the management API, a definitions file and the schema
sync: an entity is a frozen struct whose JSON form is RabbitMQ's (`apply-to`, `auto_delete`, ...),
and a `Change` puts or deletes one. `KINDS` is ordered so that applying puts in that order never
meets a missing reference (facts of RabbitMQ's import: users, vhosts, permissions, ... bindings);
deletes go in the reverse order.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

Arguments: TypeAlias = dict[str, Any]
RECENT_MAX: Final = 1024
"""Changes that `Definitions` remembers to have been made."""
OPERATOR_POLICY: Final = "operator_policy"
"""The component of the runtime parameters that are operator policies."""
LOCAL_KINDS: Final = (
    "users",
    "vhosts",
    "policies",
    "global_parameters",
    "parameters",
    "queues",
    "exchanges",
    "bindings",
    "permissions",
    "operator_policies",
)
"""What a downstream may have of its own: the keys below `schema_definition_sync.downstream.locals`."""
REHEARSAL_VHOSTS: Final = "leveret.rehearsal."
"""The prefix of the names of virtual hosts that a rehearsal creates and removes: they are local on every node."""


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What all entities share: a kind and a key that is unique within it."""

    kind: ClassVar[str]
    key_fields: ClassVar[tuple[str, ...]]

    @property
    def key(self) -> tuple[str, ...]:
        """Identity within the kind; for all but users, vhosts and global parameters it starts with the vhost."""
        return tuple([getattr(self, name) for name in self.key_fields])


class User(Entity, frozen=True, kw_only=True):
    """An account. `password_hash` is base64 of salt and digest, RabbitMQ's own form."""

    kind = "users"
    key_fields = ("name",)
    name: str
    password_hash: str
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    tags: tuple[str, ...] = ()
    limits: dict[str, int] = {}


class Vhost(Entity, frozen=True, kw_only=True):
    """A virtual host; the tag `standby_replication` gives it an outgoing log."""

    kind = "vhosts"
    key_fields = ("name",)
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = "classic"


class Permission(Entity, frozen=True, kw_only=True):
    """Three regular expressions of what a user may do in a vhost."""

    kind = "permissions"
    key_fields = ("vhost", "user")
    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermission(Entity, frozen=True, kw_only=True):
    """Routing keys a user may write and read on one topic exchange."""

    kind = "topic_permissions"
    key_fields = ("vhost", "user", "exchange")
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class Exchange(Entity, frozen=True, kw_only=True):
    """Where messages are published to."""

    kind = "exchanges"
    key_fields = ("vhost", "name")
    name: str
    vhost: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = {}


class GlobalParameter(Entity, frozen=True, kw_only=True):
    """A free-form runtime parameter of the whole cluster."""

    kind = "global_parameters"
    key_fields = ("name",)
    name: str
    value: Any


class Policy(Entity, frozen=True, kw_only=True, rename={"apply_to": "apply-to"}):
    """Settings for all queues or exchanges whose name matches."""

    kind = "policies"
    key_fields = ("vhost", "name")
    vhost: str
    name: str
    pattern: str
    apply_to: str = "all"
    definition: Arguments
    priority: int | float = 0


class Parameter(Entity, frozen=True, kw_only=True):
    """A runtime parameter of one vhost; operator policies are component `operator_policy`."""

    kind = "parameters"
    key_fields = ("vhost", "component", "name")
    vhost: str
    component: str
    name: str
    value: Any


def operator_policy(parameter: Parameter) -> Policy:
    """A valid runtime parameter of the component `operator_policy` as the policy that it is."""
    value = parameter.value
    return Policy(
        vhost=parameter.vhost,
        name=parameter.name,
        pattern=value["pattern"],
        apply_to=value.get("apply-to", "all"),
        definition=value["definition"],
        priority=value["priority"],
    )


class Queue(Entity, frozen=True, kw_only=True):
    """A queue. `epoch` tells one incarnation of a name from the next; it is this node's own and never travels."""

    kind = "queues"
    key_fields = ("vhost", "name")
    name: str
    vhost: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = {}
    epoch: int = 0


class Binding(Entity, frozen=True, kw_only=True):
    """A rule from a source exchange to a queue or exchange."""

    kind = "bindings"
    source: str
    vhost: str
    destination: str
    destination_type: str = "queue"
    routing_key: str = ""
    arguments: Arguments = {}

    @property
    def key(self) -> tuple[str, ...]:
        """Two bindings are one only when their arguments are equal as well."""
        place = (self.vhost, self.source, self.destination_type, self.destination, self.routing_key)
        return (*place, self.properties_key)

    @property
    def properties_key(self) -> str:
        """RabbitMQ's name for a binding between two ends: its routing key, or a digest with arguments."""
        if not self.arguments:
            return self.routing_key or "~"
        packed = msgspec.json.encode(self.arguments, order="deterministic")
        digest = base64.urlsafe_b64encode(hashlib.md5(packed, usedforsecurity=False).digest())
        return f"{self.routing_key}~{digest.decode().rstrip('=')}"


def as_argument(value: Any) -> Any:
    """A value of a field table as arguments of definitions hold it, in JSON's types; not what is inside of it."""
    match value:
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
    return value


AnyEntity: TypeAlias = (
    User
    | Vhost
    | Permission
    | TopicPermission
    | Exchange
    | GlobalParameter
    | Policy
    | Parameter
    | Queue
    | Binding
)

KINDS: dict[str, type[AnyEntity]] = {
    cls.kind: cls
    for cls in (
        User,
        Vhost,
        Permission,
        Exchange,
        TopicPermission,
        GlobalParameter,
        Policy,
        Parameter,
        Queue,
        Binding,
    )
}


class Put(msgspec.Struct, frozen=True):
    """The entity is now so: created, or replaced whole."""

    entity: AnyEntity


class Delete(msgspec.Struct, frozen=True):
    """The entity is gone."""

    kind: str
    key: tuple[str, ...]


Change: TypeAlias = Put | Delete


class _Stored(msgspec.Struct, omit_defaults=True):
    """One change as JSON: `{"put": "queues", "value": {...}}` or `{"delete": "queues", "key": [...]}`."""

    put: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")
    delete: str = ""
    key: tuple[str, ...] = ()


def encode_change(change: Change) -> bytes:
    """One change as the definitions log and the schema sync carry it."""
    match change:
        case Put(entity):
            return msgspec.json.encode(
                _Stored(put=entity.kind, value=msgspec.Raw(msgspec.json.encode(entity)))
            )
        case Delete(kind, key):
            return msgspec.json.encode(_Stored(delete=kind, key=key))


def decode_change(data: bytes) -> Change:
    """Read what `encode_change` wrote.

    Raises:
        msgspec.DecodeError: not a change, or an unknown kind of entity.
    """
    stored = msgspec.json.decode(data, type=_Stored)
    if stored.put:
        return Put(decode_entity(stored.put, stored.value))
    if stored.delete not in KINDS:
        raise msgspec.ValidationError(f"unknown kind of entity {stored.delete!r}")
    return Delete(stored.delete, stored.key)


def decode_entity(kind: str, data: bytes | msgspec.Raw) -> AnyEntity:
    """Read one entity from its JSON.

    Raises:
        msgspec.DecodeError: unknown kind, missing or mistyped field.
    """
    if kind not in KINDS:
        raise msgspec.ValidationError(f"unknown kind of entity {kind!r}")
    return msgspec.json.decode(data, type=KINDS[kind])


class Definitions:
    """A set of entities: kind, then key, then entity. Order of insertion is kept.

    Attributes:
        by_kind: the entities; they change by `apply` only.
        version: how many changes were taken; as long as it is the same, nothing is otherwise.
    """

    __slots__ = ("_recent", "by_kind", "version")

    def __init__(self) -> None:
        """Start empty."""
        self.by_kind: dict[str, dict[tuple[str, ...], AnyEntity]] = {kind: {} for kind in KINDS}
        self.version = 0
        self._recent: deque[tuple[str, tuple[str, ...]]] = deque(maxlen=RECENT_MAX)

    def apply(self, change: Change) -> None:
        """Take one change; deleting what is not there is no error (a replayed change is harmless)."""
        self.version += 1
        match change:
            case Put(entity):
                kind, key = entity.kind, entity.key
                self.by_kind[kind][key] = entity
            case Delete(kind, key):
                self.by_kind[kind].pop(key, None)
        self._recent.append((kind, key))

    def changed_since(self, version: int) -> set[tuple[str, tuple[str, ...]]] | None:
        """Kind and key of all that was put or deleted since that version; None if that is too long ago."""
        count = self.version - version
        if count > len(self._recent):
            return None
        return set(islice(reversed(self._recent), count))

    def entities(self) -> list[AnyEntity]:
        """All entities in an order in which they can be put."""
        return [entity for kind in KINDS for entity in self.by_kind[kind].values()]
