"""The entities of a broker's schema, and a change to one of them.

The definitions log, the management API, a definitions file and the schema sync share these types: an entity is a frozen
struct whose JSON form is RabbitMQ's (`apply-to`, `auto_delete`, ...), and a `Change` puts or deletes one entity.
`KINDS` has the order of RabbitMQ's import (users, vhosts, permissions, ... bindings): puts in that order never meet a
missing reference; deletes go in the reverse order.
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
WrittenArguments: TypeAlias = Arguments | tuple[()]
"""Arguments as clients write them in JSON; some, as PHP's, write an empty list for an empty object."""
QueueKey: TypeAlias = tuple[str, str]
"""Vhost and name of a queue."""
RECENT_MAX: Final = 8192
"""The number of recent changes that `Definitions` remembers: more than a reply of a schema sync brings."""
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
"""Kinds that a downstream may keep to itself: the keys below `schema_definition_sync.downstream.locals`."""
REHEARSAL_VHOSTS: Final = "leveret.rehearsal."
"""Prefix of the names of the virtual hosts that a rehearsal creates and removes. They are local on every node."""


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all entities: a kind, and a key that is unique within the kind."""

    kind: ClassVar[str]
    key_fields: ClassVar[tuple[str, ...]]

    @property
    def key(self) -> tuple[str, ...]:
        """The identity within the kind. Except for users, vhosts and global parameters, it starts with the vhost."""
        return tuple([getattr(self, name) for name in self.key_fields])


class User(Entity, frozen=True, kw_only=True):
    """An account. `password_hash` is base64 of salt and digest, as in RabbitMQ."""

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
    """The permissions of a user in a vhost: three regular expressions."""

    kind = "permissions"
    key_fields = ("vhost", "user")
    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermission(Entity, frozen=True, kw_only=True):
    """The routing keys that a user may write and read on one topic exchange."""

    kind = "topic_permissions"
    key_fields = ("vhost", "user", "exchange")
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class Exchange(Entity, frozen=True, kw_only=True):
    """An exchange: publishers publish messages to it."""

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
    """Settings for all queues or exchanges whose name matches a pattern."""

    kind = "policies"
    key_fields = ("vhost", "name")
    vhost: str
    name: str
    pattern: str
    apply_to: str = "all"
    definition: Arguments
    priority: int | float = 0


class Parameter(Entity, frozen=True, kw_only=True):
    """A runtime parameter of one vhost. Operator policies have the component `operator_policy`."""

    kind = "parameters"
    key_fields = ("vhost", "component", "name")
    vhost: str
    component: str
    name: str
    value: Any


def operator_policy(parameter: Parameter) -> Policy:
    """Return the policy that a valid runtime parameter of the component `operator_policy` holds."""
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
    """A queue. `epoch` tells queues of one name apart; each node assigns its own, and no other node receives it."""

    kind = "queues"
    key_fields = ("vhost", "name")
    name: str
    vhost: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = {}
    epoch: int = 0

    @property
    def key(self) -> QueueKey:
        """Vhost and name."""
        return self.vhost, self.name


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
        """Two bindings are the same only if their arguments are equal as well."""
        place = (self.vhost, self.source, self.destination_type, self.destination, self.routing_key)
        return (*place, self.properties_key)

    @property
    def properties_key(self) -> str:
        """RabbitMQ's name of a binding between two ends: the routing key, or a digest if the binding has arguments."""
        if not self.arguments:
            return self.routing_key or "~"
        packed = msgspec.json.encode(self.arguments, order="deterministic")
        digest = base64.urlsafe_b64encode(hashlib.md5(packed, usedforsecurity=False).digest())
        return f"{self.routing_key}~{digest.decode().rstrip('=')}"


def as_argument(value: Any) -> Any:
    """Convert a value of a field table to the JSON type that arguments have in definitions.

    Nested values stay as they are.
    """
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
    """A change that creates an entity, or replaces it as a whole."""

    entity: AnyEntity


class Delete(msgspec.Struct, frozen=True):
    """A change that removes an entity."""

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
    """Encode one change for the definitions log and the schema sync."""
    match change:
        case Put(entity):
            return msgspec.json.encode(
                _Stored(put=entity.kind, value=msgspec.Raw(msgspec.json.encode(entity)))
            )
        case Delete(kind, key):
            return msgspec.json.encode(_Stored(delete=kind, key=key))


def decode_change(data: bytes) -> Change:
    """Decode the output of `encode_change`.

    Raises:
        msgspec.DecodeError: the octets are no change, or the kind of entity is unknown.
    """
    stored = msgspec.json.decode(data, type=_Stored)
    if stored.put:
        return Put(decode_entity(stored.put, stored.value))
    if stored.delete not in KINDS:
        raise msgspec.ValidationError(f"unknown kind of entity {stored.delete!r}")
    return Delete(stored.delete, stored.key)


def decode_entity(kind: str, data: bytes | msgspec.Raw) -> AnyEntity:
    """Decode one entity from its JSON.

    Raises:
        msgspec.DecodeError: unknown kind, missing or mistyped field.
    """
    if kind not in KINDS:
        raise msgspec.ValidationError(f"unknown kind of entity {kind!r}")
    return msgspec.json.decode(data, type=KINDS[kind])


class Definitions:
    """A set of entities: kind, then key, then entity, in the order of insertion.

    Attributes:
        by_kind: the entities; only `apply` changes them.
        version: the number of changes so far; the entities are the same as long as it is.
    """

    __slots__ = ("_recent", "by_kind", "version")

    def __init__(self) -> None:
        """Start empty."""
        self.by_kind: dict[str, dict[tuple[str, ...], AnyEntity]] = {kind: {} for kind in KINDS}
        self.version = 0
        self._recent: deque[tuple[str, tuple[str, ...]]] = deque(maxlen=RECENT_MAX)

    def apply(self, change: Change) -> None:
        """Apply one change. To delete a missing entity is no error, so a change may be replayed."""
        self.version += 1
        match change:
            case Put(entity):
                kind, key = entity.kind, entity.key
                self.by_kind[kind][key] = entity
            case Delete(kind, key):
                self.by_kind[kind].pop(key, None)
        self._recent.append((kind, key))

    def changed_since(self, version: int) -> set[tuple[str, tuple[str, ...]]] | None:
        """Return kind and key of all entities put or deleted since `version`; None if `version` is too old."""
        count = self.version - version
        if count > len(self._recent):
            return None
        return set(islice(reversed(self._recent), count))

    def entities(self) -> list[AnyEntity]:
        """Yield all entities in an order in which they can be put."""
        return [entity for kind in KINDS for entity in self.by_kind[kind].values()]
