"""Converts a definitions document to the entities to put, under RabbitMQ's rules of import.

An import puts and never deletes. It skips an exchange or queue that exists, whatever its arguments; it skips `amq.*`
exchanges, and bindings without their ends. The order of the sections is one in which no reference is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from leveret.core.broker.topology import PREDECLARED
from leveret.core.rules.validation import CLASSIC
from leveret.model.definitions import (
    KINDS,
    OPERATOR_POLICY,
    AnyEntity,
    Binding,
    Definitions,
    GlobalParameter,
    Parameter,
    Vhost,
)
from leveret.model.errors import InvalidCommand
from leveret.model.foreign_json import decode_json, split_json
from leveret.model.secrets import masked
from leveret.model.tags import tags_of
from leveret.runtime.definitions.accounts import WantedUser, user_of

logger = logging.getLogger(__name__)

_NAMED_AT_MOST: Final = 5
"""The number of skipped bindings that one log line names."""

_CLUSTER_WIDE: Final = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")


_SECTION: Final[Any] = list[msgspec.Raw] | dict[str, msgspec.Raw] | str | int | float | bool | None
"""The value under a name of a document; what is in it is still octets."""


class _Metadata(msgspec.Struct):
    description: str | None = None
    tags: str | list[str] | None = None
    default_queue_type: str | None = None


class _WantedVhost(_Metadata):
    """Both forms of a vhost in RabbitMQ's versions: fields at the top, or in `metadata`."""

    name: str = ""
    metadata: _Metadata | None = None


def entities_of(
    document: dict[str, Any], vhost: str | None, *, default_queue_type: str = CLASSIC
) -> list[AnyEntity]:
    """Return all entities of a document, or those of one `vhost`, in the order in which they can be put.

    Vhosts without a default queue type get `default_queue_type`.

    Raises:
        InvalidCommand: names the section, the entry and the fault.
    """
    return list(each_entity(document, vhost, default_queue_type=default_queue_type))


def each_entity(
    document: dict[str, Any], vhost: str | None, *, default_queue_type: str = CLASSIC
) -> Iterator[AnyEntity]:
    """As `entities_of`, but yield one entity after the other, for callers with other work."""
    for kind in KINDS:
        if vhost is None or kind not in _CLUSTER_WIDE:
            for index, entry in enumerate(_section(document, kind)):
                yield _entity(kind, index, entry, vhost, default_queue_type)


def document_of(octets: bytes) -> dict[str, Any]:
    """Parse a document for `each_entity`. The entries of its lists stay octets: there may be very many.

    Raises:
        msgspec.DecodeError: the text is no JSON, or no object.
    """
    document = split_json(octets, dict[str, msgspec.Raw])
    return {name: split_json(value, _SECTION) for name, value in document.items()}


def place_of(entity: AnyEntity) -> str:
    """Return the name of a document's entry for errors: `policies 'shop limits'`."""
    return f"{entity.kind} '{' '.join(part for part in entity.key if part)}'"


def is_passed_over(entity: AnyEntity, existing: Definitions) -> bool:
    """Return whether an import skips this entity."""
    if entity.kind == "exchanges" and (entity.key[1] in PREDECLARED or entity.key[1].startswith("amq.")):
        return True
    return entity.kind in ("exchanges", "queues", "bindings") and entity.key in existing.by_kind[entity.kind]


def is_same(entity: AnyEntity, existing: AnyEntity | None) -> bool:
    """Return whether the same entity exists already; its secrets may be masked."""
    if entity == existing:
        return True
    if not isinstance(entity, GlobalParameter | Parameter) or not isinstance(existing, type(entity)):
        return False
    return bool(masked(existing.value) == entity.value)


def without_loose_bindings(entities: Sequence[AnyEntity], existing: Definitions) -> Iterator[AnyEntity]:
    """Yield the entities without bindings that lack an end; log the skipped ones at the end.

    `rabbitmqctl export_definitions` writes the bindings of exclusive queues and of internal exchanges, and
    leaves out the queues and exchanges themselves.
    """
    coming = {(one.kind, one.key) for one in entities if one.kind in ("queues", "exchanges")}

    def is_there(kind: str, vhost: str, name: str) -> bool:
        if kind == "exchanges" and name in PREDECLARED:
            return True
        return (kind, (vhost, name)) in coming or (vhost, name) in existing.by_kind.get(kind, {})

    loose: list[AnyEntity] = []
    for one in entities:
        if not isinstance(one, Binding) or (
            is_there("exchanges", one.vhost, one.source)
            and is_there(f"{one.destination_type}s", one.vhost, one.destination)
        ):
            yield one
        else:
            loose.append(one)
    if loose:
        names = "; ".join(" ".join(one.key) for one in loose[:_NAMED_AT_MOST])
        logger.warning(
            "definitions_skipped kind=bindings count=%d reason=no_queue_or_exchange first=%s",
            len(loose),
            names,
        )


def _section(document: dict[str, Any], kind: str) -> list[Any]:
    entries = document.get(kind, [])
    if not isinstance(entries, list):
        raise InvalidCommand(f"{kind}: expected a list")
    return entries


def _entity(kind: str, index: int, entry: object, vhost: str | None, default_queue_type: str) -> AnyEntity:
    if isinstance(entry, msgspec.Raw):
        try:
            entry = decode_json(entry, Any)
        except msgspec.DecodeError as error:
            raise InvalidCommand(f"{kind}[{index}]: {error}") from None
    if not isinstance(entry, dict):
        raise InvalidCommand(f"{kind}[{index}]: expected an object")
    if vhost is not None:
        entry = {**entry, "vhost": vhost}
    if kind == "parameters" and entry.get("component") == OPERATOR_POLICY:
        entry = {**entry, "value": _operator_policy(entry.get("value"))}
    if entry.get("arguments") == []:
        # See WrittenArguments.
        entry = {**entry, "arguments": {}}
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


def _operator_policy(value: object) -> object:
    """Return the value of an operator policy. RabbitMQ 3.10's `rabbitmqctl` writes its settings as a list of pairs."""
    if not isinstance(value, dict):
        return value
    settings = value.get("definition")
    is_pairs = isinstance(settings, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in settings
    )
    return {**value, "definition": dict(settings)} if settings and is_pairs else value


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
        # RabbitMQ 3.10 and 3.11 export "undefined" if no type was chosen.
        default_queue_type=default_queue_type if queue_type in (None, "undefined") else str(queue_type),
    )
