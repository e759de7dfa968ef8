"""Policy keys of mirrored classic queues (`ha-*`): taken and checked as RabbitMQ 3.13 does.

A node is a cluster of its own, so there is no other node a queue could be mirrored to: such a policy
applies and copies nothing, as on a RabbitMQ node that is alone. Definitions files that have it load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leveret.core.erlang_terms import term

MODE: Final = "ha-mode"
PARAMS: Final = "ha-params"
SYNC_MODE: Final = "ha-sync-mode"
SYNC_BATCH_SIZE: Final = "ha-sync-batch-size"

_CHOICES: Final = {
    SYNC_MODE: ("manual", "automatic"),
    "ha-promote-on-shutdown": ("always", "when-synced"),
    "ha-promote-on-failure": ("always", "when-synced"),
}
MIRROR_KEYS: Final = frozenset({MODE, PARAMS, SYNC_BATCH_SIZE, *_CHOICES})


def mirroring_fault(definition: Mapping[str, Any]) -> str | None:
    """What is wrong with the `ha-*` keys of a policy, in RabbitMQ's words; None if nothing is."""
    if MIRROR_KEYS.isdisjoint(definition):
        return None
    if MODE not in definition:
        return "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
    return _mode_fault(definition[MODE], definition.get(PARAMS)) or _options_fault(definition)


def _mode_fault(mode: object, params: object) -> str | None:
    shown = "none" if params is None else term(params)
    match mode:
        case "all":
            return None if params is None else 'ha-mode="all" does not take parameters'
        case "exactly":
            is_number = isinstance(params, int) and not isinstance(params, bool) and params > 0
            return None if is_number else f'ha-mode="exactly" takes an integer, {shown} given'
        case "nodes":
            return _nodes_fault(params, shown)
    return f"{term(mode)} is not a valid ha-mode value"


def _nodes_fault(params: object, shown: str) -> str | None:
    if not isinstance(params, list):
        return f'ha-mode="nodes" takes a list, {shown} given'
    if not params:
        return 'ha-mode="nodes" list must be non-empty'
    others = [each for each in params if not isinstance(each, str)]
    return f'ha-mode="nodes" takes a list of strings, {term(others)} was not a string' if others else None


def _options_fault(definition: Mapping[str, Any]) -> str | None:
    size = definition.get(SYNC_BATCH_SIZE, 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        return f"{SYNC_BATCH_SIZE} takes an integer greater than 0, {term(size)} given"
    for key, (one, other) in _CHOICES.items():
        if definition.get(key, one) not in (one, other):
            return f'{key} must be "{one}" or "{other}", got {term(definition[key])}'
    return None
