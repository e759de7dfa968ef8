"""The order of the changes of a schema sync, and the changes that belong to one step.

A publisher that publishes while a delta is applied must find every entity that exists both before and after it. So the
replacement of a deleted entity is put in the same *step* as the delete, and so is every lasting entity that the delete
takes along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from leveret.model.definitions import AnyEntity, Binding, Change, Delete, Exchange, Put

Key: TypeAlias = tuple[str, ...]
Place: TypeAlias = tuple[str, Key]
"""Kind and key of an entity."""


class SchemaStep(NamedTuple):
    """Changes that are applied together.

    Attributes:
        change: the main change.
        instead: the replacement of the entity that `change` deletes.
        restored: entities that the delete takes along and that stay.
        joined: whether the next step is applied together with this one: no client may see the state between.
    """

    change: Change
    instead: Put | None = None
    restored: tuple[Put, ...] = ()
    joined: bool = False

    @property
    def changes(self) -> list[Change]:
        """Return all changes of the step in order."""
        return [self.change, *([self.instead] if self.instead else []), *self.restored]


class BoundEntities:
    """The bindings between entities; with them the entities that a delete takes along are found.

    A binding goes with either of its ends. An auto-delete exchange goes with the last binding from it.
    """

    def __init__(self, exchanges: Mapping[Key, AnyEntity]) -> None:
        """Start with these exchanges and no binding."""
        self._exchanges = dict(exchanges)
        self._bindings: dict[Key, AnyEntity] = {}
        self._at: dict[Place, dict[Key, None]] = {}
        self._from: dict[Key, int] = {}

    def put(self, entity: AnyEntity) -> None:
        """Add an entity."""
        if isinstance(entity, Exchange):
            self._exchanges[entity.key] = entity
        elif isinstance(entity, Binding) and entity.key not in self._bindings:
            self._bind(entity.key, entity)

    def _bind(self, key: Key, binding: AnyEntity) -> None:
        self._bindings[key] = binding
        source, destination = ends(binding)
        self._from[source[1]] = self._from.get(source[1], 0) + 1
        for end in (source, destination):
            self._at.setdefault(end, {})[key] = None

    def delete(self, kind: str, key: Key) -> list[Place]:
        """Remove an entity; return all entities that go with it, itself included."""
        gone: dict[Place, None] = {}
        following = [(kind, key)]
        while following:
            place = following.pop()
            if place in gone:
                continue
            gone[place] = None
            if place[0] == "bindings":
                following += self._unbind(place[1])
                continue
            if place[0] == "exchanges":
                self._exchanges.pop(place[1], None)
            following += [("bindings", each) for each in self._at.get(place, ())]
        return list(gone)

    def _unbind(self, key: Key) -> list[Place]:
        """Remove a binding; return its source as well, if the source goes with it."""
        binding = self._bindings.pop(key, None)
        if binding is None:
            return []
        source, destination = ends(binding)
        for end in {source, destination}:
            del self._at[end][key]
        self._from[source[1]] -= 1
        exchange = self._exchanges.get(source[1])
        goes = not self._from[source[1]] and isinstance(exchange, Exchange) and exchange.auto_delete
        return [source] if goes else []


class Steps:
    """The steps of one delta's deletes, one after the other."""

    def __init__(
        self,
        bound: BoundEntities,
        puts: Mapping[str, Mapping[Key, AnyEntity]],
        stay: Mapping[Place, AnyEntity],
    ) -> None:
        """Take the entities before the deletes, their replacements, and those that stay in spite of a delete."""
        self._bound = bound
        self._puts = puts
        self._stay = stay

    def step(self, kind: str, key: Key) -> SchemaStep:
        """Delete one entity, and put all entities that have to follow."""
        wanted = self._puts[kind].get(key)
        gone = [place for place in self._bound.delete(kind, key) if place != (kind, key)]
        # An auto-delete exchange may go before its own replacement comes.
        restored = [
            entity
            for of_kind in ("exchanges", "bindings")
            for place in gone
            if place[0] == of_kind and (entity := self._puts[of_kind].get(place[1]) or self._stay.get(place))
        ]
        for entity in [*([wanted] if wanted is not None else []), *restored]:
            self._bound.put(entity)
        instead = Put(wanted) if wanted is not None else None
        return SchemaStep(Delete(kind, key), instead, tuple(map(Put, restored)))


def ends(binding: AnyEntity) -> tuple[Place, Place]:
    """Return source and destination of a binding."""
    assert isinstance(binding, Binding)
    destinations = "queues" if binding.destination_type == "queue" else "exchanges"
    return ("exchanges", (binding.vhost, binding.source)), (
        destinations,
        (binding.vhost, binding.destination),
    )
