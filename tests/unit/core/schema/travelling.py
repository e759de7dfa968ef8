"""What of a schema a sync compares and an upstream tells, found the plain way: entity by entity."""

from __future__ import annotations

from leveret.core.schema.delta import transient_queues, travels
from leveret.model.definitions import AnyEntity, Definitions


def exported(definitions: Definitions, kind: str) -> list[AnyEntity]:
    transient = transient_queues(definitions.by_kind["queues"].values())
    return [entity for entity in definitions.by_kind[kind].values() if travels(entity, transient)]
