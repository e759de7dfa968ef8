"""Policies: the policy and the operator policy that apply to a queue or exchange, and their merged definition.

One policy and one operator policy apply at a time: of those that match by name and kind, the one with the highest
priority (of equals, the first by name). A policy with a key that a queue's type does not support does not match that
queue at all. Where both define a key, the smaller of two numbers counts, and the operator's value of anything else;
of the two mirror counts the larger counts. All of this is RabbitMQ's; validation is in `policy_validation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from leveret.core.rules.mirror_policy import MIRROR_KEYS, OPERATOR_MIRROR_KEYS, merged_mirror_value
from leveret.core.rules.validation import ALTERNATE_EXCHANGE, CLASSIC, QUORUM, STREAM
from leveret.model.definitions import Parameter, Policy, operator_policy
from leveret.model.patterns import stored

_EVERYWHERE: Final = "all"
_EXCHANGES: Final = "exchanges"
_QUEUES: Final = {
    CLASSIC: frozenset({_EVERYWHERE, "queues", "classic_queues"}),
    QUORUM: frozenset({_EVERYWHERE, "queues", "quorum_queues"}),
    STREAM: frozenset({_EVERYWHERE, "queues", "streams"}),
}
_OF_STREAMS: Final = {"max-age", "stream-max-segment-size-bytes", "initial-cluster-size"}
_OF_QUORUM: Final = {"dead-letter-strategy", "target-group-size"}
_IN_MEMORY: Final = {"max-in-memory-length", "max-in-memory-bytes"}
_NOT_FOR: Final = {
    CLASSIC: frozenset({*_OF_STREAMS, *_OF_QUORUM, *_IN_MEMORY, "queue-leader-locator", "delivery-limit"}),
    QUORUM: frozenset({*_OF_STREAMS, *MIRROR_KEYS, "queue-mode", "queue-master-locator"}),
    STREAM: frozenset(
        {
            *_OF_QUORUM,
            *_IN_MEMORY,
            *MIRROR_KEYS,
            "expires",
            "message-ttl",
            "dead-letter-exchange",
            "dead-letter-routing-key",
            "max-length",
            "overflow",
            "queue-mode",
            "delivery-limit",
            "queue-master-locator",
        }
    ),
}
"""The keys with which a policy does not apply to queues of the type."""


class EffectivePolicy(NamedTuple):
    """The policies that apply to one queue or exchange: their names, None for none, and the merged definition."""

    policy: str | None
    operator_policy: str | None
    definition: Mapping[str, Any]


NOTHING_APPLIES: Final = EffectivePolicy(None, None, {})


class _Rule:
    """One policy, prepared for matching."""

    __slots__ = ("definition", "kinds", "name", "pattern", "rank")

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.pattern = stored(policy.pattern)
        self.definition: Mapping[str, Any] = policy.definition
        self.rank = (-policy.priority, policy.name)
        self.kinds = {
            kind
            for kind, covered in _QUEUES.items()
            if policy.apply_to in covered and _NOT_FOR[kind].isdisjoint(policy.definition)
        }
        if policy.apply_to in (_EVERYWHERE, _EXCHANGES):
            self.kinds.add(_EXCHANGES)


class VhostPolicies:
    """The policies and operator policies of one vhost, by rank."""

    def __init__(self) -> None:
        """None yet."""
        self._policies: list[_Rule] = []
        self._operator_policies: list[_Rule] = []
        self._merged: dict[tuple[str | None, str | None], EffectivePolicy] = {}

    def put(self, entity: Policy | Parameter) -> None:
        """Add a valid policy, or an operator policy as its runtime parameter."""
        self.remove(entity)
        rules = self._rules(entity)
        rules.append(_Rule(entity if isinstance(entity, Policy) else operator_policy(entity)))
        rules.sort(key=lambda each: each.rank)

    def remove(self, entity: Policy | Parameter) -> None:
        """Remove a policy; an absent one is no error."""
        rules = self._rules(entity)
        rules[:] = [each for each in rules if each.name != entity.name]
        self._merged.clear()

    def for_queue(self, name: str, queue_type: str) -> EffectivePolicy:
        """The policies that apply to a queue."""
        return self._match(name, queue_type)

    def for_exchange(self, name: str) -> EffectivePolicy:
        """The policies that apply to an exchange."""
        return self._match(name, _EXCHANGES)

    def _rules(self, entity: Policy | Parameter) -> list[_Rule]:
        return self._policies if isinstance(entity, Policy) else self._operator_policies

    def _match(self, name: str, kind: str) -> EffectivePolicy:
        policy = _first_matching(self._policies, name, kind)
        operator = _first_matching(self._operator_policies, name, kind)
        if policy is None and operator is None:
            return NOTHING_APPLIES
        names = (policy.name if policy else None, operator.name if operator else None)
        found = self._merged.get(names)
        if found is None:
            merged = merge_definitions(
                policy.definition if policy else {}, operator.definition if operator else {}
            )
            found = self._merged[names] = EffectivePolicy(*names, merged)
        return found


def _first_matching(rules: Iterable[_Rule], name: str, kind: str) -> _Rule | None:
    for rule in rules:
        if kind in rule.kinds and rule.pattern.covers(name):
            return rule
    return None


def merge_definitions(policy: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """Both definitions as one, by key: the smaller number, else the operator's value; of mirror counts the larger."""
    merged = {**policy, **operator}
    for key in policy.keys() & operator.keys():
        if key in OPERATOR_MIRROR_KEYS:
            merged[key] = merged_mirror_value(key, policy[key], operator[key])
        elif key == "target-group-size":
            merged[key] = max(policy[key], operator[key])
        elif key != "queue-version" and not isinstance(operator[key], bool | str):
            merged[key] = min(policy[key], operator[key])
    return dict(sorted(merged.items()))


def alternate_exchange(arguments: Mapping[str, Any], applied: EffectivePolicy) -> str | None:
    """The alternate exchange of an exchange: its own argument goes before any policy."""
    own: str | None = arguments.get(ALTERNATE_EXCHANGE)
    return own if own is not None else applied.definition.get(ALTERNATE_EXCHANGE)
