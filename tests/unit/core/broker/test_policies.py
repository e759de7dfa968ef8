"""core.broker.policies: which ones apply, and what they say together."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.broker.policies import (
    NOTHING_APPLIES,
    EffectivePolicy,
    VhostPolicies,
    alternate_exchange,
    merge_definitions,
)
from leveret.model.definitions import Parameter, Policy


def policy(name: str = "p", pattern: str = ".*", **more: Any) -> Policy:
    given: dict[str, Any] = {"vhost": "v", "definition": {"max-length": 5}} | more
    return Policy(name=name, pattern=pattern, **given)


def operator(name: str = "o", pattern: str = ".*", **more: Any) -> Parameter:
    value = {"pattern": pattern, "definition": {"max-length": 5}, "priority": 0} | more
    return Parameter(vhost="v", component="operator_policy", name=name, value=value)


def policies(*entities: Policy | Parameter) -> VhostPolicies:
    made = VhostPolicies()
    for entity in entities:
        made.put(entity)
    return made


def chosen(*entities: Policy | Parameter, name: str = "orders", kind: str = "classic") -> str | None:
    return policies(*entities).for_queue(name, kind).policy


def test_no_policy_applies_to_a_name_that_none_matches() -> None:
    one = policies(policy(pattern="^x"), operator(pattern="^x"))
    assert one.for_queue("orders", "classic") is NOTHING_APPLIES
    assert policies().for_exchange("orders") is NOTHING_APPLIES


def test_the_highest_priority_wins_then_the_first_name() -> None:
    low, high = policy("a", priority=1), policy("b", priority=2)
    assert chosen(low, high) == chosen(high, low) == "b"
    assert chosen(policy("z"), policy("m")) == chosen(policy("m"), policy("z")) == "m"
    assert chosen(low, policy("c", pattern="^x", priority=9)) == "a"


@pytest.mark.parametrize(
    ("apply_to", "kinds", "exchanges"),
    [
        ("all", {"classic", "quorum", "stream"}, True),
        ("queues", {"classic", "quorum", "stream"}, False),
        ("classic_queues", {"classic"}, False),
        ("quorum_queues", {"quorum"}, False),
        ("streams", {"stream"}, False),
        ("exchanges", set(), True),
    ],
)
def test_a_policy_applies_to_the_kinds_it_names(apply_to: str, kinds: set[str], exchanges: bool) -> None:
    one = policies(policy(apply_to=apply_to, definition={"remote-dc-replicate": True}))
    found = {kind for kind in ("classic", "quorum", "stream") if one.for_queue("q", kind).policy}
    assert found == kinds
    assert (one.for_exchange("e").policy is not None) == exchanges


@pytest.mark.parametrize(
    ("key", "value", "kinds"),
    [
        ("delivery-limit", 5, {"quorum"}),
        ("dead-letter-strategy", "at-most-once", {"quorum"}),
        ("max-age", "7D", {"stream"}),
        ("message-ttl", 5, {"classic", "quorum"}),
        ("queue-mode", "lazy", {"classic"}),
        ("max-length-bytes", 5, {"classic", "quorum", "stream"}),
    ],
)
def test_a_policy_with_a_key_a_type_does_not_have_leaves_queues_of_the_type_to_the_next(
    key: str, value: object, kinds: set[str]
) -> None:
    first, next_one = policy("a", definition={key: value}, priority=2), policy("b", definition={"z": 1})
    found = {kind for kind in ("classic", "quorum", "stream") if chosen(first, next_one, kind=kind) == "a"}
    assert found == kinds
    assert {chosen(first, next_one, kind=kind) for kind in {"classic", "quorum", "stream"} - kinds} <= {"b"}


def test_a_policy_and_an_operator_policy_apply_together() -> None:
    one = policies(policy(definition={"max-length": 9, "expires": 7}), operator())
    assert one.for_queue("q", "classic") == EffectivePolicy("p", "o", {"expires": 7, "max-length": 5})
    one.remove(operator())
    assert one.for_queue("q", "classic") == EffectivePolicy("p", None, {"max-length": 9, "expires": 7})
    one.remove(policy())
    one.remove(policy())
    assert one.for_queue("q", "classic") is NOTHING_APPLIES


def test_a_policy_that_is_put_again_replaces_itself() -> None:
    one = policies(policy(), policy(definition={"max-length": 8}))
    assert one.for_queue("q", "classic").definition == {"max-length": 8}
    one.put(policy(pattern="^other$"))
    assert one.for_queue("q", "classic").policy is None


@pytest.mark.parametrize(
    ("key", "own", "operators", "merged"),
    [
        ("max-length", 5, 9, 5),
        ("max-length", 9, 5, 5),
        ("overflow", "drop-head", "reject-publish", "reject-publish"),
        ("queue-version", 1, 2, 2),
        ("target-group-size", 3, 5, 5),
        ("remote-dc-replicate", False, True, True),
        ("remote-dc-replicate", True, False, False),
    ],
)
def test_of_two_numbers_the_smaller_counts_else_the_operators_word(
    key: str, own: object, operators: object, merged: object
) -> None:
    assert merge_definitions({key: own}, {key: operators}) == {key: merged}
    assert merge_definitions({key: own}, {}) == {key: own}
    assert merge_definitions({}, {key: operators}) == {key: operators}


def test_an_exchanges_own_alternate_goes_before_a_policys() -> None:
    applied = EffectivePolicy("p", None, {"alternate-exchange": "theirs"})
    assert alternate_exchange({"alternate-exchange": "own"}, applied) == "own"
    assert alternate_exchange({}, applied) == "theirs"
    assert alternate_exchange({}, NOTHING_APPLIES) is None
