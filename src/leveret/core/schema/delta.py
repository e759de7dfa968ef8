"""The schema delta: compares two schemas, and lists the changes of a downstream that follows its upstream.

A downstream has a copy of its upstream's entities (`session.schema_exchange`, `core.schema.digests`). `delta` compares
the copy with the downstream's own entities and returns steps (`core.schema.steps`). `runtime.schema_sync.downstream`
applies the steps through the broker, which completes each one: a deleted queue takes its bindings along, a deleted
vhost all of its entities.

Entities belong to one of three sets:

- entities that never travel (`travels`), and that `delta` never deletes: the vhost of the link itself, the
  parameters that name a node or its endpoints, `amq.*` exchanges, transient queues and their bindings;
- entities that are *local* to a downstream by its configuration (`LocalEntities`): neither overwritten nor deleted;
- all others: afterwards the same on both sides, except for the reported conflicts.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from leveret.core.broker.topology import check_exchange
from leveret.core.rules.queue_arguments import check_queue
from leveret.core.rules.validation import check_nesting
from leveret.core.schema.steps import BoundEntities, Place, SchemaStep, Steps, ends
from leveret.model.definitions import (
    KINDS,
    LOCAL_KINDS,
    OPERATOR_POLICY,
    REHEARSAL_VHOSTS,
    AnyEntity,
    Binding,
    Change,
    Definitions,
    Delete,
    Exchange,
    GlobalParameter,
    Parameter,
    Permission,
    Policy,
    Put,
    Queue,
    TopicPermission,
    User,
    Vhost,
)
from leveret.model.errors import ConfigError, Refusal
from leveret.model.patterns import Pattern, PatternError

SCHEMA_VHOST: Final = "rabbitmq_schema_definition_sync"
SCHEMA_UPSTREAM: Final = "schema_definition_sync_upstream"
STANDBY_UPSTREAM: Final = "standby_replication_upstream"
NODE_PARAMETERS: Final = frozenset({SCHEMA_UPSTREAM, STANDBY_UPSTREAM, "cluster_name", "internal_cluster_id"})
"""Global parameters that name a node, or the node's upstream: each side has its own."""
HOLDS: Final = "its properties differ from the upstream's, and it holds messages or is down"
"""The reason for which a queue is not replaced."""
_HOLDERS: Final = ("exchanges", "policies", "parameters", "queues")
_REPLACED: Final = ("exchanges", "queues")
_RULES: Final = ("policies", "parameters")
"""Kinds that determine together which settings apply to a queue."""
_NO_EXCLUSIVE: Final[Mapping[Key, Sequence[Binding]]] = MappingProxyType({})

R = TypeVar("R")
Key: TypeAlias = tuple[str, ...]
Entities: TypeAlias = Mapping[str, Mapping[Key, AnyEntity]]
"""Whole kinds. A missing kind is unchanged; an empty kind has no entities."""


class LocalEntities:
    """The entities of a downstream that the schema sync does not change: one regular expression a kind.

    An expression is searched for in the name (`^` and `$` anchor it): for a binding in the names of both ends, for a
    permission in its user. Every entity that lies in a local vhost, or refers to a local user, queue or exchange, is
    local as well: it could not be applied without the other entity.
    """

    def __init__(self, patterns: Mapping[str, str] | None = None) -> None:
        """Compile `patterns`, by the names in `LOCAL_KINDS`.

        Raises:
            ConfigError: unknown kind, or not a regular expression.
        """
        self._patterns: dict[str, Pattern] = {}
        for kind, pattern in (patterns or {}).items():
            setting = f"schema_definition_sync.downstream.locals.{kind}"
            if kind not in LOCAL_KINDS:
                raise ConfigError(f"unknown setting {setting}: allowed are {', '.join(LOCAL_KINDS)}")
            try:
                self._patterns[kind] = Pattern(pattern)
            except PatternError as error:
                raise ConfigError(f"{setting} = {pattern!r} is not a regular expression: {error}") from None

    def names(self, kind: str, name: str) -> bool:
        """Return whether the expression of `kind` matches `name`.

        Without an expression only a rehearsal's vhosts match.
        """
        if kind == "vhosts" and name.startswith(REHEARSAL_VHOSTS):
            return True
        pattern = self._patterns.get(kind)
        return pattern is not None and pattern.covers(name)

    def covers(self, entity: AnyEntity) -> bool:
        """Return whether the schema sync does not change `entity` on this downstream."""
        match entity:
            case User(name=name):
                return self.names("users", name)
            case GlobalParameter(name=name):
                return self.names("global_parameters", name)
            case Vhost(name=name):
                return self.names("vhosts", name)
        return self.names("vhosts", entity.vhost) or self._covers_within(entity)

    def _covers_within(
        self, entity: Permission | TopicPermission | Exchange | Policy | Parameter | Queue | Binding
    ) -> bool:
        match entity:
            case Permission(user=user):
                return self._covers_user(user)
            case TopicPermission(user=user, exchange=exchange):
                return self._covers_user(user) or self.names("exchanges", exchange)
            case Parameter(component=component, name=name):
                return self.names("operator_policies" if component == OPERATOR_POLICY else "parameters", name)
            case Binding(source=source, destination=destination, destination_type=end):
                return (
                    self.names("exchanges", source)
                    or self.names("queues" if end == "queue" else "exchanges", destination)
                    or self.names("bindings", source)
                    or self.names("bindings", destination)
                )
        return self.names(entity.kind, entity.name)

    def _covers_user(self, user: str) -> bool:
        return self.names("users", user) or self.names("permissions", user)


def canonical(entity: AnyEntity) -> bytes:
    """Encode an entity: equal entities give the same octets on any node.

    Arguments are in order; the epoch is left out.
    """
    return msgspec.json.encode(_without_epoch(entity), order="deterministic")


def _without_epoch(entity: AnyEntity) -> AnyEntity:
    if isinstance(entity, Queue) and entity.epoch:
        return msgspec.structs.replace(entity, epoch=0)
    return entity


class Conflict(NamedTuple):
    """An entity that stayed as it is, although the upstream has another one of its key, or none."""

    kind: str
    key: Key
    reason: str


class Delta(NamedTuple):
    """The changes that make a downstream equal to its upstream: steps in order, and the conflicts that remain.

    `refused` lists entities of the upstream that this node cannot have; its own entities of these keys stay.
    """

    steps: list[SchemaStep]
    conflicts: list[Conflict]
    refused: list[Conflict]

    @property
    def changes(self) -> list[Change]:
        """The changes of all steps, in their order."""
        return [change for step in self.steps for change in step.changes]


def delta(
    own: Definitions,
    theirs: Entities,
    locals_: LocalEntities,
    holding: Container[Key] = frozenset(),
    exclusive: Mapping[Key, Sequence[Binding]] = _NO_EXCLUSIVE,
) -> Delta:
    """Return the changes that make a downstream with the schema `own` equal to its upstream.

    Deletes come first, in the reverse order of `KINDS`; puts follow, in the order of `KINDS`. So no change meets a
    missing or a lingering reference. Policies refer to nothing but their vhost: all changes of one vhost's policies,
    deletes too, are one step among the puts. A queue or exchange cannot be altered: one with other properties is
    deleted and put in one step, with its bindings, even if the kind of the bindings is unchanged. A second application
    of the same `theirs` is empty, except for the conflicts.

    `theirs` has the kinds to compare, each as a whole. `holding` has the keys of own queues with messages: such a queue
    is never replaced. `exclusive` has the exclusive queues, which are not in `own`, each with its bindings. An object
    that is identical on both sides costs almost nothing.
    """
    return at_once(compare(own.by_kind, theirs, locals_, holding, exclusive))


def compare(
    own: Entities,
    theirs: Entities,
    locals_: LocalEntities,
    holding: Container[Key],
    exclusive: Mapping[Key, Sequence[Binding]],
) -> Generator[None, None, Delta]:
    """As `delta`, but yield to other work now and then. The caller leaves `own` and `theirs` unchanged meanwhile."""
    own_transient = yield from finding_transient(own["queues"].values())
    their_transient = yield from finding_transient(theirs.get("queues", {}).values())
    comparison = _Comparison(own, theirs, locals_, exclusive, own_transient, their_transient)
    for kind in KINDS:
        if kind in theirs:
            yield from comparison.compare(kind, holding)
    yield from comparison.keep_vhosts_of_locals()
    steps: list[SchemaStep] = []
    for step in comparison.steps():
        if step is not None:
            steps.append(step)
        yield
    return Delta(steps, comparison.conflicts, comparison.refused)


class _Comparison:
    """The working state of one `delta`."""

    def __init__(
        self,
        own: Entities,
        theirs: Entities,
        locals_: LocalEntities,
        exclusive: Mapping[Key, Sequence[Binding]],
        own_transient: set[Key],
        their_transient: set[Key],
    ) -> None:
        self.own = own
        self.exclusive = exclusive
        self.theirs = theirs
        self.locals = locals_
        self.own_transient = own_transient
        self.their_transient = their_transient
        self.deletes: dict[str, dict[Key, None]] = {kind: {} for kind in KINDS}
        self.puts: dict[str, dict[Key, AnyEntity]] = {kind: {} for kind in KINDS}
        self.conflicts: list[Conflict] = []
        self.refused: list[Conflict] = []

    def wanted(self, kind: str, key: Key) -> AnyEntity | None:
        """Return the upstream's entity of this key, if this node can have it."""
        entity = self.theirs.get(kind, {}).get(key)
        if entity is None or not travels(entity, self.their_transient) or self.locals.covers(entity):
            return None
        return entity

    def compare(self, kind: str, holding: Container[Key]) -> Iterator[None]:
        """Put the entities that differ at the upstream, and delete those that only this node has."""
        present, theirs = self.own[kind], self.theirs[kind]
        for key, entity in theirs.items():
            current = present.get(key)
            if current is not entity:
                self._compare_one(kind, key, current, holding)
            yield
        for key, current in present.items():
            if key not in theirs:
                self._compare_one(kind, key, current, holding)
            yield

    def _compare_one(self, kind: str, key: Key, current: AnyEntity | None, holding: Container[Key]) -> None:
        wanted = self.wanted(kind, key)
        if wanted is None:
            if (
                current is not None
                and travels(current, self.own_transient)
                and not self.locals.covers(current)
            ):
                self.deletes[kind][key] = None
            return
        if current is not None and canonical(current) == canonical(wanted):
            return
        if self._is_exclusive(wanted):
            return
        if (reason := _why_refused(wanted)) is not None:
            self.refused.append(Conflict(kind, key, reason))
            return
        if current is not None and kind in ("queues", "exchanges"):
            if kind == "queues" and key in holding:
                self.conflicts.append(Conflict(kind, key, HOLDS))
                return
            self.deletes[kind][key] = None
        # With another node's epoch, or an earlier epoch of its own, a queue would get another queue's log.
        self.puts[kind][key] = _without_epoch(wanted)

    def _is_exclusive(self, wanted: AnyEntity) -> bool:
        """Return whether a connection has an exclusive queue of this name, or of the binding's destination."""
        if isinstance(wanted, Queue) and wanted.key in self.exclusive:
            reason = "an exclusive queue of a connection has its name"
            self.conflicts.append(Conflict(wanted.kind, wanted.key, reason))
            return True
        return isinstance(wanted, Binding) and self._is_to_exclusive(wanted)

    def _is_to_exclusive(self, binding: Binding) -> bool:
        kind, key = ends(binding)[1]
        return kind == "queues" and key in self.exclusive

    def keep_vhosts_of_locals(self) -> Iterator[None]:
        """Keep a vhost that the upstream lacks if it holds local entities."""
        if not self.deletes["vhosts"]:
            return
        for kind in _HOLDERS:
            for entity in self.own[kind].values():
                yield
                if self.locals.covers(entity):
                    vhost = (entity.key[0],)
                    if vhost in self.deletes["vhosts"]:
                        del self.deletes["vhosts"][vhost]
                        reason = f"the upstream does not have it, but it holds local {kind}"
                        self.conflicts.append(Conflict("vhosts", vhost, reason))

    def steps(self) -> Iterator[SchemaStep | None]:
        """Return all changes in order; None for a place without a change yet."""
        replaced = [(kind, key) for kind in _REPLACED for key in self.deletes[kind] if key in self.puts[kind]]
        deleted = [
            (kind, key)
            for kind in reversed(KINDS)
            for key in self.deletes[kind]
            if key not in self.puts[kind] and (kind not in _RULES or (key[0],) in self.deletes["vhosts"])
        ]
        if deleted or replaced:
            yield from self._deletes([*deleted, *replaced])
        for kind in KINDS:
            yield from self._puts(kind)

    def _deletes(self, places: Iterable[Place]) -> Iterator[SchemaStep | None]:
        of_exclusive = {binding.key: binding for bindings in self.exclusive.values() for binding in bindings}
        bindings = {**self.own["bindings"], **of_exclusive}
        bound = BoundEntities(self.own["exchanges"])
        for binding in bindings.values():
            bound.put(binding)
            yield None
        stay = yield from self._what_stays(bound, bindings)
        steps = Steps(bound, self.puts, stay)
        for kind, key in places:
            yield steps.step(kind, key)

    def _puts(self, kind: str) -> Iterator[SchemaStep]:
        """Return the puts of a kind that replace no entity."""
        if kind in _RULES:
            yield from self._rules() if kind == _RULES[0] else []
            return
        for key, entity in self.puts[kind].items():
            if key not in self.deletes[kind]:
                yield SchemaStep(Put(entity))

    def _rules(self) -> list[SchemaStep]:
        """Return all changes of policies and parameters, except those of vhosts that are deleted as a whole.

        A state between two of these changes never existed at the upstream; a lower limit in it would cost messages.
        """
        of_vhosts: dict[str, list[Change]] = {}
        for kind in reversed(_RULES):
            for key in self.deletes[kind]:
                if (key[0],) not in self.deletes["vhosts"]:
                    of_vhosts.setdefault(key[0], []).append(Delete(kind, key))
        for kind in _RULES:
            for key, entity in self.puts[kind].items():
                of_vhosts.setdefault(key[0], []).append(Put(entity))
        return [
            SchemaStep(change, joined=number < len(changes))
            for changes in of_vhosts.values()
            for number, change in enumerate(changes, start=1)
        ]

    def _what_stays(
        self, bound: BoundEntities, bindings: Mapping[Key, AnyEntity]
    ) -> Generator[None, None, dict[Place, AnyEntity]]:
        """Return the bindings and auto-delete exchanges that a delete takes along and that must be put again."""
        gone: dict[Place, None] = {}
        for kind in ("bindings", *_REPLACED):
            for key in self.deletes[kind]:
                gone |= dict.fromkeys(bound.delete(kind, key))
                yield
        stay: dict[Place, AnyEntity] = {}
        for kind, existing in (("exchanges", self.own["exchanges"]), ("bindings", bindings)):
            for place in gone:
                if place[0] == kind and place[1] in existing:
                    bound.put(existing[place[1]])
                    if place[1] not in self.deletes[kind] and self._stays(existing[place[1]], gone, stay):
                        stay[place] = existing[place[1]]
                yield
        return stay

    def _stays(self, entity: AnyEntity, gone: Container[Place], stay: Container[Place]) -> bool:
        if (entity.key[0],) in self.deletes["vhosts"]:
            return False
        if isinstance(entity, Binding):
            for kind, key in ends(entity):
                if (kind, key) in gone and (kind, key) not in stay and key not in self.puts[kind]:
                    return False
            if self._is_to_exclusive(entity):
                return True
        if self.locals.covers(entity) or self.wanted(entity.kind, entity.key) is not None:
            return True
        if not travels(entity, self.own_transient):
            return not (isinstance(entity, Binding) and ends(entity)[1][1] in self.deletes["queues"])
        return entity.kind not in self.theirs


def _why_refused(entity: AnyEntity) -> str | None:
    """Return why this node cannot have an entity of the upstream, before a delete makes room for it."""
    try:
        check_nesting(entity)
        match entity:
            case Exchange():
                check_exchange(entity)
            case Queue():
                check_queue(entity, exclusive=False)
    except Refusal as refusal:
        return str(refusal)
    return None


def at_once(steps: Generator[None, None, R]) -> R:
    """The result of work that would yield to other work; it does not."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: R = ended.value
            return result


def transient_queues(queues: Iterable[AnyEntity]) -> set[Key]:
    """The keys of the queues that end with their node."""
    return at_once(finding_transient(queues))


def finding_transient(queues: Iterable[AnyEntity]) -> Generator[None, None, set[Key]]:
    """As `transient_queues`, but yield to other work; `queues` does not change meanwhile."""
    found: set[Key] = set()
    for queue in queues:
        if isinstance(queue, Queue) and not queue.durable:
            found.add(queue.key)
        yield
    return found


def travels(entity: AnyEntity, transient: Set[Key]) -> bool:
    """Return whether an entity is sent to the other site at all; `transient` has the transient queues of the schema."""
    match entity:
        case User():
            return True
        case GlobalParameter(name=name):
            return name not in NODE_PARAMETERS
        case Vhost(name=name):
            return name != SCHEMA_VHOST
        case _ if entity.vhost == SCHEMA_VHOST:
            return False
        case Exchange(name=name):
            return name != "" and not name.startswith("amq.")
        case Queue():
            return entity.durable
        case Binding():
            to_transient = (
                entity.destination_type == "queue" and (entity.vhost, entity.destination) in transient
            )
            return entity.source != "" and not to_transient
    return True
