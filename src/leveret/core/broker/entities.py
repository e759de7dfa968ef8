"""Entities before they become definitions: their size in a cluster, and secrets that are masked in them."""

from __future__ import annotations

from typing import Final

import msgspec

from leveret.model import definitions as d
from leveret.model.errors import InvalidCommand
from leveret.model.secrets import MASK, Masked, unmasked

SHARED_BYTES_MAX: Final = 1024 * 1024
"""The limit of an entity's JSON: etcd accepts 1.5 MiB at once by default, and base64 enlarges it."""


def with_stored_secrets(
    entity: d.Parameter | d.GlobalParameter, definitions: d.Definitions
) -> d.Parameter | d.GlobalParameter:
    """Return the parameter with its masked secrets replaced by the stored ones.

    Raises:
        InvalidCommand: a secret is masked, and no stored parameter has it.
    """
    existing = definitions.by_kind[entity.kind].get(entity.key)
    try:
        return msgspec.structs.replace(entity, value=unmasked(entity.value, getattr(existing, "value", None)))
    except Masked:
        raise InvalidCommand(
            f"its secrets were masked when it was shown or exported, as {MASK}: export it with "
            "--include-secrets (include_secrets=true over HTTP), or write the secrets in their places"
        ) from None


def check_shareable(entity: d.AnyEntity) -> None:
    """Refuse an entity too large for etcd, which would make this node, and then each other one, leave the cluster.

    Raises:
        InvalidCommand: the entity is too large.
    """
    size = len(d.encode_change(d.Put(entity)))
    if size > SHARED_BYTES_MAX:
        raise InvalidCommand(
            f"{entity.kind} {'/'.join(entity.key)}: {size} octets are more than the {SHARED_BYTES_MAX} that nodes "
            "of a cluster can share of an entity"
        )
