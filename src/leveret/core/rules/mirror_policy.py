"""Settings of a queue's mirrors: the `ha-*` keys of a classic queue, a quorum queue's group, a stream's members.

`ha-*` keys are checked, merged and read as RabbitMQ 3.13 does.

`ha-confirm` is Leveret's own: a confirm waits either for all synchronised mirrors, or for so many that they and the
leader are a majority. `mirroring` chooses the nodes of the mirrors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from leveret.core.rules.erlang_terms import term

MODE: Final = "ha-mode"
PARAMS: Final = "ha-params"
SYNC_MODE: Final = "ha-sync-mode"
SYNC_BATCH_SIZE: Final = "ha-sync-batch-size"
PROMOTE_ON_SHUTDOWN: Final = "ha-promote-on-shutdown"
PROMOTE_ON_FAILURE: Final = "ha-promote-on-failure"
CONFIRM: Final = "ha-confirm"

ALL: Final = "all"
EXACTLY: Final = "exactly"
NODES: Final = "nodes"
MANUAL: Final = "manual"
AUTOMATIC: Final = "automatic"
ALWAYS: Final = "always"
WHEN_SYNCED: Final = "when-synced"
MAJORITY: Final = "majority"

TARGET_GROUP_SIZE: Final = "target-group-size"
INITIAL_GROUP_SIZE: Final = "x-quorum-initial-group-size"

SYNC_BATCH_MESSAGES: Final = 4096
"""What a synchronisation sends at once where neither policy nor configuration says it."""

_CHOICES: Final = {
    PROMOTE_ON_SHUTDOWN: (ALWAYS, WHEN_SYNCED),
    PROMOTE_ON_FAILURE: (ALWAYS, WHEN_SYNCED),
    CONFIRM: (ALL, MAJORITY),
}
MIRROR_KEYS: Final = frozenset({MODE, PARAMS, SYNC_MODE, SYNC_BATCH_SIZE, *_CHOICES})
OPERATOR_MIRROR_KEYS: Final = frozenset({MODE, PARAMS, SYNC_MODE})
"""Those that an operator policy may have."""


class MirrorPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the policies of a queue say of its mirrors.

    Attributes:
        mode: "all", "exactly" or "nodes"; "" for a queue that is not mirrored.
        params: of "exactly" how many nodes have the queue, its leader among them; of "nodes" which; else 0.
        sync_mode: "manual" or "automatic": whether a new mirror is sent what was there before it.
        sync_batch_size: messages that a synchronisation sends at once.
        promote_on_shutdown: "when-synced" or "always": whether a leader that is stopped may be followed by a mirror
            that is not synchronised.
        promote_on_failure: "always" or "when-synced": the same of a leader that fails.
        confirm: "all" or "majority": how many of the synchronised mirrors a confirm waits for.
        has_members: whether `params` are the members of a stream, which its placement records.
    """

    mode: str = ""
    params: int | tuple[str, ...] = 0
    sync_mode: str = MANUAL
    sync_batch_size: int = SYNC_BATCH_MESSAGES
    promote_on_shutdown: str = WHEN_SYNCED
    promote_on_failure: str = ALWAYS
    confirm: str = ALL
    has_members: bool = False

    @property
    def is_mirrored(self) -> bool:
        """Whether there is to be a mirror at all, were there nodes for it."""
        return self.mode != ""

    @property
    def is_automatic(self) -> bool:
        """Whether new mirrors are synchronised without being asked to."""
        return self.sync_mode == AUTOMATIC


NOT_MIRRORED: Final = MirrorPolicy()
EXCLUSIVE: Final = "exclusive"
"""A queue of one connection, which ends with that."""
TRANSIENT: Final = "transient"
"""A queue that is not durable, and ends with its node."""
NOT_MIRRORED_REASON: Final = "not_mirrored"
"""RabbitMQ's word where a queue that no policy mirrors is to be synchronised."""


def mirror_policy(
    applied: Mapping[str, Any], *, is_exclusive: bool = False, batch_messages: int = SYNC_BATCH_MESSAGES
) -> MirrorPolicy:
    """What the definition that applies to a queue, of policy and operator policy together, says of mirrors.

    Args:
        applied: the definition, as `EffectivePolicy.definition` has it.
        is_exclusive: whether the queue is one connection's own; it ends with that, so it is never mirrored.
        batch_messages: what the node is configured to send at once (`mirroring_sync_batch_size`).
    """
    mode = applied.get(MODE)
    params = _params(mode, applied.get(PARAMS))
    if params is None or is_exclusive:
        return NOT_MIRRORED
    size = applied.get(SYNC_BATCH_SIZE, 0)
    return MirrorPolicy(
        mode=str(mode),
        params=params,
        sync_mode=applied.get(SYNC_MODE, MANUAL),
        sync_batch_size=size if size > 1 else batch_messages,
        promote_on_shutdown=applied.get(PROMOTE_ON_SHUTDOWN, WHEN_SYNCED),
        promote_on_failure=applied.get(PROMOTE_ON_FAILURE, ALWAYS),
        confirm=applied.get(CONFIRM, ALL),
    )


def why_not_mirrored(applied: Mapping[str, Any], *, durable: bool, is_exclusive: bool) -> str:
    """Why a classic queue has no mirrors although a policy asks for some; empty if none does, or it may have them."""
    asked = mirror_policy(applied)
    count = len(asked.params) if isinstance(asked.params, tuple) else asked.params
    if not asked.is_mirrored or count == 1:
        return ""
    return EXCLUSIVE if is_exclusive else "" if durable else TRANSIENT


def group_policy(
    arguments: Mapping[str, Any],
    applied: Mapping[str, Any],
    *,
    group_size: int,
    batch_messages: int = SYNC_BATCH_MESSAGES,
) -> MirrorPolicy:
    """How a quorum queue is mirrored: to so many nodes, a majority for each confirm, and led by nobody who lacks any.

    Its group is kept at its size: for a member that is gone another node comes in.

    Args:
        arguments: of its declaration.
        applied: the definition of the policies that apply to it; `target-group-size` goes before the argument.
        group_size: on how many nodes it is where nobody says it (`quorum_queue.initial_cluster_size`).
        batch_messages: as for `mirror_policy`.
    """
    given = (applied.get(TARGET_GROUP_SIZE), arguments.get(INITIAL_GROUP_SIZE))
    size = next((each for each in given if isinstance(each, int) and each > 0), group_size)
    return MirrorPolicy(
        mode=EXACTLY,
        params=size,
        sync_mode=AUTOMATIC,
        sync_batch_size=batch_messages,
        promote_on_shutdown=WHEN_SYNCED,
        promote_on_failure=WHEN_SYNCED,
        confirm=MAJORITY,
    )


def stream_policy(members: Sequence[str], *, batch_messages: int = SYNC_BATCH_MESSAGES) -> MirrorPolicy:
    """How a stream is mirrored: at its members, a majority for each confirm, and led by nobody who lacks any.

    A member that does not run keeps its place, as in RabbitMQ: streams are too long to be copied anew for a restart.
    """
    return MirrorPolicy(
        mode=NODES,
        params=tuple(members),
        sync_mode=AUTOMATIC,
        sync_batch_size=batch_messages,
        promote_on_shutdown=WHEN_SYNCED,
        promote_on_failure=WHEN_SYNCED,
        confirm=MAJORITY,
        has_members=True,
    )


def _params(mode: object, params: object) -> int | tuple[str, ...] | None:
    """The parameters in the mode's own form, 0 if it has none; None if it is no mode, or they are not for it.

    Of two policies one may have the mode "all" and the other parameters: they count for nothing.
    """
    match mode, params:
        case "all", _:
            return 0
        case "exactly", int():
            return params
        case "nodes", list() | tuple():
            return tuple(dict.fromkeys(params))
    return None


def merged_mirror_value(key: str, policy: Any, operator: Any) -> Any:
    """What a policy and an operator policy that both have `key`, one of `OPERATOR_MIRROR_KEYS`, say together.

    That is the one with more mirrors; and the operator says how they are synchronised.
    """
    if key == MODE:
        return next((mode for mode in (ALL, EXACTLY, NODES) if mode in (policy, operator)), operator)
    if key == SYNC_MODE:
        return operator
    counts = [each for each in (policy, operator) if isinstance(each, int)]
    return max(counts) if counts else max(operator, policy, key=len)


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
    """The first of them in RabbitMQ's order."""
    fault = _choice_fault(definition, SYNC_MODE, (MANUAL, AUTOMATIC))
    if fault is not None:
        return fault
    size = definition.get(SYNC_BATCH_SIZE, 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        return f"{SYNC_BATCH_SIZE} takes an integer greater than 0, {term(size)} given"
    faults = (_choice_fault(definition, key, choice) for key, choice in _CHOICES.items())
    return next((each for each in faults if each is not None), None)


def _choice_fault(definition: Mapping[str, Any], key: str, choice: tuple[str, str]) -> str | None:
    one, other = choice
    if definition.get(key, one) in choice:
        return None
    return f'{key} must be "{one}" or "{other}", got {term(definition[key])}'
