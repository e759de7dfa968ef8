"""A definitions document -> the entities to put, under RabbitMQ's rules of import.

Upsert only, nothing is deleted; an exchange or queue that exists is passed over whatever its arguments;
`amq.*` exchanges are passed over. Sections come in an order in which no reference is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from leveret.core.topology import PREDECLARED
from leveret.core.validation import CLASSIC
from leveret.model.definitions import KINDS, AnyEntity, Definitions, Vhost
from leveret.model.errors import InvalidCommand
from leveret.model.tags import tags_of
from leveret.runtime.accounts import WantedUser, user_of

_CLUSTER_WIDE: Final = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")


class _Metadata(msgspec.Struct):
    description: str | None = None
    tags: str | list[str] | None = None
    default_queue_type: str | None = None


class _WantedVhost(_Metadata):
    """The forms of a vhost over the years: fields at the top, or in `metadata`."""

    name: str = ""
    metadata: _Metadata | None = None


def entities_of(
    document: dict[str, Any], vhost: str | None, *, default_queue_type: str = CLASSIC
) -> list[AnyEntity]:
    """All entities of a document, in the order to put them; for one `vhost` if given.

    Vhosts without a default queue type get `default_queue_type`.

    Raises:
        InvalidCommand: names the section, the entry and what is wrong with it.
    """
    return list(each_entity(document, vhost, default_queue_type=default_queue_type))


def each_entity(
    document: dict[str, Any], vhost: str | None, *, default_queue_type: str = CLASSIC
) -> Iterator[AnyEntity]:
    """The same, one after the other, for who has other work as well."""
    for kind in KINDS:
        if vhost is None or kind not in _CLUSTER_WIDE:
            for index, entry in enumerate(_section(document, kind)):
                yield _entity(kind, index, entry, vhost, default_queue_type)


def is_passed_over(entity: AnyEntity, held: Definitions) -> bool:
    """Whether an import leaves this entity as it is."""
    if entity.kind == "exchanges" and (entity.key[1] in PREDECLARED or entity.key[1].startswith("amq.")):
        return True
    return entity.kind in ("exchanges", "queues", "bindings") and entity.key in held.by_kind[entity.kind]


def _section(document: dict[str, Any], kind: str) -> list[Any]:
    entries = document.get(kind, [])
    if not isinstance(entries, list):
        raise InvalidCommand(f"{kind}: expected a list")
    return entries


def _entity(
    kind: str, index: int, entry: object, vhost: str | None, default_queue_type: str
) -> AnyEntity:
    if not isinstance(entry, dict):
        raise InvalidCommand(f"{kind}[{index}]: expected an object")
    if vhost is not None:
        entry = {**entry, "vhost": vhost}
    try:
        if kind == "users":
            wanted = msgspec.convert(entry, WantedUser, strict=False)
            return user_of(wanted.name, wanted)
        if kind == "vhosts":
            return _vhost(msgspec.convert(entry, _WantedVhost, strict=False), default_queue_type)
        return msgspec.convert(
            {**entry, "epoch": 0} if kind == "queues" else entry, KINDS[kind], strict=False
        )
    except (msgspec.ValidationError, InvalidCommand) as error:
        raise InvalidCommand(f"{kind}[{index}]: {error}") from None


def _vhost(wanted: _WantedVhost, default_queue_type: str) -> Vhost:
    if not wanted.name:
        raise InvalidCommand("a vhost needs a name")
    inner = wanted.metadata or _Metadata()
    tags = inner.tags if wanted.tags is None else wanted.tags
    queue_type = wanted.default_queue_type or inner.default_queue_type
    return Vhost(
        name=wanted.name,
        description=(inner.description if wanted.description is None else wanted.description) or "",
        tags=tags_of(tags or ""),
        # RabbitMQ 3.10 and 3.11 export "undefined" where none was chosen.
        default_queue_type=default_queue_type if queue_type in (None, "undefined") else str(queue_type),
    )
